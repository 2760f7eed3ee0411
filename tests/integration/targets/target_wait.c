/* target_wait: sits in one system call and reports, when that ends, whether it was disturbed.
 *
 * usage: target_wait sleep|nanosleep|select|poll|read|futex|epoll|masked. "ready" first. The timed ones wait
 * two seconds and print "undisturbed" or what was wrong (an error, too short, too long); read and futex wait
 * for a byte on stdin, which a second thread turns into a wake-up for futex. masked: two threads for good,
 * with the C library's own signals blocked, which keeps a thread from being borrowed for a second. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 }; /* musl-gcc has no kernel headers */

static int word;

static void *wake_on_byte(void *arg)
{
    char byte;
    (void)arg;
    if (read(0, &byte, 1) >= 0) {
        __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    return NULL;
}

static void *wait_masked(void *arg)
{
    unsigned long both = 3ul << 32; /* by the system call: the C library would leave them out */
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &both, NULL, sizeof(both));
    if (arg) {
        puts("ready");
        fflush(stdout);
    }
    for (;;)
        pause();
    return NULL;
}

static int wait_in(const char *how)
{
    struct timespec two = {2, 0};
    struct timeval two_tv = {2, 0};
    if (strcmp(how, "sleep") == 0)
        return (int)sleep(2);
    if (strcmp(how, "nanosleep") == 0)
        return nanosleep(&two, NULL);
    if (strcmp(how, "select") == 0)
        return select(0, NULL, NULL, NULL, &two_tv);
    if (strcmp(how, "poll") == 0)
        return poll(NULL, 0, 2000);
    if (strcmp(how, "epoll") == 0) {
        struct epoll_event event;
        return epoll_wait(epoll_create1(0), &event, 1, 2000);
    }
    if (strcmp(how, "read") == 0) {
        char byte;
        return read(0, &byte, 1) == 1 ? 0 : -1;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, wake_on_byte, NULL);
    return (int)syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "sleep";
    struct timespec before, after;
    if (strcmp(how, "masked") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, wait_masked, argv[0]);
        wait_masked(NULL);
    }
    printf("ready\n");
    fflush(stdout);
    clock_gettime(CLOCK_MONOTONIC, &before);
    errno = 0;
    int r = wait_in(how);
    int error = errno;
    clock_gettime(CLOCK_MONOTONIC, &after);
    double took = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    int timed = strcmp(how, "read") != 0 && strcmp(how, "futex") != 0;
    if (r != 0 || error != 0)
        printf("disturbed: returned %d, errno %s\n", r, strerror(error));
    else if (timed && (took < 1.99 || took > 2.9))
        printf("disturbed: took %.3f s\n", took);
    else
        printf("undisturbed\n");
    fflush(stdout);
    pause();
    return 0;
}
