/* transfers: calls that return when all of their data is moved, to and from a process at the other end that
 * takes its time. Without a signal handler none may return early: the counts are checked here, the data on
 * both sides. Arguments: how long the other end waits between its turns, in milliseconds; "apart": a thread
 * for each call, otherwise the only thread makes one after the other. */
#include "kit.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { SIZE = 300000, PERIOD = 251, PIECES = 20, MESSAGES = 40, MESSAGE = SIZE / MESSAGES };

static unsigned char data[SIZE + PERIOD]; /* of this period, so that it goes on from any place */
static volatile bool stopped;
static struct shared {
    volatile long wrong; /* seen by the other process: of that call, plus one */
} * shared;

struct kind {
    const char *name;
    long (*call)(struct kind *kind, const unsigned char *from, unsigned char *to);
    bool pipe, receives;
    int type;
    int fd, other; /* the other end's */
    size_t at;     /* how much has passed, on either side its own count */
};

static void cut(struct iovec *v, unsigned char *from)
{
    for (size_t i = 0, at = 0; i < PIECES; i++) {
        size_t n = i == PIECES - 1 ? SIZE - at : 700 * i;
        v[i] = (struct iovec){from + at, n};
        at += n;
    }
}

static long do_write(struct kind *k, const unsigned char *from, unsigned char *to)
{
    (void)to;
    return write(k->fd, from, SIZE);
}

static long do_writev(struct kind *k, const unsigned char *from, unsigned char *to)
{
    struct iovec v[PIECES];
    (void)to;
    cut(v, (unsigned char *)from);
    return writev(k->fd, v, PIECES);
}

static long do_send(struct kind *k, const unsigned char *from, unsigned char *to)
{
    (void)to;
    return send(k->fd, from, SIZE, 0);
}

static long do_sendmsg(struct kind *k, const unsigned char *from, unsigned char *to)
{
    struct iovec v[PIECES];
    struct msghdr m = {.msg_iov = v, .msg_iovlen = PIECES};
    (void)to;
    cut(v, (unsigned char *)from);
    return sendmsg(k->fd, &m, 0);
}

static long do_sendfile(struct kind *k, const unsigned char *from, unsigned char *to)
{
    off_t at = 0;
    int file = memfd_create("data", MFD_CLOEXEC);
    (void)to;
    long n = write(file, from, SIZE) == SIZE ? sendfile(k->fd, file, &at, SIZE) : -1;
    close(file);
    return at == SIZE ? n : -1;
}

static long do_recv(struct kind *k, const unsigned char *from, unsigned char *to)
{
    (void)from;
    return recv(k->fd, to, SIZE, MSG_WAITALL);
}

static long do_recvmsg(struct kind *k, const unsigned char *from, unsigned char *to)
{
    struct iovec v[PIECES];
    struct msghdr m = {.msg_iov = v, .msg_iovlen = PIECES};
    (void)from;
    cut(v, to);
    return recvmsg(k->fd, &m, MSG_WAITALL);
}

static long do_recvmmsg(struct kind *k, const unsigned char *from, unsigned char *to)
{
    struct iovec v[MESSAGES];
    struct mmsghdr m[MESSAGES];
    long all = 0;
    (void)from;
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){to + (size_t)i * MESSAGE, MESSAGE};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i], .msg_iovlen = 1}};
    }
    int n = recvmmsg(k->fd, m, MESSAGES, 0, NULL);
    if (n != MESSAGES)
        return n;
    for (int i = 0; i < MESSAGES; i++)
        all += m[i].msg_len;
    return all;
}

static long do_sendmmsg(struct kind *k, const unsigned char *from, unsigned char *to)
{
    struct iovec v[MESSAGES];
    struct mmsghdr m[MESSAGES];
    (void)to;
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){(void *)(from + (size_t)i * MESSAGE), MESSAGE};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i], .msg_iovlen = 1}};
    }
    int n = sendmmsg(k->fd, m, MESSAGES, 0);
    return n == MESSAGES ? SIZE : n;
}

static long do_getrandom(struct kind *k, const unsigned char *from, unsigned char *to)
{
    long n = getrandom(to, SIZE, 0);
    memcpy(to, from, SIZE); /* it cannot be foretold */
    (void)k;
    return n;
}

