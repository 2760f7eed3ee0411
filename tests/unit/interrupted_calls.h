/* interrupted_calls: calls that wait, each with what it waits on and what ends it; for the test of stops. */
#pragma once

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "slow.h"
#include "test.h"

#define LONG_S (60 * TEST_SLOWNESS) /* a timeout that is not meant to pass */
#define ABSENT (-ENOSYS)

static const struct timespec long_time = {.tv_sec = LONG_S};

/* fd[0] is the end that waits; what happens at fd[1] ends the wait. */
struct kit {
    int fd[2];
    int other; /* a semaphore, an epoll set */
    struct sockaddr_un name;
};

static int result_of(long r)
{
    return r < 0 ? -errno : (int)r;
}

static void limit_waits(int fd)
{
    struct timeval limit = {.tv_sec = LONG_S};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
}

static void make_pair(struct kit *k)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, k->fd), 0);
    limit_waits(k->fd[0]);
}

static void make_full_pair(struct kit *k)
{
    static const char data[4096];

    make_pair(k);
    while (send(k->fd[0], data, sizeof(data), MSG_DONTWAIT) > 0)
        ;
}

static void make_epoll(struct kit *k)
{
    struct epoll_event event = {.events = EPOLLIN};

    make_pair(k);
    k->other = epoll_create1(0);
    assert_int_equal(epoll_ctl(k->other, EPOLL_CTL_ADD, k->fd[0], &event), 0);
}

static int bind_loopback(struct sockaddr_in *ret)
{
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)ret, sizeof(*ret)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &len), 0);
    return fd;
}

/* The listener waits; fd[1] is to connect. */
static void make_listener(struct kit *k)
{
    struct sockaddr_in name;

    k->fd[0] = bind_loopback(&name);
    limit_waits(k->fd[0]);
    k->fd[1] = socket(AF_INET, SOCK_STREAM, 0);
}

static void make_tcp(struct kit *k)
{
    struct sockaddr_in name;
    int listener = bind_loopback(&name);

    k->fd[1] = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(k->fd[1], (struct sockaddr *)&name, sizeof(name)), 0);
    k->fd[0] = accept(listener, NULL, NULL);
    assert_true(k->fd[0] >= 0);
    close(listener);
    limit_waits(k->fd[0]);
}

/* A listener whose queue is full: who connects waits until somebody accepts. */
static void make_busy_listener(struct kit *k)
{
    k->name = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(k->name.sun_path + 1, sizeof(k->name.sun_path) - 1, "interrupted-%d", (int)getpid());
    k->fd[1] = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(k->fd[1], (struct sockaddr *)&k->name, sizeof(k->name)), 0);
    assert_int_equal(listen(k->fd[1], 0), 0);
    k->other = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(k->other, (struct sockaddr *)&k->name, sizeof(k->name)), 0);
    k->fd[0] = socket(AF_UNIX, SOCK_STREAM, 0);
    limit_waits(k->fd[0]);
}

static void make_semaphore(struct kit *k)
{
    k->fd[0] = k->fd[1] = -1;
    k->other = semget(IPC_PRIVATE, 1, 0600);
    assert_true(k->other >= 0);
}

static void make_signal(struct kit *k)
{
    sigset_t set;

    k->fd[0] = k->fd[1] = -1;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static int wait_epoll(struct kit *k)
{
    struct epoll_event event;
    return result_of(epoll_wait(k->other, &event, 1, -1));
}

static int wait_epoll_ms(struct kit *k)
{
    struct epoll_event event;
    return result_of(epoll_wait(k->other, &event, 1, LONG_S * 1000));
}

static int wait_epoll_mask(struct kit *k)
{
    struct epoll_event event;
    sigset_t all;
    sigfillset(&all);
    return result_of(epoll_pwait(k->other, &event, 1, LONG_S * 1000, &all));
}

static int wait_epoll2(struct kit *k)
{
    struct epoll_event event;
    return result_of(syscall(SYS_epoll_pwait2, k->other, &event, 1, &long_time, NULL, 8));
}

static int wait_recv(struct kit *k)
{
    char byte;
    return result_of(recv(k->fd[0], &byte, 1, 0));
}

static int wait_recvmsg(struct kit *k)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return result_of(recvmsg(k->fd[0], &message, 0));
}

