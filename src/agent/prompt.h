/* prompt: what prompts inside the program need of the agent: a look at all threads and their frames, locals
 * that can be assigned, and a call in the main thread. Functions of the module (module.h). */
#pragma once

/* The agent detaches: who waits in the program (a pause) goes on. From the resident thread. */
void pb_prompt_detach(void);
