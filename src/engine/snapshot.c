/* snapshot: copies the segments of a table that a query may read, the newest first, with several threads
 * where there are many. Where the writer has overtaken us everything older is left out: what is kept is
 * always a suffix. */
#include "engine/catalog.h"

#include "base/err.h"
#include "engine/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than this is not copied for one query: who asks is told to narrow the time. */
static const uint64_t MAX_BYTES = 2ull << 30;
enum { MAX_THREADS = 4, SEGMENTS_A_THREAD = 32 };

struct job {
    const struct pb_cat_part *part;
    const struct pb_segment_info *list; /* to load, newest first */
    struct pb_cat_segment *to;
    unsigned n;
    uint64_t wanted[PB_MAX_COLUMNS / 64];
    bool whole;
    _Atomic unsigned next;
    _Atomic unsigned stale; /* the first that was gone; n: none */
    _Atomic uint64_t damaged;
    _Atomic int failed;
};

static void load_one(struct job *job, struct pb_reader *reader, unsigned i)
{
    struct pb_view view;

    pb_pool_take(&view);
    view.wanted = job->whole ? NULL : job->wanted;
    int r = pb_view_load(reader, &job->list[i], &view);
    view.wanted = NULL;
    if (r == 0) {
        job->damaged += view.damaged;
        job->to[i].view = view;
        return;
    }
    pb_pool_give(&view);
    unsigned stale = job->stale;
    if (r == -ESTALE)
        /* The oldest are recycled first, so all that is older is going too. */
        while (i < stale && !atomic_compare_exchange_weak(&job->stale, &stale, i))
            ;
    else if (r == -EBADMSG)
        job->damaged++;
    else
        job->failed = r;
}

static void *load(void *arg)
{
    struct job *job = arg;
    struct pb_reader *reader = NULL;
    unsigned i;

    /* A reader is for one thread. */
    int r = pb_reader_open(job->part->fd, &reader, NULL);
    if (r < 0)
        job->failed = r;
    while (r == 0 && !job->failed && (i = job->next++) < job->n)
        load_one(job, reader, i);
    pb_reader_close(reader);
    return NULL;
}

static void load_all(struct job *job)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned most = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (unsigned)cores;
    unsigned n = job->n / SEGMENTS_A_THREAD < most ? job->n / SEGMENTS_A_THREAD : most, started = 0;
    pthread_t threads[MAX_THREADS];

    while (started + 1 < n && pthread_create(&threads[started], NULL, load, job) == 0)
        started++;
    load(job);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* No segment that exists now has this serial or a larger one. */
static int next_serial(int fd, uint64_t *ret)
{
    ssize_t n = pread(fd, ret, sizeof(*ret), offsetof(struct pb_file_header, next_serial));
    return n == sizeof(*ret) ? 0 : n < 0 ? -errno : -ENODATA;
}

/* The segments in range, moved to the front of the list. Slots were looked at one after the other: of the
 * segments that were made meanwhile some were seen and some not, so none of them counts. */
static unsigned choose(struct pb_catalog *c, struct pb_cat_table *t, struct pb_segment_info *list, unsigned n,
                       uint64_t end)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < n; i++) {
        if (list[i].serial >= end)
            continue;
        if (t->time_column >= 0 && list[i].first < t->oldest)
            t->oldest = list[i].first;
        if (t->time_column >= 0 && (list[i].last < t->range.from || list[i].first > t->range.to))
            c->segments_skipped++;
        else
            list[kept++] = list[i];
    }
    return kept;
}

static void set_wanted(const struct pb_cat_table *t, struct job *job)
{
    job->whole = t->whole;
    for (unsigned i = 0; i < t->ncolumns; i++) {
        int theirs = job->part->columns[i];
        if (theirs >= 0 && t->columns[i].wanted)
            job->wanted[theirs / 64] |= UINT64_C(1) << theirs % 64;
    }
}

/* Appends what was loaded, oldest first, up to the first that was gone. */
static void keep(struct pb_catalog *c, struct pb_cat_table *t, unsigned part, struct job *job)
{
    for (unsigned i = job->n; i-- > 0;) {
        struct pb_cat_segment *s = &job->to[i];
        if (i >= job->stale || job->failed || s->view.nrows == 0) {
            pb_pool_give(&s->view);
            continue;
        }
        s->part = part;
        t->nrows += s->view.nrows;
        t->segments[t->nsegments++] = *s;
    }
    c->segments_read += job->n;
    c->damaged += job->damaged;
}

static int take_part(struct pb_catalog *c, struct pb_cat_table *t, unsigned part)
{
    struct job job = {.part = &t->parts[part]};
    struct pb_segment_info *list = NULL;
    struct pb_reader_info info;
    uint64_t end;

    int r = next_serial(job.part->fd, &end);
    if (r < 0)
        return r;
    int n = pb_reader_segments(job.part->reader, job.part->table, &list);
    if (n <= 0)
        return n;
    pb_reader_info(job.part->reader, &info);
    job.list = list;
    job.n = choose(c, t, list, (unsigned)n, end);
    job.stale = job.n;
    c->bytes += (uint64_t)job.n * info.segment_size;
    set_wanted(t, &job);
    job.to = calloc(job.n + 1, sizeof(*job.to));
    struct pb_cat_segment *more = realloc(t->segments, (t->nsegments + job.n + 1) * sizeof(*more));
    if (more)
        t->segments = more;
    r = c->bytes > MAX_BYTES ? -E2BIG : job.to && more ? 0 : -ENOMEM;
    if (r == 0) {
        load_all(&job);
        keep(c, t, part, &job);
        r = job.failed;
    }
    free(job.to);
    free(list);
    return r;
}

int pb_catalog_take(struct pb_catalog *c, struct pb_cat_table *t, struct pb_err *err)
{
    int r = 0;

    if (t->taken)
        return 0;
    t->taken = true;
    for (unsigned i = 0; r == 0 && i < t->nparts; i++)
        r = take_part(c, t, i);
    if (r == -E2BIG)
        return pb_fail(err, r,
                       "%s holds more than %llu MB in that range; narrow the time (WHERE timestamp > ...)",
                       t->name, (unsigned long long)(MAX_BYTES >> 20));
    return r < 0 ? pb_fail(err, r, "%s cannot be read: %s", t->name, strerror(-r)) : 0;
}
