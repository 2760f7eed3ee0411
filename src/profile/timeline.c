/* timeline: see timeline.h. */
#include "profile/timeline.h"

#include <errno.h>
#include <stdlib.h>

#include "base/intern.h"

struct pb_timeline {
    const struct pb_profile **profiles;
    struct pb_track *tracks;
    struct pb_slice *slices;
    size_t nprofiles, ntracks, nslices;
    size_t profiles_cap, tracks_cap, slices_cap;
    struct pb_budget budget; /* limited by the size of the profiles */
    struct pb_profile_clocks start;
    bool started;
};

int pb_timeline_new(struct pb_timeline **ret)
{
    struct pb_timeline *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    t->budget.left = SIZE_MAX;
    *ret = t;
    return 0;
}

void pb_timeline_free(struct pb_timeline *t)
{
    if (!t)
        return;
    free(t->profiles);
    free(t->tracks);
    free(t->slices);
    free(t);
}

static int push_track(struct pb_timeline *t, const struct pb_track *track)
{
    int r = pb_grow((void **)&t->tracks, &t->tracks_cap, t->ntracks, sizeof(*t->tracks), &t->budget);

    if (r == 0)
        t->tracks[t->ntracks++] = *track;
    return r;
}

static int push_slice(struct pb_timeline *t, const struct pb_slice *slice)
{
    int r = pb_grow((void **)&t->slices, &t->slices_cap, t->nslices, sizeof(*t->slices), &t->budget);

    if (r == 0)
        t->slices[t->nslices++] = *slice;
    return r;
}

/* Converts a time of another machine's monotonic clock to ours, by UTC. */
static uint64_t shift_time(uint64_t ns, int64_t by)
{
    return by < 0 && ns < (uint64_t)-by ? 0 : ns + (uint64_t)by;
}

static int64_t utc_less_monotonic(const struct pb_profile_clocks *c)
{
    return c->utc_ns - (int64_t)c->monotonic_ns;
}

int pb_timeline_add_profile(struct pb_timeline *t, const struct pb_profile *p)
{
    const struct pb_profile_clocks *clocks = &pb_profile_facts_of(p)->start;
    size_t nthreads = pb_profile_nthreads(p);
    uint32_t *track_of = malloc((nthreads + 1) * sizeof(*track_of));

    if (!t->started)
        t->start = *clocks;
    t->started = true;
    int64_t by = utc_less_monotonic(clocks) - utc_less_monotonic(&t->start);
    int r = track_of ? pb_grow((void **)&t->profiles, &t->profiles_cap, t->nprofiles,
                               sizeof(struct pb_profile *), &t->budget)
                     : -ENOMEM;
    if (r == 0)
        t->profiles[t->nprofiles++] = p;
    for (uint32_t i = 0; r == 0 && i < nthreads; i++) {
        struct pb_profile_thread thread = pb_profile_thread_at(p, i);
        const struct pb_track track = {
            .pid = thread.pid, .tid = thread.tid, .name = thread.name, .process = thread.process, .of = p};
        track_of[i] = thread.hidden ? PB_PROFILE_NONE : (uint32_t)t->ntracks;
        r = thread.hidden ? 0 : push_track(t, &track);
    }
    for (size_t i = 0; r == 0 && i < pb_profile_nspans(p); i++) {
        struct pb_profile_span s = pb_profile_span_at(p, i);
        if (track_of[s.thread] == PB_PROFILE_NONE)
            continue;
        const struct pb_slice slice = {
            shift_time(s.start, by), shift_time(s.end, by), track_of[s.thread], s.node, s.samples, s.flags};
        struct pb_track *track = &t->tracks[slice.track];
        *(s.flags & PB_SAMPLE_WAITING ? &track->waiting : &track->running) += s.samples;
        r = push_slice(t, &slice);
    }
    free(track_of);
    return r;
}

/* By time within a track. */
static int in_order(const void *a, const void *b)
{
    const struct pb_slice *x = a, *y = b;

    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

int pb_timeline_finish(struct pb_timeline *t)
{
    if (t->nslices)
        qsort(t->slices, t->nslices, sizeof(*t->slices), in_order);
    for (size_t i = 0; i < t->nslices; i++) {
        struct pb_track *track = &t->tracks[t->slices[i].track];
        if (track->n++ == 0)
            track->first = i;
    }
    return 0;
}

size_t pb_timeline_ntracks(const struct pb_timeline *t)
{
    return t->ntracks;
}

const struct pb_track *pb_timeline_track(const struct pb_timeline *t, size_t i)
{
    return &t->tracks[i];
}

const struct pb_slice *pb_timeline_slice(const struct pb_timeline *t, size_t i)
{
    return &t->slices[i];
}

size_t pb_timeline_nprofiles(const struct pb_timeline *t)
{
    return t->nprofiles;
}

const struct pb_profile *pb_timeline_profile(const struct pb_timeline *t, size_t i)
{
    return t->profiles[i];
}

struct pb_profile_clocks pb_timeline_start(const struct pb_timeline *t)
{
    return t->start;
}
