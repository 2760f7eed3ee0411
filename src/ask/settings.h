/* settings: what is set for a process, as a tool finds it: without asking the process where it can be read.
 */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "control/redact.h"
#include "control/settings.h"

#include <stdbool.h>

/* The process's own settings: as its agent kept them, live or left behind; of a process that is not probed
 * what its environment says. target NULL: those of this tool's environment. A process whose agent could keep
 * nothing is asked; where it does not answer, err says so and ret is what its environment says, as far as
 * that could be read. */
int pb_settings_of(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret,
                   struct pb_err *err);

/* The same, and where the process says nothing the tool's environment does. What cannot be read is as if it
 * said nothing. For commands that only use them: archive, record. */
void pb_settings_for(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret);

/* The same of a live process, by its files alone: no agent is asked, no child is started. For `top` and
 * `flamegraph`, which begin at once. */
void pb_settings_kept(pid_t pid, struct pb_settings *ret);

/* A setting as it is shown, in texts; unit NULL: none. */
struct pb_shown_setting {
    const char *name, *value, *fallback, *unit, *origin, *text;
    bool with_unit; /* the value has its unit in it: 64MB */
};

/* Calls back with each; the last is the folder of archives, which is no process's but this tool's. */
#define PB_SETTING_ARCHIVE "probing.archive"
void pb_settings_each(const struct pb_settings *s,
                      void (*each)(void *arg, const struct pb_shown_setting *setting), void *arg);

/* The words by which names of secrets of a process are known: its own, and those of the tool's environment.
 */
void pb_redact_words(const struct pb_ask *ask, const struct pb_target *target, char ret[PB_REDACT_SIZE]);

/* The command line of a process for a person to read, secrets masked, control characters as they are. */
void pb_redact_cmdline(pid_t pid, char *ret, size_t size);
