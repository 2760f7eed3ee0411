/* probe: what records: something that writes rows into tables of its own, and can be started and stopped by
 * name while the agent runs. One file of this folder each; the list of them is in probes.c.
 *
 * A probe's functions are called by the resident thread alone, so they must not wait: what takes the GIL or
 * runs in threads of the program is begun here and goes on elsewhere. Threads that are inside a probe's
 * code when it stops, or when the agent detaches, find that appends fail (table/arena.h: retire). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_arena;
struct pb_settings;

struct pb_probe {
    const char *name;     /* as people call it; often that of its table */
    const char *text;     /* one line: what it records */
    const char *settings; /* the settings that it takes, for a person: "interval=1s"; NULL: none */
    int on;               /* from the beginning, and the agent does not start without it */

    /* Makes its tables and begins. settings: "name=value" with blanks between them, "" for the defaults;
     * never called while it is on. -errno with a sentence in why: it is off, and nothing of it is left. */
    int (*start)(struct pb_arena *arena, const char *settings, char *why, size_t why_size);

    /* Records no more, from when this returns. -errno with a sentence in why: something of it is still there;
     * tick is not called any more, and stop may be called again. */
    int (*stop)(char *why, size_t why_size);

    /* Takes what it needs of the settings of the process: before start, and whenever one was changed, also
     * while it is off. 1: they want it on, 0: off, -1: they say nothing new of that. changed: the
     * setting that a person has just given a value; NULL: none, an agent begins. With NULL it
     * forgets those of an agent before this one. NULL: it needs none. */
    int (*configure)(const struct pb_settings *settings, const char *changed);

    /* What there is to do now and then; returns when it wants to be called again (CLOCK_MONOTONIC ns). Called
     * first right after start. NULL: nothing. */
    uint64_t (*tick)(uint64_t now);

    /* Whether it wants to be called now, whatever tick said: asked whenever the resident thread wakes. NULL:
     * never. */
    int (*urgent)(void);

    /* In a child of fork, also where it is off, since a thread of its may have been busy stopping: forgets.
     * Its threads and tables are not there. Async-signal-safe calls only. NULL: nothing to forget. */
    void (*forked)(void);

    /* How it stands, for a person: "every 1 s". NULL: nothing to say. */
    void (*describe)(char *ret, size_t size);
};

extern const struct pb_probe pb_probe_memory_usage, pb_probe_torch;

/* A block of the program begins (1) or ends (-1) in which memory is recorded in finer steps. From any thread;
 * waits for nothing. */
void pb_memory_usage_block(int by);

/* Before the agent detaches: ends blocks in which collectives are recorded, and what they put into torch. */
void pb_torch_end_blocks(void);

/* For settings: the value of `name` as a duration ("500ms", "2s", "1m") within bounds. 0: found, or not
 * there and *ret left; -EINVAL with a sentence in why. */
int pb_probe_duration(const char *settings, const char *name, uint64_t least_ns, uint64_t most_ns,
                      uint64_t *ret, char *why, size_t why_size);

/* -EINVAL with a sentence in why where the settings have another name than those in known ("a b c"). */
int pb_probe_check(const char *settings, const char *known, char *why, size_t why_size);
