/* coroutine: a thread that sleeps on a stack of little more than 1 KB in the middle of a block of memory. The
 * memory below that stack belongs to another thread, which notices every word that is changed there. */
#include "kit.h"

#include <stdatomic.h>
#include <ucontext.h>

enum { WORDS = 2048, STACK = 1280 };

static struct {
    volatile unsigned long words[WORDS]; /* as much as a signal frame can be */
    char stack[STACK];
} * block;
static ucontext_t thread_itself, coroutine;
static atomic_bool stop;

static void sleep_often(void)
{
    while (!stop) {
        struct timespec t = {0, 1000000};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    }
    swapcontext(&coroutine, &thread_itself);
}

static void *run_coroutine(void *unused)
{
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = block->stack;
    coroutine.uc_stack.ss_size = STACK;
    coroutine.uc_link = NULL;
    makecontext(&coroutine, sleep_often, 0);
    swapcontext(&thread_itself, &coroutine);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    unsigned long n = 0;

    block = calloc(1, sizeof(*block));
    if (!block || pthread_create(&thread, NULL, run_coroutine, NULL))
        return 1;
    while (kit_going())
        for (double end = kit_now() + 0.01; kit_now() < end; n++)
            for (int i = 0; i < WORDS; i++) {
                if (block->words[i] != n)
                    kit_complain("memory below a coroutine's stack has changed");
                block->words[i] = n + 1;
            }
    stop = true;
    pthread_join(thread, NULL);
    return 0;
}
