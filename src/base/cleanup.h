/* cleanup: locals that release themselves, so that a function has one way out.
 *
 *   _cleanup_(pb_maps_done) struct pb_maps m = {0};     a struct with a done function that takes its address
 *   _cleanup_free_ char *text = NULL;                    memory of malloc
 *   _cleanup_close_ int fd = -1;                         a descriptor; errno survives */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

static inline void pb_cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void pb_cleanup_close(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
    }
}

#define _cleanup_free_  _cleanup_(pb_cleanup_free)
#define _cleanup_close_ _cleanup_(pb_cleanup_close)

/* Returns the variable's value and leaves the variable empty, so that its cleanup does nothing. */
#define pb_take(var, empty)                                                                                  \
    ({                                                                                                       \
        __typeof__(var) taken_ = (var);                                                                      \
        (var) = (empty);                                                                                     \
        taken_;                                                                                              \
    })
#define pb_take_fd(fd)   pb_take(fd, -1)
#define pb_take_ptr(ptr) pb_take(ptr, NULL)
