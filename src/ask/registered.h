/* registered: tables that a process makes itself when a query names them: from its functions
 * (probing.register, python/probing/_live.py; probing_register, src/agent/module/live_tables.c), and of
 * torch's live objects (_objects.py). */
#pragma once

#include "engine/caller/live.h"

/* pb_live_source.own: asks the agent for one table; returns the descriptor of an arena with it. -ENOENT: the
 * process has no agent, or no table of that name. Other errors: its function failed, or did not return in
 * time. */
int pb_registered_table(const struct pb_live_source *source, const char *table, struct pb_err *err);
