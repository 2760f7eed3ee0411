/* query_run: see query_run.h. */
#include "cli/query/query_run.h"

#include "ask/sources.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "cli/profile/profile_screen.h"
#include "cli/query/query_progress.h"
#include "cli/stop.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum pb_query_format pb_query_format_of(const char *path)
{
    static const struct {
        const char *end;
        enum pb_query_format format;
    } ends[] = {{".json", PB_QUERY_JSON},
                {".jsonl", PB_QUERY_JSONL},
                {".tsv", PB_QUERY_TSV},
                {".md", PB_QUERY_MARKDOWN},
                {".parquet", PB_QUERY_PARQUET}};
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

/* A printer below a line that tells how far it is. */
struct view {
    struct pb_printer *printer;
    struct pb_sql_sink sink;
    struct pb_progress progress;
    bool same_screen; /* rows go where the line is */
};

static int take_columns(void *arg, const struct pb_sql_column *columns, unsigned n)
{
    struct view *v = arg;

    pb_progress_clear(&v->progress);
    return v->sink.columns(v->sink.arg, columns, n);
}

static int take_row(void *arg, const struct pb_sql_cell *cells, unsigned n)
{
    struct view *v = arg;

    if (v->same_screen)
        pb_progress_clear(&v->progress);
    return v->sink.row(v->sink.arg, cells, n);
}

static void take_note(void *arg, const char *text)
{
    struct view *v = arg;

    pb_progress_clear(&v->progress);
    v->sink.note(v->sink.arg, text);
}

static void take_progress(void *arg, uint64_t scanned, uint64_t known)
{
    pb_progress_show(&((struct view *)arg)->progress, scanned, known);
}

static int run_printed(const struct pb_query_options *o, const struct pb_sql_query *q, struct view *v,
                       uint64_t *ret_failures, struct pb_err *err)
{
    struct pb_sql_sink sink = {take_columns, take_row, take_note, v, take_progress};
    struct pb_sql_stats stats;

    pb_progress_begin(&v->progress);
    v->progress.on = v->progress.on && !o->print.screen;
    int r = pb_sql_run(q, &sink, &stats, err);
    pb_progress_clear(&v->progress);
    int ended = pb_printer_end(v->printer, r < 0 ? NULL : err);
    if (r == 0 && o->stats)
        print_stats(&stats);
    *ret_failures = r == 0 ? stats.failures : 0;
    if (r < 0 && !err->text[0])
        pb_fail(err, r, "the output cannot be written: %s", strerror(-r));
    r = r < 0 ? r : ended;
    /* A signal makes a write fail as well: what stopped us is the signal. */
    return r < 0 && pb_stop_signal() ? pb_fail(err, PB_STOPPED(pb_stop_signal()), "stopped") : r;
}

int pb_call_sources(const struct pb_call *call, struct pb_query_sources *ret, struct pb_err *err)
{
    bool only_archive = call->targets.n == 0 && call->ask.archive && strcmp(call->ask.archive, "none") != 0;

    return only_archive ? pb_sources_open_archive(&call->ask, ret, err)
                        : pb_sources_open(&call->ask, &call->targets, ret, err);
}

/* Names in SQL are of any case. */
static bool wants_locals(const char *sql, size_t length)
{
    static const char word[] = "locals";
    const size_t n = sizeof(word) - 1;

    for (size_t i = 0; i + n <= length; i++)
        if (strncasecmp(sql + i, word, n) == 0)
            return true;
    return false;
}

static int run_into(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                    size_t length, FILE *out, const char *path, struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};

    int r = pb_call_sources(call, &sources, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < sources.n; i++)
        sources.at[i].live.locals = wants_locals(sql, length);
    struct pb_printer *printer = pb_printer_new(o->format, &o->print, out);
    if (!printer)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (o->format == PB_QUERY_PARQUET && (r = pb_printer_to_parquet(printer, path, err)) < 0) {
        pb_printer_free(printer);
        return r;
    }
    struct pb_sql_query q = {.sql = sql,
                             .length = length,
                             .sources = sources.at,
                             .nsources = sources.n,
                             .archive = sources.archive,
                             .no_agent = sources.no_agent,
                             .timeout_ms = o->timeout_ms,
                             .cancel = &pb_stop_flag};
    struct view v = {
        .printer = printer, .sink = pb_printer_sink(printer), .same_screen = isatty(fileno(out))};
    pb_stop_begin();
    uint64_t failures = 0;
    r = run_printed(o, &q, &v, &failures, err);
    pb_stop_end();
    pb_printer_free(printer);
    if (r == 0 && o->strict && failures + sources.failed)
        r = pb_fail(err, -EIO, "--strict: something of %u processes could not be read (see above)",
                    sources.n);
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

/* Into something that is no plain file (/dev/null, a pipe), and must not be replaced by one. */
static int run_to_device(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                         size_t length, struct pb_err *err)
{
    if (o->format == PB_QUERY_PARQUET)
        return pb_fail(err, -EINVAL, "%s is no plain file, which parquet needs", o->output);
    FILE *out = fopen(o->output, "we");
    if (!out)
        return cannot_write(o->output, -errno, err);
    int r = run_into(call, o, sql, length, out, NULL, err);
    if (fclose(out) != 0 && r == 0)
        r = cannot_write(o->output, -errno, err);
    return r;
}

/* Writes beside the file and renames: it is there whole or not at all. */
int pb_query_run_to_file(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                         size_t length, struct pb_err *err)
{
    char part[PATH_MAX + 32], path[PATH_MAX], whole[PATH_MAX];
    struct stat st;

    bool there = stat(o->output, &st) == 0;
    if (there && !S_ISREG(st.st_mode))
        return run_to_device(call, o, sql, length, err);
    /* A link stays one: what it leads to is replaced. */
    const char *to = there && realpath(o->output, whole) ? whole : o->output;
    if (snprintf(part, sizeof(part), "%s.%d.part", to, (int)getpid()) >= PATH_MAX)
        return pb_fail(err, -ENAMETOOLONG, "the name of the file is too long");
    pb_stop_begin();
    FILE *out = fopen(part, "wxe");
    if (!out) {
        pb_stop_end();
        return cannot_write(o->output, -errno, err);
    }
    /* The process that writes Parquet works elsewhere: it is given the whole path. */
    int r = realpath(part, path) ? run_into(call, o, sql, length, out, path, err) : -errno;
    if (fclose(out) != 0 && r == 0)
        r = cannot_write(o->output, -errno, err);
    if (r == 0 && rename(part, to) < 0)
        r = cannot_write(o->output, -errno, err);
    if (r < 0)
        unlink(part);
    pb_stop_end();
    return r;
}

/* --- again and again --- */

/* One picture: what was asked, when, and what came. */
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

/* Waits for the next time; false: that is enough. */
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
    /* Ctrl-C is how it is ended. */
    r = pb_stop_signal() == SIGINT ? 0 : pb_stop_signal() ? PB_STOPPED(pb_stop_signal()) : r;
    pb_stop_end();
    return r;
}
