/* compat: functions that an older or another C library lacks, under their usual names.
 *
 * CMake includes this file before every source of a build for such a libc (release builds are for glibc 2.17
 * and for musl) and leaves it out elsewhere, so no source includes it. */
#pragma once

#include <errno.h>
#include <stdlib.h>

#ifdef PB_NO_REALLOCARRAY
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
#endif

#ifdef PB_NO_MALLOC_TRIM
/* musl gives free memory back by itself. */
static inline int malloc_trim(size_t keep)
{
    (void)keep;
    return 0;
}
#endif

#ifdef PB_OWN_STREAMS
#include <stdio.h>

FILE **pb_stream(int fd); /* base/streams.c */

#undef stdout
#undef stderr
#define stdout        (*pb_stream(1))
#define stderr        (*pb_stream(2))
#define printf(...)   fprintf(stdout, __VA_ARGS__)
#define vprintf(f, a) vfprintf(stdout, f, a)
#define putchar(c)    fputc(c, stdout)
#define puts(s)       fprintf(stdout, "%s\n", s)
#endif
