/* neighbours: who else runs on the CPUs of a process that gets too little of them. */
#pragma once

#include "ask/ask.h"

#include <stddef.h>
#include <sys/types.h>

/* "process 4711 (stress) 66%, process 4712 (stress) 33% of CPU 0": the three that ran most on the CPUs that
 * the thread may use, in half a second. "": nobody, or it could not be seen. */
void pb_diag_neighbours(const struct pb_ask *ask, pid_t pid, char *ret, size_t size);
