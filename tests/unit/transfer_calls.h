/* transfer_calls: calls that move data until all of it is moved, each in a process of its own, which checks
 * count and data; and what this process does at the other end. */
#pragma once

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>

#include "slow.h"
#include "test.h"

enum {
    SIZE = 1 << 20, /* more than any pipe or buffer here holds */
    PIECES = 40,    /* of a vector, no two of one length */
    MESSAGES = 300, /* more than a socket of messages holds */
    MESSAGE = 4000,
    PART = 1000, /* of what a receiver waits for, sent before it is stopped */
    WRONG_DATA = 2000,
    LEAST = SIZE / 2, /* bytes that a read of a socket waits for */
    KEYS = 60,        /* those that a read of a terminal waits for: newer kernels wait for 64 at most */
};

/* fd[0] is the end of the process that is stopped; fd[1] is ours. */
struct kit {
    int fd[2];
    size_t at; /* how much has passed our end */
};

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 7 + (i >> 8) * 13);
}

/* Data of its own for each process. */
static unsigned char data[SIZE];

static void fill_data(void)
{
    for (size_t i = 0; i < SIZE; i++)
        data[i] = byte_at(i);
}

static bool is_data(const unsigned char *bytes, size_t n, size_t from)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != byte_at(from + i))
            return false;
    return true;
}

/* 0: all of it; else an errno, or how much was missing, as an exit status. */
static int judge(long r, long wanted)
{
    if (r != wanted)
        fprintf(stderr, "moved %ld of %ld, errno %d\n", r, wanted, r < 0 ? errno : 0);
    return r == wanted ? 0 : 1;
}

static void make_pipe(struct kit *k)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    k->fd[0] = ends[1];
    k->fd[1] = ends[0];
}

static void make_pair(struct kit *k)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, k->fd), 0);
}

static void make_messages(struct kit *k)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, k->fd), 0);
}

static void make_tcp(struct kit *k)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(name);
    int small = 65536, listener = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(listener, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&name, &len), 0);
    k->fd[1] = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(k->fd[1], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    assert_int_equal(connect(k->fd[1], (struct sockaddr *)&name, sizeof(name)), 0);
    k->fd[0] = accept(listener, NULL, NULL);
    setsockopt(k->fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    close(listener);
}

static void make_terminal(struct kit *k)
{
    struct termios raw;
    int keeps = open("/dev/null", O_RDONLY); /* a master that closes hangs the other end up */

    close(keeps);
    assert_int_equal(openpty(&k->fd[1], &k->fd[0], NULL, NULL, NULL), 0);
    assert_int_equal(tcgetattr(k->fd[0], &raw), 0);
    cfmakeraw(&raw);
    assert_int_equal(tcsetattr(k->fd[0], TCSANOW, &raw), 0);
}

static void make_least(struct kit *k)
{
    int least = LEAST;
    make_pair(k);
    assert_int_equal(setsockopt(k->fd[0], SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least)), 0);
}

static void make_least_tcp(struct kit *k)
{
    int least = LEAST;
    make_tcp(k);
    assert_int_equal(setsockopt(k->fd[0], SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least)), 0);
}

static void make_keys(struct kit *k)
{
    struct termios raw;
    make_terminal(k);
    assert_int_equal(tcgetattr(k->fd[0], &raw), 0);
    raw.c_cc[VMIN] = KEYS;
    raw.c_cc[VTIME] = 0;
    assert_int_equal(tcsetattr(k->fd[0], TCSANOW, &raw), 0);
}

static size_t cut_pieces(struct iovec *v)
{
    size_t at = 0;
    for (int i = 0; i < PIECES; i++) {
        size_t n = i == PIECES - 1 ? SIZE - at : i == 3 ? 0 : (size_t)(5000 + i * 997);
        v[i] = (struct iovec){data + at, n};
        at += n;
    }
    return at;
}

static int run_write(struct kit *k)
{
    return judge(write(k->fd[0], data, SIZE), SIZE);
}

