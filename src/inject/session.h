/* session: a connection to the agent of a process, which is injected first if there is none.
 *
 * Finds the run directory, or, where the target could write nowhere, the door socket that its status struct
 * names. */
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
    const char *agent_dir;  /* as for pb_inject */
    const char *python_dir; /* of a development tree; NULL: the Python part that the agent carries */
    const char *max_memory; /* for an agent that is started now; NULL: its default */
    bool no_inject;         /* -ENOENT where there is no agent */
    unsigned timeout_ms;    /* for injection and for the agent to come up; 0: 10 s */
    void (*say)(const char *sentence, void *arg); /* as for pb_inject: it takes longer than that; NULL */
    void *say_arg;
};

struct pb_session {
    struct pb_client client;
    bool injected;       /* it was this call that brought the agent in */
    uint64_t stopped_ns; /* how long threads of the target were held for that */
    char run_dir[256];   /* in the target's view; "" where it could write nowhere */
};

int pb_session_open(pid_t pid, const struct pb_session_options *options, struct pb_session *ret,
                    struct pb_err *err);
void pb_session_done(struct pb_session *session);

/* The result of a reply: 0 for DONE, the agent's own error for ERROR. r: the result of the pb_client_next
 * that gave `last`; if negative, no answer came, and last is not used. The agent's error number is not
 * trusted: an invalid one becomes EIO. */
int pb_reply_end(pid_t pid, int r, const struct pb_frame *last, struct pb_err *err);

/* Whether an agent runs in the process, found from its memory: also where its run directory cannot be
 * seen. */
struct pb_procinfo;
bool pb_session_probed(const struct pb_procinfo *process);

/* Opens the tables of a live process for reading: its memory, or the copy in its run directory
 * (remote/tables.h). `note` (256 bytes) receives a remark for a person, or "". -ENOENT: it is not probed. */
int pb_session_open_arena(pid_t pid, char *note, struct pb_err *err);
