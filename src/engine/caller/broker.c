/* broker: see broker.h. */
#include "engine/caller/broker.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "engine/caller/broker_archive.h"
#include "engine/caller/broker_slot.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long after its own deadline a worker may take to say so. */
static const uint64_t GRACE_NS = 2500 * PB_NS_PER_MS, HELLO_NS = 30 * PB_NS_PER_S;

enum { CANCEL_MS = 100 };

struct talk {
    const struct pb_sql_query *q;
    const struct pb_sql_sink *sink;
    struct pb_worker slot;
    int pidfd;
    uint64_t deadline; /* when the worker is ended; 0: never */
    struct pb_wire in, out;
    struct pb_sql_cell *cells;
    unsigned ncolumns;
    struct pb_sql_stats stats;
    struct pb_live_failure *failures; /* each was told of once */
    unsigned nfailures;
};

static void end_worker(const struct talk *t)
{
    if (t->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, t->pidfd, SIGKILL, NULL, 0);
}

static int too_late(const struct talk *t, struct pb_err *err)
{
    return pb_fail(err, -ETIMEDOUT, "it took longer than %g s and was stopped (--timeout gives it more)",
                   t->q->timeout_ms / 1e3);
}

/* What a person should know of a worker that is gone. */
static int lost(const struct talk *t, int r, struct pb_err *err)
{
    if (r == -ETIMEDOUT || (t->q->timeout_ms && t->deadline && pb_now_ns() + GRACE_NS >= t->deadline))
        return too_late(t, err);
    return pb_fail(err, r,
                   "the SQL worker ended while it ran this query, out of memory or by a fault of its own; "
                   "the process it was asked about is unharmed, and the next query gets a new worker");
}

static bool is_cancelled(const struct pb_sql_query *q)
{
    return q->cancel && *q->cancel;
}

static int receive(struct talk *t, uint64_t deadline)
{
    int r;

    /* A signal just before we wait would not wake us: we look now and then. */
    do {
        struct pollfd p = {.fd = t->slot.socket, .events = POLLIN};
        int ready = poll(&p, 1, CANCEL_MS);
        if (is_cancelled(t->q))
            return -ECANCELED;
        if (ready > 0)
            r = pb_wire_receive(t->slot.socket, &t->in, deadline);
        else
            r = deadline && pb_now_ns() >= deadline ? -ETIMEDOUT : -EINTR;
    } while (r == -EINTR);
    return r;
}

/* An error the worker tells of. */
static int told(struct talk *t, struct pb_err *err)
{
    uint32_t number = pb_wire_u32(&t->in), length;
    const char *text = pb_wire_text(&t->in, &length);

    if (!text || number == 0 || number > 4095)
        return pb_fail(err, -EBADMSG, "the SQL worker answers nonsense");
    return pb_fail(err, -(int)number, "%.*s", (int)length, text);
}

