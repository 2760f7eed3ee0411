/* headline_keeper: see headline_keeper.h. */
#include "diagnose/headline_keeper.h"

#include "ask/ask.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STAYS_NS (10 * PB_NS_PER_S)

struct pb_headline_keeper {
    struct pb_ask ask;
    const struct pb_targets *targets;
    pthread_t thread;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t wake;
    bool wanted, looking, ending;
    struct pb_headlines headlines;
    uint64_t asked_at; /* 0: nothing yet */
    int cancel;
};

static void look(struct pb_headline_keeper *k)
{
    struct pb_headlines headlines = {0};
    struct pb_err ignored = {0};

    /* What cannot be judged has no headline: the command shows its processes all the same. */
    if (pb_headlines_ask(&k->ask, k->targets, true, &headlines, &ignored) < 0)
        headlines = (struct pb_headlines){0};
    pthread_mutex_lock(&k->lock);
    struct pb_headlines old = k->headlines;
    k->headlines = headlines;
    k->asked_at = pb_now_ns();
    k->looking = false;
    pthread_mutex_unlock(&k->lock);
    pb_headlines_done(&old);
}

static void *run_keeper(void *arg)
{
    struct pb_headline_keeper *k = arg;

    for (;;) {
        pthread_mutex_lock(&k->lock);
        while (!k->wanted && !k->ending)
            pthread_cond_wait(&k->wake, &k->lock);
        bool ending = k->ending;
        k->wanted = false;
        k->looking = !ending;
        pthread_mutex_unlock(&k->lock);
        if (ending)
            return NULL;
        look(k);
    }
}

int pb_headline_keeper_start(const struct pb_ask *ask, const struct pb_targets *targets,
                             struct pb_headline_keeper **ret, struct pb_err *err)
{
    struct pb_headline_keeper *k = calloc(1, sizeof(*k));
    sigset_t all, before;

    if (!k)
        return pb_fail(err, -ENOMEM, "out of memory");
    k->ask = *ask;
    k->ask.note = NULL; /* notes are for the thread of the command */
    k->ask.cancel = &k->cancel;
    k->targets = targets;
    k->cancel = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->wake, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = k->cancel < 0 ? -errno : -pthread_create(&k->thread, NULL, run_keeper, k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r < 0) {
        if (k->cancel >= 0)
            close(k->cancel);
        free(k);
        return pb_fail(err, r, "no thread can be started that looks for what is wrong");
    }
    *ret = k;
    return 0;
}

void pb_headline_keeper_stop(struct pb_headline_keeper *k)
{
    uint64_t one = 1;

    if (!k)
        return;
    (void)!write(k->cancel, &one, sizeof(one));
    pthread_mutex_lock(&k->lock);
    k->ending = true;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->thread, NULL);
    pb_headlines_done(&k->headlines);
    pthread_cond_destroy(&k->wake);
    pthread_mutex_destroy(&k->lock);
    close(k->cancel);
    free(k);
}

void pb_headline_keeper_look(struct pb_headline_keeper *k)
{
    pthread_mutex_lock(&k->lock);
    if (!k->looking && (!k->asked_at || pb_now_ns() - k->asked_at > STAYS_NS)) {
        k->wanted = true;
        pthread_cond_signal(&k->wake);
    }
    pthread_mutex_unlock(&k->lock);
}

bool pb_headline_keeper_of(struct pb_headline_keeper *k, pid_t pid, struct pb_headline *ret)
{
    pthread_mutex_lock(&k->lock);
    const struct pb_headline *h = pb_headline_of(&k->headlines, pid);
    if (h)
        *ret = *h;
    pthread_mutex_unlock(&k->lock);
    return h != NULL;
}
