/* lock: see lock.h. */
#include "agent/core/lock.h"

#include <stdint.h>
#include <stdlib.h>

static pthread_mutex_t mutexes[PB_LOCKS] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
                                            PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
_Static_assert(PB_LOCKS == 4, "an initializer for each");

/* Debug builds: the holder, 0: none. pthread_self() is never 0 in either C library. */
static _Atomic uintptr_t owners[PB_LOCKS];

#ifdef PB_CHECK_LOCKS
enum { CHECKED = 1 };
#else
enum { CHECKED = 0 };
#endif

static void set_owner(enum pb_lock_rank lock, uintptr_t owner)
{
    if (CHECKED)
        owners[lock] = owner;
}

void pb_lock(enum pb_lock_rank lock)
{
    uintptr_t self = (uintptr_t)pthread_self();

    /* Before waiting: a lock taken twice would wait for ever. */
    for (int i = lock; CHECKED && i < PB_LOCKS; i++)
        if (owners[i] == self)
            abort();
    pthread_mutex_lock(&mutexes[lock]);
    set_owner(lock, self);
}

void pb_unlock(enum pb_lock_rank lock)
{
    set_owner(lock, 0);
    pthread_mutex_unlock(&mutexes[lock]);
}

void pb_lock_await(enum pb_lock_rank lock, pthread_cond_t *condition)
{
    set_owner(lock, 0);
    pthread_cond_wait(condition, &mutexes[lock]);
    set_owner(lock, (uintptr_t)pthread_self());
}

void pb_locks_forget(void)
{
    for (int i = 0; i < PB_LOCKS; i++) {
        pthread_mutex_init(&mutexes[i], NULL);
        set_owner(i, 0);
    }
}
