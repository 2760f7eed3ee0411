/* process_settings: the settings of a process, read from its files where possible, without asking the
 * process. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "control/redact.h"
#include "control/settings.h"

#include <stdbool.h>

/* The settings of a process: as its agent stored them, live or ended; of a process that is not probed from
 * its environment. target NULL: from this tool's environment. An agent that could not store them is asked; if
 * it does not answer, err says so and ret is from the environment, as far as that could be read. */
int pb_settings_of(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret,
                   struct pb_err *err);

/* The same; settings that the process does not have come from the tool's environment. Errors are ignored. For
 * commands that only use settings: archive, record. */
void pb_settings_for(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret);

/* The same for a live process, from its files alone: no agent is asked, no child is started. For `top` and
 * `flamegraph`, which begin at once. */
void pb_settings_saved(pid_t pid, struct pb_settings *ret);

/* A setting as texts; unit NULL: none. */
struct pb_shown_setting {
    const char *name, *value, *fallback, *unit, *origin, *text;
    bool with_unit; /* the value includes its unit: 64MB */
};

/* Calls `each` for every setting; the last ones belong to this tool (tool_settings.h). */
void pb_settings_each(const struct pb_settings *s,
                      void (*each)(void *arg, const struct pb_shown_setting *setting), void *arg);

/* The words that mark names of secrets: those of the process, and those of the tool's environment. */
void pb_redact_words(const struct pb_ask *ask, const struct pb_target *target, char ret[PB_REDACT_SIZE]);

/* The command line of a process for a person, secrets masked, control characters unchanged. */
void pb_redact_cmdline(pid_t pid, char *ret, size_t size);
