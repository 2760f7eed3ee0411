/* eval: which code is CPython's evaluation loop, in an interpreter with all of its names or hardly any.
 *
 * Compilers move most of the loop away from its start, and a stripped interpreter has no name for that part:
 * but the named part jumps into it, often, and that is how it is found. Private to native/. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_file;
struct pb_native;
struct pb_range;

/* By its name. */
bool pb_eval_is_loop(struct pb_native *n, const struct pb_file *f, const char *name);

/* Without one: true where addr (the object's) is in the part that was moved away. */
bool pb_eval_holds(struct pb_native *n, const struct pb_range *r, uint64_t addr);
