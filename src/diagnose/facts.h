/* facts: what two looks at a job have shown, as data: its processes, their threads, and where each chain of
 * waits ends.
 *
 * Nothing here judges. graph.c follows the waits; rules (rules/) say what an end means. */
#pragma once

#include "ask/collectives.h"
#include "ask/waits.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pb_stacks_answer;
struct pb_shown_thread;

#define PB_NOBODY ((size_t)-1)

struct pb_diag_place {
    char file[256], function[96];
    int line;
    char source[128]; /* the line as it is written; "": it cannot be read */
};

struct pb_diag_thread {
    size_t process; /* index */
    pid_t tid;
    char name[48];
    char state; /* the kernel's letter */
    bool main, python, gil;
    bool moved;    /* it ran between the looks, or stands at another place */
    bool same;     /* it stands at the same place, whether it ran or not */
    double still;  /* for how many seconds it has slept; negative: unknown */
    double cpu;    /* of the time between the looks, the share in which it ran */
    char held[16]; /* what of ours holds it at a prompt; "" */
    struct pb_wait wait;
    struct pb_diag_place own;    /* innermost frame of the program's own code */
    struct pb_diag_place top;    /* innermost frame */
    struct pb_diag_place inside; /* the frame of a library that tells what it waits for; line 0: none */
    char call[48];               /* the system call that it sleeps in; "" */
    char signature[256];         /* of a collective: sizes, types and roots of its arguments */
    int peer;                    /* of a send or receive: the other rank; -1: none, or unknown */
    bool leaving;                /* it is on its way out of the program */
    bool finalizing;             /* the interpreter ends: no script is below what it runs */
    bool in_event_loop;          /* its own code is called by an event loop, which stands still meanwhile */
    bool serves;                 /* it waits for clients */
    bool cut_off;                /* its event loop waits, and nothing is left that could wake it */
    struct pb_diag_place task;   /* then: a task that it leaves waiting */
    pid_t suspect; /* the thread that likely holds the lock that it waits for; 0: none, or not looked for */
    const struct pb_shown_thread *shown; /* NULL: it was looked at on another node */
};

struct pb_diag_process {
    pid_t pid, ppid;
    int rank;          /* that of its rank also for a child of it; -1: none */
    size_t parent;     /* index of the process of the job that started it; PB_NOBODY: none */
    char command[256]; /* secrets masked */
    char state;        /* of its main thread; 'Z': it has ended and nobody has asked how; 'X': it is gone */
    pid_t tracer;
    int result; /* of the look; negative errno: there are no threads, and why says why */
    char why[160];
    size_t first, n; /* its threads, the main thread first */
    int signal;      /* that ended it; 0: none, or unknown */
    int status;      /* its exit status; -1: unknown */
    double age;      /* seconds since it was started */
    bool young;      /* started less than some seconds ago */
    bool newborn;    /* its interpreter may still start */
    char node[64];   /* where it runs, of a job that was looked at on several nodes; "" */
};

/* A step of a chain: thread `from` waits for thread `to`, or for a whole process that has none. */
struct pb_diag_edge {
    size_t from, to; /* to PB_NOBODY: only the process is known */
    size_t process;
    bool guessed; /* the holder was inferred, not read */
};

enum pb_diag_end_kind {
    PB_END_RUNS,     /* it runs */
    PB_END_BLOCKED,  /* it sleeps in a call for something that no process of the job has */
    PB_END_STOPPED,  /* by a signal or a tracer */
    PB_END_HELD,     /* by a prompt of ours */
    PB_END_DEAD,     /* the process has ended */
    PB_END_CIRCLE,   /* each waits for the next */
    PB_END_GIL,      /* it keeps the GIL */
    PB_END_DIFFERS,  /* its collective differs from that of the ranks waiting for it */
    PB_END_TOGETHER, /* all ranks of the group are in the collective */
    PB_END_SILENT,   /* the process could not be read */
    PB_END_KINDS
};

struct pb_diag_end {
    enum pb_diag_end_kind kind;
    size_t process, thread; /* thread PB_NOBODY: the whole process */
    size_t waiter;          /* the last thread of the chain before it, of its process or another; PB_NOBODY */
    bool guessed;           /* a link of the chain was inferred */
    bool moved;             /* a waiting thread, or one of the circle, moved between the looks */
    size_t *blocked;        /* threads of ranks whose chain ends here, itself not included */
    size_t nblocked;
    size_t circle[16]; /* threads of a circle */
    size_t ncircle;
};

/* A rank that has ended, or whose interpreter ends: what it printed last, and its run, if it has left one. */
struct pb_diag_ended {
    int rank;
    pid_t pid; /* 0: unknown */
    bool living;
    bool unread; /* then: no interpreter was found in it, which alone proves no end */
    bool has_run;
    uint64_t start_time; /* of a run: for its tables */
    unsigned program;
    int signal, status;                 /* from the kernel: 0 and -1 where it does not tell */
    double ago;                         /* seconds since it last wrote rows; negative: unknown */
    double wrote;                       /* when its own file of errors was written, as time(2); 0: unknown */
    char error[256];                    /* the exception that it printed last; "": none */
    struct pb_diag_place place;         /* where that was raised, in its own code */
    bool lost_peer;                     /* the error says that a peer is gone */
    bool fatal;                         /* it is of a signal, printed by faulthandler */
    char thread[48], thread_error[256]; /* of another thread that an exception ended */
    struct pb_diag_place thread_place;
    char kernel[16]; /* what the kernel's log says: SIGSEGV or oom; "": nothing, or it may not be read */
};

struct pb_diag_job {
    char name[96];     /* of its program */
    pid_t launcher;    /* 0: none */
    int port;          /* of its store; 0: unknown */
    int world;         /* ranks that it should have; 0: unknown */
    bool ranks;        /* it has ranks; else it is one process */
    bool over;         /* all its processes have ended */
    bool joined;       /* of parts that nodes have looked at (facts_wire.h) */
    char key[256];     /* where its ranks meet; "": unknown */
    double between;    /* seconds between the looks */
    bool looked_again; /* some seconds after the first looks */
    struct pb_diag_process *processes;
    size_t nprocesses;
    struct pb_diag_thread *threads;
    size_t nthreads;
    struct pb_diag_end *ends;
    size_t nends;
    struct pb_diag_edge *edges;
    size_t nedges;
    struct pb_diag_ended *ended; /* those of its ranks that have left something */
    size_t nended;
    struct pb_stacks_answer *answers; /* of the second look: what threads point into */
    size_t nanswers;
    struct pb_stall stall; /* what stands by torch's Flight Recorder */
    bool stall_hidden;     /* of a rank that waits for it the stack does not say so */
};

/* Whether the interpreter of a rank ends, or is gone already while C code still ends. */
bool pb_diag_is_finalizing(const struct pb_diag_job *job, const struct pb_diag_process *p);

/* The thread that likely holds the lock that a thread waits for; PB_NOBODY: none, or several may. */
size_t pb_diag_suspect(const struct pb_diag_job *job, size_t thread);

/* Whether a variable of one of its frames is, or names, the object at that address. */
bool pb_diag_has_object(const struct pb_diag_thread *t, uint64_t object);

const char *pb_diag_end_name(enum pb_diag_end_kind kind);

/* Fills in edges and ends. -ENOMEM. */
int pb_diag_follow(struct pb_diag_job *job);
