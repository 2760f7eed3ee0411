/* verdict: what a process waits for, in one line, where that can be known; see stacks.h.
 *
 * Makes sentences from waits.h. The first that applies: the GIL is held by a thread that does not return from
 * C; threads wait for each other's locks; the main thread waits for a collective, a data loader worker, a
 * pipe or a socket. Most processes hang in none of these, and get no line. */
#include "ask/stacks.h"
#include "ask/waits.h"
#include "base/procfs.h"
#include "base/text.h"
#include "base/time.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AGAIN_NS (50 * PB_NS_PER_MS) /* ten times the interval after which Python asks for the GIL */
#define LOOK_EVERY_NS (PB_NS_PER_MS / 2)
#define NAME_SIZE     160
#define CIRCLE_MAX    16

const char *pb_stacks_thread_name(const struct pb_shown_thread *t, char *buf, size_t size)
{
    snprintf(buf, size, "thread %d \"%s\"", (int)t->native.tid, t->name[0] ? t->name : t->native.name);
    pb_text_clean(buf);
    return buf;
}

static void put_seconds(double seconds, char *ret, size_t size)
{
    if (seconds >= 0.1)
        snprintf(ret, size, ", for %.1f s", seconds);
}

static bool is_waited_for(const struct pb_waits *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->at[i].kind == PB_WAIT_GIL)
            return true;
    return false;
}

/* Whether the thread holds the GIL all the time, and sleeps all the time if it slept. Polled, so that the
 * wait ends early when threads just take turns. */
static bool keeps_gil(struct pb_stacks *s, const struct pb_shown_thread *holder)
{
    unsigned long before, after;

    if (!pb_wait_slices(s->pid, holder->native.tid, &before))
        return false;
    for (uint64_t until = pb_now_ns() + LOOK_AGAIN_NS; pb_now_ns() < until;) {
        pb_sleep_ns(LOOK_EVERY_NS);
        if (!pb_py_holds_gil(s->py, &holder->py) || !pb_wait_slices(s->pid, holder->native.tid, &after) ||
            (holder->off_cpu && before != after))
            return false;
    }
    return true;
}

/* The holder sleeps with the GIL, or other threads ask it for the GIL all the time: either way it is in C
 * code that does not release it. Python code would have released it within milliseconds. */
static bool gil_held_in_c(struct pb_stacks *s, const struct pb_waits *w, char *ret, size_t size)
{
    const struct pb_shown_thread *holder = s->n && s->threads[0].gil ? &s->threads[0] : NULL;
    char name[NAME_SIZE], buf[64];

    if (!holder || (!holder->off_cpu && !is_waited_for(w)) || !keeps_gil(s, holder))
        return false;
    int len = snprintf(ret, size, "the GIL is held in C by %s, %s",
                       pb_stacks_thread_name(holder, name, sizeof(name)),
                       pb_stacks_state(holder, buf, sizeof(buf)));
    if (holder->nframes)
        len += snprintf(ret + len, size - (size_t)len, ", called from %s:%d", holder->frames[0].code->name,
                        holder->frames[0].line);
    if (holder->off_cpu)
        put_seconds(pb_wait_seconds(s, holder), ret + len, size - (size_t)len);
    return true;
}

static bool find_deadlock(struct pb_stacks *s, const struct pb_waits *w, char *ret, size_t size)
{
    char name[NAME_SIZE];
    size_t members[CIRCLE_MAX];
    int n = pb_waits_circle(s, w, members, CIRCLE_MAX);
    size_t len = n ? (size_t)snprintf(ret, size, "deadlock: ") : 0;

    for (int i = 0; i < n && len < size; i++) {
        const struct pb_wait *wait = &w->at[members[i]];
        const struct pb_shown_thread *t = &s->threads[members[i]];
        const struct pb_shown_thread *holder = &s->threads[members[(i + 1) % n]];
        const char *what = wait->kind == PB_WAIT_MUTEX ? " mutex" : wait->recursive ? "n RLock" : " Lock";
        len += (size_t)snprintf(ret + len, size - len, "%s%s waits for a%s that ", i ? "; " : "",
                                pb_stacks_thread_name(t, name, sizeof(name)), what);
        if (len < size)
            len += (size_t)snprintf(ret + len, size - len, "%s",
                                    holder == t ? "it holds itself"
                                                : pb_stacks_thread_name(holder, name, sizeof(name)));
        if (len < size && holder != t)
            len += (size_t)snprintf(ret + len, size - len, " holds");
        size_t frame = wait->holder_frame < 0 ? 0 : (size_t)wait->holder_frame;
        if (len < size && frame < holder->nframes)
            len += (size_t)snprintf(ret + len, size - len, " (%s:%d)", holder->frames[frame].code->name,
                                    holder->frames[frame].line);
    }
    return n > 0;
}

/* " of group 1 (ranks 0, 2)" */
static int put_group(const struct pb_wait *w, char *ret, size_t size)
{
    char ranks[PB_WAIT_ABSENT], name[PB_WAIT_GROUP];

    snprintf(name, sizeof(name), "%s", w->group);
    pb_text_clean(name);
    pb_wait_put_ranks(w->group_ranks, w->ngroup_ranks, ranks, sizeof(ranks));
    return snprintf(ret, size,
                    w->ngroup_ranks == 0   ? " of group %s"
                    : w->ngroup_ranks == 1 ? " of group %s (rank %s)"
                                           : " of group %s (ranks %s)",
                    name, ranks);
}

