/* snapshot: notes or copies the segments of a table that a query may read, the newest first, with several
 * threads where there are many. Where a segment was recycled meanwhile, everything older is left out: a
 * snapshot is always a suffix. */
#include "engine/worker/catalog.h"

#include "base/err.h"
#include "engine/worker/archive_scan.h"
#include "engine/worker/parallel.h"
#include "engine/worker/pool.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Most bytes copied of one table: beyond it the query fails with advice to narrow the time. A table is copied
 * only when it is read more than once (several statements), or its writer keeps recycling segments during the
 * scan. */
static const uint64_t MAX_BYTES = 2ull << 30;
/* A table of so few segments is always copied; a margin on top of those recycled during the first try; and
 * most tries. */
enum { FEW = 32, MARGIN = 64, MAX_LOOKS = 16 };

struct snapshot_job {
    const struct pb_cat_table *table;
    const struct pb_cat_part *part;
    const struct pb_segment_info *list; /* to load, newest first */
    struct pb_cat_segment *to;
    unsigned n;
    unsigned copied; /* how many of the oldest are copied */
    uint64_t wanted[PB_MAX_COLUMNS / 64];
    bool whole;
    _Atomic unsigned next;
    _Atomic unsigned stale; /* the first that was gone; n: none */
    _Atomic uint64_t damaged;
    _Atomic int failed;
};

static bool is_deferred(const struct snapshot_job *job, unsigned i)
{
    return !job->list[i].open && i + job->copied < job->n;
}

static void load_one(struct snapshot_job *job, struct pb_reader *reader, unsigned i)
{
    struct pb_view view;

    if (is_deferred(job, i)) {
        job->to[i].deferred = true;
        job->to[i].at = job->list[i];
        return;
    }

    pb_pool_take(&view);
    view.wanted = job->whole ? NULL : job->wanted;
    int r = pb_view_load(reader, &job->list[i], &view);
    view.wanted = NULL;
    if (r == 0 && !pb_catalog_fits(job->table, (unsigned)(job->part - job->table->parts), &view))
        r = -EBADMSG;
    if (r == 0) {
        job->damaged += view.damaged;
        job->to[i].view = view;
        return;
    }
    pb_pool_give(&view);
    unsigned stale = job->stale;
    if (r == -ESTALE)
        /* The oldest are recycled first, so everything older is going too. */
        while (i < stale && !atomic_compare_exchange_weak(&job->stale, &stale, i))
            ;
    else if (r == -EBADMSG)
        job->damaged++;
    else
        job->failed = r;
}

static void load_segments(void *arg, unsigned thread)
{
    struct snapshot_job *job = arg;
    struct pb_reader *reader = NULL;
    unsigned i;

    /* A reader belongs to one thread. */
    int r = pb_reader_open(job->part->fd, &reader, NULL);
    if (r < 0)
        job->failed = r;
    while (r == 0 && !job->failed && (i = job->next++) < job->n)
        load_one(job, reader, i);
    pb_reader_close(reader);
}

/* The serial after those of all existing segments. */
static int next_serial(int fd, uint64_t *ret)
{
    ssize_t n = pread(fd, ret, sizeof(*ret), offsetof(struct pb_file_header, next_serial));
    return n == sizeof(*ret) ? 0 : n < 0 ? -errno : -ENODATA;
}

/* Moves the segments in range to the front of the list. Segments created during the listing may or may not
 * have been seen, so none of them counts. */
static unsigned choose_segments(struct pb_cat_table *t, unsigned source, struct pb_segment_info *list,
                                unsigned n, uint64_t end)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < n; i++) {
        if (list[i].serial >= end)
            continue;
        if (t->time_column >= 0 && list[i].first < t->oldest)
            t->oldest = list[i].first;
        if (t->time_column >= 0 && (list[i].last < t->range.from || list[i].first > t->range.to))
            t->segments_skipped++;
        else if (!pb_archive_holds(t, source, list[i].serial))
            list[kept++] = list[i];
    }
    return kept;
}

static void set_wanted(const struct pb_cat_table *t, struct snapshot_job *job)
{
    job->whole = t->whole;
    for (unsigned i = 0; i < t->ncolumns; i++) {
        int theirs = job->part->columns[i];
        if (theirs >= 0 && t->columns[i].wanted)
            job->wanted[theirs / 64] |= UINT64_C(1) << theirs % 64;
    }
}

