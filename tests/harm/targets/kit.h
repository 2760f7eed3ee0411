/* kit: what a C target of the harm suite checks of itself; the same report as kit.py's, see there.
 *
 * Thread-safe: any thread may complain or report a late wait. */
#ifndef HARM_KIT_H
#define HARM_KIT_H

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define KIT_NOTED   0.010
#define KIT_LONGEST 1800 /* seconds: the runner is gone then */

static pthread_mutex_t kit_lock = PTHREAD_MUTEX_INITIALIZER;
static char kit_text[256 * 1024];
static size_t kit_used;
static volatile bool kit_is_ready;
static double kit_began, kit_last, kit_last_delay, kit_calm, kit_calm_late;
static unsigned long kit_rounds;

static double kit_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds for which this thread could have run and had no CPU. */
static double kit_run_delay(void)
{
    char text[100] = "";
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    char *second = n > 0 ? strchr(text, ' ') : NULL;
    return second ? (double)strtoull(second, NULL, 10) * 1e-9 : 0;
}

static void kit_line(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&kit_lock);
    if (kit_used < sizeof(kit_text) - 512)
        kit_used += (size_t)vsnprintf(kit_text + kit_used, 512, format, args);
    pthread_mutex_unlock(&kit_lock);
    va_end(args);
}

#define kit_complain(...)                                                                                    \
    do {                                                                                                     \
        char kit_why[256];                                                                                   \
        snprintf(kit_why, sizeof(kit_why), __VA_ARGS__);                                                     \
        kit_line("complaint\t%f\t%s\n", kit_now(), kit_why);                                                 \
    } while (0)

/* The beginning of a wait: when, what this thread had waited for a CPU, how late the kernel's tick was. */
struct kit_start {
    double at, delay, tick_late;
};

/* Timeouts of sockets and semaphores count from the last tick, so a tick that was late ends them early by as
 * much: an emulated processor gets ticks late, others do not. The coarse clock is that of the last tick. */
__attribute__((unused)) static struct kit_start kit_start(void)
{
    struct timespec tick, step;
    struct kit_start start = {.delay = kit_run_delay()};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    start.at = kit_now();
    clock_getres(CLOCK_MONOTONIC_COARSE, &step);
    double late =
        start.at - (double)(tick.tv_sec + step.tv_sec) - (double)(tick.tv_nsec + step.tv_nsec) * 1e-9;
    start.tick_late = late > 0 ? late : 0;
    return start;
}

/* A wait of so many seconds: never early; how late it was is for the runner to judge. */
__attribute__((unused)) static void kit_waited(const char *call, struct kit_start start, double seconds)
{
    double took = kit_now() - start.at;
    if (took < seconds - start.tick_late - 0.001)
        kit_complain("%s ended early, after %f s of %f", call, took, seconds);
    double late = took - seconds - (kit_run_delay() - start.delay);
    if (!kit_is_ready && late > kit_calm_late)
        kit_calm_late = late;
    else if (kit_is_ready && late > KIT_NOTED)
        kit_line("late\t%s\t%f\t%f\n", call, start.at, late);
}

static void kit_touch(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s%s", getenv("HARM_REPORT"), name);
    mkdir(path,
          0777); /* a file would be open for a moment, in which the runner may look at our descriptors */
}

static bool kit_there(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s%s", getenv("HARM_REPORT"), name);
    return access(path, F_OK) == 0;
}

static void kit_wait_for(const char *name)
{
    while (!kit_there(name))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void kit_finish(void)
{
    char path[600], to[512];
    kit_line("calm\t%f\t%f\nrounds\t%lu\n", kit_calm, kit_calm_late, kit_rounds);
    snprintf(to, sizeof(to), "%s", getenv("HARM_REPORT"));
    snprintf(path, sizeof(path), "%s.new", to);
    FILE *file = fopen(path, "we");
    if (!file || fwrite(kit_text, 1, kit_used, file) != kit_used || fclose(file) || rename(path, to))
        _exit(99);
    kit_wait_for(".end");
}

/* True for as long as rounds go on. Called where nothing is under way. */
static bool kit_going(void)
{
    double now = kit_now(), delay = kit_run_delay();
    if (kit_last > 0) {
        double gap = now - kit_last - (delay - kit_last_delay);
        if (!kit_is_ready && gap > kit_calm)
            kit_calm = gap;
        else if (kit_is_ready && gap > KIT_NOTED)
            kit_line("gap\t%f\t%f\n", kit_last, gap);
    }
    kit_last = now;
    kit_last_delay = delay;
    kit_rounds++;
    if (kit_began <= 0)
        kit_began = now;
    if (now - kit_began > KIT_LONGEST)
        _exit(98);
    if (!kit_is_ready && now - kit_began > 0.3) {
        kit_touch(".ready");
        kit_wait_for(".go");
        kit_is_ready = true;
        kit_last = 0;
    } else if (kit_is_ready && kit_there(".stop")) {
        kit_finish();
        return false;
    }
    return true;
}

#endif
