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
         .summary = "Sets one where the body says, FILE:LINE [if CONDITION]; says where nc gets the prompt", \
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
         .summary = "Stops its main thread between two bytecodes; says where nc gets a prompt in its frame", \
         .words = PB_WORDS("-t", "{id}", "pause"),                                                           \
         .params =                                                                                           \
             PB_PARAMS(TIMEOUT, {"limit", "--limit", PB_PARAM_NUMBER, 1, 86400,                              \
                                 "it goes on after so many seconds without input; 600 unless told", false}), \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES,                                                                          \
         .limit_s = 60},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/continue",                                                            \
         .summary = "Lets it go on",                                                                         \
         .words = PB_WORDS("-t", "{id}", "pause", "--continue"),                                             \
         .params = PB_PARAMS(TIMEOUT),                                                                       \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES,                                                                          \
         .limit_s = 60},                                                                                     \
        {.method = "POST",                                                                                   \
         .path = "/api/v1/targets/{id}/debug",                                                               \
         .summary = "Serves the Debug Adapter Protocol in it, and says at which address",                    \
         .words = PB_WORDS("-t", "{id}", "debug"),                                                           \
         .params = PB_PARAMS(TIMEOUT),                                                                       \
         .forms = pb_forms_text,                                                                             \
         .flags = PB_ROUTE_CHANGES,                                                                          \
         .limit_s = 60},                                                                                     \
    {                                                                                                        \
        .method = "POST", .path = "/api/v1/targets/{id}/debug/stop",                                         \
        .summary = "Ends that, and lets all threads go on",                                                  \
        .words = PB_WORDS("-t", "{id}", "debug", "--stop"), .params = PB_PARAMS(TIMEOUT),                    \
        .forms = pb_forms_text, .flags = PB_ROUTE_CHANGES, .limit_s = 60                                     \
    }
