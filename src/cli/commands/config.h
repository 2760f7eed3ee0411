/* config: what the command config does, for commands that are a setting of their own (track). */
#pragma once

#include "ask/process_settings.h"
#include "cli/cli.h"

typedef void (*pb_setting_printer)(const struct pb_shown_setting *setting);

/* Sets and shows the settings that the arguments name. print: shows one to a person. */
int pb_config_run(const struct pb_call *call, pb_setting_printer print, struct pb_err *err);
