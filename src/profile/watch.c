/* watch: one process under the sampler; see watch.h. */
#include "profile/watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "base/vector.h"
#include "remote/source_agent.h"
#include "remote/threads.h"

#define LIST_NS    PB_NS_PER_S        /* threads are listed again at least this often */
#define COUNT_NS   (2 * PB_NS_PER_MS) /* and counted this often: a changed number means a new list */
#define AGAIN_NS   (2 * PB_NS_PER_MS) /* a new thread is native before it is Python: it is listed again */
#define LIST_SHARE 20                 /* at most 1 in this many ns goes into listing threads */

/* Opens the Python of the process. 0 also where there is none: then only native frames are sampled. */
static int open_python(struct pb_sampler *s, struct pb_process_watch *w, struct pb_err *err)
{
    pb_py_glance_free(w->glance);
    w->glance = NULL;
    int r = pb_py_open(&w->source, s->options.force, &w->py, err);
    if (r < 0) {
        w->py = NULL;
        return r == -ENOENT ? 0 : r;
    }
    /* An interrupt does not copy registers: native stacks take a stop. Without CAP_BPF the sampler stops
     * threads too. */
    w->glance_error = s->options.native     ? -ENOTSUP
                      : w->source.ops->look ? -EACCES
                                            : pb_py_glance_new(w->py, &w->glance);
    if (w->glance_error < 0)
        w->glance = NULL;
    if (w->source.ops->look)
        s->through_agent = true;
    else if (w->glance_error < 0)
        s->glance_error = w->glance_error;
    if (!pb_py_verified(w->py))
        s->facts->unverified = true;
    return 0;
}

int pb_watch_open(struct pb_sampler *s, pid_t pid, const char *label, struct pb_process_watch **ret,
                  struct pb_err *err)
{
    struct pb_process_watch *w = calloc(1, sizeof(*w));
    int r;

