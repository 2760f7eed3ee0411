/* question: requests to the agent's Python part as lines of NAME=VALUE, answered by lines for a person
 * (trace, break, watch). */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct pb_call;
struct pb_err;

#define PB_QUESTION_SIZE 4096

/* Zeroed by the caller. */
struct pb_question {
    char text[PB_QUESTION_SIZE];
    size_t used; /* PB_QUESTION_SIZE: a line did not fit */
};

/* Appends "NAME=VALUE". PB_USAGE where the value has a line break. */
int pb_question_add(struct pb_question *question, const char *name, const char *value, struct pb_err *err);

/* Appends an option of the call that is a time, in ms: as given or as usual; nothing where there is none. */
int pb_question_add_duration(struct pb_question *question, const struct pb_call *call, const char *option,
                             const char *name, struct pb_err *err);

/* Appends an option as it was given. */
int pb_question_add_given(struct pb_question *question, const struct pb_call *call, const char *option,
                          struct pb_err *err);

/* The first lines of trace and watch: "do" (--stop: stop; with arguments: start; otherwise list), and each
 * argument of the call under that name. */
int pb_question_add_request(struct pb_question *question, const struct pb_call *call, const char *name,
                            struct pb_err *err);

/* Prints the list (do=rows) for programs: rows of all targets of the call, in its format. The first column is
 * the target; the kinds of the others are letters, t for text and n for a number. PB_USAGE where the call
 * asks for something else (--stop, an argument). */
struct pb_question_columns {
    const char *const *names;
    const char *kinds; /* one per name, the target excepted */
    bool injects;      /* a process without an agent gets one, instead of having nothing to list */
};
int pb_question_print_rows(const struct pb_call *call, const char *kind,
                           const struct pb_question_columns *columns, struct pb_err *err);

/* The same for another request that is answered by such rows. */
int pb_question_print_answer(const struct pb_call *call, const char *kind, const char *request,
                             const struct pb_question_columns *columns, struct pb_err *err);

/* Asks a channel of that kind, and prints the answer. */
int pb_question_ask(const struct pb_call *call, const char *kind, const struct pb_question *question,
                    FILE *to, struct pb_err *err);
