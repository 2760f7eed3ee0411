/* broker: see broker.h. */
#include "engine/caller/broker.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "engine/caller/broker_archive.h"
#include "engine/caller/broker_node_rows.h"
#include "engine/caller/broker_slot.h"
#include "engine/shared/known.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long a worker may take after its own deadline to report it. */
static const uint64_t GRACE_NS = 2500 * PB_NS_PER_MS, HELLO_NS = 30 * PB_NS_PER_S;

enum { CANCEL_MS = 100, MAX_SCALE = 38 };

struct pb_sql {
    struct pb_sql_query q;
    struct pb_archive_lists lists;
    struct pb_worker slot;
    int pidfd;
    uint64_t deadline; /* when the worker is killed; 0: never */
    struct pb_wire in, out;
    struct pb_sql_column *columns; /* of the current result */
    struct pb_cells *cells;
    unsigned ncolumns;
    struct pb_sql_stats stats;
    struct pb_live_failure *failures; /* each is reported once */
    unsigned nfailures, reported;
    char *note;
    uint64_t gave;    /* when the caller got its last event */
    uint64_t away_ns; /* how long the caller did not ask for the next event */
    uint64_t rows;
    bool over;
};

static void end_worker(const struct pb_sql *t)
{
    if (t->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, t->pidfd, SIGKILL, NULL, 0);
}

/* The error of a timeout: a query that waited for its reader is not a slow query. */
static int fail_timed_out(const struct pb_sql *t, struct pb_err *err)
{
    if (t->away_ns > t->q.timeout_ms * PB_NS_PER_MS / 2)
        return pb_fail(
            err, -ETIMEDOUT,
            "timed out: it was stopped after %g s, since its rows were not read fast enough: %llu rows were "
            "read (--timeout gives it more)",
            t->q.timeout_ms / 1e3, (unsigned long long)t->rows);
    return pb_fail(err, -ETIMEDOUT,
                   "timed out: it took longer than %g s and was stopped (--timeout gives it more)",
                   t->q.timeout_ms / 1e3);
}

/* The error of a worker that has died. */
static int fail_worker_died(const struct pb_sql *t, int r, struct pb_err *err)
{
    if (r == -ETIMEDOUT || (t->q.timeout_ms && t->deadline && pb_now_ns() + GRACE_NS >= t->deadline))
        return fail_timed_out(t, err);
    return pb_fail(err, r,
                   "the SQL worker crashed or ran out of memory; the target process is not affected (run the "
                   "query again)");
}

static int receive_message(struct pb_sql *t, uint64_t deadline)
{
    int r;

    /* A signal just before poll would not interrupt it: it polls with a limit. */
    do {
        struct pollfd p[] = {{.fd = t->slot.socket, .events = POLLIN},
                             {.fd = t->q.cancel.fd > 0 ? t->q.cancel.fd : -1, .events = POLLIN}};
        poll(p, 2, CANCEL_MS);
        if (pb_cancel_is_set(&t->q.cancel))
            return -ECANCELED;
        if (p[0].revents)
            r = pb_wire_receive(t->slot.socket, &t->in, deadline);
        else
            r = deadline && pb_now_ns() >= deadline ? -ETIMEDOUT : -EINTR;
    } while (r == -EINTR);
    return r;
}

/* An error that the worker reports. */
static int fail_with_reason(struct pb_sql *t, struct pb_err *err)
{
    uint32_t number = pb_wire_u32(&t->in), length;
    const char *text = pb_wire_text(&t->in, &length);

    if (!text || number == 0 || number > 4095)
        return pb_fail(err, -EBADMSG, "the SQL worker gave an invalid answer");
    return pb_fail(err, -(int)number, "%.*s", (int)length, text);
}

static int read_hello(struct pb_sql *t, struct pb_err *err)
{
    int r = receive_message(t, pb_now_ns() + HELLO_NS);
    if (r < 0)
        return r;
    if (t->in.type == PB_SQL_ERROR)
        return fail_with_reason(t, err);
    if (t->in.type != PB_SQL_HELLO || pb_wire_u32(&t->in) != PB_SQL_VERSION || t->in.nfds > 1)
        return pb_fail(err, -EPROTO, "the SQL worker is of another release");
    if (t->in.nfds) {
        t->pidfd = t->in.fds[0];
        t->in.fds[0] = -1;
    }
    return 0;
}

