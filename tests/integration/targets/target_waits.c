/* A program of threads that wait, each in a call of its own, again and again for 1, 5 and 50 ms, with a bit
 * of work between. At its end a line a thread: name, waits, those that ended with an error, early, and the
 * worst that one was longer than asked, in us, without the time in which the thread was given no CPU.
 *
 *     target_waits SECONDS
 *     target_waits wait | handle     counts SIGRTMIN, in sigtimedwait or by a handler
 *     target_waits send PID N        sends it
 *     target_waits vfork             a thread that cannot be stopped for 4 s, since it waits for a child of
 *                                    vfork, and one that works; says how long the wait was
 *     target_waits starve A B        a thread that runs only when CPU A is idle, one that has CPU B
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

static uint64_t end_ns;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* What a wait needs; made by the thread itself. */
struct things {
    int fd, other;
    aio_context_t aio;
};

static struct timespec time_of(int ms)
{
    return (struct timespec){.tv_nsec = ms * 1000000L};
}

static void limit_receive(int fd, int ms)
{
    struct timeval limit = {.tv_usec = ms * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

static void make_epoll(struct things *t)
{
    t->fd = epoll_create1(0);
}

static void make_unix(struct things *t)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0)
        t->fd = pair[0];
}

static void make_udp(struct things *t)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    t->fd = socket(AF_INET, SOCK_DGRAM, 0);
    (void)bind(t->fd, (struct sockaddr *)&name, sizeof(name));
}

static void make_listener(struct things *t)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    t->fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)bind(t->fd, (struct sockaddr *)&name, sizeof(name));
    (void)listen(t->fd, 1);
}

static void make_tcp(struct things *t)
{
    struct sockaddr_in name;
    socklen_t len = sizeof(name);
    make_listener(t);
    (void)getsockname(t->fd, (struct sockaddr *)&name, &len);
    t->other = socket(AF_INET, SOCK_STREAM, 0);
    (void)connect(t->other, (struct sockaddr *)&name, sizeof(name));
    t->fd = accept(t->fd, NULL, NULL);
}

static void make_semaphore(struct things *t)
{
    t->fd = semget(IPC_PRIVATE, 1, 0600);
}

static void drop_semaphore(struct things *t)
{
    semctl(t->fd, 0, IPC_RMID);
}

static void make_aio(struct things *t)
{
    (void)syscall(SYS_io_setup, 1, &t->aio);
}

static long wait_epoll(struct things *t, int ms)
{
    struct epoll_event event;
    return epoll_wait(t->fd, &event, 1, ms);
}

static long wait_epoll2(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    struct epoll_event event;
    return syscall(SYS_epoll_pwait2, t->fd, &event, 1, &time, NULL, 8);
}

static long wait_receive(struct things *t, int ms)
{
    char byte;
    limit_receive(t->fd, ms);
    long n = recv(t->fd, &byte, 1, 0);
    return n < 0 && errno == EAGAIN ? 0 : -1;
}

static long wait_accept(struct things *t, int ms)
{
    limit_receive(t->fd, ms);
    return accept(t->fd, NULL, NULL) < 0 && errno == EAGAIN ? 0 : -1;
}

static long wait_signal(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return sigtimedwait(&set, NULL, &time) < 0 && errno == EAGAIN ? 0 : -1;
}

static long wait_semaphore(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    struct sembuf down = {.sem_op = -1};
    return semtimedop(t->fd, &down, 1, &time) < 0 && errno == EAGAIN ? 0 : -1;
}

static long wait_aio(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    struct io_event event;
    return syscall(SYS_io_getevents, t->aio, 1, 1, &event, &time);
}

static long wait_select(struct things *t, int ms)
{
    struct timeval time = {.tv_usec = ms * 1000};
    return select(0, NULL, NULL, NULL, &time);
}

static long wait_poll(struct things *t, int ms)
{
    return poll(NULL, 0, ms);
}

static long wait_ppoll(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    return ppoll(NULL, 0, &time, NULL);
}

static long wait_sleep(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    return nanosleep(&time, NULL);
}

static long wait_futex(struct things *t, int ms)
{
    struct timespec time = time_of(ms);
    uint32_t word = 0;
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0) < 0 && errno == ETIMEDOUT ? 0 : -1;
}

