/* prompt: functions of the module (module.h) for prompts inside the program: the threads and their frames,
 * locals that can be assigned, and a call in the main thread. And exceptions of the program's signal handlers
 * that ran while the main thread was in code of ours. */
#pragma once

#include "agent/python/python.h"

struct pb_part;

extern const struct pb_part pb_part_prompt;

/* After a call of our Python code in a thread of the program: an exception that a signal handler of the
 * program raised there is raised in the program, by the main thread, as soon as it has left our code and
 * without frames of ours. Any other exception is dropped. With the GIL; leaves no exception. */
void pb_raise_handlers_later(const struct pb_python *py);
