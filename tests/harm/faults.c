/* faults: linked into a test build of the agent (PROBING_FAULTS), where each call below goes through here by
 * the linker's
 * --wrap. The runner maps the file that HARM_FAULTS names and says which call of the agent is to fail: only
 * the Nth, or all from the Nth on. Calls of the program itself are not touched. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the runner and the agent share (test_faults.py). */
struct faults {
    _Atomic uint32_t nth; /* 0: nothing fails */
    _Atomic uint32_t on;  /* 1: all from there on */
    _Atomic uint32_t calls;
    _Atomic uint32_t failed;
    char name[32]; /* of the first call that failed */
};

static struct faults *faults;

int __real_open(const char *path, int flags, ...);
void *__real_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset);

__attribute__((constructor)) static void map_faults(void)
{
    const char *path = getenv("HARM_FAULTS");
    int fd = path ? __real_open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = __real_mmap(NULL, sizeof(*faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        faults = at;
}

static int fails(const char *name, int error)
{
    if (!faults)
        return 0;
    uint32_t nth = faults->nth, call = ++faults->calls;
    if (nth == 0 || (faults->on ? call < nth : call != nth))
        return 0;
    if (faults->failed++ == 0)
        strncpy(faults->name, name, sizeof(faults->name) - 1);
    errno = error;
    return 1;
}

#define WRAP(type, name, parameters, arguments, error, failure)                                              \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        return fails(#name, error) ? failure : __real_##name arguments;                                      \
    }

WRAP(void *, mmap, (void *at, size_t size, int prot, int flags, int fd, off_t offset),
     (at, size, prot, flags, fd, offset), ENOMEM, MAP_FAILED)
WRAP(int, pthread_create, (pthread_t * ret, const pthread_attr_t *attr, void *(*run)(void *), void *of),
     (ret, attr, run, of), EAGAIN, EAGAIN)
WRAP(int, pthread_atfork, (void (*prepare)(void), void (*parent)(void), void (*child)(void)),
     (prepare, parent, child), ENOMEM, ENOMEM)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, -1)
WRAP(int, socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds), EMFILE,
     -1)
WRAP(int, bind, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size), EACCES, -1)
WRAP(int, listen, (int fd, int backlog), (fd, backlog), EOPNOTSUPP, -1)
WRAP(int, accept4, (int fd, struct sockaddr *from, socklen_t *size, int flags), (fd, from, size, flags),
     EMFILE, -1)
WRAP(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags), EPIPE, -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), EPIPE, -1)
WRAP(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags), ECONNRESET, -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), ECONNRESET, -1)
WRAP(int, epoll_create1, (int flags), (flags), EMFILE, -1)
WRAP(int, epoll_ctl, (int fd, int op, int of, struct epoll_event *event), (fd, op, of, event), ENOSPC, -1)
WRAP(int, eventfd, (unsigned count, int flags), (count, flags), EMFILE, -1)
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), ENOSPC, -1)
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), ENOSPC, -1)
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), ENOSPC, -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), ENOSPC, -1)
WRAP(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode), ENOSPC, -1)
WRAP(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new), ENOSPC, -1)
WRAP(int, madvise, (void *at, size_t size, int advice), (at, size, advice), EAGAIN, -1)
WRAP(DIR *, fdopendir, (int fd), (fd), ENOMEM, NULL)
WRAP(void *, dlopen, (const char *path, int flags), (path, flags), ENOMEM, NULL)

/* Those with a variable number of words: three at most after the fixed ones, or six. */
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list words;
    va_start(words, flags);
    unsigned mode = flags & O_CREAT ? va_arg(words, unsigned) : 0;
    va_end(words);
    return fails("open", EMFILE) ? -1 : __real_open(path, flags, mode);
}

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list words;
    va_start(words, flags);
    unsigned mode = flags & O_CREAT ? va_arg(words, unsigned) : 0;
    va_end(words);
    return fails("openat", EMFILE) ? -1 : __real_openat(dir, path, flags, mode);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    va_list words;
    va_start(words, command);
    void *word = va_arg(words, void *);
    va_end(words);
    return fails("fcntl", command == F_DUPFD_CLOEXEC ? EMFILE : EINVAL) ? -1
                                                                        : __real_fcntl(fd, command, word);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    va_list words;
    long word[6];
    va_start(words, number);
    for (int i = 0; i < 6; i++)
        word[i] = va_arg(words, long);
    va_end(words);
    /* Waking a waiter cannot fail in the kernel. Any other call can, a wait among them. */
    bool wakes = number == SYS_futex && (word[1] & FUTEX_CMD_MASK) == FUTEX_WAKE;
    return !wakes && fails("syscall", ENOSYS)
               ? -1
               : __real_syscall(number, word[0], word[1], word[2], word[3], word[4], word[5]);
}
