/* last: see last.h. */
#include "agent/core/last.h"

#include "agent/core/agent_clock.h"
#include "agent/core/small_files.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "control/listing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (250 * PB_NS_PER_MS)
#define END_MS  300 /* for code of a user that was interrupted */

static int is_main_thread_ended(void)
{
    char path[64], text[512];

    /* Not /proc/self/stat: for that one the kernel adds up what all threads have used. */
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)getpid());
    const char *name_end = pb_file_read(path, text, sizeof(text)) > 0 ? strrchr(text, ')') : NULL;
    return name_end && name_end[1] == ' ' && name_end[2] == 'Z';
}

static int is_ours(int tid)
{
    static const char ours[] = "probing";
    char path[64], name[32];

    if (!pb_thread_is_ours(tid))
        return 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", tid);
    return pb_file_read(path, name, sizeof(name)) > 0 && strncmp(name, ours, sizeof(ours) - 1) == 0;
}

static int are_all_ours(int tasks)
{
    _Alignas(struct pb_listed) char buf[2048];
    long n;

    while ((n = syscall(SYS_getdents64, tasks, buf, sizeof(buf))) > 0)
        for (long at = 0; at < n;) {
            const struct pb_listed *e = (const struct pb_listed *)(const void *)(buf + at);
            int tid = atoi(e->name);
            if (tid > 0 && tid != getpid() && !is_ours(tid))
                return 0;
            at += e->size;
        }
    return n == 0;
}

int pb_last_look(uint64_t now)
{
    static uint64_t next;

    if (now < next)
        return 0;
    next = now + LOOK_NS;
    if (!is_main_thread_ended())
        return 0;
    int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tasks < 0)
        return 0;
    int all = are_all_ours(tasks);
    close(tasks);
    return all;
}

/* In the program's descriptor table. As the last thread it returns, and the C library does what it does then;
 * while others of ours run code that does not stop, it does the same here. */
static void *be_last(void *unused)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    for (int i = 0; i < END_MS; i++) {
        if (!pb_thread_others_run())
            return unused;
        nanosleep(&moment, NULL);
    }
    exit(0);
}

static void cannot_start(void *unused, int error)
{
    (void)error;
    be_last(unused);
}

void pb_last_end(uint32_t starter)
{
    pb_wake_stop();
    if (pb_spawn(be_last, cannot_start, NULL) < 0)
        exit(0);
    pb_spawn_end(starter);
}
