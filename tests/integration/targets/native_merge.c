/* native_merge: native and Python frames of each Python thread in one stack, for tests: native_merge PID [N]
 *
 * "thread TID HOW" (0 full, 1 partial, 2 apart), then "py NAME LINE" or "c NAME", innermost first. With N it
 * takes each thread's stack N times and prints how many were full, partial and apart instead. */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "remote/native/merge.h"
#include "remote/native/unwind.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"
#include "remote/threads.h"

enum { FRAMES = 4096 };

struct sample {
    struct pb_native *native;
    struct pb_moment moment;
    struct pb_capture capture;
};

/* One that waits for a time is not stopped, and read as it sleeps. */
static int copy(void *arg)
{
    struct sample *s = arg;
    const struct pb_moment *m = &s->moment;
    if (m->way == PB_WAY_ASLEEP)
        return pb_native_copy_asleep(s->native, m->tid, m->pc, m->sp, &s->capture);
    return pb_native_copy(s->native, m->tid, &s->capture);
}

static size_t describe(struct pb_native *n, const struct pb_native_pc *pcs, size_t count,
                       struct pb_native_frame *ret)
{
    size_t total = 0;
    pb_native_prepare(n, pcs, count);
    for (size_t i = 0; i < count && total + PB_NATIVE_INLINE_MAX < 2 * FRAMES; i++)
        total += pb_native_describe(n, &pcs[i], ret + total, PB_NATIVE_INLINE_MAX);
    return total;
}

static void print_frames(struct pb_py *py, const struct pb_py_stack *stack,
                         const struct pb_native_frame *frames, const struct pb_merged *merged, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct pb_native_frame *f = &frames[merged[i].index];
        const struct pb_py_frame *p = &stack->at[merged[i].index];
        if (merged[i].python)
            printf("py %s %d\n", p->code->name, pb_py_line(py, p));
        else
            printf("c %s\n", f->function ? f->function : "?");
    }
}

/* How the frames of one sample fit, or negative errno. */
static int take(struct pb_py *py, pid_t pid, const struct pb_py_thread *t, struct sample *s, bool print)
{
    static struct pb_native_pc pcs[FRAMES];
    static struct pb_native_frame frames[2 * FRAMES];
    static struct pb_merged merged[4 * FRAMES];
    static struct pb_py_stack stack;
    unsigned flags;
    size_t n;
    int r = pb_moment_open(pid, t->tid, &s->moment);
    if (r < 0)
        return r;
    r = pb_py_sample(py, t, &s->moment, PB_WAY_STOPPED, &stack, copy, s);
    pb_moment_close(&s->moment);
    if (r < 0 || stack.n > 2 * FRAMES)
        return r;
    size_t count = pb_native_unwind(s->native, &s->capture, pcs, FRAMES, &flags);
    size_t total = describe(s->native, pcs, count, frames);
    r = pb_merge_stacks(frames, total, flags, stack.at, stack.n, stack.truncated, merged, &n);
    if (print) {
        printf("thread %d %d\n", t->tid, r);
        print_frames(py, &stack, frames, merged, n);
    }
    return r;
}

int main(int argc, char **argv)
{
    struct pb_source source;
    struct pb_err err = {0};
    struct pb_py *py;
    struct sample s = {0};
    struct pb_native_threads native = {0};
    const struct pb_py_thread *threads;
    unsigned counts[4] = {0};
    pid_t pid = argc > 1 ? atoi(argv[1]) : 0;
    int rounds = argc > 2 ? atoi(argv[2]) : 0;
    if (pb_source_process(pid, &source, &err) < 0 || pb_py_open(&source, false, &py, &err) < 0 ||
        pb_native_new(&source, NULL, &s.native, &err) < 0 || pb_native_threads_read(pid, &native, &err) < 0) {
        fprintf(stderr, "native_merge: %s\n", err.text);
        return 1;
    }
    int n = pb_py_threads(py, &native, &threads, &err);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < (rounds ? rounds : 1); k++) {
            int how = take(py, pid, &threads[i], &s, !rounds);
            counts[how < 0 ? 3 : how]++;
        }
    }
    if (rounds)
        printf("full %u partial %u apart %u failed %u\n", counts[0], counts[1], counts[2], counts[3]);
    return 0;
}
