/* ask: the context of a question to processes, the same for every caller: a command, the service, another
 * node.
 *
 * The functions of src/ask/ answer with data. They print nothing, keep no globals and change nothing of the
 * calling process: not its environment, signals, priority or limits. So several threads of one process may
 * ask at once. Work that may block on a target (its /proc files, ptrace, its agent) is done in a child
 * process (task.h), with a deadline for each target, and can be cancelled. Remarks for a person beside the
 * answer (a part was left out, or is slightly old) go to the caller's note. */
#pragma once

#include <stdbool.h>

struct pb_ask {
    const char *archive;      /* the folder of archives; NULL: from PROBING_ARCHIVE, or the default */
    const char *archive_node; /* of a folder for many: only runs of this node; "": without one; NULL: all */
    /* Only the archive is asked, and no process or run of this machine: it is that of an incident's file. */
    bool only_archive;
    void (*note)(void *arg, const char *text); /* gets one sentence, without a newline; may be NULL */
    void *note_arg;
    unsigned limit_ms; /* for each target; 0: the function's own default, some seconds */
    /* A descriptor that becomes readable, or is closed by its peer, to cancel the question (-ECANCELED).
     * NULL: it cannot be cancelled. */
    const int *cancel;
    bool in_child; /* set by task.c only: the caller runs in a child of task.c */
};

__attribute__((format(printf, 2, 3))) void pb_ask_note(const struct pb_ask *ask, const char *format, ...);