static int run_writev(struct kit *k)
{
    struct iovec v[PIECES], before[PIECES];
    cut_pieces(v);
    memcpy(before, v, sizeof(v));
    int r = judge(writev(k->fd[0], v, PIECES), SIZE);
    return memcmp(v, before, sizeof(v)) ? 3 : r;
}

static int run_send(struct kit *k)
{
    return judge(send(k->fd[0], data, SIZE, 0), SIZE);
}

static int run_sendmsg(struct kit *k)
{
    struct iovec v[PIECES];
    struct msghdr m = {.msg_iov = v, .msg_iovlen = PIECES};
    cut_pieces(v);
    return judge(sendmsg(k->fd[0], &m, 0), SIZE);
}

static int run_sendfile(struct kit *k)
{
    int file = memfd_create("data", 0);
    off_t from = 0;
    if (write(file, data, SIZE) != SIZE)
        return 4;
    int r = judge(sendfile(k->fd[0], file, &from, SIZE), SIZE);
    return from != SIZE ? 3 : r;
}

static int run_sendfile_at_position(struct kit *k)
{
    int file = memfd_create("data", 0);
    if (write(file, data, SIZE) != SIZE || lseek(file, 0, SEEK_SET) != 0)
        return 4;
    int r = judge(sendfile(k->fd[0], file, NULL, 2 * SIZE), SIZE); /* it ends with the file */
    return lseek(file, 0, SEEK_CUR) != SIZE ? 3 : r;
}

static void list_messages(struct mmsghdr *m, struct iovec *v, unsigned char *bytes)
{
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){bytes + (size_t)i * (MESSAGE / 2), MESSAGE};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i], .msg_iovlen = 1}};
    }
}

static int run_sendmmsg(struct kit *k)
{
    static struct mmsghdr m[MESSAGES];
    static struct iovec v[MESSAGES];
    list_messages(m, v, data);
    int r = judge(sendmmsg(k->fd[0], m, MESSAGES, 0), MESSAGES);
    for (int i = 0; i < MESSAGES; i++)
        r = m[i].msg_len == MESSAGE ? r : 3;
    return r;
}

static int run_recvmmsg(struct kit *k)
{
    static struct mmsghdr m[MESSAGES];
    static struct iovec v[MESSAGES];
    static unsigned char bytes[MESSAGES / 2 * MESSAGE + MESSAGE];
    list_messages(m, v, bytes);
    for (int i = 0; i < MESSAGES; i++)
        v[i].iov_len = MESSAGE / 2;
    int r = judge(recvmmsg(k->fd[0], m, MESSAGES, 0, NULL), MESSAGES);
    return is_data(bytes, (size_t)MESSAGES * (MESSAGE / 2), 0) ? r : 3;
}

static unsigned char received[SIZE];

static int run_recv(struct kit *k)
{
    int r = judge(recv(k->fd[0], received, SIZE, MSG_WAITALL), SIZE);
    return is_data(received, SIZE, 0) ? r : 3;
}

static void cut_received(struct iovec *v)
{
    cut_pieces(v);
    for (int i = 0; i < PIECES; i++)
        v[i].iov_base = received + ((unsigned char *)v[i].iov_base - data);
}

static int judge_least(long r, long least)
{
    if (r < least)
        fprintf(stderr, "read %ld of at least %ld, errno %d\n", r, least, r < 0 ? errno : 0);
    return r < least ? 1 : is_data(received, (size_t)r, 0) ? 0 : 3;
}

static int run_read_least(struct kit *k)
{
    return judge_least(read(k->fd[0], received, SIZE), LEAST);
}

static int run_recv_least(struct kit *k)
{
    return judge_least(recv(k->fd[0], received, SIZE, 0), LEAST);
}

static int run_readv_least(struct kit *k)
{
    struct iovec v[PIECES];
    cut_received(v);
    return judge_least(readv(k->fd[0], v, PIECES), LEAST);
}

