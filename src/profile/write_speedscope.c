/* write_speedscope: a timeline in speedscope's JSON: a profile per track, ordered by time.
 *
 * With wall time, gaps are written as samples without a stack: a thread that began after five seconds begins
 * there. CPU and GIL time have no gaps. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "profile/write.h"

#define DEPTH_MAX 40000

/* Numbers the frames of several profiles: those of each after those of the ones before. */
static size_t frames_of(const struct pb_profile *p, bool lines)
{
    return lines ? pb_profile_nframes(p) : pb_profile_nfunctions(p);
}

static size_t first_frame(const struct pb_timeline *t, const struct pb_profile *p, bool lines)
{
    size_t first = 0;

    for (size_t i = 0; i < pb_timeline_nprofiles(t) && pb_timeline_profile(t, i) != p; i++)
        first += frames_of(pb_timeline_profile(t, i), lines);
    return first;
}

static void put_frame(FILE *out, const char *name, const char *file, int line, bool first)
{
    fputs(first ? "\n{\"name\":" : ",\n{\"name\":", out);
    pb_write_json_text(out, name);
    if (*file) {
        fputs(",\"file\":", out);
        pb_write_json_text(out, file);
    }
    if (line > 0)
        fprintf(out, ",\"line\":%d", line);
    putc('}', out);
}

/* Frames are functions, or lines if wanted. */
static void put_frames(FILE *out, const struct pb_timeline *t, bool lines)
{
    bool first = true;

    for (size_t k = 0; k < pb_timeline_nprofiles(t); k++) {
        const struct pb_profile *p = pb_timeline_profile(t, k);
        for (size_t i = 0; i < frames_of(p, lines); i++, first = false) {
            struct pb_profile_frame frame = {(uint32_t)i, 0};
            if (lines)
                frame = pb_profile_frame_at(p, (uint32_t)i);
            struct pb_profile_function f = pb_profile_function_at(p, frame.function);
            put_frame(out, f.name, f.file, frame.line, first);
        }
    }
}

struct writing {
    FILE *out;
    const struct pb_timeline *t;
    const struct pb_track *track;
    bool lines;
    double period_ms;
    uint64_t start_ns;
    uint32_t *stack;
};

static double ms_since(const struct writing *w, uint64_t ns)
{
    return ns > w->start_ns ? (double)(ns - w->start_ns) / 1e6 : 0;
}

static void put_stack(const struct writing *w, const struct pb_slice *s)
{
    size_t base = first_frame(w->t, w->track->of, w->lines);

    for (size_t k = pb_profile_stack(w->track->of, s->node, w->stack, DEPTH_MAX); k-- > 0;)
        fprintf(w->out, "%zu%s",
                base + (w->lines ? w->stack[k] : pb_profile_frame_at(w->track->of, w->stack[k]).function),
                k ? "," : "");
}

#define GAP_PERIODS 3 /* as in a profile: shorter gaps are jitter of the ticks */

/* Writes stacks, or weights, in the same way. Returns the end, in ms. */
static double put_samples(const struct writing *w, bool weights)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(w->track->of);
    bool gaps = strcmp(f->clock, "wall") == 0 && f->duration_ns;
    const char *comma = "";
    double at = 0;

    for (size_t i = 0; i < w->track->n; i++) {
        const struct pb_slice *s = pb_timeline_slice(w->t, w->track->first + i);
        double gap = ms_since(w, s->start) - at, weight = s->samples * w->period_ms;
        if (gaps && gap > GAP_PERIODS * w->period_ms) {
            fprintf(w->out, weights ? "%s%.10g" : "%s[]", comma, gap);
            at += gap;
            comma = ",";
        }
        fputs(comma, w->out);
        if (weights) {
            fprintf(w->out, "%.10g", weight);
        } else {
            putc('[', w->out);
            put_stack(w, s);
            putc(']', w->out);
        }
        at += weight;
        comma = ",";
    }
    return at;
}

static void put_thread(const struct writing *w)
{
    char name[512];

    snprintf(name, sizeof(name), "%s: %s (%d)", w->track->process,
             *w->track->name ? w->track->name : "thread", (int)w->track->tid);
    fputs("{\"type\":\"sampled\",\"name\":", w->out);
    pb_write_json_text(w->out, name);
    fputs(",\"unit\":\"milliseconds\",\"startValue\":0,\"samples\":[", w->out);
    put_samples(w, false);
    fputs("],\n\"weights\":[", w->out);
    double end = put_samples(w, true);
    fprintf(w->out, "],\"endValue\":%.10g}", end);
}

/* The track with most running samples is shown first. */
static size_t busiest(const struct pb_timeline *t)
{
    size_t best = 0;

    for (size_t i = 1; i < pb_timeline_ntracks(t); i++)
        if (pb_timeline_track(t, i)->running > pb_timeline_track(t, best)->running)
            best = i;
    return best;
}

int pb_write_speedscope(FILE *out, const struct pb_timeline *t, bool lines)
{
    _cleanup_free_ uint32_t *stack = malloc(DEPTH_MAX * sizeof(*stack));

    if (!stack)
        return -ENOMEM;
    fputs("{\"$schema\":\"https://www.speedscope.app/"
          "file-format-schema.json\",\n\"exporter\":\"probing " PROBING_VERSION "\",\n\"name\":",
          out);
    pb_write_json_text(out,
                       pb_timeline_nprofiles(t) ? pb_profile_facts_of(pb_timeline_profile(t, 0))->title : "");
    fprintf(out, ",\n\"activeProfileIndex\":%zu,\n\"shared\":{\"frames\":[", busiest(t));
    put_frames(out, t, lines);
    fputs("]},\n\"profiles\":[", out);
    for (size_t i = 0; i < pb_timeline_ntracks(t); i++) {
        const struct pb_track *track = pb_timeline_track(t, i);
        double rate = pb_profile_facts_of(track->of)->rate;
        struct writing w = {.out = out,
                            .t = t,
                            .track = track,
                            .lines = lines,
                            .period_ms = rate > 0 ? 1000 / rate : 1,
                            .start_ns = pb_timeline_start(t).monotonic_ns,
                            .stack = stack};
        fputs(i ? ",\n" : "\n", out);
        put_thread(&w);
    }
    fputs("]}\n", out);
    return ferror(out) ? -EIO : 0;
}