static void put_arena(struct pb_wire *m, const struct pb_sql_source *s, int fd)
{
    pb_wire_put_u32(m, (uint32_t)s->rank);
    pb_wire_put_u32(m, (uint32_t)s->live.pid);
    pb_wire_put_u32(m, fd >= 0);
    if (fd >= 0)
        pb_wire_put_fd(m, fd);
}

static int send_request(struct pb_sql *t)
{
    const struct pb_sql_query *q = &t->q;
    struct pb_wire *m = &t->out;

    pb_wire_begin(m, PB_SQL_REQUEST);
    pb_wire_put_u32(m, q->timeout_ms);
    pb_wire_put_u32(m, (q->no_agent ? PB_SQL_NO_AGENT : 0u) | (q->progress ? PB_SQL_WANTS_PROGRESS : 0u) |
                           (q->plan ? PB_SQL_PLAN : 0u) | (q->whole ? PB_SQL_WHOLE : 0u) |
                           (q->node_rows ? PB_SQL_NODE_ROWS : 0u));
    pb_wire_put_u64(m, q->now_us);
    pb_wire_put_u64(m, q->cap);
    pb_wire_put_u32(m, pb_broker_arenas(q));
    for (unsigned i = 0; i < q->nsources; i++)
        put_arena(m, &q->sources[i], q->sources[i].live.arena_fd);
    /* Recordings follow all of the sources' own arenas: live tables are read once per process. */
    for (unsigned i = 0; i < q->nsources; i++)
        for (unsigned k = 0; k < q->sources[i].live.nmore; k++)
            put_arena(m, &q->sources[i], q->sources[i].live.more[k]);
    for (unsigned i = 0; i < pb_broker_arenas(q); i++)
        pb_broker_put_tables(q, i, m);
    pb_wire_put_text(m, q->sql, q->length);
    if (q->node_rows)
        pb_broker_put_node_rows(q->node_rows, m);
    int r = pb_wire_send(t->slot.socket, m, t->deadline);
    return r == 0 && q->node_rows ? pb_broker_send_node_rows(t->slot.socket, q->node_rows, m, t->deadline)
                                  : r;
}

/* --- answers --- */

/* Keeps a failure for probing.sources, and for the next event. */
static void add_failure(struct pb_sql *t, unsigned source, const char *table, const struct pb_err *err)
{
    for (unsigned i = 0; i < t->nfailures; i++)
        if (t->failures[i].source == source && strcmp(t->failures[i].table, table) == 0)
            return;
    struct pb_live_failure *more = realloc(t->failures, (t->nfailures + 1) * sizeof(*more));
    if (more) {
        t->failures = more;
        struct pb_live_failure *f = &more[t->nfailures++];
        *f = (struct pb_live_failure){.source = source};
        snprintf(f->table, sizeof(f->table), "%s", table);
        snprintf(f->text, sizeof(f->text), "%s", err->text);
    }
    t->stats.failures++;
}

/* A text of the message, terminated. -EBADMSG: there is none, or it is too long. */
static int take_text(struct pb_wire *m, char *ret, size_t size)
{
    uint32_t length;
    const char *text = pb_wire_text(m, &length);

    if (!text || length >= size)
        return -EBADMSG;
    memcpy(ret, text, length);
    ret[length] = '\0';
    return 0;
}

/* What the worker needs: a table, and the columns of it that the statements name. */
struct broker_need {
    char table[128];
    char columns[PB_MAX_COLUMNS][64];
    unsigned n;
};

static int take_need(struct pb_sql *t, struct broker_need *ret)
{
    int r = take_text(&t->in, ret->table, sizeof(ret->table));

    ret->n = pb_wire_u32(&t->in);
    if (r < 0 || ret->n > PB_MAX_COLUMNS)
        return -EBADMSG;
    for (unsigned i = 0; r == 0 && i < ret->n; i++)
        r = take_text(&t->in, ret->columns[i], sizeof(ret->columns[i]));
    return r;
}

