/* compat: what a C library older than ours lacks, under its own name.
 *
 * CMake puts it before every source of a build for such a libc (release builds are for glibc 2.17) and leaves
 * it out elsewhere, so no source includes it. */
#pragma once

#include <errno.h>
#include <stdlib.h>

/* glibc 2.26: realloc for n elements; -ENOMEM by errno where their size overflows. */
static inline void *reallocarray(void *memory, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(memory, bytes);
}
