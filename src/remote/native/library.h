/* library: demangles C++ names with libstdc++, if this machine has it, in a child process.
 *
 * The names come from the target: one of fifty bytes can demangle to gigabytes. So the library runs in a
 * child with limits on memory and time, started when first needed. If it dies or does not answer, the plain
 * symbol is shown and the child is not used again. */
#pragma once

#include <stddef.h>

struct pb_library;

/* Writes the demangled form of a name to buf. *library starts as NULL. -ENOENT: the name has none, or there
 * is no library; -EPIPE: the child is dead. */
int pb_library_demangle(struct pb_library **library, const char *name, char *buf, size_t size);
void pb_library_free(struct pb_library *library);
