/* futex: waits for a word of this process's memory to change, and wakes the threads that wait for it. A
 * thread of the program and one of ours have different descriptor tables, so they can share no pipe or
 * eventfd, only memory. */
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns when the word differs from the value, when woken, or spuriously. */
static inline void pb_futex_wait(const uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* The same, for at most that long; no limit where it is negative. */
static inline void pb_futex_wait_ms(const uint32_t *word, uint32_t value, long ms)
{
    const struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, ms < 0 ? NULL : &limit, NULL, 0);
}

/* Signal-safe; leaves errno alone. */
static inline void pb_futex_wake(const uint32_t *word)
{
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    errno = saved;
}
