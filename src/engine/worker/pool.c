/* pool: see pool.h. */
#include "engine/worker/pool.h"

#include <pthread.h>
#include <string.h>

enum { MOST_VIEWS = 8192 };
static const uint64_t MOST_BYTES = 1u << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pb_view kept[MOST_VIEWS];
static unsigned nkept;
static uint64_t bytes;

static uint64_t size_of(const struct pb_view *v)
{
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += v->memory_size[i];
    return sum;
}

void pb_pool_take(struct pb_view *ret)
{
    *ret = (struct pb_view){0};
    pthread_mutex_lock(&lock);
    if (nkept) {
        nkept--;
        memcpy(ret->memory, kept[nkept].memory, sizeof(ret->memory));
        memcpy(ret->memory_size, kept[nkept].memory_size, sizeof(ret->memory_size));
        bytes -= size_of(ret);
    }
    pthread_mutex_unlock(&lock);
}

void pb_pool_give(struct pb_view *view)
{
    uint64_t size = size_of(view);

    pthread_mutex_lock(&lock);
    if (size && nkept < MOST_VIEWS && bytes + size <= MOST_BYTES) {
        kept[nkept++] = *view;
        bytes += size;
        *view = (struct pb_view){0};
    }
    pthread_mutex_unlock(&lock);
    pb_view_done(view);
}

void pb_pool_clear(void)
{
    pthread_mutex_lock(&lock);
    while (nkept)
        pb_view_done(&kept[--nkept]);
    bytes = 0;
    pthread_mutex_unlock(&lock);
}
