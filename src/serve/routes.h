/* routes: what the service answers, as one table. A row has a method and a path, the command that answers and
 * how its options are asked for, what it may change, the topic that follows it (topics.c) and the tools of an
 * assistant that run it (mcp.c). /openapi.json, tools/list and the dispatcher (http.c) read the same rows.
 *
 * No logic about processes lives here: what a command prints for a program (--json) is the answer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum pb_param_kind { PB_PARAM_FLAG, PB_PARAM_NUMBER, PB_PARAM_TEXT };

enum { PB_TEXT_MOST = 12288 /* characters: a command line is one */ };

/* An argument of the query string, and the option that it becomes. */
struct pb_param {
    const char *name, *option;
    enum pb_param_kind kind;
    double least, most; /* of numbers */
    const char *help;
    bool needed;
};

/* A form of the answer, chosen by ?format=; the first of a route is the default. */
struct pb_form {
    const char *name, *type;
    const char *option; /* the option for it: --format=NAME; NULL: none */
    const char *file;   /* the file that the command writes; NULL: its output */
};

enum pb_route_flags {
    PB_ROUTE_CHANGES = 1,    /* changes a process: not there in a service that only reads */
    PB_ROUTE_STDIN = 2,      /* the body is the command's standard input */
    PB_ROUTE_ARGUMENT = 4,   /* the body is its last argument */
    PB_ROUTE_TARGET = 8,     /* takes ?target=, or else the service's own target where it has one */
    PB_ROUTE_EVENTS = 16,    /* a stream of events (events.h) */
    PB_ROUTE_OPEN = 32,      /* needs no token, and takes any argument */
    PB_ROUTE_MCP = 64,       /* a message of the Model Context Protocol (mcp.h) */
    PB_ROUTE_PARTIAL = 128,  /* exit status 1 with output: some of several processes failed */
    PB_ROUTE_ALL = 256,      /* with TARGET: takes ?all= */
    PB_ROUTE_ONE = 512,      /* with TARGET: there must be one */
    PB_ROUTE_CORES = 1024,   /* about the folder of core files */
    PB_ROUTE_OWN = 2048,     /* only for the service's own user */
    PB_ROUTE_COMMAND = 4096, /* the connection becomes one of `probing -t HOST:PORT` (command.c) */
    PB_ROUTE_CLUSTER = 8192, /* a question of a cluster; the service itself answers for the clock */
    PB_ROUTE_FINDS = 16384,  /* a failed command is a 404 */
    PB_ROUTE_HIDDEN = 32768, /* not in the index and /openapi.json */
};

/* Makes the answer from what the command printed. form: the name of the form that was chosen; more: writes
 * what the service itself knows, NULL where another user asks. */
typedef void pb_convert(const char *printed, size_t length, const char *form, void (*more)(FILE *to),
                        FILE *out);

/* A topic of /api/v1/events: the route's answer, repeated. */
struct pb_topic_spec {
    const char *name;  /* NULL: the route is no topic */
    const char *more;  /* an option that makes the command repeat its answer; NULL: none */
    const char *form;  /* NULL: the route's first */
    unsigned every_ms; /* pause before the command runs again */
    unsigned calm_ms;  /* the pause after an answer without a finding; 0: the same */
    bool target;       /* NAME:ID is the answer with -t ID, NAME the one without */
};

/* A tool of an assistant: the route's command with the route's arguments, one for {id} (target), and one for
 * the body. */
struct pb_tool {
    const char *name, *about;
    const char *form;             /* NULL: the text for a person */
    const char *const *more;      /* options that are always given, and so are no arguments; NULL: none */
    const char *body, *body_help; /* the argument that is the body; NULL: none */
};

struct pb_offer;

struct pb_route {
    const char *method, *path; /* {id} and {file} stand for one segment each */
    const char *summary;
    const char *const *words; /* the command; what stands in braces is filled in; ends with NULL */
    void (*write)(FILE *out, const struct pb_offer *o); /* or the answer itself */
    const struct pb_param *params;                      /* ends with a NULL name; NULL: none */
    const struct pb_form *forms;                        /* ends with a NULL name */
    unsigned flags;
    unsigned limit_s;    /* the argument "seconds" is added */
    pb_convert *convert; /* where what the command printed is not the answer itself */
    struct pb_topic_spec topic;
    const struct pb_tool *tools; /* ends with a NULL name; NULL: none */
};

/* Terminated lists for tables. */
#define PB_WORDS(...)                                                                                        \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        __VA_ARGS__, NULL                                                                                    \
    }
