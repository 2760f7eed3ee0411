/* query_run: see query_run.h. */
#include "cli/query/query_run.h"

#include "ask/query.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/replace.h"
#include "base/time.h"
#include "cli/profile/profile_screen.h"
#include "cli/query/query_progress.h"
#include "cli/ranks/ranks.h"
#include "cli/stop.h"
#include "cluster/questions/cluster_query.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum pb_query_format pb_query_format_of(const char *path)
{
    static const struct {
        const char *end;
        enum pb_query_format format;
    } ends[] = {{".json", PB_QUERY_JSON},   {".jsonl", PB_QUERY_JSONL},     {".tsv", PB_QUERY_TSV},
                {".md", PB_QUERY_MARKDOWN}, {".parquet", PB_QUERY_PARQUET}, {".arrows", PB_QUERY_ARROW}};
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; dot && i < sizeof(ends) / sizeof(ends[0]); i++)
        if (strcmp(dot, ends[i].end) == 0)
            return ends[i].format;
    return PB_QUERY_CSV;
}

static void print_stats(const struct pb_sql_stats *s)
{
    fprintf(stderr,
            "segments read: %" PRIu64 ", skipped: %" PRIu64 ", rows scanned: %" PRIu64
            ", in the worker: %.2f ms"
            "%s\n",
            s->segments_read, s->segments_skipped, s->rows_scanned, (double)s->elapsed_ns / 1e6,
            s->reruns ? ", run again because rows were overwritten" : "");
    if (s->files_read || s->files_skipped)
        fprintf(stderr, "archived files read: %" PRIu64 ", skipped: %" PRIu64 "\n", s->files_read,
                s->files_skipped);
}

/* A printer, and the progress line above which it prints. */
struct view {
    struct pb_printer *printer;
    struct pb_progress progress;
    bool same_screen; /* rows go to the terminal that shows the line */
};

/* Notes that one of several sources failed; the rows of the others are printed. */
static void note_failure(struct view *v, const struct pb_query *q, const struct pb_sql_event *event)
{
    char name[64], text[512];

    pb_live_name(&pb_query_source(q, event->source)->live, name, sizeof(name));
    if (event->table)
        snprintf(text, sizeof(text), "%s is missing in %s: %s", name, event->table, event->text);
    else
        snprintf(text, sizeof(text), "what %s recorded is missing: %s", name, event->text);
    pb_printer_note(v->printer, text);
}

static int show_event(struct view *v, const struct pb_query *q, const struct pb_sql_event *event)
{
    if (event->kind == PB_SQL_EVENT_PROGRESS) {
        pb_progress_show(&v->progress, event->scanned, event->known);
        return 0;
    }
    if (event->kind != PB_SQL_EVENT_BATCH || v->same_screen)
        pb_progress_clear(&v->progress);
    switch (event->kind) {
    case PB_SQL_EVENT_COLUMNS:
        return pb_printer_columns(v->printer, event->columns, event->n);
    case PB_SQL_EVENT_BATCH:
        return pb_printer_rows(v->printer, &event->batch);
    case PB_SQL_EVENT_FAILED:
        note_failure(v, q, event);
        return 0;
    default:
        pb_printer_note(v->printer, event->text);
        return 0;
    }
}

static int show_all(struct view *v, struct pb_query *q, struct pb_err *err)
{
    struct pb_sql_event event;
    int r;

    while ((r = pb_query_next(q, &event, err)) > 0) {
        r = show_event(v, q, &event);
        if (r == -EEXIST)
            return pb_fail(err, r,
                           "a stream of Arrow holds the rows of one statement, and there are several");
        if (r < 0)
            return pb_fail(err, r, "the output cannot be written: %s", strerror(-r));
    }
    return r;
}

static void print_cluster_stats(const struct pb_cluster_query *q)
{
    struct pb_cluster_query_stats s = pb_cluster_query_stats_of(q);
    const struct pb_cluster_result *r = pb_cluster_query_result(q);

    fprintf(stderr,
            "nodes that answered: %zu of %zu, rows that travelled: %" PRIu64 "%s, bytes: %" PRIu64
            ", last answer after %u ms%s\n",
            r->answered, r->asked, s.rows, s.split ? " (groups, summed up on the nodes)" : "", s.bytes,
            r->last_ms, s.rounds > 1 ? ", asked twice because groups could not be put together" : "");
}

/* Over the ranks of a cluster: PB_PARTIAL where some node did not answer. */
static int run_over_cluster(const struct pb_query_options *o, const struct pb_query_request *request,
                            struct view *v, struct pb_err *err)
{
    const struct pb_cluster_query_request over = {.selection = o->selection,
                                                  .sql = request->sql,
                                                  .length = request->length,
                                                  .deadline_ms = o->deadline_ms,
                                                  .timeout_ms = request->timeout_ms,
                                                  .cap = o->max_rows,
                                                  .cancel = request->cancel,
                                                  .renew = o->renew};
    struct pb_cluster_query *q = NULL;
    struct pb_sql_event event;

    int r = pb_cluster_query_open(o->cluster, &over, &q, err);
    while (r == 0 && (r = pb_cluster_query_next(q, &event, err)) > 0)
        if ((r = show_event(v, NULL, &event)) < 0)
            pb_fail(err, r, "the output cannot be written: %s", strerror(-r));
    pb_progress_clear(&v->progress);
    int ended = pb_printer_end(v->printer, r < 0 ? NULL : err);
    r = r < 0 ? r : ended;
    fflush(stdout);
    if (r == 0 && o->stats)
        print_cluster_stats(q);
    if (r == 0 && !pb_cluster_tell(o->cluster, pb_cluster_query_result(q)))
        r = PB_PARTIAL;
    pb_cluster_query_close(q);
    return r < 0 && pb_stop_signal() ? pb_fail(err, PB_STOPPED(pb_stop_signal()), "stopped") : r;
}