static struct kind kinds[] = {
    {"write", do_write, .pipe = true},
    {"writev", do_writev, .pipe = true},
    {"write to a socket", do_write, .type = SOCK_STREAM},
    {"send", do_send, .type = SOCK_STREAM},
    {"sendmsg", do_sendmsg, .type = SOCK_STREAM},
    {"sendfile", do_sendfile, .type = SOCK_STREAM},
    {"sendmmsg", do_sendmmsg, .type = SOCK_DGRAM},
    {"recv", do_recv, .type = SOCK_STREAM, .receives = true},
    {"recvmsg", do_recvmsg, .type = SOCK_STREAM, .receives = true},
    {"recvmmsg", do_recvmmsg, .type = SOCK_DGRAM, .receives = true},
    {"getrandom", do_getrandom, .fd = -1, .other = -1},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void make_ends(struct kind *k)
{
    int ends[2] = {-1, -1};
    if ((k->pipe   ? pipe2(ends, O_CLOEXEC)
         : k->type ? socketpair(AF_UNIX, k->type | SOCK_CLOEXEC, 0, ends)
                   : 0) < 0)
        _exit(97);
    k->fd = ends[k->pipe];
    k->other = ends[!k->pipe];
    if (k->other >= 0)
        fcntl(k->other, F_SETFL, O_NONBLOCK);
}

/* One turn of the other end. False: the program has ended. */
static bool take_turn(int i)
{
    static unsigned char bytes[SIZE];
    struct kind *k = &kinds[i];
    ssize_t n;

    if (k->receives) {
        while ((n = send(k->other, data + k->at % PERIOD, k->type == SOCK_DGRAM ? MESSAGE : 30000,
                         MSG_NOSIGNAL)) > 0)
            k->at += (size_t)n;
        return errno == EAGAIN || errno == ENOBUFS;
    }
    while ((n = read(k->other, bytes, sizeof(bytes))) > 0) {
        for (ssize_t b = 0; b < n; b++)
            if (bytes[b] != data[(k->at + (size_t)b) % PERIOD])
                shared->wrong = i + 1;
        k->at += (size_t)n;
    }
    return n < 0 && errno == EAGAIN;
}

static void be_the_other_end(pid_t program, long delay_ms)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != program)
        _exit(0);
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].fd >= 0)
            close(kinds[i].fd);
    for (;;) {
        for (int i = 0; i < KINDS; i++)
            if (kinds[i].other >= 0 && !take_turn(i))
                _exit(0);
        nanosleep(&(struct timespec){.tv_nsec = delay_ms ? delay_ms * 1000000 : 50000}, NULL);
    }
}

static void transfer_once(struct kind *k, unsigned char *to)
{
    const unsigned char *from = data + k->at % PERIOD;
    long n = k->call(k, from, to);
    if (n != SIZE)
        kit_complain("%s moved %ld of %d, errno %d", k->name, n, SIZE, n < 0 ? errno : 0);
    else if ((k->receives || k->fd < 0) && memcmp(to, from, SIZE) != 0)
        kit_complain("%s has received other data", k->name);
    k->at += n > 0 ? (size_t)n : 0;
}

static void *transfer_often(void *arg)
{
    unsigned char *to = malloc(SIZE);
    while (!stopped)
        transfer_once(arg, to);
    free(to);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[KINDS];
    bool apart = argc > 2 && strcmp(argv[2], "apart") == 0;
    unsigned char *to = malloc(SIZE);
    pid_t program = getpid();

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i % PERIOD);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < KINDS; i++)
        make_ends(&kinds[i]);
    pid_t peer = fork();
    if (peer == 0)
        be_the_other_end(program, argc > 1 ? atol(argv[1]) : 0);
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].other >= 0)
            close(kinds[i].other);
    for (int i = 1; apart && i < KINDS; i++)
        if (pthread_create(&threads[i], NULL, transfer_often, &kinds[i]))
            return 1;
    for (int turn = 0; kit_going(); turn = (turn + 1) % KINDS)
        transfer_once(&kinds[apart ? 0 : turn], to);
    stopped = true;
    for (int i = 1; apart && i < KINDS; i++)
        pthread_join(threads[i], NULL);
    if (shared->wrong)
        kit_complain("the other end has received other data by %s", kinds[shared->wrong - 1].name);
    return 0;
}
