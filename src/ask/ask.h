/* ask: the context of a question to processes, the same for every caller: a command, the service, another
 * node.
 *
 * The functions of src/ask/ answer with data. They print nothing, keep no globals and change nothing of the
 * calling process: not its environment, not its signals, not its priority, not its limits. So several threads
 * of one process may ask at once. Whatever could wait for a target (its /proc files, ptrace, its agent) is
 * done in a child process (apart.h), with a deadline for each target, and can be cancelled. What a person
 * should know beside the answer (something was left out, or is a fraction of a second old) goes to the
 * caller's note. */
#pragma once

#include <stdbool.h>

struct pb_ask {
    const char *archive; /* the folder of archives; NULL: the one that PROBING_ARCHIVE or the default names */
    void (*note)(void *arg, const char *text); /* one sentence, without a newline; NULL: not wanted */
    void *note_arg;
    unsigned limit_ms; /* for each target; 0: what the call thinks right, some seconds */
    /* A descriptor that becomes readable, or is hung up, when the answer is wanted no more: -ECANCELED.
     * NULL: the question cannot be cancelled. */
    const int *cancel;
    bool apart; /* set by apart.c only: the caller is a child of it already */
};

__attribute__((format(printf, 2, 3))) void pb_ask_note(const struct pb_ask *ask, const char *format, ...);