/* What a table may take of the query's time, which ends GRACE_NS before our deadline: a quarter of it, 2 s at
 * most, is left for a process that is late, and for the statement. */
static unsigned time_left(const struct pb_sql *t)
{
    uint64_t end = t->deadline - GRACE_NS, now = pb_now_ns();
    uint64_t left = t->deadline && end > now ? (end - now) / PB_NS_PER_MS : 0;

    return !t->deadline ? 0 : left < 4 ? 1 : (unsigned)(left - (left < 8000 ? left / 4 : 2000));
}

static int send_live(struct pb_sql *t)
{
    struct pb_err err = {0};
    struct broker_need need;

    if (take_need(t, &need) < 0)
        return -EBADMSG;
    const char *name = need.table;
    bool known = pb_known_find(name);
    pb_wire_begin(&t->out, PB_SQL_LIVE);
    pb_wire_put_u32(&t->out, t->q.nsources);
    for (unsigned i = 0; i < t->q.nsources; i++) {
        const struct pb_sql_source *s = &t->q.sources[i];
        struct pb_live_source live = s->live;
        live.archive = t->q.archive;
        live.archived[0] = s->archived;
        memcpy(&live.archived[1], s->more, sizeof(s->more));
        live.failures = t->failures;
        live.nfailures = t->nfailures;
        live.number = i;
        live.named = (const char(*)[64])need.columns;
        live.nnamed = need.n;
        live.left_ms = time_left(t);
        /* The first source shows the columns. */
        bool nothing = i > 0 && pb_live_has_nothing(name, &live);
        int fd = nothing ? -1 : pb_live_read(name, &live, &err);
        nothing = nothing || (fd == -ENOENT && !known);
        if (fd < 0 && !nothing)
            add_failure(t, i, name, &err);
        pb_wire_put_u32(&t->out, fd >= 0);
        if (fd >= 0 && !pb_wire_put_fd(&t->out, fd))
            close(fd);
    }
    pb_wire_put_text(&t->out, err.text, strlen(err.text));
    int r = pb_wire_send(t->slot.socket, &t->out, t->deadline);
    for (unsigned i = 0; i < t->out.nfds; i++)
        close(t->out.fds[i]);
    t->out.nfds = 0;
    return r;
}

static char *terminated(struct pb_wire *m)
{
    uint32_t length;
    const char *text = pb_wire_text(m, &length);

    return text ? strndup(text, length) : NULL;
}

static void release_columns(struct pb_sql *t)
{
    for (unsigned i = 0; t->columns && i < t->ncolumns; i++) {
        free((char *)t->columns[i].name);
        free((char *)t->columns[i].type);
    }
    free(t->columns);
    free(t->cells);
    t->columns = NULL;
    t->cells = NULL;
    t->ncolumns = 0;
}

static int take_columns(struct pb_sql *t, struct pb_sql_event *ret)
{
    uint32_t n = pb_wire_u32(&t->in);

    release_columns(t);
    if (!pb_wire_ok(&t->in) || n == 0 || n > 1u << 16)
        return -EBADMSG;
    t->columns = calloc(n, sizeof(*t->columns));
    t->cells = calloc(n, sizeof(*t->cells));
    if (!t->columns || !t->cells)
        return -ENOMEM;
    t->ncolumns = n;
    for (uint32_t i = 0; i < n; i++) {
        struct pb_sql_column *c = &t->columns[i];
        c->name = terminated(&t->in);
        c->type = terminated(&t->in);
        uint32_t cells = pb_wire_u32(&t->in);
        c->scale = pb_wire_u32(&t->in);
        if (!c->name || !c->type || cells >= PB_CELL_TYPES || c->scale > MAX_SCALE)
            return -EBADMSG;
        c->cells = (enum pb_cell_type)cells;
        t->cells[i] = (struct pb_cells){.type = c->cells, .scale = c->scale};
    }
    *ret = (struct pb_sql_event){.kind = PB_SQL_EVENT_COLUMNS, .columns = t->columns, .n = n};
    return pb_wire_ok(&t->in) ? 1 : -EBADMSG;
}

