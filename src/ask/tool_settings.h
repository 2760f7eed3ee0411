/* tool_settings: settings of this tool, not of a process, from its environment: what it reads, where it
 * writes and where it sends must not be decided by a process. */
#pragma once

#include <stddef.h>

struct pb_shown_setting;

enum pb_tool_setting {
    PB_TOOL_ARCHIVE,
    PB_TOOL_DIAGNOSE_RULES,
    PB_TOOL_DIAGNOSE_EVERY,
    PB_TOOL_ALERT_WEBHOOK,
    PB_TOOL_SETTINGS
};

struct pb_tool_setting_info {
    const char *name, *variable, *text;
};

extern const struct pb_tool_setting_info pb_tool_setting_info[PB_TOOL_SETTINGS];

/* NULL: it is not set, or empty. */
const char *pb_tool_setting_get(enum pb_tool_setting setting);

/* -ENOENT: no such name. */
int pb_tool_setting_find(const char *name);

/* As pb_settings_each. What an address may have of a secret, its path, is left out. */
void pb_tool_settings_each(void (*each)(void *arg, const struct pb_shown_setting *setting), void *arg);
