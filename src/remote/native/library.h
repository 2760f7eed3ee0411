/* library: demangled names of C++, by a library that may be on this machine (libstdc++), in a process
 * of its own.
 *
 * It is fed with what the target wrote: a name of fifty bytes can demangle to gigabytes. So it runs in a
 * child with limits on memory and time, which is started when first needed; when it dies or does not answer,
 * the plain symbol is shown, and the library is not asked again. */
#pragma once

#include <stddef.h>

struct pb_library;

/* *library starts as NULL. The demangled form of a name into buf. -ENOENT: it has none, or there is no
 * library to ask; -EPIPE: the child is dead. */
int pb_library_demangle(struct pb_library **library, const char *name, char *buf, size_t size);
void pb_library_free(struct pb_library *library);
