/* stacks_verdict: what a process waits for, in one line, where it can be known; see stacks.h.
 *
 * In this order, the first that holds: the GIL held by a thread that does not come back from C; threads that
 * wait for each other's locks; and, by what its main thread waits in, a collective, a worker of a data
 * loader, a read from somebody. Most processes hang in none of these, and get no line. */
#include "ask/stacks.h"
#include "base/procfs.h"
#include "base/time.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AGAIN_NS (50 * PB_NS_PER_MS) /* ten times as long as Python waits before it asks for the GIL */
#define LOOK_EVERY_NS (PB_NS_PER_MS / 2)
#define NAME_SIZE     160

const char *pb_stacks_thread_name(const struct pb_shown_thread *t, char *buf, size_t size)
{
    snprintf(buf, size, "thread %d \"%s\"", (int)t->native.tid, t->name[0] ? t->name : t->native.name);
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    return buf;
}

/* When it last ran, on the clock of the scheduler, in seconds; 0: the kernel does not tell. */
static double last_ran(pid_t pid, pid_t tid)
{
    char path[48], text[512];

    snprintf(path, sizeof(path), "task/%d/sched", (int)tid);
    if (pb_proc_read(pid, tid ? path : "sched", text, sizeof(text)) < 0)
        return 0;
    const char *at = strstr(text, "se.exec_start"), *colon = at ? strchr(at, ':') : NULL;
    return colon ? strtod(colon + 1, NULL) / 1e3 : 0;
}

/* Each CPU has a clock of its own for this: ours is read where the thread last ran. 0: not known. */
static double seconds_asleep(pid_t pid, const struct pb_shown_thread *t)
{
    cpu_set_t before, there;
    double then = last_ran(pid, t->native.tid), now = 0;

    if (then <= 0 || t->native.cpu < 0 || t->native.cpu >= CPU_SETSIZE ||
        sched_getaffinity(0, sizeof(before), &before) < 0)
        return 0;
    CPU_ZERO(&there);
    CPU_SET((size_t)t->native.cpu, &there);
    if (sched_setaffinity(0, sizeof(there), &there) == 0) {
        now = last_ran(0, 0);
        sched_setaffinity(0, sizeof(before), &before);
    }
    return now > then ? now - then : 0;
}

static void put_seconds(const struct pb_stacks *s, const struct pb_shown_thread *t, char *ret, size_t size)
{
    double seconds = s->source.pid ? seconds_asleep(s->pid, t) : 0; /* a core file has no clock */
    if (seconds >= 0.1)
        snprintf(ret, size, ", for %.1f s", seconds);
}

static const struct pb_shown_thread *find_waiter(const struct pb_stacks *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        const char *call = t->python && t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;
        if (call && strncmp(call, "futex", 5) == 0 && !t->gil &&
            pb_py_waits_for_gil(s->py, &t->py, t->syscall_args[0]))
            return t;
    }
    return NULL;
}

static bool slices_of(pid_t pid, pid_t tid, unsigned long *ret)
{
    char path[48], text[96];

    snprintf(path, sizeof(path), "task/%d/schedstat", (int)tid);
    return pb_proc_read(pid, path, text, sizeof(text)) > 0 && sscanf(text, "%*s %*s %lu", ret) == 1;
}

/* Whether it holds the GIL all the time, and sleeps all the time if it slept. Looked at often: threads that
 * only take turns are not to cost the whole time. */
static bool keeps_gil(struct pb_stacks *s, const struct pb_shown_thread *holder)
{
    unsigned long before, after;

    if (!slices_of(s->pid, holder->native.tid, &before))
        return false;
    for (uint64_t until = pb_now_ns() + LOOK_AGAIN_NS; pb_now_ns() < until;) {
        pb_sleep_ns(LOOK_EVERY_NS);
        if (!pb_py_holds_gil(s->py, &holder->py) || !slices_of(s->pid, holder->native.tid, &after) ||
            (holder->off_cpu && before != after))
            return false;
    }
    return true;
}

