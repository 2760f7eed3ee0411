/* shared_enum: one ENUM for all strings of a table whose segments are read when they are scanned.
 *
 * Which strings a column uses is unknown before its cells are read; which strings exist is in each segment's
 * dictionary. So all columns share one ENUM of all strings. The ids of a segment are mapped to it here; an id
 * that appears later belongs to a row that was being written: the scan notices it and the query starts again.
 * Several threads, each with its own set; the sets are merged at the end. */
#include "engine/worker/enum_members.h"

#include "engine/worker/parallel.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct enum_job;

/* The set of one thread. */
struct share {
    struct enum_job *job;
    struct pb_enum_members members;
    char **texts; /* copies of the members */
    uint32_t *to; /* from a place in this set to the index in the type */
    struct pb_reader *reader;
    unsigned part;               /* the part that the reader belongs to */
    struct pb_view view, before; /* of a segment, and of the previous one */
    const uint16_t *places;      /* of `before` */
};

struct enum_job {
    struct pb_cat_table *table;
    unsigned char *owner; /* by segment: the thread whose set has its places */
    struct share shares[PB_MAX_SCAN_THREADS];
    _Atomic unsigned next;
    _Atomic int failed;
};

/* Adds a string; a new one is copied, since the view is reused. */
static int add_string(struct share *s, const struct pb_text *text, uint16_t *ret)
{
    uint32_t place = 0, n = s->members.n;

    int r = pb_enum_members_place(&s->members, text, &place);
    if (r == 0 && s->members.n > n) {
        char *copy = malloc(text->length + 1u);
        char **more = copy && n % 256 == 0 ? realloc(s->texts, (n + 256) * sizeof(*more)) : s->texts;
        if (!copy || !more) {
            s->members.n = n; /* the hash may still have it: the set is dropped */
            free(copy);
            return -ENOMEM;
        }
        memcpy(copy, text->data, text->length);
        s->texts = more;
        s->texts[n] = copy;
        s->members.at[n].data = copy;
    }
    *ret = (uint16_t)place;
    return r;
}

static bool same_text(const struct pb_text *a, const struct pb_text *b)
{
    return a->length == b->length && a->data && b->data && memcmp(a->data, b->data, a->length) == 0;
}

/* Segments of one table mostly have the same strings in the same order: try the previous one first. */
static int find_places(struct share *s, struct pb_cat_segment *segment, const struct pb_view *view)
{
    const struct pb_view *before = &s->before;
    uint16_t *places = malloc((view->nstrings + 1) * sizeof(*places));
    int r = places ? 0 : -ENOMEM;

    segment->places = places;
    for (uint32_t i = 0; r == 0 && i < view->nstrings; i++) {
        const struct pb_text *text = &view->strings[i];
        if (!text->data)
            places[i] = PB_NO_PLACE;
        else if (s->places && i < before->nstrings && same_text(text, &before->strings[i]))
            places[i] = s->places[i];
        else
            r = add_string(s, text, &places[i]);
    }
    segment->nplaces = r == 0 ? view->nstrings : 0;
    return r;
}

static int read_segment(struct share *s, struct pb_cat_segment *segment)
{
    const struct pb_cat_table *t = s->job->table;

    if (!segment->deferred)
        return find_places(s, segment, &segment->view);
    if (!s->reader || s->part != segment->part) {
        pb_reader_close(s->reader);
        s->reader = NULL;
        int r = pb_reader_open(t->parts[segment->part].fd, &s->reader, NULL);
        if (r < 0)
            return r;
        s->part = segment->part;
    }
    int r = pb_view_load_strings(s->reader, &segment->at, &s->view);
    /* Gone or damaged: the scan will find that too. */
    if (r == -ESTALE || r == -EBADMSG)
        return 0;
    if (r == 0)
        r = find_places(s, segment, &s->view);
    if (r == 0) {
        struct pb_view view = s->view;
        s->view = s->before;
        s->before = view;
        s->places = segment->places;
    }
    return r;
}

static void read_segments(void *arg, unsigned thread)
{
    struct enum_job *job = arg;
    unsigned i;

    while (!job->failed && (i = job->next++) < job->table->nsegments) {
        job->owner[i] = (unsigned char)thread;
        int r = read_segment(&job->shares[thread], &job->table->segments[i]);
        if (r < 0)
            job->failed = r;
    }
}

/* Merges the sets into one, and maps each share's places to it. */
static int merge_sets(struct enum_job *job, unsigned n, struct pb_cat_enum *ret)
{
    struct pb_enum_members all = {0};
    uint32_t *to = NULL;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < n; i++) {
        struct share *s = &job->shares[i];
        s->to = malloc((s->members.n + 1) * sizeof(*s->to));
        r = s->to ? 0 : -ENOMEM;
        for (uint32_t k = 0; r == 0 && k < s->members.n; k++) {
            struct pb_text text = {
                .data = s->members.at[k].data, .length = s->members.at[k].length, .utf8 = true};
            r = pb_enum_members_place(&all, &text, &s->to[k]);
        }
    }
    if (r == 0 && all.n == 0)
        r = -E2BIG;
    if (r == 0)
        r = (to = malloc(all.n * sizeof(*to))) ? pb_enum_members_make_type(&all, ret, to) : -ENOMEM;
    for (unsigned i = 0; r == 0 && i < n; i++)
        for (uint32_t k = 0; k < job->shares[i].members.n; k++)
            job->shares[i].to[k] = to[job->shares[i].to[k]];
    free(to);
    pb_enum_members_done(&all);
    return r;
}

static void release_shares(struct enum_job *job, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct share *s = &job->shares[i];
        for (uint32_t k = 0; k < s->members.n; k++)
            free(s->texts[k]);
        free(s->texts);
        free(s->to);
        pb_enum_members_done(&s->members);
        pb_reader_close(s->reader);
        pb_view_done(&s->view);
        pb_view_done(&s->before);
    }
    free(job->owner);
}

static void set_places(struct enum_job *job)
{
    struct pb_cat_table *t = job->table;

    for (unsigned i = 0; i < t->nsegments; i++) {
        const uint32_t *to = job->shares[job->owner[i]].to;
        for (uint32_t k = 0; k < t->segments[i].nplaces; k++)
            if (t->segments[i].places[k] != PB_NO_PLACE)
                t->segments[i].places[k] = (uint16_t)to[t->segments[i].places[k]];
    }
}

int pb_catalog_make_shared_enum(struct pb_cat_table *t)
{
    struct enum_job job = {.table = t, .owner = calloc(t->nsegments + 1, 1)};
    unsigned n = pb_threads_for(t->nsegments);

    if (!job.owner)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        job.shares[i].job = &job;
    pb_threads_run(n, read_segments, &job);
    int r = job.failed ? job.failed : merge_sets(&job, n, &t->shared);
    if (r == 0)
        set_places(&job);
    release_shares(&job, n);
    for (unsigned i = 0; r == 0 && i < t->ncolumns; i++)
        if (t->columns[i].type == PB_STRING && t->columns[i].wanted)
            t->columns[i].strings = t->shared;
    return r;
}
