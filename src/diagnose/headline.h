/* headline: what diagnosis says of single processes, a sentence each: for commands that show processes and do
 * not judge themselves. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* How long a wait that is no proof by itself must have lasted; rules say the same. */
#define PB_DIAG_PATIENCE_S 5

struct pb_ask;
struct pb_err;
struct pb_targets;

struct pb_headline {
    pid_t pid;
    bool cause; /* the fault is its own; false: it waits for the one whose fault it is */
    char kind[32];
    char text[400];
};

struct pb_headlines {
    struct pb_headline *at;
    size_t n;
    char (*jobs)[400]; /* the verdict of each job that has one, the gravest first */
    size_t njobs;
};

/* Looks twice, a second apart, at the jobs of the targets (n 0: all), and never again: a wait that is no
 * proof by itself has no headline before its time. recorded: what ranks recorded counts too. */
int pb_headlines_ask(const struct pb_ask *ask, const struct pb_targets *targets, bool recorded,
                     struct pb_headlines *ret, struct pb_err *err);
void pb_headlines_done(struct pb_headlines *h);

/* NULL: it has no headline. */
const struct pb_headline *pb_headline_of(const struct pb_headlines *h, pid_t pid);
