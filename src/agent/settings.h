/* settings: what can be set in a running agent, by name, as text.
 *
 * A value comes from the tool (options of an injection, `probing config`), or from a PROBING_* variable of
 * the process, or is the default; later ones win in that order: default, environment, tool. One thread only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum pb_setting {
    PB_SET_MAX_MEMORY,
    PB_SETTINGS,
};

struct pb_settings {
    uint64_t value[PB_SETTINGS];
    const char *origin[PB_SETTINGS]; /* "default", "environment", "set" */
};

/* Defaults, then what the environment block (NUL-separated NAME=value) has. A bad value there is passed over.
 */
void pb_settings_init(struct pb_settings *s, const char *environment, size_t size);

/* Sets one. 0; -ENOENT: no such name; -EINVAL: a value that is not allowed; why then says what is. */
int pb_settings_set(struct pb_settings *s, const char *name, const char *value, char *why, size_t why_size);

const char *pb_settings_name(enum pb_setting setting); /* "probing.max_memory" */
void pb_settings_text(const struct pb_settings *s, enum pb_setting setting, char *ret, size_t size);

/* "64MB", "1.5 GB", "1048576": bytes, in units of 1024. -EINVAL. */
int pb_parse_size(const char *text, uint64_t *ret);