#define PB_PARAMS(...)                                                                                       \
    (const struct pb_param[])                                                                                \
    {                                                                                                        \
        __VA_ARGS__,                                                                                         \
        {                                                                                                    \
            0                                                                                                \
        }                                                                                                    \
    }

/* Arguments that several routes take. */
#define PB_PARAM_NATIVE                                                                                      \
    {                                                                                                        \
        "native", "--native", PB_PARAM_FLAG, 0, 0, "frames of C and C++ too", false                          \
    }
#define PB_PARAMS_SAMPLING                                                                                   \
    {"seconds", "--duration", PB_PARAM_NUMBER, 0.1, 300, "how long to sample (default 10)", false},          \
        PB_PARAM_NATIVE, {"rate", "--rate", PB_PARAM_NUMBER, 1, 1000, "samples a second", false},            \
        {"cpu", "--cpu", PB_PARAM_FLAG, 0, 0, "only threads that run", false},                               \
        {"gil", "--gil", PB_PARAM_FLAG, 0, 0, "only the thread that holds the GIL", false},                  \
    {                                                                                                        \
        "idle", "--idle", PB_PARAM_FLAG, 0, 0, "also threads that never run", false                          \
    }
#define PB_PARAMS_PROFILE                                                                                    \
    PB_PARAMS_SAMPLING, {"threads", "--threads", PB_PARAM_FLAG, 0, 0, "a level for each thread", false},     \
    {                                                                                                        \
        "lines", "--lines", PB_PARAM_FLAG, 0, 0, "a function at two lines is two frames", false              \
    }
#define PB_TOOLS(...)                                                                                        \
    (const struct pb_tool[])                                                                                 \
    {                                                                                                        \
        __VA_ARGS__,                                                                                         \
        {                                                                                                    \
            0                                                                                                \
        }                                                                                                    \
    }
#define PB_ROUTE_FLAMEGRAPH(at, what, form)                                                                  \
    {                                                                                                        \
        .method = "GET", .path = at, .summary = what, .words = PB_WORDS("flamegraph", "--sampled"),          \
        .params = PB_PARAMS(PB_PARAMS_PROFILE), .forms = form,                                               \
        .flags = PB_ROUTE_TARGET | PB_ROUTE_ALL | PB_ROUTE_ONE, .limit_s = 60                                \
    }

/* Iterates over all routes: NULL gives the first; after the last comes NULL. */
const struct pb_route *pb_route_next(const struct pb_route *r);

/* What is available to a request. */
struct pb_offer {
    const char *target; /* default target of requests; NULL: none */
    const char *cores;  /* a folder of core files; NULL: none */
    bool read_only;     /* nothing that changes a process */
    bool others;        /* the request is of another user than the service's */
    bool page;          /* the page was built */
};
/* Finds a form by its name; NULL: the first. Returns NULL if there is none. */
const struct pb_form *pb_route_form(const struct pb_route *r, const char *name);
bool pb_route_is_offered(const struct pb_offer *o, const struct pb_route *r);

#define PB_ROUTE_VARIABLE 128

/* Finds the route of a path, and the text in place of {id} or {file}. NULL: none; then *ret_allowed has the
 * methods that the path allows, "" for an unknown path. */
const struct pb_route *pb_route_find(const char *method, const char *path, const struct pb_offer *o,
                                     char ret_variable[PB_ROUTE_VARIABLE], char ret_allowed[64]);

/* A process or a run: a pid, or PID@START. */
bool pb_route_is_id(const char *text);
/* The name of a file of one folder. */
bool pb_route_is_file(const char *text);

/* --- describe.c --- */
/* This description, OpenAPI 3.1. */
void pb_openapi_write(FILE *out, const struct pb_offer *o);

/* --- fixed.c: answers without a command --- */
void pb_fixed_index(FILE *out, const struct pb_offer *o);
void pb_fixed_health(FILE *out, const struct pb_offer *o);
void pb_fixed_ready(FILE *out, const struct pb_offer *o);
/* What the page shows of the service itself. */
void pb_fixed_service(FILE *out, const struct pb_offer *o);
/* The core files in the folder of serve --cores. */
void pb_fixed_cores(FILE *out, const struct pb_offer *o);

/* /metrics: the text format of Prometheus, or OpenMetrics, from the rows of `list`. */
void pb_metrics_write(const char *printed, size_t length, const char *form, void (*more)(FILE *to),
                      FILE *out);