static int take_batch(struct pb_sql *t, struct pb_sql_event *ret)
{
    uint32_t nrows;

    if (!t->cells || pb_batch_read(&t->in, t->cells, t->ncolumns, &nrows) < 0)
        return -EBADMSG;
    *ret = (struct pb_sql_event){.kind = PB_SQL_EVENT_BATCH,
                                 .columns = t->columns,
                                 .n = t->ncolumns,
                                 .batch = {nrows, t->ncolumns, t->cells}};
    t->rows += nrows;
    return 1;
}

static int take_note(struct pb_sql *t, struct pb_sql_event *ret)
{
    free(t->note);
    t->note = terminated(&t->in);
    *ret = (struct pb_sql_event){.kind = PB_SQL_EVENT_NOTE, .text = t->note};
    return t->note ? 1 : -EBADMSG;
}

static int take_progress(struct pb_sql *t, struct pb_sql_event *ret)
{
    uint64_t scanned = pb_wire_u64(&t->in), known = pb_wire_u64(&t->in);

    *ret = (struct pb_sql_event){.kind = PB_SQL_EVENT_PROGRESS, .scanned = scanned, .known = known};
    return pb_wire_ok(&t->in) ? 1 : -EBADMSG;
}

static int take_end(struct pb_sql *t)
{
    t->stats.segments_read = pb_wire_u64(&t->in);
    t->stats.segments_skipped = pb_wire_u64(&t->in);
    t->stats.rows_scanned = pb_wire_u64(&t->in);
    t->stats.reruns = pb_wire_u64(&t->in);
    t->stats.elapsed_ns = pb_wire_u64(&t->in);
    t->over = pb_wire_ok(&t->in);
    return t->over ? 0 : -EBADMSG;
}

/* Handles one message. 1: it is an event for the caller; 0: it is not. */
static int take_message(struct pb_sql *t, struct pb_sql_event *ret, struct pb_err *err)
{
    int r;

    switch (t->in.type) {
    case PB_SQL_NEED:
        return send_live(t);
    case PB_SQL_WHICH:
        r = pb_broker_put_files(&t->q, &t->lists, &t->in, &t->out, &t->stats);
        return r < 0 ? r : pb_wire_send(t->slot.socket, &t->out, t->deadline);
    case PB_SQL_COLUMNS:
        return take_columns(t, ret);
    case PB_SQL_BATCH:
        return take_batch(t, ret);
    case PB_SQL_NOTE:
        return take_note(t, ret);
    case PB_SQL_PROGRESS:
        return take_progress(t, ret);
    case PB_SQL_DONE:
        return take_end(t);
    case PB_SQL_ERROR:
        t->over = true;
        return fail_with_reason(t, err);
    default:
        return -EBADMSG;
    }
}

/* A source that failed since the last call. */
static bool take_failure(struct pb_sql *t, struct pb_sql_event *ret)
{
    /* With a single process the query itself fails with this sentence. */
    if (t->q.nsources < 2 || t->reported == t->nfailures)
        return false;
    const struct pb_live_failure *f = &t->failures[t->reported++];
    *ret = (struct pb_sql_event){
        .kind = PB_SQL_EVENT_FAILED, .source = f->source, .table = f->table, .text = f->text};
    return true;
}

static int next_event(struct pb_sql *t, struct pb_sql_event *ret, struct pb_err *err)
{
    int r = 0;

    while (r == 0 && !take_failure(t, ret)) {
        if (t->over)
            return 0;
        r = receive_message(t, t->deadline);
        if (r == -ECANCELED)
            return pb_fail(err, r, "stopped");
        /* The worker had its time and more, and does not answer. */
        if (r == -ETIMEDOUT || r == -EBADMSG)
            end_worker(t);
        if (r < 0)
            return fail_worker_died(t, r, err);
        r = take_message(t, ret, err);
        if (r == -EBADMSG)
            end_worker(t);
        if (r < 0)
            return err->text[0] ? r : fail_worker_died(t, r, err);
        if (r > 0)
            return r;
    }
    return 1;
}

int pb_sql_next(struct pb_sql *t, struct pb_sql_event *ret, struct pb_err *err)
{
    err->text[0] = '\0';
    t->away_ns += t->gave ? pb_now_ns() - t->gave : 0;
    int r = next_event(t, ret, err);
    t->gave = pb_now_ns();
    /* After a failure there are no more events. */
    t->over = t->over || r < 0;
    return r;
}

