/* inject: brings the agent into a running process and calls its entry point there.
 *
 * pb_inject checks first (doctor.h), then borrows one thread of the target for a fraction of a millisecond:
 * that thread starts a thread of ours, which loads the library and calls pb_agent_start(options), and is
 * given back exactly as it was (stub.h has the whole order). No code is patched, the other threads run on,
 * and our code in the target ends and cleans up by itself, so the death of the tool at any step leaves the
 * target intact. Uses remote/ and base/. Call it from one thread at a time: ptrace and SIGCHLD belong to the
 * caller. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;

struct pb_inject_request {
    pid_t pid;             /* as the caller's pid namespace numbers it */
    const char *agent_dir; /* holds libprobing-glibc.so and libprobing-musl.so; the target's libc decides */
    const char *options;   /* handed to pb_agent_start, which copies what it keeps; <= 4095 bytes; NULL: "" */
    unsigned timeout_ms;   /* until the library starts to load; 0: 10 s. A started load is waited for, but not
                            * a lock that the program holds meanwhile */
    void (*say)(const char *sentence, void *arg); /* called when that wait gets long; NULL: never */
    void *say_arg;
};

struct pb_inject_result {
    uint64_t status_address; /* what pb_agent_start returned: the agent's status struct, in the target */
    uint64_t stopped_ns;     /* how long threads of the target were held, summed over every hold */
    uint64_t longest_ns;     /* the longest single hold */
    unsigned unsafe_looks;   /* how often a thread was inside the allocator or loader and was released */
    unsigned unsafe_rounds;  /* how often every thread was at once */
    unsigned stops;          /* how often the thread that was used stopped and waited for us */
    bool direct;             /* the borrowed thread loaded it: the only thread, or the process is stopped */
    bool reused;             /* the library was in the process already: called again, not loaded */
    bool by_remote_debug;    /* through Python's remote debugging (PEP 768): ptrace was refused */
    bool process_stopped;    /* the process is in a job-control stop: the agent's thread runs after SIGCONT */
};

/* Blocks until the entry point has returned. On failure the target is as it was (its memory, registers,
 * descriptors and files) and err says in one line what is wrong and what would lift it.
 * -ESRCH: no such process, or it ended meanwhile; -EPERM, -EACCES: not allowed; -EBUSY: traced by another;
 * -ETIMEDOUT: no thread came to a safe point; -EAGAIN: it is stopped at a bad moment, or began one program
 * after another until the time was over; -ENOEXEC: the library does not load there; -EINTR: SIGINT or SIGTERM
 * came while the library was loading (it goes on loading, and its thread restores itself); -ECANCELED:
 * pb_agent_start said no. SIGCHLD, SIGINT and SIGTERM are blocked meanwhile. */
int pb_inject(const struct pb_inject_request *req, struct pb_inject_result *ret, struct pb_err *err);
