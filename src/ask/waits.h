/* waits: what each thread of a process waits for, as data; sentences are made from it (verdict.c).
 *
 * Found from stacks that were taken (stacks.h): the system call a thread sleeps in with its arguments, the
 * locks on its Python frames, the memory at a futex, /proc. What cannot be known is left open, never guessed:
 * holder 0 means that the holder is not known. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_stacks;
struct pb_shown_thread;

enum pb_wait_kind {
    PB_WAIT_NONE, /* it runs, or was not read */
    PB_WAIT_GIL,
    PB_WAIT_PYTHON_LOCK, /* a threading.Lock or RLock */
    PB_WAIT_MUTEX,       /* a pthread mutex; its owner word names the holder */
    PB_WAIT_FUTEX,       /* a condition, a semaphore, whatever else is built on one */
    PB_WAIT_PIPE,
    PB_WAIT_SOCKET,
    PB_WAIT_FILE,      /* a terminal, a device, a file */
    PB_WAIT_POLL,      /* poll, select, epoll: any of several */
    PB_WAIT_FILE_LOCK, /* flock, fcntl */
    PB_WAIT_CHILD,
    PB_WAIT_SLEEP,
    PB_WAIT_LOADER_WORKER, /* a worker process of a data loader */
    PB_WAIT_COLLECTIVE,
    PB_WAIT_STOPPED, /* by job control or a tracer */
    PB_WAIT_CALL,    /* another system call */
    PB_WAIT_KINDS
};

#define PB_WAIT_TEXT   200
#define PB_WAIT_ABSENT 64
#define PB_WAIT_GROUP  64

struct pb_wait {
    pid_t tid;
    enum pb_wait_kind kind;
    uint64_t object;              /* address of a lock or futex, inode of a pipe, socket or file; 0: none */
    int fd;                       /* -1: none */
    pid_t holder_pid, holder_tid; /* of what it waits for, or at the other end; 0: not known */
    int holder_frame;             /* the frame of the holder that has the lock; -1: not known */
    bool recursive;               /* of a Python lock: an RLock */
    bool writes;                  /* of a descriptor: it waits to write, not to read */
    double seconds;               /* for how long it has slept; negative: not known */
    /* Of a collective: its process group as PyTorch calls it, "": not known; and the ranks in it, ascending,
     * which pb_waits_done frees; NULL: not known. */
    char group[PB_WAIT_GROUP];
    int *group_ranks;
    size_t ngroup_ranks;
    /* Where several ranks were asked: which of them are of its group, where that is known, and not in it, as
     * "1, 4-7"; "": all are, or that is not known. */
    char absent[PB_WAIT_ABSENT];
    char text[PB_WAIT_TEXT]; /* what it is called: a peer, a collective, a call; "": nothing */
};

/* One for each thread of the stacks, in their order. */
struct pb_waits {
    struct pb_wait *at;
    size_t n;
};

/* Fills in `absent` of the main threads of several processes, in their verdicts too. A process whose stacks
 * could not be read, or that has no rank, counts neither way. */
struct pb_stacks_answer;
void pb_waits_compare_ranks(struct pb_stacks_answer *answers, size_t n);

enum pb_waits_depth {
    PB_WAITS_NONE, /* not wanted */
    PB_WAITS_MAIN, /* peers and times of the main thread only: what costs little */
    PB_WAITS_ALL,  /* of every thread: looks through the descriptors of all processes */
};

/* -ENOMEM. The stacks must have been taken; the process may be looked at again. */
int pb_waits_find(struct pb_stacks *s, enum pb_waits_depth depth, struct pb_waits *ret);
void pb_waits_done(struct pb_waits *w);

/* Ranks, ascending, as "1, 4-7"; ".." at the end: there are more than went in. */
void pb_wait_put_ranks(const int *ranks, size_t n, char *ret, size_t size);

/* "python lock", "socket", ..: stable, for programs. */
const char *pb_wait_name(enum pb_wait_kind kind);

/* Threads that wait for each other, each for the next and the last for the first: their indices. Returns how
 * many, 0 for none. All of them were looked at again and sleep still. */
int pb_waits_circle(struct pb_stacks *s, const struct pb_waits *w, size_t *ret, int max);

/* For how long a thread has slept, in seconds; negative: not known. For a moment the calling thread runs on
 * the CPU that the thread ran on last. */
double pb_wait_seconds(const struct pb_stacks *s, const struct pb_shown_thread *t);

/* wait_locks.c: fills in what is known of Python locks. */
void pb_wait_python_locks(struct pb_stacks *s, struct pb_waits *w);
/* wait_peer.c: fills in text, object and holder by what the descriptor is. */
void pb_wait_peer(pid_t pid, struct pb_wait *w);
