/* direct: the agent's system calls on descriptors, made directly instead of by functions of the C library.
 *
 * The build includes this before each file of the agent (cmake/agent.cmake). A program may replace these
 * functions (LD_PRELOAD: user-space networking, I/O tracers) by ones that keep state by descriptor number.
 * Our numbers belong to another table (fds.h): a close of our 5 must not be taken for one of the program's
 * 5. */
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int pb_direct_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    return (int)syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &limit, NULL, 0);
}

/* A function, since GCC warns of a cast value that is not used. */
static inline int pb_direct_close(int fd)
{
    return (int)syscall(SYS_close, fd);
}

/* Macros, since a function of the same name could be replaced. Sizes and offsets are widened here: the kernel
 * takes whole registers. */
#define pb_direct_open(dir, path, flags, mode, ...) ((int)syscall(SYS_openat, dir, path, flags, mode))
#define pb_direct_fcntl(fd, what, arg, ...)         ((int)syscall(SYS_fcntl, fd, what, (long)(arg)))
#define close(fd)                                   pb_direct_close(fd)
#define open(path, ...)                             pb_direct_open(AT_FDCWD, path, __VA_ARGS__, 0, 0)
#define openat(dir, path, ...)                      pb_direct_open(dir, path, __VA_ARGS__, 0, 0)
#define fcntl(fd, ...)                              pb_direct_fcntl(fd, __VA_ARGS__, 0, 0)
#define read(fd, buf, size)                         ((ssize_t)syscall(SYS_read, fd, buf, (size_t)(size)))
#define write(fd, buf, size)                        ((ssize_t)syscall(SYS_write, fd, buf, (size_t)(size)))
#define pread(fd, buf, size, at)                    ((ssize_t)syscall(SYS_pread64, fd, buf, (size_t)(size), (off_t)(at)))
#define pwrite(fd, buf, size, at)                   ((ssize_t)syscall(SYS_pwrite64, fd, buf, (size_t)(size), (off_t)(at)))
#define lseek(fd, at, whence)                       ((off_t)syscall(SYS_lseek, fd, (off_t)(at), whence))
#define ftruncate(fd, size)                         ((int)syscall(SYS_ftruncate, fd, (off_t)(size)))
#define fallocate(fd, mode, at, size)               ((int)syscall(SYS_fallocate, fd, mode, (off_t)(at), (off_t)(size)))
#define pipe2(ends, flags)                          ((int)syscall(SYS_pipe2, ends, flags))
#define poll(fds, n, timeout_ms)                    pb_direct_poll(fds, n, timeout_ms)
#define socket(family, type, protocol)              ((int)syscall(SYS_socket, family, type, protocol))
#define socketpair(family, type, protocol, ends)    ((int)syscall(SYS_socketpair, family, type, protocol, ends))
#define bind(fd, address, size)                     ((int)syscall(SYS_bind, fd, address, size))
#define listen(fd, backlog)                         ((int)syscall(SYS_listen, fd, backlog))
#define accept4(fd, address, size, flags)           ((int)syscall(SYS_accept4, fd, address, size, flags))
#define send(fd, buf, size, flags)                  ((ssize_t)syscall(SYS_sendto, fd, buf, (size_t)(size), flags, NULL, 0))
#define recv(fd, buf, size, flags)                                                                           \
    ((ssize_t)syscall(SYS_recvfrom, fd, buf, (size_t)(size), flags, NULL, NULL))
#define sendmsg(fd, message, flags) ((ssize_t)syscall(SYS_sendmsg, fd, message, flags))
#define recvmsg(fd, message, flags) ((ssize_t)syscall(SYS_recvmsg, fd, message, flags))
#define getsockopt(fd, level, option, value, size)                                                           \
    ((int)syscall(SYS_getsockopt, fd, level, option, value, size))
#define setsockopt(fd, level, option, value, size)                                                           \
    ((int)syscall(SYS_setsockopt, fd, level, option, value, size))
#define getsockname(fd, address, size) ((int)syscall(SYS_getsockname, fd, address, size))
