/* session: a conversation with the agent of a process, brought in first where there is none.
 *
 * Finds the run directory, or, where the target could write nowhere, the door that its status struct names.
 */
#pragma once

#include "control/client.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;

enum {
    PB_SESSION_TIMEOUT_MS = 10000,
    PB_SESSION_HELLO_MS = 5000 /* beside it: for an agent that is there to answer */
};

struct pb_session_options {
    const char *agent_dir;                        /* as for pb_inject */
    const char *python_dir;                       /* of a development tree; NULL: what the agent carries */
    const char *max_memory;                       /* for an agent that is started now; NULL: its default */
    bool no_inject;                               /* -ENOENT where there is no agent */
    unsigned timeout_ms;                          /* for injection and for the agent to come up; 0: 10 s */
    void (*say)(const char *sentence, void *arg); /* as for pb_inject: it takes longer than that; NULL */
    void *say_arg;
};

struct pb_session {
    struct pb_client client;
    bool injected;       /* it was this call that brought the agent in */
    uint64_t stopped_ns; /* how long the target was held for it */
    char run_dir[256];   /* in the target's view; "" where it could write nowhere */
};

int pb_session_open(pid_t pid, const struct pb_session_options *options, struct pb_session *ret,
                    struct pb_err *err);
void pb_session_done(struct pb_session *session);

/* What the end of a reply says: 0 for DONE, the agent's own error for ERROR. r: of the pb_client_next that
 * gave `last`; where it is negative, no answer came, and last is not looked at. The agent's error number is
 * its word: what is none becomes EIO. */
int pb_reply_end(pid_t pid, int r, const struct pb_frame *last, struct pb_err *err);

/* Whether an agent runs in it, asked of the process itself: also where its run directory cannot be seen. */
struct pb_procinfo;
bool pb_session_probed(const struct pb_procinfo *process);

/* The tables of a live process, to read: its memory, or the copy in its run directory (remote/tables.h).
 * `note` (256 bytes) receives what a person should know of them, or "". -ENOENT: it is not probed. */
int pb_session_open_arena(pid_t pid, char *note, struct pb_err *err);
