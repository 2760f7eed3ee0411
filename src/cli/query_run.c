/* query_run: see query_run.h. */
#include "cli/query_run.h"

#include "base/cleanup.h"
#include "cli/query_sources.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
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
    fprintf(stderr, "segments read: %" PRIu64 ", skipped: %" PRIu64 ", rows scanned: %" PRIu64 "\n",
            s->segments_read, s->segments_skipped, s->rows_scanned);
    if (s->files_read || s->files_skipped)
        fprintf(stderr, "archived files read: %" PRIu64 ", skipped: %" PRIu64 "\n", s->files_read,
                s->files_skipped);
}

static int run_into(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                    size_t length, FILE *out, const char *path, struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    struct pb_sql_stats stats;

    int r = pb_query_sources_open(call, &sources, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < sources.n; i++)
        sources.at[i].live.locals = memmem(sql, length, "locals", 6);
    struct pb_printer *printer = pb_printer_new(o->format, o->expanded, out);
    if (!printer)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (o->names_first)
        pb_printer_names_first(printer);
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
                             .timeout_ms = o->timeout_ms};
    struct pb_sql_sink sink = pb_printer_sink(printer);
    r = pb_sql_run(&q, &sink, &stats, err);
    int ended = pb_printer_end(printer, r < 0 ? NULL : err);
    pb_printer_free(printer);
    if (r == 0 && o->stats)
        print_stats(&stats);
    return r < 0 ? r : ended;
}

int pb_query_run(const struct pb_call *call, const struct pb_query_options *o, const char *sql, size_t length,
                 struct pb_err *err)
{
    return run_into(call, o, sql, length, stdout, NULL, err);
}

/* Writes beside the file and renames: it is there whole or not at all. */
int pb_query_run_to_file(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                         size_t length, struct pb_err *err)
{
    char part[4096], path[PATH_MAX];

    if (snprintf(part, sizeof(part), "%s.%d.part", o->output, (int)getpid()) >= (int)sizeof(part))
        return pb_fail(err, -ENAMETOOLONG, "the name of the file is too long");
    FILE *out = fopen(part, "wxe");
    if (!out)
        return pb_fail(err, -errno, "%s cannot be written: %s", o->output, strerror(errno));
    /* The process that writes Parquet works elsewhere: it is given the whole path. */
    int r = realpath(part, path) ? run_into(call, o, sql, length, out, path, err) : -errno;
    if (fclose(out) != 0 && r == 0)
        r = pb_fail(err, -errno, "%s cannot be written: %s", o->output, strerror(errno));
    if (r == 0 && rename(part, o->output) < 0)
        r = pb_fail(err, -errno, "%s cannot be written: %s", o->output, strerror(errno));
    if (r < 0)
        unlink(part);
    return r;
}
