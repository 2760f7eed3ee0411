/* thread: see thread.h. */
#include "agent/thread.h"

#include "agent/files.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SMALL_STACK (256u << 10)
#define MOST_TRIES  4

/* glibc: what it takes of each stack, static TLS first of all. Other programs ask for it too (the JVM, Rust);
 * it is in no header and not in musl. */
__attribute__((weak)) size_t __pthread_get_minstack(const pthread_attr_t *attributes);

static int add_tls(struct dl_phdr_info *info, size_t size, void *total)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)total += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
    return 0;
}

/* Thread-local variables of the program and its libraries lie on a thread's stack. A library that was loaded
 * later has its own elsewhere; counting it too costs address space alone. */
static size_t stack_of_libc(const pthread_attr_t *attributes)
{
    size_t total = (size_t)sysconf(_SC_PAGESIZE);

    if (__pthread_get_minstack)
        return __pthread_get_minstack(attributes);
    dl_iterate_phdr(add_tls, &total);
    return total;
}

int pb_thread_start(void *(*run)(void *), void *argument, size_t stack)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    size_t size = (stack ? stack : SMALL_STACK) + stack_of_libc(&attributes);
    size = (size + page - 1) / page * page;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = EINVAL;
    /* EINVAL: the C library needs more for itself than it says. */
    for (int i = 0; r == EINVAL && i < MOST_TRIES; i++, size *= 2) {
        pthread_attr_setstacksize(&attributes, size);
        r = pthread_create(&thread, &attributes, run, argument);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -r;
}

static uint64_t host_signals; /* bit 0 is signal 1 */

void pb_thread_read_host_signals(void)
{
    char path[64], text[4096];

    snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)getpid());
    const char *blocked = pb_file_read(path, text, sizeof(text)) < 0 ? NULL : strstr(text, "SigBlk:");
    if (blocked)
        __atomic_store_n(&host_signals, strtoull(blocked + 7, NULL, 16), __ATOMIC_RELEASE);
}

void pb_thread_take_host_signals(void)
{
    uint64_t bits = __atomic_load_n(&host_signals, __ATOMIC_ACQUIRE);
    sigset_t mask;

    sigemptyset(&mask);
    for (int signal = 1; signal <= 64; signal++)
        if (bits >> (signal - 1) & 1)
            sigaddset(&mask, signal);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

void pb_thread_name(const char *name)
{
    prctl(PR_SET_NAME, name, 0, 0, 0);
}