/* Appends the segments found, oldest first, up to the first missing one. */
static void keep_segments(struct pb_cat_table *t, unsigned part, struct snapshot_job *job)
{
    for (unsigned i = job->n; i-- > 0;) {
        struct pb_cat_segment *s = &job->to[i];
        if (i >= job->stale || job->failed || (!s->deferred && s->view.nrows == 0)) {
            pb_pool_give(&s->view);
            continue;
        }
        s->part = part;
        t->nrows += s->deferred ? s->at.rows : s->view.nrows;
        t->ndeferred += s->deferred;
        t->segments[t->nsegments++] = *s;
    }
    t->segments_read += job->n;
    t->damaged += job->damaged;
}

/* How many of the oldest are copied. */
static unsigned count_copied(const struct pb_cat_table *t, const struct snapshot_job *job, uint64_t end)
{
    uint64_t recycled = end - job->part->end;

    if (t->copies == PB_COPY_ALL || job->n <= FEW)
        return job->n;
    /* They were recycled before; the next try takes at least as long. */
    if (t->copies == PB_COPY_OLDEST)
        return recycled > job->n ? job->n : (unsigned)recycled * 2 + MARGIN;
    return 0;
}

static int load_all(struct pb_cat_table *t, unsigned part, struct snapshot_job *job)
{
    job->to = calloc(job->n + 1, sizeof(*job->to));
    struct pb_cat_segment *more = realloc(t->segments, (t->nsegments + job->n + 1) * sizeof(*more));
    if (more)
        t->segments = more;
    if (!job->to || !more)
        return -ENOMEM;
    pb_threads_run(pb_threads_for(job->copied), load_segments, job);
    keep_segments(t, part, job);
    return job->failed;
}

/* One try at a part. -EAGAIN: even the newest segment was gone before it was copied. */
static int try_part(struct pb_cat_table *t, unsigned part, uint32_t segment_size)
{
    struct snapshot_job job = {.table = t, .part = &t->parts[part]};
    struct pb_segment_info *list = NULL;
    uint64_t end;

    int r = next_serial(job.part->fd, &end);
    if (r < 0)
        return r;
    int n = pb_reader_segments(job.part->reader, job.part->table, &list);
    if (n <= 0)
        return n;
    job.list = list;
    job.n = choose_segments(t, job.part->source, list, (unsigned)n, end);
    job.stale = job.n;
    job.copied = count_copied(t, &job, end);
    t->parts[part].end = end;
    set_wanted(t, &job);
    for (unsigned i = 0; i < job.n; i++)
        t->bytes += is_deferred(&job, i) ? 0 : segment_size;
    r = t->bytes > MAX_BYTES ? -E2BIG : load_all(t, part, &job);
    if (r == 0 && job.n && job.stale == 0)
        r = -EAGAIN;
    free(job.to);
    free(list);
    return r;
}

static int take_part(struct pb_cat_table *t, unsigned part)
{
    uint64_t read = t->segments_read, skipped = t->segments_skipped, bytes = t->bytes;
    struct pb_reader_info info;
    int r = -EAGAIN;

    pb_reader_info(t->parts[part].reader, &info);
    for (int tries = 0; r == -EAGAIN && tries < MAX_LOOKS; tries++) {
        t->segments_read = read;
        t->segments_skipped = skipped;
        t->bytes = bytes;
        r = try_part(t, part, info.segment_size);
    }
    /* On a very busy machine no row may be read in time: no rows is a suffix too. */
    return r == -EAGAIN ? 0 : r;
}

int pb_catalog_take(struct pb_cat_table *t, struct pb_err *err)
{
    int r = 0;

    if (t->taken)
        return 0;
    t->taken = true;
    for (unsigned i = 0; r == 0 && i < t->nparts; i++)
        r = take_part(t, i);
    if (r == -E2BIG)
        return pb_fail(err, r,
                       "%s holds more than %llu MB in that range; narrow the time (WHERE timestamp > ...)",
                       t->name, (unsigned long long)(MAX_BYTES >> 20));
    return r < 0 ? pb_fail(err, r, "%s cannot be read: %s", t->name, strerror(-r)) : 0;
}
