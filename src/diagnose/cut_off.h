/* cut_off: whether an event loop waits for ever, since nothing is left that could wake it. */
#pragma once

#include "ask/stacks.h"
#include "diagnose/facts.h"

/* With the place of a task that it leaves waiting. A loop has its own socket pair and may have timers, other
 * descriptors, signal handlers and threads that call it: with none of them nobody can set what its tasks
 * await. */
bool pb_diag_is_cut_off(const struct pb_stacks *s, const struct pb_shown_thread *t,
                        struct pb_diag_place *ret);
