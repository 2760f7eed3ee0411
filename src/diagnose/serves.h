/* serves: whether a thread waits for clients: nobody has to come, so its wait is no fault. */
#pragma once

#include "ask/stacks.h"

#include <stdbool.h>
#include <sys/types.h>

bool pb_diag_serves(pid_t pid, const struct pb_shown_thread *t);