static int wait_recvmmsg(struct kit *k)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    return result_of(recvmmsg(k->fd[0], &message, 1, 0, NULL));
}

static int wait_read(struct kit *k)
{
    char byte;
    return result_of(read(k->fd[0], &byte, 1));
}

static int wait_readv(struct kit *k)
{
    char byte;
    struct iovec part = {&byte, 1};
    return result_of(readv(k->fd[0], &part, 1));
}

static int wait_accept(struct kit *k)
{
    return result_of(accept(k->fd[0], NULL, NULL));
}

static int wait_accept4(struct kit *k)
{
    return result_of(accept4(k->fd[0], NULL, NULL, SOCK_CLOEXEC));
}

static int wait_connect(struct kit *k)
{
    return result_of(connect(k->fd[0], (struct sockaddr *)&k->name, sizeof(k->name)));
}

static int wait_send(struct kit *k)
{
    return result_of(send(k->fd[0], "x", 1, 0));
}

static int wait_sendmsg(struct kit *k)
{
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return result_of(sendmsg(k->fd[0], &message, 0));
}

static int wait_sendmmsg(struct kit *k)
{
    struct iovec part = {"x", 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    return result_of(sendmmsg(k->fd[0], &message, 1, 0));
}

static int wait_write(struct kit *k)
{
    return result_of(write(k->fd[0], "x", 1));
}

static int wait_writev(struct kit *k)
{
    struct iovec part = {"x", 1};
    return result_of(writev(k->fd[0], &part, 1));
}

static int wait_sendfile(struct kit *k)
{
    int file = memfd_create("data", 0);
    if (file < 0 || write(file, "data", 4) != 4 || lseek(file, 0, SEEK_SET) < 0)
        return -EIO;
    return result_of(sendfile(k->fd[0], file, NULL, 4));
}

static int wait_semop(struct kit *k)
{
    struct sembuf down = {.sem_op = -1};
    return result_of(semop(k->other, &down, 1));
}

static int wait_semtimedop(struct kit *k)
{
    struct sembuf down = {.sem_op = -1};
    return result_of(semtimedop(k->other, &down, 1, &long_time));
}

static int wait_signal(struct kit *k)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return result_of(sigtimedwait(&set, NULL, &long_time));
}

/* One request of the old kind: that there is something to read. */
static int begin_aio(struct kit *k, aio_context_t *ret)
{
    struct iocb request = {
        .aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)k->fd[0], .aio_buf = POLLIN};
    struct iocb *list[] = {&request};

    *ret = 0;
    if (syscall(SYS_io_setup, 1, ret) < 0)
        return -errno;
    return syscall(SYS_io_submit, *ret, 1, list) == 1 ? 0 : -errno;
}

static int wait_aio(struct kit *k)
{
    aio_context_t context;
    struct io_event event;
    int r = begin_aio(k, &context);
    return r < 0 ? r : result_of(syscall(SYS_io_getevents, context, 1, 1, &event, &long_time));
}

static int wait_paio(struct kit *k)
{
    aio_context_t context;
    struct io_event event;
    int r = begin_aio(k, &context);
    return r < 0 ? r : result_of(syscall(SYS_io_pgetevents, context, 1, 1, &event, &long_time, NULL));
}

/* Nothing is submitted: the wait is for a timeout that stands in an argument. */
static int wait_ring(struct kit *k)
{
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0)
        return ABSENT;
    void *queue = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                       PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, params.sq_entries * sizeof(*entry), PROT_READ | PROT_WRITE,
                                      MAP_SHARED, ring, IORING_OFF_SQES);
    if (queue == MAP_FAILED || entry == MAP_FAILED)
        return ABSENT;
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = k->fd[0], .poll32_events = POLLIN};
    *(uint32_t *)((char *)queue + params.sq_off.array) = 0;
    __atomic_store_n((uint32_t *)((char *)queue + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) != 1)
        return -errno;
    return result_of(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
}

