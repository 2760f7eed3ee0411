/* own_code: which source files are the program's own code, and which a library's. One rule for stacks,
 * places of collectives, samples of memory, the debugger and the tools. */
#pragma once

#include <stdbool.h>

/* Whether it is Python's own or an installed package's, by its path. Code from -c, stdin or a notebook
 * ("<string>") is the program's. */
bool pb_is_library_file(const char *file);
