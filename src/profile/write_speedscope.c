/* write_speedscope: a timeline in speedscope's JSON: a profile per track, ordered by time.
 *
 * With wall time, gaps are written as samples without a stack: a thread that began after five seconds begins
 * there. CPU and GIL time have no gaps. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json_write.h"
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

static void put_frame(struct pb_json_writer *w, const char *name, const char *file, int line)
{
    pb_json_line(w, 0);
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "name", name);
    if (*file)
        pb_json_put_text(w, "file", file);
    if (line > 0)
        pb_json_put_number(w, "line", "%d", line);
    pb_json_close(w);
}

/* Frames are functions, or lines if wanted. */
static void put_frames(struct pb_json_writer *w, const struct pb_timeline *t, bool lines)
{
    for (size_t k = 0; k < pb_timeline_nprofiles(t); k++) {
        const struct pb_profile *p = pb_timeline_profile(t, k);
        for (size_t i = 0; i < frames_of(p, lines); i++) {
            struct pb_profile_frame frame = {(uint32_t)i, 0};
            if (lines)
                frame = pb_profile_frame_at(p, (uint32_t)i);
            struct pb_profile_function f = pb_profile_function_at(p, frame.function);
            put_frame(w, f.name, f.file, frame.line);
        }
    }
}

struct writing {
    struct pb_json_writer *json;
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

    pb_json_open(w->json, NULL, '[');
    for (size_t k = pb_profile_stack(w->track->of, s->node, w->stack, DEPTH_MAX); k-- > 0;)
        pb_json_put_number(
            w->json, NULL, "%zu",
            base + (w->lines ? w->stack[k] : pb_profile_frame_at(w->track->of, w->stack[k]).function));
    pb_json_close(w->json);
}

#define GAP_PERIODS 3 /* as in a profile: shorter gaps are jitter of the ticks */

/* Writes stacks, or weights, in the same way. Returns the end, in ms. */
static double put_samples(const struct writing *w, bool weights)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(w->track->of);
    bool gaps = strcmp(f->clock, "wall") == 0 && f->duration_ns;
    double at = 0;

    for (size_t i = 0; i < w->track->n; i++) {
        const struct pb_slice *s = pb_timeline_slice(w->t, w->track->first + i);
        double gap = ms_since(w, s->start) - at, weight = s->samples * w->period_ms;
        if (gaps && gap > GAP_PERIODS * w->period_ms) {
            if (weights) {
                pb_json_put_number(w->json, NULL, "%.10g", gap);
            } else {
                pb_json_open(w->json, NULL, '[');
                pb_json_close(w->json);
            }
            at += gap;
        }
        if (weights)
            pb_json_put_number(w->json, NULL, "%.10g", weight);
        else
            put_stack(w, s);
        at += weight;
    }
    return at;
}

static void put_thread(const struct writing *w)
{
    struct pb_json_writer *json = w->json;

    pb_json_line(json, 0);
    pb_json_open(json, NULL, '{');
    pb_json_put_text(json, "type", "sampled");
    pb_json_put_format(json, "name", "%s: %s (%d)", w->track->process,
                       *w->track->name ? w->track->name : "thread", (int)w->track->tid);
    pb_json_put_text(json, "unit", "milliseconds");
    pb_json_put_number(json, "startValue", "0");
    pb_json_open(json, "samples", '[');
    put_samples(w, false);
    pb_json_close(json);
    pb_json_line(json, 0);
    pb_json_open(json, "weights", '[');
    double end = put_samples(w, true);
    pb_json_close(json);
    pb_json_put_number(json, "endValue", "%.10g", end);
    pb_json_close(json);
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
    struct pb_json_writer json = {.out = out, .tight = true};

    if (!stack)
        return -ENOMEM;
    pb_json_open(&json, NULL, '{');
    pb_json_put_text(&json, "$schema", "https://www.speedscope.app/file-format-schema.json");
    pb_json_line(&json, 0);
    pb_json_put_text(&json, "exporter", "probing " PROBING_VERSION);
    pb_json_line(&json, 0);
    pb_json_put_text(&json, "name",
                     pb_timeline_nprofiles(t) ? pb_profile_facts_of(pb_timeline_profile(t, 0))->title : "");
    pb_json_line(&json, 0);
    pb_json_put_number(&json, "activeProfileIndex", "%zu", busiest(t));
    pb_json_line(&json, 0);
    pb_json_open(&json, "shared", '{');
    pb_json_open(&json, "frames", '[');
    put_frames(&json, t, lines);
    pb_json_close(&json);
    pb_json_close(&json);
    pb_json_line(&json, 0);
    pb_json_open(&json, "profiles", '[');
    for (size_t i = 0; i < pb_timeline_ntracks(t); i++) {
        const struct pb_track *track = pb_timeline_track(t, i);
        double rate = pb_profile_facts_of(track->of)->rate;
        put_thread(&(struct writing){.json = &json,
                                     .t = t,
                                     .track = track,
                                     .lines = lines,
                                     .period_ms = rate > 0 ? 1000 / rate : 1,
                                     .start_ns = pb_timeline_start(t).monotonic_ns,
                                     .stack = stack});
    }
    pb_json_close(&json);
    pb_json_close(&json);
    putc('\n', out);
    return ferror(out) ? -EIO : 0;
}