    if (!w)
        return pb_fail(err, -ENOMEM, "out of memory");
    w->pid = pid;
    w->rank = -1;
    w->source.fd = -1;
    snprintf(w->label, sizeof(w->label), "%s", label);
    r = pb_source_open(pid, &w->source, err); /* through its agent where its memory may not be read */
    if (r == 0)
        r = open_python(s, w, err);
    if (r == 0 && !w->py && !s->options.native)
        r = pb_fail(err, -ENOENT, "there is no Python in process %d (--native samples its native stacks)",
                    (int)pid);
    if (r == 0 && s->options.native && w->source.ops->look)
        r = pb_fail(err, -EPERM,
                    "native stacks of process %d need the right to trace it: its agent reads "
                    "Python stacks only",
                    (int)pid);
    if (r == 0 && s->options.native)
        r = pb_native_new(&w->source, NULL, &w->native, err);
    if (r < 0) {
        pb_watch_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

void pb_watch_drop(struct pb_process_watch *w, size_t i)
{
    pb_moment_close(&w->threads[i].moment);
    w->threads[i] = w->threads[--w->n];
}

void pb_watch_free(struct pb_process_watch *w)
{
    if (!w)
        return;
    while (w->n)
        pb_watch_drop(w, w->n - 1);
    free(w->threads);
    free(w->codes.at);
    pb_py_glance_free(w->glance);
    pb_native_free(w->native);
    pb_py_close(w->py);
    if (w->source.ops)
        pb_source_close(&w->source);
    free(w);
}

static struct pb_watched *find_watched(struct pb_process_watch *w, pid_t tid, const struct pb_py_thread *py)
{
    /* Threads are listed in the same order as last time: the next one is nearly always the right one. */
    for (size_t k = 0; k < w->n; k++) {
        size_t i = (w->hint + k) % w->n;
        struct pb_watched *t = &w->threads[i];
        if (t->tid == tid && t->python == (py != NULL) &&
            (!py || (t->py.tstate == py->tstate && t->py.ident == py->ident))) {
            w->hint = i + 1;
            return t;
        }
    }
    return NULL;
}

static void note_descriptors(struct pb_sampler *s, int r)
{
    s->out_of_descriptors = s->out_of_descriptors || r == -EMFILE || r == -ENFILE;
}

static void watch(struct pb_sampler *s, struct pb_process_watch *w, pid_t tid, const char *name,
                  const struct pb_py_thread *py)
{
    struct pb_watched *known = find_watched(w, tid, py),
                      t = {.tid = tid, .last_cpu = -1, .python = py, .seen = true};

    if (known) {
        known->seen = true;
        return;
    }
    if (pb_grow((void **)&w->threads, &w->cap, w->n, sizeof(*w->threads), NULL) < 0)
        return;
    if (py)
        t.py = *py;
    t.thread = pb_profile_thread(s->profile, w->pid, tid, name, w->label);
    pb_profile_rank_thread(s->profile, t.thread, w->rank);
    int r = t.thread == PB_PROFILE_NONE ? -ENOMEM : pb_source_moment(&w->source, tid, &t.moment);
    if (r < 0) {
        s->facts->failed += r != -ESRCH;
        note_descriptors(s, r);
        return;
    }
    t.moment.looks = 1;                                   /* there is another tick soon */
    t.counted = s->ticking ? s->instant - 1 : s->instant; /* from the tick on that comes to it first */
    s->without_slices = s->without_slices || pb_moment_without_slices(&t.moment);
    w->threads[w->n++] = t;
}

static void forget_unseen(struct pb_process_watch *w)
{
    for (size_t i = 0; i < w->n;) {
        if (w->threads[i].seen) {
            w->threads[i++].seen = false;
            continue;
        }
        pb_watch_drop(w, i);
    }
}

/* The process may have called exec, and has no Python, or none yet: then it has no threads for now. */
static int list_python(struct pb_sampler *s, struct pb_process_watch *w,
                       const struct pb_native_threads *native, const struct pb_py_thread **ret)
{
    int n = w->py ? pb_py_threads(w->py, native, ret, NULL) : -ENOENT;
    if (n >= 0 || (!w->py && w->native))
        return n < 0 ? 0 : n;
    pb_py_close(w->py);
    w->py = NULL;
    free(w->codes.at);
    w->codes = (struct pb_code_map){0};
    if (open_python(s, w, NULL) < 0 || !w->py)
        return 0;
    n = pb_py_threads(w->py, native, ret, NULL);
    return n < 0 ? 0 : n;
}

static void list(struct pb_sampler *s, struct pb_process_watch *w)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads native = {0};
    const struct pb_py_thread *py = NULL;

    int r = pb_native_threads_read(w->pid, &native, NULL);
    if (r < 0) {
        w->ended = r == -ESRCH;
        note_descriptors(s, r);
        return;
    }
    size_t gone = 0; /* a process that has ended exists until its parent waits for it */
    while (gone < native.n && strchr("ZX", native.at[gone].state))
        gone++;
    if (gone == native.n) {
        w->ended = true;
        return;
    }
    int npy = list_python(s, w, &native, &py);
    if (!w->py && !w->native)
        w->again_ns = AGAIN_NS;
    for (int i = 0; i < npy; i++) {
        struct pb_native_thread *n = py[i].tid ? pb_native_threads_find(&native, py[i].tid) : NULL;
        if (n && n->state != 'Z' && n->state != 'X') {
            w->shared = w->shared || n->state == 'P';
            watch(s, w, n->tid, n->name, &py[i]);
            n->state = 'P'; /* a Python thread without a native one */
        }
    }
    for (size_t i = 0; w->native && i < native.n; i++)
        if (!strchr("PZX", native.at[i].state))
            watch(s, w, native.at[i].tid, native.at[i].name, NULL);
    forget_unseen(w);
}

void pb_watch_refresh(struct pb_sampler *s, struct pb_process_watch *w, uint64_t now)
{
    char path[32];
    struct stat st;

    if (now < w->next_count && now < w->next_list)
        return;
    w->next_count = now + COUNT_NS;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)w->pid);
    if (stat(path, &st) < 0) {
        w->ended = true;
        return;
    }
    bool changed = (unsigned long)st.st_nlink != w->links || w->lost_one;
    if ((!changed && now < w->next_list) || now < w->list_after)
        return;
    w->links = (unsigned long)st.st_nlink;
    w->lost_one = false;
    w->again_ns = changed ? AGAIN_NS : 2 * w->again_ns < LIST_NS ? 2 * w->again_ns : LIST_NS;
    uint64_t began = pb_now_ns();
    list(s, w);
    /* Where threads come and go all the time, listing them would take all of the time. */
    uint64_t after = LIST_SHARE * (pb_now_ns() - began);
    w->list_after = now + after;
    w->next_list = now + w->again_ns;
}
