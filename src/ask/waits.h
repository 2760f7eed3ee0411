/* waits: what each thread of a process waits for, as data; verdict.c makes sentences from it.
 *
 * Found from stacks (stacks.h): the system call that a thread sleeps in with its arguments, the locks on its
 * Python frames, the memory at a futex, /proc. Unknown things are left open, never guessed: holder 0 means
 * that the holder is unknown. */
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
    PB_WAIT_FUTEX,       /* a condition, a semaphore, or another object built on a futex */
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
    pid_t holder_pid, holder_tid; /* holder of the object, or process at the other end; 0: unknown */
    int holder_frame;             /* the frame of the holder that took the lock; -1: unknown */
    bool recursive;               /* the Python lock is an RLock */
    bool writes;                  /* it waits to write to the descriptor, not to read */
    unsigned remote_port;         /* of a TCP connection; 0: not TCP, or not known */
    double seconds;               /* how long it has slept; negative: unknown */
    /* For a collective: its process group as PyTorch names it, "": unknown; and the ranks in it, ascending,
     * freed by pb_waits_done; NULL: unknown. */
    char group[PB_WAIT_GROUP];
    int *group_ranks;
    size_t ngroup_ranks;
    /* Where several ranks were asked: those of its group (or all, where that is unknown) that are not in the
     * collective, as "1, 4-7"; "": none, or unknown. */
    char absent[PB_WAIT_ABSENT];
    char text[PB_WAIT_TEXT]; /* name of the peer, collective or call; "": none */
};

/* One per thread of the stacks, in their order. */
struct pb_waits {
    struct pb_wait *at;
    size_t n;
};

/* Fills in `absent` for the main threads of several processes, in their verdicts too. A process without rank,
 * or whose stacks could not be read, is not counted. */
struct pb_stacks_answer;
void pb_waits_compare_ranks(struct pb_stacks_answer *answers, size_t n);

enum pb_waits_depth {
    PB_WAITS_NONE, /* not wanted */
    PB_WAITS_MAIN, /* peers and times of the main thread only: cheap */
    PB_WAITS_ALL,  /* of every thread: reads the descriptors of all processes */
};

/* -ENOMEM. The stacks must have been taken; the process may be read again. */
int pb_waits_find(struct pb_stacks *s, enum pb_waits_depth depth, struct pb_waits *ret);
void pb_waits_done(struct pb_waits *w);

/* Ranks, ascending, as "1, 4-7"; ".." at the end: not all fitted. */
void pb_wait_put_ranks(const int *ranks, size_t n, char *ret, size_t size);

/* "python lock", "socket", ..: stable, for programs. */
const char *pb_wait_name(enum pb_wait_kind kind);

/* Indices of threads that wait in a circle, each for the next and the last for the first. Returns how many, 0
 * for none. All were checked again and still sleep. */
int pb_waits_circle(struct pb_stacks *s, const struct pb_waits *w, size_t *ret, int max);

/* How long a thread has slept, in seconds; negative: unknown. Moves the calling thread briefly to the CPU
 * that the thread ran on last. */
double pb_wait_seconds(const struct pb_stacks *s, const struct pb_shown_thread *t);

/* How often the kernel has given a CPU to the thread: it has not run while this stays the same. False: the
 * kernel does not tell. */
bool pb_wait_slices(pid_t pid, pid_t tid, unsigned long *ret);

/* wait_locks.c: fills in Python locks. */
void pb_wait_python_locks(struct pb_stacks *s, struct pb_waits *w);
/* wait_peer.c: fills in text, object and holder by the descriptor. */
void pb_wait_peer(pid_t pid, struct pb_wait *w);
