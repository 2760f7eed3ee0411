/* gil: see gil.h. */
#include "agent/gil.h"

#include "agent/python.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Offsets on LP64 Linux; the same on x86-64 and aarch64. Up to 3.11 the holder is a global that a function
 * returns; from 3.12 on it is found through the interpreter: interp + gil -> struct {8: holder, 16: locked}.
 * native_id 0: only the pthread handle is stored. From the headers up to 3.13, and from _Py_DebugOffsets
 * after; tests/integration asks every interpreter found. */
static const struct layout {
    int minor;
    uint16_t interp_gil, thread_id, native_id;
} layouts[] = {
    {6, 0, 152, 0},    {7, 0, 176, 0},      {8, 0, 176, 0},     {9, 0, 176, 0},     {10, 0, 176, 0},
    {11, 0, 152, 160}, {12, 384, 136, 144}, {13, 16, 152, 160}, {14, 16, 152, 160}, {15, 16, 176, 184},
};
#define TSTATE_INTERP 16
#define GIL_HOLDER    8
#define GIL_LOCKED    16

static int peek(uintptr_t address, void *ret, size_t size)
{
    struct iovec local = {ret, size}, remote = {(void *)address, size};
    return syscall(SYS_process_vm_readv, getpid(), &local, 1ul, &remote, 1ul, 0ul) == (ssize_t)size ? 0
                                                                                                    : -EFAULT;
}

static int holder_tstate(const struct pb_python *py, const struct layout *l, uintptr_t *ret)
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
    /* The thread state points back to its interpreter: a layout that does not fit this build is noticed here.
     */
    if (peek(holder + TSTATE_INTERP, &back, sizeof(back)) < 0 || back != interp)
        return -ENOSYS;
    *ret = holder;
    return 0;
}

static pid_t tid_of_pthread(uintptr_t handle)
{
    clockid_t clock;
    uintptr_t words[3];

    /* The C library reads the handle: it must still be there and, on x86-64, point to itself. */
    if (!handle || peek(handle, words, sizeof(words)) < 0)
        return -ENOSYS;
#ifdef __x86_64__
    if (words[0] != handle && words[2] != handle)
        return -ENOSYS;
#endif
    /* A thread's CPU clock id holds its tid (~tid << 3 | 6): the one public way from a pthread_t to a tid. */
    if (pthread_getcpuclockid((pthread_t)handle, &clock) != 0)
        return -ENOSYS;
    return (pid_t) ~((int32_t)clock >> 3);
}

pid_t pb_gil_holder(const struct pb_python *py)
{
    const struct layout *l = NULL;
    uintptr_t tstate;

    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i].minor == py->minor)
            l = &layouts[i];
    if (!l || holder_tstate(py, l, &tstate) < 0)
        return -ENOSYS;
    if (!tstate)
        return 0;

    uint64_t id;
    if (peek(tstate + (l->native_id ? l->native_id : l->thread_id), &id, sizeof(id)) < 0)
        return -ENOSYS;
    return l->native_id ? (pid_t)id : tid_of_pthread((uintptr_t)id);
}

void pb_gil_describe(pid_t tid, char *ret, size_t size)
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
