/* probe: writes rows into tables of its own, and can be started and stopped by name while the agent runs. One
 * file of this folder each; probes.c has the list.
 *
 * Only the resident thread calls a probe's functions, so they must not wait: work that needs the GIL or runs
 * in threads of the program is started here and continues elsewhere. For threads that are inside a probe's
 * code when it stops, or when the agent detaches, appends fail (table/arena.h: retire). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_arena;
struct pb_settings;
struct pb_table;
struct pb_table_spec;

struct pb_probe {
    const char *name;     /* for people; often that of its table */
    const char *text;     /* one line: what it records */
    const char *settings; /* the settings that it takes, for a person: "interval=1s"; NULL: none */
    int on;               /* on from the beginning; the agent does not start without it */

    /* Makes its tables and begins. settings: "name=value" separated by blanks, "" for the defaults; never
     * called while it is on. -errno with a sentence in why: it is off, and nothing of it is left. */
    int (*start)(struct pb_arena *arena, const char *settings, char *why, size_t why_size);

    /* Stops recording before it returns. -errno with a sentence in why: it could not stop completely; tick is
     * not called any more, and stop may be called again. */
    int (*stop)(char *why, size_t why_size);

    /* Reads the settings of the process: before start, and whenever one was changed, also while it is off. 1:
     * they want it on, 0: off, -1: no change. changed: the setting that a person has just set; NULL: an agent
     * begins, and the probe forgets the settings of an earlier agent. A NULL function: it has no settings. */
    int (*configure)(const struct pb_settings *settings, const char *changed);

    /* Periodic work; returns when to call it again (CLOCK_MONOTONIC ns), or PB_PROBE_IS_OVER: it has ended by
     * itself, and is off now. Called first right after start. NULL: none. */
    uint64_t (*tick)(uint64_t now);

    /* Whether to call tick now, whatever it returned: checked whenever the resident thread wakes. NULL:
     * never. */
    int (*urgent)(void);

    /* The agent detaches: called before stop, also while it is off. NULL: there is nothing else to end. */
    void (*detach)(void);

    /* In a child of fork, also while it is off, since one of its threads may have been stopping it: resets
     * its state. Its threads and tables do not exist there. Async-signal-safe calls only. NULL: no state. */
    void (*forked)(void);

    /* Its state, for a person: "every 1 s". NULL: none. */
    void (*describe)(char *ret, size_t size);

    /* While it is off: why it ended before its time, in a sentence; "": it did not. NULL: it never does. */
    const char *(*why_over)(void);
};

#define PB_PROBE_IS_OVER UINT64_MAX

extern const struct pb_probe pb_probe_memory_usage, pb_probe_resource_usage, pb_probe_memory_allocations,
    pb_probe_torch, pb_probe_gpu_profile;

/* A block of the program begins (1) or ends (-1) in which memory is recorded at shorter intervals. From any
 * thread; does not wait. */
void pb_memory_usage_block(int by);

/* Reads setting `name` as a duration ("500ms", "2s", "1m") within bounds. 0: found, or missing and *ret
 * unchanged; -EINVAL with a sentence in why. */
int pb_probe_duration(const char *settings, const char *name, uint64_t least_ns, uint64_t most_ns,
                      uint64_t *ret, char *why, size_t why_size);

/* The same for a size in bytes ("64KB"). */
int pb_probe_size(const char *settings, const char *name, uint64_t least, uint64_t most, uint64_t *ret,
                  char *why, size_t why_size);

/* The start of a probe that has one table, and one setting, "interval": how often it adds a row ("500ms",
 * "2s", "1m"; usually a second). Nothing is set where it fails. */
int pb_probe_start_rows(struct pb_arena *arena, const struct pb_table_spec *spec, const char *settings,
                        uint64_t least_ns, uint64_t *ret_interval_ns, struct pb_table **ret_table, char *why,
                        size_t why_size);

/* -EINVAL with a sentence in why if the settings have a name that is not in known ("a b c"). */
int pb_probe_check(const char *settings, const char *known, char *why, size_t why_size);
