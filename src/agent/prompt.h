/* prompt: what prompts inside the program need of the agent: a look at all threads and their frames, locals
 * that can be assigned, and a call in the main thread. Functions of the module (module.h). */
#pragma once

#include <stdint.h>

/* The agent detaches: who waits in the program (a pause) goes on. From the resident thread. */
void pb_prompt_detach(void);

/* Has what is due (due_at of the module) called in a thread of ours. Returns for how many ms there is nothing
 * to do; -1: for ever. From the resident thread. */
int pb_prompt_turn(uint64_t now_ns);

/* In a forked child: nothing is due. */
void pb_prompt_forget(void);
