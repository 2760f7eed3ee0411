/* script_end: whether a thread has left the program's script, from its frames. */
#pragma once

#include "ask/stacks.h"
#include "diagnose/facts.h"

/* Sets leaving (it waits for other threads first), finalizing (the interpreter ends) and in_event_loop. Of
 * ret it reads main and held. */
void pb_diag_find_end(const struct pb_shown_thread *t, struct pb_diag_thread *ret);