const struct pb_sql_stats *pb_sql_stats_of(const struct pb_sql *t)
{
    return &t->stats;
}

void pb_sql_close(struct pb_sql *t)
{
    if (!t)
        return;
    for (unsigned i = 0; i < t->in.nfds; i++)
        if (t->in.fds[i] >= 0)
            close(t->in.fds[i]);
    pb_wire_done(&t->in);
    pb_wire_done(&t->out);
    release_columns(t);
    pb_archive_lists_done(&t->lists);
    free(t->failures);
    free(t->note);
    if (t->pidfd >= 0)
        close(t->pidfd);
    pb_worker_done(&t->slot);
    free(t);
}

/* Finds a worker and reads its hello. */
static int find_worker(struct pb_sql *t, struct pb_err *err)
{
    const struct pb_sql_query *q = &t->q;
    uint64_t deadline = q->timeout_ms ? pb_now_ns() + q->timeout_ms * PB_NS_PER_MS : 0;

    int r = pb_worker_take(&t->slot, 0, q->archive, deadline, &q->cancel, err);
    if (r < 0)
        return r;
    r = read_hello(t, err);
    if (r == -ECANCELED || r == 0 || err->text[0])
        return r;
    /* The worker was just leaving: start a new one. */
    pb_worker_done(&t->slot);
    r = pb_worker_take(&t->slot, 1, q->archive, deadline, &q->cancel, err);
    if (r == 0)
        r = read_hello(t, err);
    if (r < 0 && r != -ECANCELED && !err->text[0])
        pb_fail(err, r, "the SQL worker did not start: %s", strerror(-r));
    return r;
}

/* While the worker serves this caller it holds the lock of its slot: when it gives up on a caller that does
 * not read its rows, the slot is free at once. */
static int hand_over_lock(struct pb_sql *t)
{
    if (t->slot.lock < 0)
        return 0;
    pb_wire_begin(&t->out, PB_SQL_LOCK);
    pb_wire_put_fd(&t->out, t->slot.lock);
    int r = pb_wire_send(t->slot.socket, &t->out, t->deadline);
    close(t->slot.lock);
    t->slot.lock = -1;
    return r;
}

static int begin_query(struct pb_sql *t, struct pb_err *err)
{
    int r = find_worker(t, err);
    if (r < 0)
        return r;
    t->deadline = t->q.timeout_ms ? pb_now_ns() + t->q.timeout_ms * PB_NS_PER_MS + GRACE_NS : 0;
    r = hand_over_lock(t);
    if (r == 0)
        r = send_request(t);
    if (r == -EMSGSIZE)
        return pb_fail(err, -E2BIG, "the statements are %zu bytes long, which is too much", t->q.length);
    if (r == -ETOOMANYREFS)
        return pb_fail(err, r, "too many open files are on their way to SQL workers (raise ulimit -n)");
    /* A worker that gave up while the request was being sent has sent the reason. */
    if (r == -EPIPE && receive_message(t, pb_now_ns() + HELLO_NS) == 0 && t->in.type == PB_SQL_ERROR)
        return fail_with_reason(t, err);
    return r < 0 ? fail_worker_died(t, r, err) : 0;
}

int pb_sql_open(const struct pb_sql_query *q, struct pb_sql **ret, struct pb_err *err)
{
    if (q->length > PB_SQL_MAX_TEXT)
        return pb_fail(err, -E2BIG, "the statements are %zu bytes long; %u is the most", q->length,
                       PB_SQL_MAX_TEXT);
    struct pb_sql *t = calloc(1, sizeof(*t));
    if (!t)
        return pb_fail(err, -ENOMEM, "out of memory");
    t->q = *q;
    t->pidfd = -1;
    t->slot = (struct pb_worker){.lock = -1, .socket = -1};
    err->text[0] = '\0';
    int r = begin_query(t, err);
    if (r < 0 && pb_cancel_is_set(&q->cancel))
        r = pb_fail(err, -ECANCELED, "stopped");
    if (r < 0)
        pb_sql_close(t);
    else
        *ret = t;
    return r;
}
