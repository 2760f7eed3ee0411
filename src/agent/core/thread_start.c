/* thread_start: see thread_start.h. */
#include "agent/core/thread_start.h"

#include "agent/core/small_files.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SMALL_STACK (256u << 10)
#define MOST_TRIES  4
#define PLACES      64

/* glibc: the part of each stack that it uses itself, mainly static TLS. Other programs use it too (the JVM,
 * Rust); it is in no header and not in musl. */
__attribute__((weak)) size_t __pthread_get_minstack(const pthread_attr_t *attributes);

static int add_tls(struct dl_phdr_info *info, size_t size, void *total)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)total += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
    return 0;
}

/* Thread-local variables of the program and its libraries are on a thread's stack. A library loaded later has
 * its own elsewhere; counting it too only costs address space. */
static size_t stack_of_libc(const pthread_attr_t *attributes)
{
    size_t total = (size_t)sysconf(_SC_PAGESIZE);

    if (__pthread_get_minstack)
        return __pthread_get_minstack(attributes);
    dl_iterate_phdr(add_tls, &total);
    return total;
}

/* Our threads. A place is free again when the kernel no longer knows its thread. */
static struct thread_place {
    int tid; /* 0: free; -1: about to start */
    void *(*run)(void *);
    void *argument;
} places[PLACES];

static int has_ended(int tid)
{
    return tid > 0 && syscall(SYS_tgkill, getpid(), tid, 0) < 0 && errno == ESRCH;
}

static struct thread_place *take_place(void)
{
    for (int i = 0; i < PLACES; i++) {
        int tid = __atomic_load_n(&places[i].tid, __ATOMIC_SEQ_CST);
        if ((tid == 0 || has_ended(tid)) &&
            __atomic_compare_exchange_n(&places[i].tid, &tid, -1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            return &places[i];
    }
    return NULL;
}

static void *run_in_place(void *argument)
{
    struct thread_place *place = argument;
    void *(*run)(void *) = place->run;

    argument = place->argument;
    __atomic_store_n(&place->tid, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    return run(argument);
}

int pb_thread_is_ours(int tid)
{
    for (int i = 0; i < PLACES; i++)
        if (__atomic_load_n(&places[i].tid, __ATOMIC_SEQ_CST) == tid)
            return 1;
    return 0;
}

int pb_thread_others_run(void)
{
    int self = (int)syscall(SYS_gettid), n = 0;

    for (int i = 0; i < PLACES; i++) {
        int tid = __atomic_load_n(&places[i].tid, __ATOMIC_SEQ_CST);
        n += tid != 0 && tid != self && !has_ended(tid);
    }
    return n;
}

void pb_threads_forget(void)
{
    memset(places, 0, sizeof(places));
}

int pb_thread_start(void *(*run)(void *), void *argument, size_t stack)
{
    struct thread_place *place = take_place();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    sigfillset(&all);
    if (place) { /* else the process outlives its own threads by this one of ours */
        place->run = run;
        place->argument = argument;
        run = run_in_place;
        argument = place;
    }
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    size_t size = (stack ? stack : SMALL_STACK) + stack_of_libc(&attributes);
    size = (size + page - 1) / page * page;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = EINVAL;
    /* EINVAL: the C library needs more than it says. */
    for (int i = 0; r == EINVAL && i < MOST_TRIES; i++, size *= 2) {
        pthread_attr_setstacksize(&attributes, size);
        r = pthread_create(&thread, &attributes, run, argument);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (r != 0 && place)
        __atomic_store_n(&place->tid, 0, __ATOMIC_SEQ_CST);
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

/* How much of a thread's description is searched, no more than every release has: glibc (2304 bytes) keeps
 * the tid at 720, musl at 48. */
#ifdef __GLIBC__
#define DESCRIPTION_SIZE 1024
#else
#define DESCRIPTION_SIZE 64
#endif
#define KNOWN 64

/* The offset of the tid in the description of the calling thread; -1: not found. */
static int find_id(uintptr_t description, int id)
{
    for (int at = 4; at < DESCRIPTION_SIZE; at += 4)
        if (*(const int *)(description + (uintptr_t)at) == id)
            return at;
    return -1;
}

/* A pthread handle points to the C library's description of the thread, which has the tid, at the same offset
 * in each. The offset is found once, in a description of our own, and used for a thread only after the kernel
 * has confirmed it. That word then changes only when another thread gets the memory. */
int pb_thread_id(void)
{
    static struct {
        uintptr_t thread;
        int id;
    } known[KNOWN];
    static int place; /* 0: not searched yet; -1: not found */
    uintptr_t self = (uintptr_t)pthread_self();
    unsigned at = (unsigned)(self * UINT64_C(0x9e3779b97f4a7c15) >> 58);
    int where = __atomic_load_n(&place, __ATOMIC_RELAXED);

    if (where > 0) {
        int id = __atomic_load_n((int *)(self + (uintptr_t)where), __ATOMIC_RELAXED);
        if (__atomic_load_n(&known[at].thread, __ATOMIC_ACQUIRE) == self &&
            __atomic_load_n(&known[at].id, __ATOMIC_RELAXED) == id)
            return id;
    }
    int id = (int)syscall(SYS_gettid);
    if (where == 0) {
        where = find_id(self, id);
        __atomic_store_n(&place, where, __ATOMIC_RELAXED);
    }
    if (where > 0 && *(int *)(self + (uintptr_t)where) == id) {
        __atomic_store_n(&known[at].thread, 0, __ATOMIC_RELEASE); /* threads that share it never mix */
        __atomic_store_n(&known[at].id, id, __ATOMIC_RELEASE);
        __atomic_store_n(&known[at].thread, self, __ATOMIC_RELEASE);
    }
    return id;
}
