/* agent_ok: the smallest agent: one thread that counts, and a status that a test reads from outside. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct status {
    uint64_t magic, calls, beats, mask; /* mask: signals blocked in the thread as it started */
    char options[4096];
};

static struct status status = {.magic = 0x70726f62696e6721};

static void *run(void *arg)
{
    sigset_t now;
    (void)arg;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    memcpy(&status.mask, &now, sizeof(status.mask));
    for (;;) {
        __atomic_fetch_add(&status.beats, 1, __ATOMIC_RELAXED);
        usleep(1000);
    }
    return NULL;
}

/* As any compiled code may: an entry point need not keep these, so the injector must. */
static void spoil_registers(void)
{
#ifdef __x86_64__
    __asm__ volatile(
        "pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm7, %%xmm7\n pxor %%xmm15, %%xmm15" ::
            : "xmm0", "xmm1", "xmm7", "xmm15");
#endif
}

__attribute__((visibility("default"))) void *pb_agent_start(const char *options);

void *pb_agent_start(const char *options)
{
    pthread_t thread;
    spoil_registers();
    size_t len = strnlen(options, sizeof(status.options) - 1);
    memcpy(status.options, options, len);
    status.options[len] = '\0';
    if (__atomic_fetch_add(&status.calls, 1, __ATOMIC_RELAXED) == 0 &&
        pthread_create(&thread, NULL, run, NULL) != 0)
        return NULL;
    return &status;
}