static int run_printed(const struct pb_call *call, const struct pb_query_options *o,
                       const struct pb_query_request *request, struct view *v, struct pb_err *err)
{
    struct pb_query *q = NULL;

    pb_progress_begin(&v->progress);
    v->progress.on = v->progress.on && !o->print.screen;
    pb_limits_allow_descriptors(); /* one a process, and one more while a live table of it is read */
    int r = pb_query_open(&call->ask, &call->targets, request, &q, err);
    if (r == 0)
        r = show_all(v, q, err);
    pb_progress_clear(&v->progress);
    int ended = pb_printer_end(v->printer, r < 0 ? NULL : err);
    r = r < 0 ? r : ended;
    struct pb_sql_stats stats = q ? pb_query_stats(q) : (struct pb_sql_stats){0};
    if (r == 0 && o->stats)
        print_stats(&stats);
    if (r == 0 && o->strict && stats.failures)
        r = pb_fail(err, -EIO, "--strict: something of %u processes could not be read (see above)",
                    pb_query_nsources(q));
    pb_query_close(q);
    /* A signal also makes writes fail: report the signal. */
    return r < 0 && pb_stop_signal() ? pb_fail(err, PB_STOPPED(pb_stop_signal()), "stopped") : r;
}

static int run_into(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                    size_t length, FILE *out, const char *path, struct pb_err *err)
{
    const struct pb_query_request request = {.sql = sql,
                                             .length = length,
                                             .timeout_ms = o->timeout_ms,
                                             .cancel = {.flag = &pb_stop_flag},
                                             .progress = true};
    int r = 0;

    struct pb_printer *printer = pb_printer_new(o->format, &o->print, out);
    if (!printer)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (o->format == PB_QUERY_PARQUET)
        r = pb_printer_to_parquet(printer, path, err);
    struct view v = {.printer = printer, .same_screen = isatty(fileno(out))};
    pb_stop_begin();
    if (r == 0)
        r = o->cluster ? run_over_cluster(o, &request, &v, err) : run_printed(call, o, &request, &v, err);
    pb_stop_end();
    pb_printer_free(printer);
    return r;
}

int pb_query_run(const struct pb_call *call, const struct pb_query_options *o, const char *sql, size_t length,
                 FILE *out, struct pb_err *err)
{
    return run_into(call, o, sql, length, out, NULL, err);
}

static int cannot_write(const char *path, int r, struct pb_err *err)
{
    return pb_fail(err, r, "%s cannot be written: %s", path, strerror(-r));
}

int pb_query_run_to_file(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                         size_t length, struct pb_err *err)
{
    char path[PATH_MAX], whole[PATH_MAX];
    struct pb_replace file;

    /* A symbolic link stays: the file that it points to is replaced. */
    const char *to = pb_replace_follows(o->output) && realpath(o->output, whole) ? whole : o->output;
    pb_stop_begin();
    int r = pb_replace_begin(to, &file);
    if (r < 0) {
        pb_stop_end();
        return cannot_write(o->output, r, err);
    }
    /* The process that writes Parquet has another working directory: it needs the absolute path. */
    if (!file.part && o->format == PB_QUERY_PARQUET)
        r = pb_fail(err, -EINVAL, "%s is no plain file, which parquet needs", o->output);
    else if (file.part && !realpath(file.part, path))
        r = -errno;
    else
        r = run_into(call, o, sql, length, file.out, file.part ? path : NULL, err);
    int end = pb_replace_end(&file, r);
    pb_stop_end();
    return r < 0 ? r : end < 0 ? cannot_write(o->output, end, err) : 0;
}

/* --- --watch --- */

/* One refresh: the time, and the rows of the query. */
static int show_once(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                     size_t length, bool screen, struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;
    time_t now = time(NULL);
    char when[32];
    struct tm tm;
    size_t size;

    if (!screen)
        return pb_query_run(call, o, sql, length, stdout, err);
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    strftime(when, sizeof(when), "%H:%M:%S", gmtime_r(&now, &tm));
    fprintf(out, "%s UTC, every %g s; q ends it\n\n", when, o->watch_ms / 1e3);
    int r = pb_query_run(call, o, sql, length, out, err);
    if (fclose(out) != 0 && r == 0)
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        pb_screen_show(text);
    return r;
}

/* Waits for the next refresh; false: a key or a signal ends it. */
static bool wait_for_next(unsigned ms, bool screen)
{
    uint64_t end = pb_now_ns() + ms * PB_NS_PER_MS;

    while (!pb_stop_signal()) {
        uint64_t now = pb_now_ns();
        if (now >= end)
            return true;
        struct pollfd in = {.fd = screen ? STDIN_FILENO : -1, .events = POLLIN};
        unsigned left = (unsigned)((end - now) / PB_NS_PER_MS) + 1;
        poll(&in, 1, left < 100 ? (int)left : 100);
        int key = screen ? pb_screen_key() : 0;
        if (key == 'q' || key == 'Q')
            return false;
    }
    return false;
}

int pb_query_watch(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                   size_t length, struct pb_err *err)
{
    struct pb_query_options each = *o;
    int r;

    pb_stop_begin();
    bool screen = pb_screen_open() == 0;
    each.print.screen = screen;
    do
        r = show_once(call, &each, sql, length, screen, err);
    while (r == 0 && wait_for_next(o->watch_ms, screen));
    pb_screen_close();
    /* Ctrl-C is the usual way to end --watch. */
    r = pb_stop_signal() == SIGINT ? 0 : pb_stop_signal() ? PB_STOPPED(pb_stop_signal()) : r;
    pb_stop_end();
    return r;
}
