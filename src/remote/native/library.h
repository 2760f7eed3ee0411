/* library: demangled names, source lines and inlined calls, by libraries that may be on this machine
 * (libstdc++, elfutils' libdw), in a process of its own.
 *
 * Both are fed with what the target wrote: a name of fifty bytes can demangle to gigabytes, and a debug
 * section can make its reader crash. So they run in a child with limits on memory and time, which is started
 * when first needed; when it dies or does not answer, the plain symbol is what is shown, and nobody asks
 * again. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_library;

struct pb_source_frame {
    char function[512]; /* "": not known */
    char file[512];
    unsigned line;
};

/* *library starts as NULL. The demangled form of a name into buf. -ENOENT: it has none, or there is no
 * library to ask; -EPIPE: the child is dead. */
int pb_library_demangle(struct pb_library **library, const char *name, char *buf, size_t size);

/* The source of an address of the object open at fd: ret[0] is the innermost of the inlined calls, the last
 * the function itself. Returns how many, 0: nothing is said of it. */
int pb_library_lines(struct pb_library **library, int fd, uint64_t addr, struct pb_source_frame *ret,
                     size_t max);
void pb_library_free(struct pb_library *library);