static void end_by_write(struct kit *k, pid_t pid)
{
    assert_int_equal(write(k->fd[1], "x", 1), 1);
}

static void end_by_read(struct kit *k, pid_t pid)
{
    char data[4096];
    while (recv(k->fd[1], data, sizeof(data), MSG_DONTWAIT) > 0)
        ;
}

static void end_by_connect(struct kit *k, pid_t pid)
{
    struct sockaddr_in name;
    socklen_t len = sizeof(name);
    assert_int_equal(getsockname(k->fd[0], (struct sockaddr *)&name, &len), 0);
    assert_int_equal(connect(k->fd[1], (struct sockaddr *)&name, sizeof(name)), 0);
}

static void end_by_accept(struct kit *k, pid_t pid)
{
    close(accept(k->fd[1], NULL, NULL));
}

static void end_by_up(struct kit *k, pid_t pid)
{
    struct sembuf up = {.sem_op = 1};
    assert_int_equal(semop(k->other, &up, 1), 0);
}

static void end_by_signal(struct kit *k, pid_t pid)
{
    assert_int_equal(kill(pid, SIGUSR2), 0);
}

static const struct kind {
    const char *name;
    void (*make)(struct kit *);
    int (*wait)(struct kit *);
    void (*end)(struct kit *, pid_t);
    bool finite;
} kinds[] = {
    {"epoll_wait", make_epoll, wait_epoll, end_by_write, false},
    {"epoll_wait with a timeout", make_epoll, wait_epoll_ms, end_by_write, true},
    {"epoll_pwait", make_epoll, wait_epoll_mask, end_by_write, true},
    {"epoll_pwait2", make_epoll, wait_epoll2, end_by_write, true},
    {"recv", make_pair, wait_recv, end_by_write, true},
    {"recv of TCP", make_tcp, wait_recv, end_by_write, true},
    {"recvmsg", make_tcp, wait_recvmsg, end_by_write, true},
    {"recvmmsg", make_tcp, wait_recvmmsg, end_by_write, true},
    {"read", make_pair, wait_read, end_by_write, true},
    {"readv", make_pair, wait_readv, end_by_write, true},
    {"accept", make_listener, wait_accept, end_by_connect, true},
    {"accept4", make_listener, wait_accept4, end_by_connect, true},
    {"connect", make_busy_listener, wait_connect, end_by_accept, true},
    {"send", make_full_pair, wait_send, end_by_read, true},
    {"sendmsg", make_full_pair, wait_sendmsg, end_by_read, true},
    {"sendmmsg", make_full_pair, wait_sendmmsg, end_by_read, true},
    {"write", make_full_pair, wait_write, end_by_read, true},
    {"writev", make_full_pair, wait_writev, end_by_read, true},
    {"sendfile", make_full_pair, wait_sendfile, end_by_read, true},
    {"semop", make_semaphore, wait_semop, end_by_up, false},
    {"semtimedop", make_semaphore, wait_semtimedop, end_by_up, true},
    {"sigtimedwait", make_signal, wait_signal, end_by_signal, true},
    {"io_getevents", make_pair, wait_aio, end_by_write, true},
    {"io_pgetevents", make_pair, wait_paio, end_by_write, true},
    {"io_uring_enter", make_pair, wait_ring, end_by_write, false},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void drop_kit(const struct kind *kind, struct kit *k)
{
    if (kind->make == make_semaphore)
        semctl(k->other, 0, IPC_RMID);
    else if (k->other > 0)
        close(k->other);
    if (k->fd[0] >= 0)
        close(k->fd[0]);
    if (k->fd[1] >= 0)
        close(k->fd[1]);
}
