/* eval: finds CPython's evaluation loop, also in a stripped interpreter.
 *
 * Compilers move most of the loop away from its start, and a stripped interpreter has no name for that part:
 * it is found by the many jumps from the named part into it. Private to native/. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_file;
struct pb_native;
struct pb_range;

/* Whether that name is the loop's. */
bool pb_eval_is_loop(struct pb_native *n, const struct pb_file *f, const char *name);

/* True where addr (the object's) is in the unnamed part that was moved away. */
bool pb_eval_holds(struct pb_native *n, const struct pb_range *r, uint64_t addr);
