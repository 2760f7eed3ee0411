/* stacks: the stacks of one process at one moment, as data.
 *
 * A snapshot, owned by the caller. stacks_take.c takes it, verdict.c says what the process waits for, where
 * that can be known. cli/print/ prints it for people and programs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ask/targets.h"
#include "ask/waits.h"
#include "base/err.h"
#include "remote/native/merge.h"
#include "remote/native/unwind.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"
#include "remote/threads.h"

struct pb_ask;
struct pb_collective_rank;
struct pb_core_info;
struct pb_room;
struct pb_sources;

struct pb_stacks_options {
    bool locals, no_stop, force;
    bool native;          /* native frames too; an error where they cannot be read */
    bool native_if_alone; /* native frames of a process without Python, where they can be read */
    unsigned within_ms;   /* for all threads of the process; threads not read by then have failed; 0: 10 s */
};

struct pb_shown_frame {
    const struct pb_py_code *code;
    struct pb_py_frame at;
    int line;                    /* 0: none */
    struct pb_py_locals *locals; /* NULL: not asked for, or none */
};

#define PB_HELD_MAX 96

/* A suspended asyncio task, or (without frames) the running one. */
struct pb_shown_task {
    uint64_t id;     /* among the tasks of the process */
    uint64_t parent; /* the task that waits for it; 0: none is known */
    char name[PB_PY_NAME_MAX], waits_for[PB_PY_NAME_MAX];
    bool running;
    struct pb_shown_frame *frames;
    size_t nframes;
};

struct pb_shown_thread {
    struct pb_native_thread native;
    bool python; /* it has a Python thread state */
    struct pb_py_thread py;
    bool gil;
    bool off_cpu; /* it slept when it was read, in this call: */
    int syscall;  /* -1: none */
    uint64_t syscall_args[6];
    char name[PB_PY_NAME_MAX]; /* Python's, "" where it has none */
    struct pb_shown_frame *frames;
    size_t nframes;
    struct pb_shown_task *tasks; /* of the event loop that runs in the thread */
    size_t ntasks;
    char held[PB_HELD_MAX]; /* what of probing holds it at a prompt: "pause", "break", "catch", "debug"; "" */
    char held_at[PB_HELD_MAX]; /* how to connect, where that is known; else "" */
    double held_seconds;
    /* What `catch` holds has left its frames: the exception, and where it was raised; "", 0: not known. */
    char raised[64], raised_in[64], raised_file[256];
    int raised_line;
    bool truncated;
    enum pb_way way;
    int failed; /* negative errno: why there are no frames */
    /* With native frames: addresses, symbols, and the merged order of native and Python frames. */
    struct pb_native_pc *pcs;
    size_t npcs;
    struct pb_native_frame *natives;
    size_t nnatives;
    unsigned native_flags;
    enum pb_merge merge;
    struct pb_merged *merged; /* indices into natives and frames */
    size_t nmerged;
};

/* How the stacks were read. */
struct pb_stacks_about {
    bool python, free_threaded, verified; /* verified: the layout is certain for this version */
    uint32_t version;                     /* as pb_py_version */
    bool native;                          /* native frames were wanted and could be read */
    bool by_agent;                        /* read through its agent: ptrace was refused */
    const char *source;                   /* what was read, in a word; static */
    const struct pb_core_info *core;      /* NULL: it is a process */
};

struct pb_stacks {
    pid_t pid;
    struct pb_stacks_about about;
    char label[PB_LABEL_MAX];
    enum pb_label_by labelled_by;
    int32_t rank; /* -1: none */
    char command[256];
    struct pb_source source;
    struct pb_py *py;                /* NULL: no Python in it */
    struct pb_native *native;        /* NULL: no native frames */
    uint64_t names_round;            /* page cache of the source, for thread names */
    struct pb_capture capture;       /* of the current thread */
    struct pb_shown_thread *threads; /* the most important first */
    size_t n;
    size_t frames, natives,
        locals;            /* counts and bytes kept so far: a hostile process must not fill our memory */
    struct pb_waits waits; /* one per thread, after pb_stacks_waits; else none */
    char verdict[512];     /* "": nothing is known */
    bool verdict_is_wait;  /* it says what the main thread waits for */
    struct pb_collective_rank *collectives; /* where it stands in its process groups; NULL: unknown */
    char note[256];                         /* why Python could not be read; "": no reason to tell */
    const char *root;                       /* root of the files of a core */
};

/* The stacks of several processes, taken at once, each in a child (task.h), with what each thread waits for.
 * A process that could not be read has its error in its answer. */
struct pb_stacks_answer {
    int result; /* negative errno: err says why, and there are no stacks */
    struct pb_err err;
    const struct pb_stacks *stacks;
    struct pb_room *room; /* memory of the stacks */
};
int pb_stacks_ask(const struct pb_ask *ask, const struct pb_targets *targets,
                  const struct pb_stacks_options *options, enum pb_waits_depth depth,
                  struct pb_stacks_answer *ret);
