/* halt: stops all Python threads but the main one between two bytecodes (`probing pause --all`).
 *
 * A thread stops in a callback that the interpreter makes at its next line, call or return: a trace function
 * in C up to 3.11, set for the thread from outside, and an event of sys.monitoring from 3.12 on, which the
 * Python part requests (_halt.py). The callback waits without the GIL until the threads are released: by a
 * client, at detach, in a child of fork, or when the main thread has not called halt_keep for as long as the
 * pause allows. Threads that reach the callback after that continue at once. The Python part calls these as
 * functions of the module. */
#pragma once

struct pb_part;
extern const struct pb_part pb_part_halt;
