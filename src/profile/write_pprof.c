/* write_pprof: a profile as pprof reads it (profile.proto, gzipped).
 *
 * Samples are counted twice, as a number and as time; labels say the thread, the process and whether it
 * waited, so that pprof can focus on them (-tagfocus). A location is a frame: a function at a line. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/intern.h"
#include "profile/gzip.h"
#include "profile/proto.h"
#include "profile/write.h"

/* Field numbers of profile.proto. */
enum {
    SAMPLE_TYPE = 1,
    SAMPLE,
    MAPPING,
    LOCATION,
    FUNCTION,
    STRING_TABLE,
    TIME_NANOS = 9,
    DURATION_NANOS,
    PERIOD_TYPE,
    PERIOD,
    COMMENT,
    DEFAULT_SAMPLE_TYPE
};

#define DEPTH_MAX 40000

struct pprof {
    const struct pb_profile *p;
    struct pb_proto out;
    struct pb_texts texts;
    struct pb_budget budget;
    bool full;
};

static void pprof_done(struct pprof *w)
{
    pb_proto_done(&w->out);
    pb_texts_done(&w->texts);
}

static uint64_t text(struct pprof *w, const char *s)
{
    uint32_t id = 0;

    if (pb_texts_intern(&w->texts, &w->budget, s, &id) < 0)
        w->full = true;
    return id;
}

static void put_type(struct pprof *w, unsigned field, const char *type, const char *unit)
{
    size_t at = pb_proto_begin(&w->out, field);
    pb_proto_uint(&w->out, 1, text(w, type));
    pb_proto_uint(&w->out, 2, text(w, unit));
    pb_proto_end(&w->out, at);
}

static void put_label(struct pprof *w, const char *key, const char *value, int64_t number)
{
    size_t at = pb_proto_begin(&w->out, 3);
    pb_proto_uint(&w->out, 1, text(w, key));
    if (value)
        pb_proto_uint(&w->out, 2, text(w, value));
    else
        pb_proto_uint(&w->out, 3, (uint64_t)number);
    pb_proto_end(&w->out, at);
}

static void put_sample(struct pprof *w, const struct pb_count *c, uint64_t period, uint32_t *stack)
{
    struct pb_profile_thread t = pb_profile_thread_at(w->p, c->thread);
    size_t n = pb_profile_stack(w->p, c->node, stack, DEPTH_MAX);
    size_t sample = pb_proto_begin(&w->out, SAMPLE);

    size_t at = pb_proto_begin(&w->out, 1);
    for (size_t i = 0; i < n; i++)
        pb_proto_packed(&w->out, stack[i] + 1);
    pb_proto_end(&w->out, at);
    at = pb_proto_begin(&w->out, 2);
    pb_proto_packed(&w->out, c->samples);
    pb_proto_packed(&w->out, c->samples * period);
    pb_proto_end(&w->out, at);
    put_label(w, "process", t.process, 0);
    put_label(w, "thread", *t.name ? t.name : "thread", 0);
    put_label(w, "tid", NULL, t.tid);
    put_label(w, "state", c->flags & PB_SAMPLE_WAITING ? "waiting" : "running", 0);
    if (c->flags & PB_SAMPLE_GIL)
        put_label(w, "gil", "held", 0);
    pb_proto_end(&w->out, sample);
}

static void put_places(struct pprof *w)
{
    for (size_t i = 0; i < pb_profile_nframes(w->p); i++) {
        struct pb_profile_frame f = pb_profile_frame_at(w->p, (uint32_t)i);
        size_t location = pb_proto_begin(&w->out, LOCATION);
        pb_proto_uint(&w->out, 1, i + 1);
        size_t line = pb_proto_begin(&w->out, 4);
        pb_proto_uint(&w->out, 1, f.function + 1);
        if (f.line > 0)
            pb_proto_uint(&w->out, 2, (uint64_t)f.line);
        pb_proto_end(&w->out, line);
        pb_proto_end(&w->out, location);
    }
    for (size_t i = 0; i < pb_profile_nfunctions(w->p); i++) {
        struct pb_profile_function f = pb_profile_function_at(w->p, (uint32_t)i);
        size_t at = pb_proto_begin(&w->out, FUNCTION);
        pb_proto_uint(&w->out, 1, i + 1);
        pb_proto_uint(&w->out, 2, text(w, f.name));
        pb_proto_uint(&w->out, 3, text(w, f.name));
        pb_proto_uint(&w->out, 4, text(w, f.file));
        pb_proto_end(&w->out, at);
    }
}

int pb_write_pprof(FILE *out, const struct pb_profile *p)
{
    _cleanup_(pprof_done) struct pprof w = {.p = p, .budget.left = SIZE_MAX};
    _cleanup_free_ uint32_t *stack = malloc(DEPTH_MAX * sizeof(*stack));
    const struct pb_profile_facts *f = pb_profile_facts_of(p);
    uint64_t period = f->rate > 0 ? (uint64_t)(1e9 / f->rate) : 0;
    char methods[256];

    if (!stack)
        return -ENOMEM;
    text(&w, ""); /* the first text must be empty */
    const char *type = strcmp(f->clock, "CPU") == 0 ? "cpu" : strcmp(f->clock, "GIL") == 0 ? "gil" : "wall";
    put_type(&w, SAMPLE_TYPE, "samples", "count");
    put_type(&w, SAMPLE_TYPE, type, "nanoseconds");
    for (size_t i = 0; i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        if (!pb_profile_thread_at(p, c.thread).hidden)
            put_sample(&w, &c, period, stack);
    }
    put_places(&w);
    pb_proto_uint(&w.out, TIME_NANOS, (uint64_t)f->start.utc_ns);
    pb_proto_uint(&w.out, DURATION_NANOS, f->duration_ns);
    put_type(&w, PERIOD_TYPE, type, "nanoseconds");
    pb_proto_uint(&w.out, PERIOD, period);
    pb_proto_uint(&w.out, COMMENT, text(&w, f->title));
    pb_proto_uint(&w.out, COMMENT, text(&w, pb_profile_methods(p, methods, sizeof(methods))));
    pb_proto_uint(&w.out, DEFAULT_SAMPLE_TYPE, text(&w, type));
    for (size_t i = 0; i < w.texts.n; i++)
        pb_proto_text(&w.out, STRING_TABLE, w.texts.at[i]);
    return w.out.failed || w.full ? -ENOMEM : pb_gzip_write(out, w.out.at, w.out.len);
}