static int meet(struct talk *t, struct pb_err *err)
{
    int r = receive(t, pb_now_ns() + HELLO_NS);
    if (r < 0)
        return r;
    if (t->in.type == PB_SQL_ERROR)
        return told(t, err);
    if (t->in.type != PB_SQL_HELLO || pb_wire_u32(&t->in) != PB_SQL_VERSION || t->in.nfds > 1)
        return pb_fail(err, -EPROTO, "what answers is no SQL worker of this release");
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

static int send_request(struct talk *t)
{
    const struct pb_sql_query *q = t->q;
    struct pb_wire *m = &t->out;

    pb_wire_begin(m, PB_SQL_REQUEST);
    pb_wire_put_u32(m, q->timeout_ms);
    pb_wire_put_u32(m,
                    (q->no_agent ? PB_SQL_NO_AGENT : 0u) | (t->sink->progress ? PB_SQL_WANTS_PROGRESS : 0u));
    pb_wire_put_u32(m, pb_broker_arenas(q));
    for (unsigned i = 0; i < q->nsources; i++)
        put_arena(m, &q->sources[i], q->sources[i].live.arena_fd);
    /* What others recorded comes after all of those: live tables are read once a process. */
    for (unsigned i = 0; i < q->nsources; i++)
        for (unsigned k = 0; k < q->sources[i].live.nmore; k++)
            put_arena(m, &q->sources[i], q->sources[i].live.more[k]);
    for (unsigned i = 0; i < pb_broker_arenas(q); i++)
        pb_broker_put_tables(q, i, m);
    pb_wire_put_text(m, q->sql, q->length);
    return pb_wire_send(t->slot.socket, m, t->deadline);
}

/* --- what comes back --- */

/* Keeps what failed for probing.sources, and says so the first time. */
static void add_failure(struct talk *t, unsigned source, const char *table, const struct pb_err *err)
{
    const struct pb_live_source *live = &t->q->sources[source].live;
    char text[512];

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
    /* Of a single process the query itself fails with this sentence. */
    if (t->q->nsources < 2)
        return;
    char name[64];
    pb_live_name(live, name, sizeof(name));
    snprintf(text, sizeof(text), "%s is missing in %s: %s", name, table, err->text);
    t->sink->note(t->sink->arg, text);
}

static int send_live(struct talk *t)
{
    struct pb_err err = {0};
    char name[128];
    uint32_t length;

    const char *text = pb_wire_text(&t->in, &length);
    if (!text || length >= sizeof(name))
        return -EBADMSG;
    snprintf(name, sizeof(name), "%.*s", (int)length, text);
    pb_wire_begin(&t->out, PB_SQL_LIVE);
    pb_wire_put_u32(&t->out, t->q->nsources);
    for (unsigned i = 0; i < t->q->nsources; i++) {
        const struct pb_sql_source *s = &t->q->sources[i];
        struct pb_live_source live = s->live;
        live.archive = t->q->archive;
        live.archived[0] = s->archived;
        memcpy(&live.archived[1], s->more, sizeof(s->more));
        live.failures = t->failures;
        live.nfailures = t->nfailures;
        live.number = i;
        int fd = pb_live_read(name, &live, &err);
        if (fd < 0)
            add_failure(t, i, name, &err);
        pb_wire_put_u32(&t->out, fd >= 0);
        if (fd >= 0)
            pb_wire_put_fd(&t->out, fd);
    }
    pb_wire_put_text(&t->out, err.text, strlen(err.text));
    int r = pb_wire_send(t->slot.socket, &t->out, t->deadline);
    for (unsigned i = 0; i < t->out.nfds; i++)
        close(t->out.fds[i]);
    t->out.nfds = 0;
    return r;
}

static const char *terminated(struct pb_wire *m, char **keep)
{
    uint32_t length;
    const char *text = pb_wire_text(m, &length);
    *keep = text ? strndup(text, length) : NULL;
    return *keep;
}

static int take_columns(struct talk *t)
{
    uint32_t n = pb_wire_u32(&t->in);
    struct pb_sql_column *columns;
    int r = 0;

    if (!pb_wire_ok(&t->in) || n == 0 || n > 1u << 16)
        return -EBADMSG;
    columns = calloc(n, sizeof(*columns));
    free(t->cells);
    t->cells = calloc(n, sizeof(*t->cells));
    t->ncolumns = n;
    if (!columns || !t->cells)
        r = -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < n; i++)
        if (!terminated(&t->in, (char **)&columns[i].name) || !terminated(&t->in, (char **)&columns[i].type))
            r = -EBADMSG;
    if (r == 0)
        r = t->sink->columns(t->sink->arg, columns, n);
    for (uint32_t i = 0; columns && i < n; i++) {
        free((char *)columns[i].name);
        free((char *)columns[i].type);
    }
    free(columns);
    return r;
}

static int take_rows(struct talk *t)
{
    uint32_t n = pb_wire_u32(&t->in);
    int r = t->cells ? 0 : -EBADMSG;

    for (uint32_t row = 0; r == 0 && row < n; row++) {
        for (unsigned i = 0; r == 0 && i < t->ncolumns; i++) {
            if (t->in.at >= t->in.size)
                return -EBADMSG;
            t->cells[i].kind = t->in.data[t->in.at++];
            t->cells[i].text = pb_wire_text(&t->in, &t->cells[i].length);
            if (!t->cells[i].text || t->cells[i].kind > PB_SQL_JSON)
                r = -EBADMSG;
        }
        if (r == 0)
            r = t->sink->row(t->sink->arg, t->cells, t->ncolumns);
    }
    return r;
}

static void take_note(struct talk *t)
{
    _cleanup_free_ char *text = NULL;

    if (terminated(&t->in, &text))
        t->sink->note(t->sink->arg, text);
}

static int take_progress(struct talk *t)
{
    uint64_t scanned = pb_wire_u64(&t->in), known = pb_wire_u64(&t->in);

    if (!pb_wire_ok(&t->in))
        return -EBADMSG;
    if (t->sink->progress)
        t->sink->progress(t->sink->arg, scanned, known);
    return 0;
}