/* What the main thread waits for, as a sentence; false: nothing of interest. */
static bool describe_main_wait(const struct pb_wait *w, char *ret, size_t size)
{
    int len;

    switch (w->kind) {
    case PB_WAIT_COLLECTIVE:
        len = snprintf(ret, size, "the main thread is waiting %s: %s",
                       strcmp(w->text, "init_process_group") == 0 ? "for other ranks to join"
                                                                  : "in a collective",
                       w->text);
        if (w->group[0])
            len += put_group(w, ret + len, size - (size_t)len);
        break;
    case PB_WAIT_LOADER_WORKER:
        len = snprintf(ret, size, "the main thread is waiting for a data-loader worker: %s", w->text);
        break;
    case PB_WAIT_FILE_LOCK:
        if (!w->holder_pid)
            return false;
        len =
            snprintf(ret, size, "the main thread waits for a file lock that process %d holds (descriptor %d)",
                     (int)w->holder_pid, w->fd);
        break;
    case PB_WAIT_PIPE:
    case PB_WAIT_SOCKET:
    case PB_WAIT_FILE:
        if (w->fd < 0 || !w->text[0])
            return false;
        len = snprintf(ret, size, "the main thread waits to %s %s (descriptor %d)",
                       w->writes ? "write to" : "read from", w->text, w->fd);
        break;
    default:
        return false;
    }
    put_seconds(w->seconds, ret + len, size - (size_t)len);
    return true;
}

/* A thread that a prompt of ours holds, and how it goes on. */
static bool describe_held(const struct pb_stacks *s, size_t main, char *ret, size_t size)
{
    static const char *const ways[][2] = {
        {"pause", "`probing -t %d continue` resumes it, `probing -t %d pause` prints its address again"},
        {"break", "`probing -t %d continue` resumes it, `probing -t %d break --stop` for good"},
        {"catch", "it has failed; `probing -t %d catch --stop` lets it end"},
        {"debug", "its debugger resumes it, or `probing -t %d debug --stop`"},
    };
    const struct pb_shown_thread *t = main < s->n && s->threads[main].held[0] ? &s->threads[main] : NULL;
    char name[NAME_SIZE], held[64];

    for (size_t i = 0; i < s->n && !t; i++)
        if (s->threads[i].held[0])
            t = &s->threads[i];
    if (!t)
        return false;
    const char *who =
        t->native.tid == s->pid ? "the main thread" : pb_stacks_thread_name(t, name, sizeof(name));
    size_t len = (size_t)snprintf(ret, size, "%s is %s", who, pb_stacks_held(t, held, sizeof(held)));
    if (t->raised[0] && len < size)
        len += (size_t)snprintf(ret + len, size - len, " after %s in %s (%.120s:%d)", t->raised, t->raised_in,
                                t->raised_file, t->raised_line);
    else if (t->nframes && len < size)
        len += (size_t)snprintf(ret + len, size - len, " in %.60s (%.120s:%d)", t->frames[0].code->name,
                                t->frames[0].code->file, t->frames[0].line);
    if (t->held_at[0] && len < size)
        len += (size_t)snprintf(ret + len, size - len, "; `%s` connects to it", t->held_at);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && len + 2 < size; i++)
        if (strcmp(t->held, ways[i][0]) == 0) {
            len += (size_t)snprintf(ret + len, size - len, "; ");
            snprintf(ret + len, size - len, ways[i][1], (int)s->pid, (int)s->pid);
        }
    pb_text_clean(ret);
    return true;
}

static void find_verdict(struct pb_stacks *s)
{
    struct pb_waits *w = &s->waits;
    size_t main = 0;

    s->verdict[0] = '\0';
    s->verdict_is_wait = false;
    while (main < s->n && s->threads[main].native.tid != s->pid)
        main++;
    if (pb_stacks_died(s, s->verdict, sizeof(s->verdict)))
        return;
    if (s->source.pid && main < s->n && s->threads[main].native.state == 'T') {
        snprintf(s->verdict, sizeof(s->verdict),
                 "the process is stopped by a signal (kill -CONT %d resumes it)", (int)s->pid);
        return;
    }
    if (s->source.pid && describe_held(s, main, s->verdict, sizeof(s->verdict)))
        return;
    if (s->py && s->source.pid && gil_held_in_c(s, w, s->verdict, sizeof(s->verdict)))
        return;
    s->verdict[0] = '\0';
    s->verdict_is_wait = !find_deadlock(s, w, s->verdict, sizeof(s->verdict)) && main < s->n &&
                         describe_main_wait(&w->at[main], s->verdict, sizeof(s->verdict));
}

int pb_stacks_waits(struct pb_stacks *s, enum pb_waits_depth depth)
{
    pb_waits_done(&s->waits);
    int r = pb_waits_find(s, depth, &s->waits);
    if (r == 0)
        find_verdict(s);
    return r;
}
