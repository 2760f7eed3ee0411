/* waits: a thread for each call that waits with a timeout and that the kernel does not restart. None may end
 * early, late or with EINTR: the program has no signal handler. Argument: milliseconds of a wait. */
#include "kit.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

static int ms = 50;
static volatile bool stopped;

struct kind {
    const char *name;
    int (*call)(const struct kind *kind);
    int expected; /* errno of a wait that nothing ended; 0: it returns 0 */
    int fd;
};

static int do_epoll(const struct kind *kind)
{
    struct epoll_event event;
    return epoll_wait(kind->fd, &event, 1, ms);
}

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
static int do_epoll_pwait2(const struct kind *kind)
{
    struct epoll_event event;
    struct timespec t = {.tv_nsec = ms * 1000000L};
    return (int)syscall(SYS_epoll_pwait2, kind->fd, &event, 1, &t, NULL, 8);
}

static int do_recv(const struct kind *kind)
{
    char c;
    return (int)recv(kind->fd, &c, 1, 0);
}

static int do_accept(const struct kind *kind)
{
    return accept(kind->fd, NULL, NULL);
}

static int do_sigtimedwait(const struct kind *kind)
{
    sigset_t set;
    struct timespec t = {.tv_nsec = ms * 1000000L};
    sigemptyset(&set);
    sigaddset(&set, SIGRTMAX);
    return sigtimedwait(&set, NULL, &t);
}

static int do_semtimedop(const struct kind *kind)
{
    struct sembuf op = {.sem_op = -1};
    struct timespec t = {.tv_nsec = ms * 1000000L};
    return semtimedop(kind->fd, &op, 1, &t);
}

static int do_nanosleep(const struct kind *kind)
{
    struct timespec t = {.tv_nsec = ms * 1000000L};
    return nanosleep(&t, NULL);
}

static int do_poll(const struct kind *kind)
{
    struct pollfd one = {.fd = kind->fd, .events = POLLIN};
    return poll(&one, 1, ms);
}

static int do_select(const struct kind *kind)
{
    fd_set set;
    struct timeval t = {.tv_usec = ms * 1000L};
    FD_ZERO(&set);
    FD_SET(kind->fd, &set);
    return select(kind->fd + 1, &set, NULL, NULL, &t);
}

static int do_futex(const struct kind *kind)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&mutex);
    errno = pthread_cond_timedwait(&cond, &mutex, &t);
    pthread_mutex_unlock(&mutex);
    return -1;
}

static void wait_once(const struct kind *kind)
{
    struct kit_start start = kit_start();
    errno = 0;
    int r = kind->call(kind);
    int e = r < 0 ? errno : 0;
    kit_waited(kind->name, start, ms * 1e-3);
    if (r > 0 || e != kind->expected)
        kit_complain("%s: result %d, %s", kind->name, r, strerror(e));
}

static void *wait_again_and_again(void *kind)
{
    while (!stopped)
        wait_once(kind);
    return NULL;
}

static int with_timeout(int fd)
{
    struct timeval t = {.tv_usec = ms * 1000L};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    return fd;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        ms = atoi(argv[1]);
    int pair[2], listening = socket(AF_INET, SOCK_STREAM, 0), sem = semget(IPC_PRIVATE, 1, 0600);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || listen(listening, 1) || sem < 0)
        return 1;
    struct kind kinds[] = {
        {"epoll_wait", do_epoll, 0, epoll_create1(0)},
        {"epoll_pwait2", do_epoll_pwait2, 0, epoll_create1(0)},
        {"recv", do_recv, EAGAIN, with_timeout(pair[0])},
        {"accept", do_accept, EAGAIN, with_timeout(listening)},
        {"sigtimedwait", do_sigtimedwait, EAGAIN, -1},
        {"semtimedop", do_semtimedop, EAGAIN, sem},
        {"nanosleep", do_nanosleep, 0, -1},
        {"poll", do_poll, 0, pair[1]},
        {"select", do_select, 0, pair[1]},
        {"pthread_cond_timedwait", do_futex, ETIMEDOUT, -1},
    };
    const size_t n = sizeof(kinds) / sizeof(kinds[0]);
    pthread_t threads[n - 1];
    /* The first kind is the main thread's: the one that is borrowed most readily. Which one that is is asked
     * for. */
    size_t first = argc > 2 ? (size_t)atoi(argv[2]) % n : 0;
    for (size_t i = 0; i < n - 1; i++)
        if (pthread_create(&threads[i], NULL, wait_again_and_again, &kinds[(first + 1 + i) % n]))
            return 1;
    while (kit_going()) {
        wait_once(&kinds[first]);
        kit_last = 0; /* the waits are judged by themselves */
    }
    stopped = true;
    semctl(sem, 0, IPC_RMID);
    return 0;
}
