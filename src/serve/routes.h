/* routes: what the service answers, as one table. A route is a command of this program and how its options
 * are asked for; /openapi.json is made from the same table, so neither can say more than the other.
 *
 * No logic about processes lives here: what a command prints for a program (--json) is the answer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* CHOICE: option has VALUE:WORD;VALUE:WORD;.., the word that each value becomes, which may be empty. PART: no
 * option, but what part of the answer is wanted. */
enum pb_param_kind { PB_PARAM_FLAG, PB_PARAM_NUMBER, PB_PARAM_TEXT, PB_PARAM_CHOICE, PB_PARAM_PART };

/* An argument of the query string, and the option that it becomes. */
struct pb_param {
    const char *name, *option;
    enum pb_param_kind kind;
    double least, most; /* of numbers */
    const char *help;
    bool needed;
};

/* A form of the answer, chosen by ?format=; the first of a route is what it gives unasked. */
struct pb_form {
    const char *name, *type;
    const char *option; /* what the command is told: --format=NAME; NULL: nothing */
    const char *file;   /* it is the file that the command writes; NULL: what it prints */
};

enum pb_route_flags {
    PB_ROUTE_CHANGES = 1,  /* changes a process: not there in a service that only reads */
    PB_ROUTE_STDIN = 2,    /* the body is the command's standard input */
    PB_ROUTE_ARGUMENT = 4, /* the body is its last argument */
    PB_ROUTE_SQL = 32,     /* with STDIN: the body is JSON that has the SQL in it (original.h) */
    PB_ROUTE_MCP = 64,     /* a message of the Model Context Protocol (mcp.h); words is NULL */
    PB_ROUTE_EVENTS = 16,  /* a stream of events (events.h); words is NULL */
    PB_ROUTE_PARTIAL =
        128,            /* exit status 1 with an answer: some of several processes failed, and it says so */
    PB_ROUTE_TARGET = 8 /* takes ?target= and ?all=, or else the service's own target where it has one */
};

struct pb_route {
    const char *method, *path; /* {id} and {name} stand for one segment each */
    const char *summary;
    const char *const *words;      /* the command; {id} and {name} are filled in; ends with NULL */
    const struct pb_param *params; /* ends with a NULL name; NULL: none */
    const struct pb_form *forms;   /* ends with a NULL name */
    unsigned flags;
    unsigned limit_s; /* the argument "seconds" is added */
    /* Makes the answer from what the command printed, where that is not the answer itself. */
    void (*convert)(const char *printed, size_t length, const char *chosen, FILE *out);
    const char *chosen; /* the argument that tells it which part; NULL: none does */
};

/* Lists with their ends, for tables. */
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

extern const struct pb_route pb_routes[]; /* ends with a NULL method */

#define PB_ROUTE_VARIABLE 128

/* The route of a path, with what stands in place of {id} and {name}. NULL: none; *ret_allowed then has the
 * methods of that path, "" where there is no such path. */
const struct pb_route *pb_route_find(const char *method, const char *path, bool read_only,
                                     char ret_variable[PB_ROUTE_VARIABLE], char ret_allowed[64]);

/* A process or a run: a pid, or PID@START. */
bool pb_route_is_id(const char *text);
/* The name of a setting, which cannot be taken for an option. */
bool pb_route_is_name(const char *text);

/* The description of all of it, OpenAPI 3.1. */
void pb_openapi_write(FILE *out, bool read_only);

/* /metrics: the text format of Prometheus, from the rows of `list`. */
void pb_metrics_write(const char *printed, size_t length, const char *chosen, FILE *out);
