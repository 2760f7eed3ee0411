/* prompt: functions of the module (module.h) for prompts inside the program: the threads and their frames,
 * locals that can be assigned, and a call in the main thread. And exceptions of the program's signal handlers
 * that ran while the main thread was in code of ours. */
#pragma once

#include "agent/python/python.h"

#include <stdint.h>

/* The agent detaches: a paused program continues. From the resident thread. */
void pb_prompt_detach(void);

/* Has a thread of ours call the function that is due (due_at of the module). Returns for how many ms there is
 * nothing to do; -1: for ever. From the resident thread. */
int pb_prompt_turn(uint64_t now_ns);

/* In a forked child: nothing is due. */
void pb_prompt_forget(void);

/* After a call of our Python code in a thread of the program: an exception that a signal handler of the
 * program raised there is raised in the program, by the main thread, as soon as it has left our code and
 * without frames of ours. Any other exception is dropped. With the GIL; leaves no exception. */
void pb_raise_handlers_later(const struct pb_python *py);
