/* sampler_notes: which way a sampler reads running threads, and why not a better one; see sampler.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "profile/watch.h"
#include "remote/means.h"
#include "remote/openin.h"
#include "remote/trace.h"

static bool note_interrupts(const struct pb_sampler *s, char *buf, size_t size)
{
    char why[240];

    if (!s->glance_error && !s->options.native)
        return false;
    snprintf(buf, size, "running threads: %s; interrupts (BPF) were not possible: %s",
             s->options.no_stop ? "read on their own CPU (--no-stop), or refused"
                                : "stopped by ptrace, some tens of us each",
             s->options.native ? "native frames need registers"
                               : pb_means_why_no_bpf(s->glance_error, why, sizeof(why)));
    return true;
}

static bool note_agent(const struct pb_sampler *s, char *buf, size_t size)
{
    if (!s->through_agent)
        return false;
    snprintf(buf, size,
             "read through the agent, since ptrace is not permitted: a running thread loses its CPU for some "
             "200 us a sample, or is refused");
    return true;
}

static bool note_stops(const struct pb_sampler *s, char *buf, size_t size)
{
    if (!s->stop_error)
        return false;
    snprintf(
        buf, size,
        "running threads could not be stopped: %s (probing doctor says why); the other ways were used, and "
        "what none of them can read is refused",
        strerror(-s->stop_error));
    return true;
}

static bool note_slices(const struct pb_sampler *s, char *buf, size_t size)
{
    if (!s->without_slices)
        return false;
    snprintf(
        buf, size,
        "no schedstat: switches are counted instead, which costs more, and a thread that waits for a CPU "
        "is stopped or refused");
    return true;
}

static bool note_files(const struct pb_sampler *s, char *buf, size_t size)
{
    (void)s;
    if (!pb_open_without_openat2())
        return false;
    snprintf(buf, size,
             "no openat2 (before Linux 5.6, or a filter): files of the process were opened step by step");
    return true;
}

static bool note_descriptors(const struct pb_sampler *s, char *buf, size_t size)
{
    if (!s->out_of_descriptors)
        return false;
    snprintf(buf, size,
             "too many open files: some threads were not sampled (raise the limit of this shell: ulimit -n "
             "4096)");
    return true;
}

#define BEHIND_US 300

static bool note_behind(const struct pb_sampler *s, char *buf, size_t size)
{
    uint64_t us = s->sleeps ? s->behind_ns / s->sleeps / 1000 : 0;

    if (us < BEHIND_US)
        return false;
    snprintf(
        buf, size,
        "looks came %llu us late on average, for want of a CPU: running threads are counted too low (root "
        "has a priority, an ordinary user short turns from Linux 6.12 on)",
        (unsigned long long)us);
    return true;
}

static bool note_restarts(const struct pb_sampler *s, char *buf, size_t size)
{
    unsigned n = pb_trace_restarts();

    (void)s;
    if (!n)
        return false;
    snprintf(buf, size, "%u wait%s with a timeout had just started when a stop came, and started again", n,
             n == 1 ? "" : "s");
    return true;
}

bool pb_sampler_note(const struct pb_sampler *s, size_t i, char *buf, size_t size)
{
    static bool (*const notes[])(const struct pb_sampler *, char *,
                                 size_t) = {note_agent,  note_interrupts,  note_stops, note_behind,
                                            note_slices, note_descriptors, note_files, note_restarts};

    for (size_t k = 0; k < sizeof(notes) / sizeof(notes[0]); k++)
        if (notes[k](s, buf, size) && i-- == 0)
            return true;
    return false;
}
