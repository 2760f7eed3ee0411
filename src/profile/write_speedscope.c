/* write_speedscope: a profile as speedscope reads it: JSON, a profile a thread, samples in the order of time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "profile/write.h"

#define DEPTH_MAX 40000

static void put_string(FILE *out, const char *s)
{
    putc('"', out);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            putc('\\', out);
        putc(*s, out);
    }
    putc('"', out);
}

/* Frames are functions, unless lines are wanted. */
static void put_frames(FILE *out, const struct pb_profile *p, bool lines)
{
    size_t n = lines ? pb_profile_nframes(p) : pb_profile_nfunctions(p);

    for (size_t i = 0; i < n; i++) {
        struct pb_profile_frame frame = {(uint32_t)i, 0};
        if (lines)
            frame = pb_profile_frame_at(p, (uint32_t)i);
        struct pb_profile_function f = pb_profile_function_at(p, frame.function);
        fputs(i ? ",\n{\"name\":" : "\n{\"name\":", out);
        put_string(out, f.name);
        if (*f.file) {
            fputs(",\"file\":", out);
            put_string(out, f.file);
        }
        if (frame.line > 0)
            fprintf(out, ",\"line\":%d", frame.line);
        putc('}', out);
    }
}

struct timeline {
    const struct pb_profile *p;
    uint32_t thread;
    bool lines;
    double period_ms;
    uint32_t *stack;
};

static void put_stacks(FILE *out, const struct timeline *t)
{
    bool first = true;

    for (size_t i = 0; i < pb_profile_nspans(t->p); i++) {
        struct pb_profile_span s = pb_profile_span_at(t->p, i);
        if (s.thread != t->thread)
            continue;
        size_t n = pb_profile_stack(t->p, s.node, t->stack, DEPTH_MAX);
        fputs(first ? "[" : ",[", out);
        for (size_t k = n; k-- > 0;)
            fprintf(out, "%" PRIu32 "%s",
                    t->lines ? t->stack[k] : pb_profile_frame_at(t->p, t->stack[k]).function, k ? "," : "");
        putc(']', out);
        first = false;
    }
}

static double put_weights(FILE *out, const struct timeline *t)
{
    double sum = 0;

    for (size_t i = 0; i < pb_profile_nspans(t->p); i++) {
        struct pb_profile_span s = pb_profile_span_at(t->p, i);
        if (s.thread != t->thread)
            continue;
        double weight = s.samples * t->period_ms;
        fprintf(out, "%s%.6g", sum > 0 ? "," : "", weight);
        sum += weight;
    }
    return sum;
}

static void put_thread(FILE *out, const struct timeline *t)
{
    struct pb_profile_thread thread = pb_profile_thread_at(t->p, t->thread);
    char name[512];

    snprintf(name, sizeof(name), "%s: %s (%d)", thread.process, *thread.name ? thread.name : "thread",
             (int)thread.tid);
    fputs("{\"type\":\"sampled\",\"name\":", out);
    put_string(out, name);
    fputs(",\"unit\":\"milliseconds\",\"startValue\":0,\"samples\":[", out);
    put_stacks(out, t);
    fputs("],\n\"weights\":[", out);
    double sum = put_weights(out, t);
    fprintf(out, "],\"endValue\":%.6g}", sum);
}

/* The thread with most samples opens first. */
static uint32_t busiest(const struct pb_profile *p)
{
    uint32_t shown = 0, best = 0;
    uint64_t most = 0;

    for (uint32_t t = 0; t < pb_profile_nthreads(p); t++) {
        uint64_t n = 0;
        if (pb_profile_thread_at(p, t).hidden)
            continue;
        for (size_t i = 0; i < pb_profile_ncounts(p); i++) {
            struct pb_count c = pb_profile_count_at(p, i);
            n += c.thread == t && !(c.flags & PB_SAMPLE_WAITING) ? c.samples : 0;
        }
        best = n > most ? shown : best;
        most = n > most ? n : most;
        shown++;
    }
    return best;
}

int pb_write_speedscope(FILE *out, const struct pb_profile *p, bool lines)
{
    _cleanup_free_ uint32_t *stack = malloc(DEPTH_MAX * sizeof(*stack));
    const struct pb_profile_facts *f = pb_profile_facts_of(p);
    bool first = true;

    if (!stack)
        return -ENOMEM;
    fputs("{\"$schema\":\"https://www.speedscope.app/"
          "file-format-schema.json\",\n\"exporter\":\"probing " PROBING_VERSION "\",\n\"name\":",
          out);
    put_string(out, f->title);
    fprintf(out, ",\n\"activeProfileIndex\":%" PRIu32 ",\n\"shared\":{\"frames\":[", busiest(p));
    put_frames(out, p, lines);
    fputs("]},\n\"profiles\":[", out);
    for (uint32_t i = 0; i < pb_profile_nthreads(p); i++) {
        struct timeline t = {p, i, lines, f->rate > 0 ? 1000.0 / f->rate : 1, stack};
        if (pb_profile_thread_at(p, i).hidden)
            continue;
        fputs(first ? "\n" : ",\n", out);
        put_thread(out, &t);
        first = false;
    }
    fputs("]}\n", out);
    return ferror(out) ? -EIO : 0;
}
