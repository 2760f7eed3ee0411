/* target_exec: begins its own program anew, again and again, a few milliseconds each.
 *
 * usage: target_exec main|thread FILE COUNT. "ready" at the first. `thread`: a second thread calls exec while
 * the first sleeps. FILE is kept open for writing under the first free number, and never written. COUNT grows
 * with each exec and shows in the command line, so that others see it get on. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char **args;

static void pause_a_while(void)
{
    struct timespec now, some = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    some.tv_nsec = now.tv_nsec / 1000 % 4000 * 1000; /* 0 to 4 ms: short or long beside an injection */
    nanosleep(&some, NULL);
}

static void *again(void *unused)
{
    char count[32];
    (void)unused;
    pause_a_while();
    snprintf(count, sizeof(count), "%ld", atol(args[3]) + 1);
    execl("/proc/self/exe", args[0], args[1], args[2], count, (char *)NULL);
    perror("exec");
    exit(1);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc != 4 || open(argv[2], O_RDWR | O_CLOEXEC) < 0)
        return 2;
    args = argv;
    if (strcmp(argv[3], "0") == 0)
        printf("ready\n");
    fflush(stdout);
    if (strcmp(argv[1], "main") == 0)
        again(NULL);
    if (pthread_create(&thread, NULL, again, NULL) != 0)
        return 3;
    for (;;)
        pause();
}