static int run_recvmsg_least(struct kit *k)
{
    struct iovec v[PIECES];
    struct msghdr m = {.msg_iov = v, .msg_iovlen = PIECES};
    cut_received(v);
    return judge_least(recvmsg(k->fd[0], &m, 0), LEAST);
}

static int run_read_keys(struct kit *k)
{
    return judge_least(read(k->fd[0], received, 2 * KEYS), KEYS);
}

/* Two of three events are there at once: reads of a file. */
static int run_events(struct kit *k)
{
    static char text[2][16];
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct iocb calls[3] = {{.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)file},
                            {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)file},
                            {.aio_lio_opcode = IOCB_CMD_POLL,
                             .aio_fildes = (uint32_t)k->fd[0],
                             .aio_buf = POLLIN,
                             .aio_data = 3}};
    struct iocb *list[] = {&calls[0], &calls[1], &calls[2]};
    struct io_event events[3] = {{0}};
    aio_context_t context = 0;
    for (int i = 0; i < 2; i++) {
        calls[i].aio_buf = (uintptr_t)text[i];
        calls[i].aio_nbytes = sizeof(text[i]);
        calls[i].aio_data = (uint64_t)i + 1;
    }
    if (syscall(SYS_io_setup, 3, &context) < 0 || syscall(SYS_io_submit, context, 3, list) != 3)
        return 77;
    int r = judge(syscall(SYS_io_getevents, context, 3, 3, events, NULL), 3);
    return events[0].data + events[1].data + events[2].data == 6 ? r : 3;
}

static int run_recvmsg(struct kit *k)
{
    struct iovec v[PIECES];
    struct msghdr m = {.msg_iov = v, .msg_iovlen = PIECES};
    cut_received(v);
    int r = judge(recvmsg(k->fd[0], &m, MSG_WAITALL), SIZE);
    return is_data(received, SIZE, 0) ? r : 3;
}

