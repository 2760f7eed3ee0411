/* gil: see gil.h. */
#include "agent/python/gil.h"

#include "agent/core/own_memory.h"
#include "agent/python/pylayout.h"
#include "agent/python/python.h"
#include "agent/python/states.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Up to 3.11 the holder is a global that a function returns; from 3.12 on it is reached through the
 * interpreter: interp + gil -> struct {8: holder, 16: locked}. */
#define TSTATE_INTERP 16
#define GIL_HOLDER    8
#define GIL_LOCKED    16

#define DESCRIPTION_SIZE 2304 /* glibc's struct pthread; musl's is smaller */

static int peek(uintptr_t address, void *ret, size_t size)
{
    const struct iovec piece = {(void *)address, size};
    return pb_own_memory_read(&piece, 1, ret) == (ssize_t)size ? 0 : -EFAULT;
}

static int holder_tstate(const struct pb_python *py, const struct pb_agent_layout *l, uintptr_t *ret)
{
    uintptr_t interp, gil, holder, back;
    int32_t locked;

    if (!l->interp_gil) {
        if (!py->current_tstate)
            return -ENOSYS;
        *ret = (uintptr_t)py->current_tstate();
        return 0;
    }
    if (!py->main_interpreter)
        return -ENOSYS;
    interp = (uintptr_t)py->main_interpreter();
    if (peek(interp + l->interp_gil, &gil, sizeof(gil)) < 0 ||
        peek(gil + GIL_LOCKED, &locked, sizeof(locked)) < 0 ||
        peek(gil + GIL_HOLDER, &holder, sizeof(holder)) < 0)
        return -ENOSYS;
    if (!locked) {
        *ret = 0;
        return 0;
    }
    /* The thread state points back to its interpreter: a layout that does not fit this build is noticed
     * here. */
    if (peek(holder + TSTATE_INTERP, &back, sizeof(back)) < 0 || back != interp)
        return -ENOSYS;
    *ret = holder;
    return 0;
}

static int is_thread(pid_t tid)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/task/%d", (int)tid);
    return tid > 0 && access(path, F_OK) == 0;
}

/* A pthread handle points to the C library's description of the thread, which holds the tid; its offset is
 * the same in all of them, so it is found in our own. Asking the C library (pthread_getcpuclockid) would read
 * the memory of a thread that may be gone; the kernel returns an error instead. */
static pid_t tid_of_pthread(uintptr_t handle)
{
    const struct iovec own = {(void *)(uintptr_t)pthread_self(), DESCRIPTION_SIZE};
    pid_t words[DESCRIPTION_SIZE / sizeof(pid_t)], word, self = (pid_t)syscall(SYS_gettid);

    ssize_t n = handle ? pb_own_memory_read(&own, 1, words) : -EINVAL;
    for (size_t i = 0; n > 0 && i < (size_t)n / sizeof(word); i++)
        if (words[i] == self)
            return peek(handle + i * sizeof(word), &word, sizeof(word)) == 0 && is_thread(word) ? word
                                                                                                : -ENOSYS;
    return -ENOSYS;
}

pid_t pb_gil_holder(const struct pb_python *py)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    uintptr_t tstate;

    if (!l || holder_tstate(py, l, &tstate) < 0)
        return -ENOSYS;
    if (!tstate)
        return 0;

    uint64_t id;
    if (peek(tstate + (l->native_id ? l->native_id : l->thread_id), &id, sizeof(id)) < 0)
        return -ENOSYS;
    return l->native_id ? (pid_t)id : tid_of_pthread((uintptr_t)id);
}

/* Writes "thread 4711 (main thread)" or "thread 4711 (its name)". */
static void describe_thread(pid_t tid, char *ret, size_t size)
{
    char path[64], name[32] = "";

    if (tid == getpid()) {
        snprintf(ret, size, "thread %d (main thread)", (int)tid);
        return;
    }
    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", (int)tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, name, sizeof(name) - 1);
        name[n > 0 ? n - 1 : 0] = '\0';
        close(fd);
    }
    snprintf(ret, size, "thread %d (%s)", (int)tid, name[0] ? name : "gone meanwhile");
}

void pb_gil_say_why(uint64_t timeout_ms, char *ret, size_t size)
{
    char holder[96];
    struct pb_python py;

    int known = pb_python_known(&py) == 0;
    if (known && py.minor == 6 && !py.threads_initialized()) {
        snprintf(
            ret, size,
            "this Python 3.6 has no GIL before its main thread runs Python code again, and it sits in C");
        return;
    }
    if (known && pb_states_are_asked_for()) {
        snprintf(ret, size,
                 "the program has replaced Python's raw memory allocator (tracemalloc?), so a thread of ours "
                 "enters only with the help of %s, which runs no Python code now: try again later",
                 py.minor >= 12 ? "another thread" : "the main thread");
        return;
    }
    pid_t tid = known ? pb_gil_holder(&py) : -ENOENT;
    if (tid > 0)
        describe_thread(tid, holder, sizeof(holder));
    snprintf(ret, size, "the GIL could not be had within %.3g s: %s%s", (double)timeout_ms / 1e3,
             tid > 0          ? "it is held by "
             : tid == 0       ? "nobody holds it now, but threads pass it on too fast"
             : tid == -ENOENT ? "the process is busy loading libraries"
                              : "it is held by a thread that could not be named",
             tid > 0 ? holder : "");
}