void pb_stacks_answers_done(struct pb_stacks_answer *answers, size_t n);

/* --- in the calling process itself ---
 * These trace the target, wait for it and may hang with it: for a program with one thread, or in a child.
 *
 * Opens the process, from which stacks can then be taken repeatedly. A process without Python has native
 * threads only. */
int pb_stacks_open(const struct pb_ask *ask, const struct pb_target *target,
                   const struct pb_stacks_options *options, struct pb_stacks *ret, struct pb_err *err);
int pb_stacks_take(struct pb_stacks *s, const struct pb_stacks_options *options, struct pb_err *err);
void pb_stacks_done(struct pb_stacks *s);

/* "paused by `pause`" or "held by `break`" with the time, of a thread that is held. */
const char *pb_stacks_held(const struct pb_shown_thread *t, char *buf, size_t size);

/* "running", "holds the GIL", "waiting in futex", ...: for a person. Static or in buf. */
const char *pb_stacks_state(const struct pb_shown_thread *t, char *buf, size_t size);

/* Whether the file is the program's own code: not the standard library, not an installed package. */
bool pb_stacks_is_own(const char *file);
/* The innermost frame of it; NULL: there is none. Frames outside of where multiprocessing has started a
 * process are its parent's. */
const struct pb_shown_frame *pb_stacks_own_frame(const struct pb_shown_thread *t);

/* The lines of source files as the process sees them. May outlive s. */
struct pb_sources *pb_sources_new(const struct pb_stacks *s);
void pb_sources_free(struct pb_sources *s);
/* Without surrounding blanks; NULL: it cannot be read. Valid as long as s. */
const char *pb_sources_line(struct pb_sources *s, const char *file, int line, int *ret_len);

/* The same of a process of which no stacks were read. Files are read when first asked for, also after the
 * process has ended. */
struct pb_sources *pb_sources_of(pid_t pid);
/* The line as it is in the file. NULL: there is no such line, or the file cannot be read. */
const char *pb_sources_whole_line(struct pb_sources *s, const char *file, int line, int *ret_len);

/* The text of a source file that a frame of s names, as the process sees it, and at most 4 MB of it. A file
 * that not everybody may read must belong to the process's user. Read in a child that is given up at ask's
 * limit: a file on a mount that hangs holds up nobody. The text is room's memory, which the caller frees.
 * -ENOENT: no frame names it; -ETIMEDOUT. */
int pb_sources_text(const struct pb_ask *ask, const struct pb_stacks *s, const char *file,
                    struct pb_room **ret_room, const char **ret, size_t *ret_length, struct pb_err *err);

/* stacks_native.c, for stacks_take.c: these do nothing unless native frames were asked for. copy is called
 * while a thread is held, unwind after that, describe when all threads have been read. */
int pb_stacks_native_open(struct pb_stacks *s, const struct pb_stacks_options *options, struct pb_err *err);
void pb_stacks_native_done(struct pb_stacks *s);
int pb_stacks_native_copy(struct pb_stacks *s, const struct pb_moment *m);
int pb_stacks_native_unwind(struct pb_stacks *s, struct pb_shown_thread *t);
int pb_stacks_native_describe(struct pb_stacks *s);
void pb_stacks_native_drop(struct pb_shown_thread *t);

/* stacks_core.c: why the process died, in a sentence. False: it did not die, or is no core. */
bool pb_stacks_died(const struct pb_stacks *s, char *ret, size_t size);
/* "SIGSEGV"; static or in buf. */
const char *pb_stacks_signal(int number, char *buf, size_t size);

/* Fills s->waits with what each thread waits for, and s->verdict with what a person should look at first.
 * Reads the process again a little later, when it seems to hang. -ENOMEM. */
int pb_stacks_waits(struct pb_stacks *s, enum pb_waits_depth depth);
/* `thread 17 "name"`, safe for a terminal. */
const char *pb_stacks_thread_name(const struct pb_shown_thread *t, char *buf, size_t size);

/* What the threads of one process did at the previous time: stacks_changes.c. Starts as {0}. */
enum pb_change { PB_CHANGED, PB_NEW, PB_AS_BEFORE };

struct pb_seen {
    pid_t tid;
    int64_t interp;
    uint64_t digest;
    bool again; /* found the next time too */
    char name[80];
};

struct pb_history {
    struct pb_seen *last;
    size_t n;
    struct pb_seen *ended; /* of the previous time: those without `again` */
    size_t nended;
    enum pb_change *change; /* per thread of the latest stacks, in their order */
    size_t times;
};

/* Compares with the stacks added before. -1: out of memory, unchanged. */
int pb_history_add(struct pb_history *h, const struct pb_stacks *s);
void pb_history_done(struct pb_history *h);
