/* prompt: functions of the module (module.h) for prompts inside the program: the threads and their frames,
 * locals that can be assigned, and a call in the main thread. */
#pragma once

#include <stdint.h>

/* The agent detaches: a paused program continues. From the resident thread. */
void pb_prompt_detach(void);

/* Has a thread of ours call the function that is due (due_at of the module). Returns for how many ms there is
 * nothing to do; -1: for ever. From the resident thread. */
int pb_prompt_turn(uint64_t now_ns);

/* In a forked child: nothing is due. */
void pb_prompt_forget(void);