static struct kind {
    const char *name;
    void (*make)(struct things *);
    long (*wait)(struct things *, int ms);
    void (*drop)(struct things *);
    unsigned waits, errors, early;
    int error;
    int64_t worst_ns;
} kinds[] = {
    {"epoll_wait", make_epoll, wait_epoll, NULL, 0, 0, 0, 0, 0},
    {"epoll_pwait2", make_epoll, wait_epoll2, NULL, 0, 0, 0, 0, 0},
    {"recv_unix", make_unix, wait_receive, NULL, 0, 0, 0, 0, 0},
    {"recv_tcp", make_tcp, wait_receive, NULL, 0, 0, 0, 0, 0},
    {"recv_udp", make_udp, wait_receive, NULL, 0, 0, 0, 0, 0},
    {"accept", make_listener, wait_accept, NULL, 0, 0, 0, 0, 0},
    {"sigtimedwait", NULL, wait_signal, NULL, 0, 0, 0, 0, 0},
    {"semtimedop", make_semaphore, wait_semaphore, drop_semaphore, 0, 0, 0, 0, 0},
    {"io_getevents", make_aio, wait_aio, NULL, 0, 0, 0, 0, 0},
    {"select", NULL, wait_select, NULL, 0, 0, 0, 0, 0},
    {"poll", NULL, wait_poll, NULL, 0, 0, 0, 0, 0},
    {"ppoll", NULL, wait_ppoll, NULL, 0, 0, 0, 0, 0},
    {"nanosleep", NULL, wait_sleep, NULL, 0, 0, 0, 0, 0},
    {"futex", NULL, wait_futex, NULL, 0, 0, 0, 0, 0},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* For how long this thread has wanted a CPU and had none. */
static int64_t delayed_ns(int fd)
{
    char text[96], *end;
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    strtoll(text, &end, 10);
    return strtoll(end, &end, 10);
}

static void work(uint64_t ns)
{
    uint64_t until = now_ns() + ns;
    while (now_ns() < until)
        ;
}

static void *wait_often(void *arg)
{
    static const int times[] = {1, 5, 50};
    struct kind *k = arg;
    struct things t = {.fd = -1};

    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    if (k->make)
        k->make(&t);
    for (unsigned i = 0; now_ns() < end_ns; i++) {
        int ms = times[i % 3];
        work(300000);
        int64_t delayed = delayed_ns(schedstat);
        uint64_t began = now_ns();
        errno = 0;
        long r = k->wait(&t, ms);
        int64_t more = (int64_t)(now_ns() - began) - ms * 1000000LL;
        if (r != 0) {
            k->errors++;
            k->error = errno;
        }
        if (more < 0)
            k->early++;
        more -= delayed_ns(schedstat) - delayed;
        if (more > k->worst_ns)
            k->worst_ns = more;
        k->waits++;
    }
    if (k->drop)
        k->drop(&t);
    return NULL;
}

/* Counts the signals that come, each with the instant it was sent at, until one comes with none. Says how
 * many came, and how many of them were 5 ms late, without the time in which it was given no CPU. */
static void count_signals(void)
{
    static unsigned came, late;
    sigset_t set;
    siginfo_t info;
    struct timespec second = {.tv_sec = 20};

    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    while (sigtimedwait(&set, &info, &second) > 0 && info.si_value.sival_ptr) {
        came++;
        late += now_ns() - (uint64_t)(uintptr_t)info.si_value.sival_ptr > 5000000;
        work(20000);
    }
    printf("%u %u\n", came, late);
}

/* Sends n signals, 10,000 a second. */
static void send_signals(pid_t pid, unsigned n)
{
    uint64_t at = now_ns();

    for (unsigned i = 0; i < n; i++, at += 100000) {
        while (now_ns() < at)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        union sigval value = {.sival_ptr = (void *)(uintptr_t)now_ns()};
        while (sigqueue(pid, SIGRTMIN, value) < 0 && errno == EAGAIN)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    sigqueue(pid, SIGRTMIN, (union sigval){.sival_ptr = NULL});
}

static volatile unsigned handled, handled_late;
static volatile sig_atomic_t over;

static void handle_signal(int number, siginfo_t *info, void *context)
{
    if (!info->si_value.sival_ptr)
        over = 1;
    else
        handled++;
    if (info->si_value.sival_ptr && now_ns() - (uint64_t)(uintptr_t)info->si_value.sival_ptr > 5000000)
        handled_late++;
}

/* The same by a handler, in a thread that computes. */
static void handle_signals(void)
{
    struct sigaction action = {.sa_sigaction = handle_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t set;

    sigaction(SIGRTMIN, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (!over)
        work(100000);
    printf("%u %u\n", handled, handled_late);
}

static void take_cpu(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void *be_starved(void *arg)
{
    take_cpu(*(int *)arg);
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){.sched_priority = 0});
    for (;;)
        work(1000000);
    return NULL;
}

static void have_cpu(int starved, int own)
{
    pthread_t thread;
    take_cpu(own);
    pthread_create(&thread, NULL, be_starved, &starved);
    for (;;)
        work(1000000);
}

static void *wait_for_vfork(void *arg)
{
    uint64_t began = now_ns();

    pid_t pid = vfork();
    if (pid == 0) {
        struct timespec time = {.tv_sec = 4};
        syscall(SYS_nanosleep, &time, NULL);
        _exit(0);
    }
    printf("%d %lld\n", pid > 0, (long long)(now_ns() - began) / 1000000);
    fflush(stdout);
    end_ns = now_ns();
    return NULL;
}

static void work_beside_vfork(void)
{
    pthread_t thread;
    end_ns = UINT64_MAX;
    pthread_create(&thread, NULL, wait_for_vfork, NULL);
    while (now_ns() < *(volatile uint64_t *)&end_ns)
        work(1000000);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    pthread_t thread[KINDS];
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (argc == 4 && strcmp(argv[1], "send") == 0) {
        send_signals(atoi(argv[2]), (unsigned)atoi(argv[3]));
        return 0;
    }
    printf("ready\n");
    fflush(stdout);
    if (argc == 4 && strcmp(argv[1], "starve") == 0)
        have_cpu(atoi(argv[2]), atoi(argv[3]));
    if (argc == 2 && strcmp(argv[1], "vfork") == 0)
        work_beside_vfork();
    if (argc == 2 && strcmp(argv[1], "wait") == 0)
        count_signals();
    else if (argc == 2 && strcmp(argv[1], "handle") == 0)
        handle_signals();
    if (argc != 2 || atoi(argv[1]) == 0)
        return argc != 2;
    end_ns = now_ns() + (uint64_t)atoi(argv[1]) * 1000000000;
    for (size_t i = 0; i < KINDS; i++)
        pthread_create(&thread[i], NULL, wait_often, &kinds[i]);
    for (size_t i = 0; i < KINDS; i++)
        pthread_join(thread[i], NULL);
    for (size_t i = 0; i < KINDS; i++)
        printf("%s %u %u %u %lld %d\n", kinds[i].name, kinds[i].waits, kinds[i].errors, kinds[i].early,
               (long long)kinds[i].worst_ns / 1000, kinds[i].error);
    return 0;
}