/* One request is submitted, and its completion waited for, in one call: the end that is not there yet. */
static int run_ring(struct kit *k)
{
    struct io_uring_params p = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0)
        return 77;
    char *queue = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe) + 4096,
                       PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (queue == MAP_FAILED || (void *)entry == MAP_FAILED)
        return 77;
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = k->fd[0], .poll32_events = POLLIN};
    *(uint32_t *)(queue + p.sq_off.array) = 0;
    __atomic_store_n((uint32_t *)(queue + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    int r = judge(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
    return __atomic_load_n((uint32_t *)(queue + p.cq_off.tail), __ATOMIC_ACQUIRE) == 1 ? r : 3;
}

/* ---- Our end: some of it, and all of it. Each returns false where there was nothing to do. ---- */

static bool take(struct kit *k, size_t most, bool wait)
{
    static unsigned char bytes[SIZE];
    struct pollfd p = {.fd = k->fd[1], .events = POLLIN};
    if (poll(&p, 1, wait ? 10000 * TEST_SLOWNESS : 0) != 1)
        return false;
    ssize_t n = read(k->fd[1], bytes, most);
    if (n <= 0)
        return false;
    assert_true(is_data(bytes, (size_t)n, k->at));
    k->at += (size_t)n;
    return true;
}

static void take_some(struct kit *k)
{
    (void)take(k, 40000, false);
}

static void take_all(struct kit *k)
{
    while (k->at < SIZE && take(k, SIZE, true))
        ;
    assert_int_equal(k->at, SIZE);
}

static bool take_message(struct kit *k, bool wait)
{
    unsigned char bytes[MESSAGE + 1];
    if (recv(k->fd[1], bytes, sizeof(bytes), wait ? 0 : MSG_DONTWAIT) != MESSAGE)
        return false;
    assert_true(is_data(bytes, MESSAGE, k->at * (MESSAGE / 2)));
    k->at++;
    return true;
}

static void take_a_message(struct kit *k)
{
    (void)take_message(k, false);
}

static void take_messages(struct kit *k)
{
    while (k->at < MESSAGES && take_message(k, true))
        ;
    assert_int_equal(k->at, MESSAGES);
}

static void give(struct kit *k, size_t n)
{
    n = n < SIZE - k->at ? n : SIZE - k->at;
    assert_int_equal(send(k->fd[1], data + k->at, n, 0), n);
    k->at += n;
}

static void give_some(struct kit *k)
{
    give(k, k->at < SIZE / 2 ? PART : 0);
}

static void give_all(struct kit *k)
{
    give(k, SIZE);
}

static void give_part(struct kit *k)
{
    give(k, k->at < LEAST / 2 ? PART : 0);
}

static void give_least(struct kit *k)
{
    give(k, LEAST - k->at);
}

static void type_keys(struct kit *k, size_t until, size_t n)
{
    n = k->at + n > until ? until - k->at : n;
    assert_int_equal(write(k->fd[1], data + k->at, n), n);
    k->at += n;
}

static void give_some_keys(struct kit *k)
{
    type_keys(k, KEYS - 10, 1);
}

static void give_keys(struct kit *k)
{
    type_keys(k, KEYS, KEYS);
}

static void give_a_message(struct kit *k)
{
    if (k->at == MESSAGES - 1)
        return;
    assert_int_equal(send(k->fd[1], data + k->at * (MESSAGE / 2), MESSAGE / 2, 0), MESSAGE / 2);
    k->at++;
}

static void give_messages(struct kit *k)
{
    for (; k->at < MESSAGES; k->at++)
        assert_int_equal(send(k->fd[1], data + k->at * (MESSAGE / 2), MESSAGE / 2, 0), MESSAGE / 2);
}

static void give_byte(struct kit *k)
{
    assert_int_equal(write(k->fd[1], "x", 1), 1);
}

static void give_nothing(struct kit *k)
{
    (void)k;
}

static const struct kind {
    const char *name;
    void (*make)(struct kit *);
    int (*run)(struct kit *);
    void (*some)(struct kit *), (*all)(struct kit *);
} kinds[] = {
    {"write to a pipe", make_pipe, run_write, take_some, take_all},
    {"write to a socket", make_pair, run_write, take_some, take_all},
    {"write to TCP", make_tcp, run_write, take_some, take_all},
    {"write to a terminal", make_terminal, run_write, take_some, take_all},
    {"writev to a pipe", make_pipe, run_writev, take_some, take_all},
    {"writev to a socket", make_pair, run_writev, take_some, take_all},
    {"send", make_pair, run_send, take_some, take_all},
    {"send by TCP", make_tcp, run_send, take_some, take_all},
    {"sendmsg", make_pair, run_sendmsg, take_some, take_all},
    {"sendmsg by TCP", make_tcp, run_sendmsg, take_some, take_all},
    {"sendfile", make_pair, run_sendfile, take_some, take_all},
    {"sendfile by TCP", make_tcp, run_sendfile_at_position, take_some, take_all},
    {"sendmmsg", make_messages, run_sendmmsg, take_a_message, take_messages},
    {"recv", make_pair, run_recv, give_some, give_all},
    {"recv by TCP", make_tcp, run_recv, give_some, give_all},
    {"recvmsg", make_pair, run_recvmsg, give_some, give_all},
    {"recvmmsg", make_messages, run_recvmmsg, give_a_message, give_messages},
    {"read of the least of a socket", make_least, run_read_least, give_part, give_least},
    {"recv of the least by TCP", make_least_tcp, run_recv_least, give_part, give_all},
    {"readv of the least", make_least, run_readv_least, give_part, give_least},
    {"recvmsg of the least", make_least, run_recvmsg_least, give_part, give_least},
    {"read of a terminal", make_keys, run_read_keys, give_some_keys, give_keys},
    {"io_getevents", make_pair, run_events, give_nothing, give_byte},
    {"io_uring_enter", make_pair, run_ring, give_nothing, give_byte},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void drop_kit(struct kit *k)
{
    if (k->fd[0] >= 0)
        close(k->fd[0]);
    close(k->fd[1]);
}
