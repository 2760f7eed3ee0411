/* status: the state of an agent, for a tool that reads the target's memory.
 *
 * The agent's entry point returns the address of this struct in the target. It needs no file system: a tool
 * polls it after injection, and connects by it where no path was writable. Written by the agent only; state
 * is stored last (release). Exact layout: two builds share it. */
#pragma once

#include <stdint.h>

#define PB_STATUS_MAGIC 0x7375746174736250ull /* "Pbstatus" */

enum pb_agent_state {
    PB_AGENT_IDLE = 0, /* loaded, or detached: nothing runs */
    PB_AGENT_STARTING = 1,
    PB_AGENT_READY = 2,
    PB_AGENT_FAILED = 3, /* error and text say why; nothing runs */
};

/* door_fd and arena_fd are numbers in the descriptor table of the agent's thread (tid), which need not be
 * the process's: fetched with a pidfd of that thread (Linux 6.9), or opened through /proc. */
struct pb_agent_status {
    uint64_t magic;
    uint32_t version; /* PB_CONTROL_VERSION: what follows may differ in another */
    uint32_t state;   /* enum pb_agent_state */
    int32_t error;    /* errno of a failure */
    int32_t pid;      /* as the target sees itself */
    int32_t tid;      /* of the resident thread, as the target sees it */
    int32_t door_fd;  /* send a connected socket through it (SCM_RIGHTS); -1: none */
    int32_t arena_fd; /* the file of the tables; -1: none */
    int32_t reserved;
    char secret[40];   /* hexadecimal */
    char release[24];  /* PROBING_VERSION */
    char text[256];    /* what failed */
    char run_dir[256]; /* in the target's view; "" where no path was writable */
    char abstract[48]; /* name of a socket to connect to, without the leading NUL; "": there is none */
};

_Static_assert(sizeof(struct pb_agent_status) == 664, "shared with other builds");
