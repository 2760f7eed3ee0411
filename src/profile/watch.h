/* watch: one process under the sampler: its threads, each with its moment and where it was last; internal to
 * the sampler. */
#pragma once

#include <sched.h>

#include "profile/sampler.h"
#include "profile/steps.h"
#include "remote/native/unwind.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"

struct pb_watched {
    pid_t tid;
    bool python;
    struct pb_py_thread py;
    struct pb_moment moment;
    int last_cpu;           /* where it was last found; -1: not yet */
    unsigned hits, misses;  /* recently: copies of its stack, and copies that did not hold all of it */
    unsigned pause, pauses; /* ticks without a copy; how often in a row there was such a pause */
    uint32_t thread;        /* in the profile */
    bool named, seen, ended;
    enum pb_watch_state state;
    unsigned still;       /* samples in a row that found it there */
    unsigned pending;     /* ticks in a row without a look at it */
    uint64_t counted;     /* the instant (struct pb_sampler) up to which its time has been counted */
    uint64_t taken;       /* the instant at which it was last a sample */
    unsigned lates;       /* how often in a row it did not stop in time */
    uint64_t avoid_until; /* it is not stopped before this */
    uint32_t node;
    unsigned flags;
    bool truncated, apart;
    uint32_t last_node;
    int32_t at, last_at; /* the instruction of its innermost Python frame, now and before */
    uint64_t moved;      /* when it was first seen at its present place; 0: not seen yet */
    unsigned woke;       /* how often it had run since it was seen waiting */
    /* stuck.c: since when its wake-ups are counted, how many there were then, and when it last polled; 0: not
     * yet. */
    uint64_t window_from, polled;
    unsigned window_woke;
    bool window_whole; /* a whole window was counted since it last moved */
};

/* Functions of the profile by the reader's id of the code object: found without comparing names. */
struct pb_code_map {
    uint32_t *at; /* function + 1; 0: not looked up yet */
    size_t cap;
};

struct pb_process_watch {
    pid_t pid;
    char label[64];
    int32_t rank; /* -1: none */
    struct pb_source source;
    struct pb_py *py;            /* NULL: no Python in it */
    struct pb_native *native;    /* NULL: not wanted */
    struct pb_py_glance *glance; /* NULL: not allowed, or not for native stacks */
    struct pb_code_map codes;
    struct pb_watched *threads;
    size_t n, cap, hint;            /* hint: index of the thread that is most likely looked up next */
    uint64_t next_list, next_count; /* when the threads are listed, counted again */
    uint64_t list_after;            /* not before that */
    uint64_t again_ns;              /* from the last list to the next */
    bool lost_one;                  /* a thread has ended since the last list */
    unsigned long links;            /* link count of its task folder: the number of threads and 2 */
    bool shared;                    /* a thread of it has a state in several interpreters */
    size_t first, next_first;       /* thread that this tick begins with, and the next one */
    uint64_t stops_left_ns;         /* time left in this tick for waiting until its threads stop */
    int stop_error;                 /* why its threads cannot be stopped; 0: they can, or none was tried */
    int glance_error;               /* why its stacks are not copied in interrupts; 0: they are */
    bool ended;
};

/* What all processes of a sampler share. */
struct pb_sampler {
    struct pb_sampler_options options;
    struct pb_profile *profile;
    struct pb_profile_facts *facts;
    struct pb_sink sink; /* add NULL: the profile itself */
    const atomic_bool *cancelled;
    struct pb_process_watch **processes;
    size_t n, cap;
    unsigned left; /* processes that ended meanwhile */
    unsigned ways;
    int cpu;             /* the CPU that the last moment pinned us to; -1: none */
    cpu_set_t allowed;   /* where we may run */
    uint64_t next_aside; /* tick before which we do not move to another CPU again */
    uint64_t period, start, next;
    /* The number of this tick, missed ticks included: a sample stands for all ticks since the sample before
     * it, so that the time of missed ticks counts too. */
    uint64_t instant;
    bool ticking; /* in a tick, not between two */
    /* The sampler's budget of CPU time where it competes with the target: credit, computed at `paid` on our
     * own CPU clock and `paid_at` on the wall clock. share 0: unlimited. */
    double share, credit_ns;
    uint64_t paid, paid_at;
    uint64_t behind_ns, sleeps; /* how long after their time ticks began, all together, and how many */
    uint64_t random;
    uint64_t next_children;
    bool started, warming;   /* the clock runs; samples do not count yet */
    int stop_error;          /* why a thread could not be stopped; 0: none */
    int glance_error;        /* the last of a process; 0: none */
    bool through_agent;      /* a process was read through its agent */
    bool without_slices;     /* the kernel does not report time slices */
    bool out_of_descriptors; /* threads were left out: RLIMIT_NOFILE */
    bool sparing;            /* too many threads to look at all of them on every tick */
    struct pb_py_stack stack;
    struct pb_capture capture;
    struct pb_native_buffers *buffers;
};

/* sampler_members.c */
void pb_sampler_forget_ended(struct pb_sampler *s);
int pb_sampler_emit(struct pb_sampler *s, const struct pb_sample *sample);

int pb_watch_open(struct pb_sampler *s, pid_t pid, const char *label, struct pb_process_watch **ret,
                  struct pb_err *err);
void pb_watch_free(struct pb_process_watch *w);

/* Stops watching thread i; the last one takes its index. */
void pb_watch_drop(struct pb_process_watch *w, size_t i);

/* Lists the threads again where that is due. Marks the process ended when it is gone. */
void pb_watch_refresh(struct pb_sampler *s, struct pb_process_watch *w, uint64_t now);

/* One sample of one thread. -ESRCH: it ended. */
int pb_watch_sample(struct pb_sampler *s, struct pb_process_watch *w, struct pb_watched *t, uint64_t now);

/* Looks at a thread that was not looked at on the last ticks. */
void pb_watch_settle(struct pb_sampler *s, struct pb_process_watch *w, struct pb_watched *t, uint64_t now);

/* sampler_native.c: unwinds the capture of the moment just ended, merges it with the Python stack (which may
 * be empty), and makes a node of it. *ret_guessed: return addresses were guessed, so it may be wrong. */
int pb_native_node(struct pb_sampler *s, struct pb_process_watch *w, bool with_python, uint32_t *ret,
                   bool *ret_guessed, bool *ret_truncated, bool *ret_apart);
int pb_native_buffers_new(struct pb_native_buffers **ret);
void pb_native_buffers_free(struct pb_native_buffers *b);

/* watch_node.c: the Python stack that was read last, outermost first; and what a thread waits for, as the
 * innermost frame below node. */
uint32_t pb_python_stack(struct pb_sampler *s, struct pb_process_watch *w, bool *ret_truncated);
uint32_t pb_wait_node(struct pb_sampler *s, uint32_t node, const struct pb_moment *m, char state);

/* The node of the Python frame i of the stack below parent. */
uint32_t pb_python_node(struct pb_sampler *s, struct pb_process_watch *w, uint32_t parent, size_t i);
