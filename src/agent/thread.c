/* thread: see thread.h. */
#include "agent/thread.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SMALL_STACK (256u << 10)

int pb_thread_start(void *(*run)(void *), void *argument, size_t stack)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, stack ? stack : SMALL_STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -r;
}

void pb_thread_take_host_signals(void)
{
    char path[64], text[4096];
    sigset_t mask;

    snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *blocked = strstr(text, "SigBlk:");
    if (!blocked)
        return;
    unsigned long long bits = strtoull(blocked + 7, NULL, 16);
    sigemptyset(&mask);
    for (int signal = 1; signal <= 64; signal++)
        if (bits >> (signal - 1) & 1)
            sigaddset(&mask, signal);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

void pb_thread_name(const char *name)
{
    prctl(PR_SET_NAME, name, 0, 0, 0);
}
