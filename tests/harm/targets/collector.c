/* collector: collects garbage as the Boehm collector does. One thread stops all others by a signal, in whose
 * handler they wait, reads their stacks word by word, and overwrites every block that no word points to. A
 * thread that finds its own block overwritten was on a stack that was not seen, or ran while it was read. */
#include "kit.h"

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>

enum { MUTATORS = 3, BLOCKS = 64, WORDS = 16, STOP = SIGPWR, RESUME = SIGXCPU };

static struct block {
    bool used, marked;
    uint64_t words[WORDS];
} blocks[BLOCKS];

static struct mutator {
    pthread_t thread;
    uintptr_t *volatile top; /* of the part in use, while it is stopped */
    uintptr_t *base;
} mutators[MUTATORS];

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* no thread is stopped in the midst of an allocation */
static __thread struct mutator *self;
static sem_t stopped;
static volatile bool collecting, stop;
static unsigned long collections;

static void wait_for_resume(int number)
{
    int saved = errno;
    sigset_t all_but;
    jmp_buf registers; /* they are part of the stack that is read */

    (void)number;
    (void)setjmp(registers);
    self->top = (uintptr_t *)&registers;
    sigfillset(&all_but);
    sigdelset(&all_but, RESUME);
    sem_post(&stopped);
    while (collecting)
        sigsuspend(&all_but);
    self->top = NULL;
    sem_post(&stopped);
    errno = saved;
}

static void resume(int number)
{
    (void)number;
}

static void mark(uintptr_t word)
{
    uintptr_t at = word - (uintptr_t)blocks;
    if (at < sizeof(blocks))
        blocks[at / sizeof(struct block)].marked = true;
}

static void all_answer(int signal)
{
    for (int i = 0; i < MUTATORS; i++)
        pthread_kill(mutators[i].thread, signal);
    for (int i = 0; i < MUTATORS; i++)
        while (sem_wait(&stopped) < 0)
            kit_complain("sem_wait ended with %s", strerror(errno));
}

static void collect(void)
{
    pthread_mutex_lock(&lock);
    collecting = true;
    all_answer(STOP);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i].marked = false;
    for (int i = 0; i < MUTATORS; i++)
        for (uintptr_t *p = mutators[i].top; p < mutators[i].base; p++)
            mark(*p);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].used && !blocks[i].marked) {
            memset(blocks[i].words, 0xdd, sizeof(blocks[i].words));
            blocks[i].used = false;
        }
    collecting = false;
    all_answer(RESUME);
    collections++;
    pthread_mutex_unlock(&lock);
}

static struct block *allocate(uint64_t value)
{
    struct block *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS && !found; i++)
        if (!blocks[i].used)
            found = &blocks[i];
    if (found) {
        found->used = true;
        for (int i = 0; i < WORDS; i++)
            found->words[i] = value + (uint64_t)i;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void *mutate(void *arg)
{
    self = arg;
    self->base = (uintptr_t *)__builtin_frame_address(0);
    sem_post(&stopped);
    for (uint64_t value = 1; !stop; value += WORDS) {
        struct block *volatile mine = allocate(value);
        usleep(300);
        for (int i = 0; mine && i < WORDS; i++)
            if (mine->words[i] != value + (uint64_t)i)
                kit_complain("a block in use was collected");
    }
    return NULL;
}

int main(void)
{
    struct sigaction action = {.sa_handler = wait_for_resume, .sa_flags = SA_RESTART};

    sigfillset(&action.sa_mask);
    sigaction(STOP, &action, NULL);
    action.sa_handler = resume;
    sigaction(RESUME, &action, NULL);
    sem_init(&stopped, 0, 0);
    for (int i = 0; i < MUTATORS; i++)
        if (pthread_create(&mutators[i].thread, NULL, mutate, &mutators[i]))
            return 1;
    for (int i = 0; i < MUTATORS; i++)
        sem_wait(&stopped);
    while (kit_going()) {
        collect();
        usleep(500);
    }
    stop = true;
    for (int i = 0; i < MUTATORS; i++)
        pthread_join(mutators[i].thread, NULL);
    return collections ? 0 : 1;
}
