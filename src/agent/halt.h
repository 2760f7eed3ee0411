/* halt: threads of Python's stopped between two bytecodes, all but the main one (`probing pause --all`).
 *
 * A thread stops in a callback that the interpreter makes at its next line, call or return: a trace function
 * in C up to 3.11, which is set for the thread from outside, and an event of sys.monitoring from 3.12 on,
 * which the Python part asks for (_halt.py). The callback waits without the GIL until the threads are let go:
 * by a client, at detach, in a child of fork, or when the main thread has not been heard of for as long as
 * the pause allows. Threads that had not come to the callback by then find that there is nothing to wait for.
 * The Python part calls these as functions of the module. */
#pragma once

/* The agent detaches: lets all go. From the resident thread. */
void pb_halt_detach(void);
/* In a child of fork. */
void pb_halt_forget(void);
