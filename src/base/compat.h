/* compat: functions that an older C library lacks, under their usual names.
 *
 * CMake includes this file before every source of a build for such a libc (release builds are for glibc 2.17)
 * and leaves it out elsewhere, so no source includes it. */
#pragma once

#include <errno.h>
#include <stdlib.h>

/* glibc 2.26: realloc for n elements; NULL and ENOMEM where their size overflows. */
static inline void *reallocarray(void *memory, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(memory, bytes);
}
