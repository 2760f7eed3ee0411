/* probes: the probes of this agent, and which of them are on. For the resident thread only, except forget. */
#pragma once

#include "agent/probes/probe.h"
#include "control/message.h"

#define PB_PROBES_MAX     32
#define PB_PROBE_SETTINGS 128 /* length of a probe's settings, with their end */

struct pb_part;
extern const struct pb_part pb_part_probes;

/* All probes; ends with NULL. */
extern const struct pb_probe *const pb_probe_list[];

/* Sets the list and starts the probes that are on by default. -errno with a message in why: one could not be
 * started; then all are off. */
int pb_probes_begin(const struct pb_probe *const *list, struct pb_arena *arena, char *why, size_t why_size);

/* Starts one. If it is on with the same settings it is left alone, else stopped and started again. 1: it was
 * on already, 0: it is on now. -ENOENT: no such probe, why names them; or the error of start or stop. */
int pb_probes_start(const char *name, const char *settings, char *why, size_t why_size);

/* Stops one. 1: it was off already, 0: it is off now. -ENOENT, or the error of stop; then it is stuck. */
int pb_probes_stop(const char *name, char *why, size_t why_size);

/* Passes the settings of the process to the probes, and starts and stops them accordingly. -errno with a
 * sentence in why: one could not be. */
int pb_probes_configure(const struct pb_settings *settings, const char *changed, char *why, size_t why_size);

/* Calls the probes that are due. Returns how many; *next: when to call again. */
int pb_probes_tick(uint64_t now, uint64_t *next);

/* Stops all; one that cannot be stopped is left behind, its tables are retired. Returns how many were. */
int pb_probes_end(void);

/* In a child of fork. */
void pb_probes_forget(void);

/* The i-th probe, for a list; 0, or -ENOENT after the last. */
struct pb_probe_info {
    const struct pb_probe *probe;
    enum pb_probe_state state;
    const char *settings;
    char text[200]; /* its state, or "" for none; why it is stuck */
};
int pb_probes_at(int i, struct pb_probe_info *ret);
