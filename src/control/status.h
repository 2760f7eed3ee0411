/* status: how an agent says where it stands to a tool that reads the target's memory.
 *
 * The agent's entry point returns the address of this struct in the target. It is the one channel that needs
 * no file system: a tool polls it after injection, and finds the way in by it where no path was writable.
 * Written by the agent only; state is stored last (release). Exact layout: two builds share it. */
#pragma once

#include <stdint.h>

#define PB_STATUS_MAGIC 0x7375746174736250ull /* "Pbstatus" */

enum pb_agent_state {
    PB_AGENT_IDLE = 0, /* loaded, or detached: nothing runs */
    PB_AGENT_STARTING = 1,
    PB_AGENT_READY = 2,
    PB_AGENT_FAILED = 3, /* error and text say why; nothing runs */
};

struct pb_agent_status {
    uint64_t magic;
    uint32_t version; /* PB_CONTROL_VERSION */
    uint32_t state;   /* enum pb_agent_state */
    int32_t error;    /* errno of a failure */
    int32_t pid;      /* as the target sees itself */
    int32_t door_fd; /* where no path is writable: send a connected socket through it (SCM_RIGHTS); else -1 */
    int32_t arena_fd;  /* the same for the tables; else -1 */
    char secret[40];   /* hexadecimal */
    char release[24];  /* PROBING_VERSION */
    char text[256];    /* what failed */
    char run_dir[256]; /* in the target's view; "" where no path was writable */
};

_Static_assert(sizeof(struct pb_agent_status) == 608, "shared with other builds");
