/* routes_debug: inspection, breakpoints, pause and debugger: rows of the table in routes.c. The
 * expression, the place or the number is the body. An expression is code, so an inspection is a change. */
#pragma once

#define PB_ROUTES_DEBUG                                                                                      \
    {.method = "POST",                                                                                       \
     .path = "/api/v1/targets/{id}/inspect",                                                                 \
     .summary = "What the expression of the body is there: type, shape, numbers, fields",                    \
     .words = PB_WORDS("-t", "{id}", "inspect"),                                                             \
     .params = PB_PARAMS(TIMEOUT,                                                                            \
                         {"referrers", "--referrers", PB_PARAM_FLAG, 0, 0, "what refers to it too", false}), \
     .forms = pb_forms_json,                                                                                 \
     .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT,                                                          \
     .limit_s = 60},                                                                                         \
        {.method = "GET",                                                                                    \
         .path = "/api/v1/targets/{id}/breakpoints",                                                         \
         .summary = "Its breakpoints and log points, with how often each was hit",                           \
         .words = PB_WORDS("-t", "{id}", "break"),                                                           \
         .params = PB_PARAMS(TIMEOUT),                                                                       \
         .forms = pb_forms_rows,                                                                             \
         .limit_s = 30},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/breakpoints",                                                         \
         .summary = "Sets a breakpoint at FILE:LINE [if CONDITION], given in the body; returns the address " \
                    "of its prompt for nc",                                                                  \
         .words = PB_WORDS("-t", "{id}", "break"),                                                           \
         .params = PB_PARAMS(                                                                                \
             TIMEOUT,                                                                                        \
             {"log", "--log", PB_PARAM_TEXT, 0, 0, "do not stop: record this text at each hit", false},      \
             {"on_change", "--on-change", PB_PARAM_TEXT, 0, 0,                                               \
              "where VAR@FUNCTION changes, not at a place; the body is if CONDITION", false}),               \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT,                                                      \
         .limit_s = 60},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/breakpoints/stop",                                                    \
         .summary = "Takes away the one that the body names: its number, or FILE:LINE",                      \
         .words = PB_WORDS("-t", "{id}", "break", "--stop"),                                                 \
         .params = PB_PARAMS(TIMEOUT),                                                                       \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES | PB_ROUTE_ARGUMENT,                                                      \
         .limit_s = 60},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/pause",                                                               \
         .summary = "Stops its main thread between two bytecodes; returns the address of a prompt in its "   \
                    "frame, for nc",                                                                         \
         .words = PB_WORDS("-t", "{id}", "pause"),                                                           \
         .params = PB_PARAMS(TIMEOUT, {"limit", "--limit", PB_PARAM_NUMBER, 1, 86400,                        \
                                       "resume after so many seconds without input (default 600)", false}),  \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES,                                                                          \
         .limit_s = 60},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/continue",                                                            \
         .summary = "Resumes the thread",                                                                    \
         .words = PB_WORDS("-t", "{id}", "pause", "--continue"),                                             \
         .params = PB_PARAMS(TIMEOUT),                                                                       \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES,                                                                          \
         .limit_s = 60},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/debug",                                                               \
         .summary = "Serves the Debug Adapter Protocol in it and returns the address",                       \
         .words = PB_WORDS("-t", "{id}", "debug"),                                                           \
         .params = PB_PARAMS(TIMEOUT),                                                                       \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES,                                                                          \
         .limit_s = 60},                                                                                     \
    {                                                                                                        \
        .method = "POST", .path = "/api/v1/targets/{id}/debug/stop",                                         \
        .summary = "Stops the debugger and resumes all threads",                                             \
        .words = PB_WORDS("-t", "{id}", "debug", "--stop"), .params = PB_PARAMS(TIMEOUT),                    \
        .forms = pb_forms_text, .flags = PB_ROUTE_CHANGES, .limit_s = 60                                     \
    }