/* Asleep with the GIL and not awake since, or asked for it by another thread all the time: either way it is
 * in C code that does not give it up. Python code would have within milliseconds. */
static bool gil_held_in_c(struct pb_stacks *s, char *ret, size_t size)
{
    const struct pb_shown_thread *holder = s->n && s->threads[0].gil ? &s->threads[0] : NULL;
    char name[NAME_SIZE], buf[64];

    if (!holder || (!holder->off_cpu && !find_waiter(s)) || !keeps_gil(s, holder))
        return false;
    int len = snprintf(ret, size, "the GIL is held in C by %s, %s",
                       pb_stacks_thread_name(holder, name, sizeof(name)),
                       pb_stacks_state(holder, buf, sizeof(buf)));
    if (holder->nframes)
        len += snprintf(ret + len, size - (size_t)len, ", called from %s:%d", holder->frames[0].code->name,
                        holder->frames[0].line);
    if (holder->off_cpu)
        put_seconds(s, holder, ret + len, size - (size_t)len);
    return true;
}

static const struct pb_shown_thread *main_thread(const struct pb_stacks *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->threads[i].native.tid == s->pid)
            return &s->threads[i];
    return NULL;
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && strcmp(text + n - m, with) == 0;
}

/* By the frames of the libraries that do the waiting. A data loader without workers calls the user's data set
 * from the same file: only the function that waits for a worker will do. */
static bool library_wait(const struct pb_stacks *s, const struct pb_shown_thread *t, char *ret, size_t size)
{
    static const struct {
        const char *file, *function, *what;
    } known[] = {
        {"torch/distributed/distributed_c10d.py", "init_process_group", "waiting for other ranks to join"},
        {"torch/distributed/distributed_c10d.py", NULL, "waiting in a collective"},
        {"torch/utils/data/dataloader.py", "_try_get_data", "waiting for a data-loader worker"},
    };

    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        for (size_t i = 0; i < t->nframes && i < 32; i++) {
            const struct pb_py_code *code = t->frames[i].code;
            if (!ends(code->file, known[k].file) ||
                (known[k].function && strcmp(code->name, known[k].function) != 0))
                continue;
            int len = snprintf(ret, size, "the main thread is %s: %s", known[k].what, code->name);
            put_seconds(s, t, ret + len, size - (size_t)len);
            return true;
        }
    return false;
}

static bool read_wait(const struct pb_stacks *s, const struct pb_shown_thread *t, char *ret, size_t size)
{
    static const char *const calls[] = {"read", "readv", "recvfrom", "recvmsg", "pread64"};
    const char *call = t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;
    char peer[200];

    for (size_t i = 0; call && i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (strcmp(call, calls[i]) != 0)
            continue;
        pb_stacks_peer(s->pid, (int)t->syscall_args[0], peer, sizeof(peer));
        if (!peer[0])
            return false;
        int len = snprintf(ret, size, "the main thread waits to read from %s (descriptor %d)", peer,
                           (int)t->syscall_args[0]);
        put_seconds(s, t, ret + len, size - (size_t)len);
        return true;
    }
    return false;
}

void pb_stacks_verdict(struct pb_stacks *s)
{
    const struct pb_shown_thread *t = main_thread(s);

    s->verdict[0] = '\0';
    if (pb_stacks_died(s, s->verdict, sizeof(s->verdict)))
        return;
    if (s->source.pid && t && t->native.state == 'T') {
        snprintf(s->verdict, sizeof(s->verdict),
                 "the process is stopped by a signal (kill -CONT %d lets it go on)", (int)s->pid);
        return;
    }
    if (s->py && s->source.pid && gil_held_in_c(s, s->verdict, sizeof(s->verdict)))
        return;
    s->verdict[0] = '\0';
    if (pb_stacks_deadlock(s, s->verdict, sizeof(s->verdict)) || !t || !t->off_cpu)
        return;
    if (!library_wait(s, t, s->verdict, sizeof(s->verdict)) && s->source.pid)
        read_wait(s, t, s->verdict, sizeof(s->verdict));
}