/* One message. 1: that was the last. */
static int take_message(struct talk *t, struct pb_err *err)
{
    int r;

    switch (t->in.type) {
    case PB_SQL_NEED:
        return send_live(t);
    case PB_SQL_WHICH:
        r = pb_broker_put_files(t->q, &t->in, &t->out, &t->stats);
        return r < 0 ? r : pb_wire_send(t->slot.socket, &t->out, t->deadline);
    case PB_SQL_COLUMNS:
        return take_columns(t);
    case PB_SQL_ROWS:
        return take_rows(t);
    case PB_SQL_NOTE:
        take_note(t);
        return 0;
    case PB_SQL_PROGRESS:
        return take_progress(t);
    case PB_SQL_DONE:
        t->stats.segments_read = pb_wire_u64(&t->in);
        t->stats.segments_skipped = pb_wire_u64(&t->in);
        t->stats.rows_scanned = pb_wire_u64(&t->in);
        t->stats.reruns = pb_wire_u64(&t->in);
        t->stats.elapsed_ns = pb_wire_u64(&t->in);
        return pb_wire_ok(&t->in) ? 1 : -EBADMSG;
    case PB_SQL_ERROR:
        return told(t, err);
    default:
        return -EBADMSG;
    }
}

static int converse(struct talk *t, struct pb_err *err)
{
    int r = send_request(t);

    if (r == -EMSGSIZE)
        return pb_fail(err, -E2BIG, "the statements are %zu bytes long, which is too much", t->q->length);
    if (r < 0)
        return lost(t, r, err);
    for (;;) {
        r = receive(t, t->deadline);
        if (r < 0) {
            end_worker(t);
            return lost(t, r, err);
        }
        r = take_message(t, err);
        if (r == -EBADMSG || r == -EPIPE || r == -ECONNRESET) {
            end_worker(t);
            return err && err->text[0] ? r : lost(t, r, err);
        }
        if (r != 0)
            return r < 0 ? r : 0;
    }
}

static void close_talk(struct talk *t)
{
    for (unsigned i = 0; i < t->in.nfds; i++)
        if (t->in.fds[i] >= 0)
            close(t->in.fds[i]);
    pb_wire_done(&t->in);
    pb_wire_done(&t->out);
    free(t->cells);
    free(t->failures);
    if (t->pidfd >= 0)
        close(t->pidfd);
    pb_worker_done(&t->slot);
}

int pb_sql_run(const struct pb_sql_query *q, const struct pb_sql_sink *sink, struct pb_sql_stats *ret,
               struct pb_err *err)
{
    struct talk t = {.q = q, .sink = sink, .pidfd = -1, .slot = {-1, -1}};
    uint64_t deadline = q->timeout_ms ? pb_now_ns() + q->timeout_ms * PB_NS_PER_MS : 0;

    if (q->length > PB_SQL_MAX_TEXT)
        return pb_fail(err, -E2BIG, "the statements are %zu bytes long; %u is the most", q->length,
                       PB_SQL_MAX_TEXT);
    int r = pb_worker_take(&t.slot, 0, q->archive, deadline, q->cancel, err);
    if (r < 0)
        return r;
    r = meet(&t, err);
    if (r < 0 && !err->text[0]) {
        /* It was about to leave when we came: a new one. */
        int lock = t.slot.lock;
        pb_worker_done(&(struct pb_worker){.lock = -1, .socket = t.slot.socket});
        t.slot = (struct pb_worker){.lock = -1, .socket = -1};
        if (lock >= 0)
            close(lock);
        r = pb_worker_take(&t.slot, 1, q->archive, deadline, q->cancel, err);
        if (r == 0)
            r = meet(&t, err);
        if (r < 0 && !err->text[0])
            pb_fail(err, r, "the SQL worker did not start: %s", strerror(-r));
    }
    if (r == 0) {
        t.deadline = q->timeout_ms ? pb_now_ns() + q->timeout_ms * PB_NS_PER_MS + GRACE_NS : 0;
        r = converse(&t, err);
    }
    if (r < 0 && is_cancelled(q)) {
        end_worker(&t);
        r = pb_fail(err, -ECANCELED, "stopped");
    }
    close_talk(&t);
    if (r == 0 && ret)
        *ret = t.stats;
    return r;
}
