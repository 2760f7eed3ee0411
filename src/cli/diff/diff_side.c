/* diff_side: what one of two runs has measured, by SQL over its tables, whether it runs, has ended or is in
 * an incident's file. */
#include "cli/diff/run_diff.h"

#include "ask/query.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vector.h"
#include "cli/bundle/bundle.h"
#include "engine/shared/cells.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, TEXTS = 2000, VERSIONS_MS = 10000, ROOM = 1 << 16 };

/* Each gives name, slot and value. @P: the column that tells processes apart, with a comma behind it; @S: the
 * condition on the step, @R: on the rank. At most the last thousand steps count, each of a process by itself
 * (PB_DIFF_SLOTS). QUALIFY stands inside, so that only the steps that it leaves are numbered. */
static const struct measure {
    enum pb_diff_kind kind;
    const char *sql;
} measures[] = {
    {PB_DIFF_STEP,
     "SELECT 'step', row_number() OVER (ORDER BY timestamp) - 1, duration_ms FROM (SELECT * FROM"
     " python.torch_step WHERE kind IS DISTINCT FROM 'eval' AND @S AND @R ORDER BY timestamp DESC"
     " LIMIT 1000)"},
    {PB_DIFF_PHASE,
     "WITH last AS (SELECT *, row_number() OVER (ORDER BY timestamp) - 1 AS slot FROM (SELECT * FROM"
     " python.torch_step WHERE kind IS DISTINCT FROM 'eval' AND @S AND @R ORDER BY timestamp DESC"
     " LIMIT 1000)) SELECT 'data loading', slot, data_ms FROM last UNION ALL SELECT 'forward', slot,"
     " forward_ms FROM last UNION ALL SELECT 'backward', slot, backward_ms FROM last UNION ALL SELECT"
     " 'optimizer', slot, optimizer_ms FROM last UNION ALL SELECT 'own code', slot, greatest(0, duration_ms"
     " - coalesce(data_ms, 0) - coalesce(forward_ms, 0) - coalesce(backward_ms, 0)"
     " - coalesce(optimizer_ms, 0)) FROM last"},
    {PB_DIFF_MODULE,
     "SELECT name, dense_rank() OVER (ORDER BY @P step) - 1 AS slot, ms FROM (SELECT * FROM (SELECT @P step,"
     " stage || ' of ' || coalesce(nullif(module, ''), 'the model') AS name, sum(self_ms) AS ms FROM"
     " python.torch_trace WHERE stage IN ('forward', 'backward') AND @S AND @R GROUP BY ALL) QUALIFY"
     " dense_rank() OVER (ORDER BY step DESC, @P step) <= 1000)"},
    {PB_DIFF_COLLECTIVE,
     "SELECT name, dense_rank() OVER (ORDER BY @P step) - 1 AS slot, ms FROM (SELECT * FROM (SELECT @P step,"
     " op AS name, sum(duration_ms) AS ms FROM python.comm_collective WHERE duration_ms IS NOT NULL AND @S"
     " AND @R GROUP BY ALL) QUALIFY dense_rank() OVER (ORDER BY step DESC, @P step) <= 1000)"},
    {PB_DIFF_MEMORY,
     "SELECT 'resident memory', row_number() OVER (ORDER BY timestamp) - 1, memory_mb FROM (SELECT * FROM"
     " memory_usage WHERE @R ORDER BY timestamp DESC LIMIT 600)"},
    {PB_DIFF_LINE,
     "SELECT name, dense_rank() OVER (ORDER BY second) - 1 AS slot, mb FROM (SELECT * FROM (SELECT"
     " coalesce(caller, function_name) AS name, date_trunc('second', timestamp) AS second,"
     " sum(allocated_bytes) / 1048576.0 AS mb FROM memory_allocations WHERE @R GROUP BY ALL) QUALIFY"
     " dense_rank() OVER (ORDER BY second DESC) <= 600)"},
};

static const char settings_sql[] = "SELECT DISTINCT name, coalesce(value, '') FROM probing.config";

void pb_diff_side_done(struct pb_diff_side *s)
{
    struct pb_diff_text *texts[] = {s->settings, s->versions};
    const size_t n[] = {s->nsettings, s->nversions};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n[k]; i++) {
            free(texts[k][i].name);
            free(texts[k][i].value);
        }
        free(texts[k]);
    }
    pb_diff_series_done(s);
    pb_targets_done(&s->targets);
}

static char *copy_cell(const struct pb_sql_cell *c)
{
    return strndup(c->text ? c->text : "", c->text ? c->length : 0);
}

static double number_of(const struct pb_sql_cell *c)
{
    char text[64];

    snprintf(text, sizeof(text), "%.*s", c->text ? (int)c->length : 0, c->text ? c->text : "");
    double value = strtod(text, NULL);
    return isfinite(value) ? value : 0;
}

static int take_measured(struct pb_diff_side *s, enum pb_diff_kind kind, const struct pb_sql_cell *cells)
{
    _cleanup_free_ char *name = copy_cell(&cells[0]);

    return name ? pb_diff_take(s, kind, name, cells[1].text ? number_of(&cells[1]) : -1, number_of(&cells[2]))
                : -ENOMEM;
}

static int add_text(struct pb_diff_text **at, size_t *n, char *name, char *value)
{
    int r = name && value && *n < TEXTS ? pb_grow_full((void **)at, *n, sizeof(**at)) : -ENOMEM;

    if (r == 0) {
        (*at)[(*n)++] = (struct pb_diff_text){name, value};
        return 0;
    }
    free(name);
    free(value);
    return *n >= TEXTS ? 0 : r;
}

/* kind PB_DIFF_KINDS: settings. */
static int run_query(struct pb_diff_side *s, enum pb_diff_kind kind, const char *sql, struct pb_err *err)
{
    const struct pb_query_request request = {.sql = sql, .length = strlen(sql), .timeout_ms = TIMEOUT_MS};
    _cleanup_(pb_row_text_done) struct pb_row_text row = {0};
    struct pb_sql_event event;
    struct pb_query *q = NULL;

    int r = pb_query_open(&s->ask, &s->targets, &request, &q, err);
    while (r >= 0 && (r = pb_query_next(q, &event, err)) > 0) {
        unsigned wanted = kind == PB_DIFF_KINDS ? 2 : 3;
        for (uint32_t i = 0; event.kind == PB_SQL_EVENT_BATCH && r >= 0 && i < event.batch.nrows; i++) {
            if (event.batch.ncolumns < wanted || (r = pb_row_text_take(&row, &event.batch, i)) < 0)
                continue;
            r = kind == PB_DIFF_KINDS ? add_text(&s->settings, &s->nsettings, copy_cell(&row.cells[0]),
                                                 copy_cell(&row.cells[1]))
                                      : take_measured(s, kind, row.cells);
        }
        if (r < 0)
            pb_fail(err, r, "out of memory");
    }
    if (q)
        pb_query_close(q);
    return r;
}

/* Copies the statement with what stands for its letters. */
static void fill_in(const char *sql, const char *process, const char *steps, const char *rank, FILE *to)
{
    for (const char *c = sql; *c; c++) {
        if (*c == '@')
            c++;
        if (c == sql || c[-1] != '@')
            putc(*c, to);
        else
            fputs(*c == 'P' ? process : *c == 'S' ? steps : rank, to);
    }
}

static int measure(struct pb_diff_side *s, const struct measure *m, struct pb_err *err)
{
    bool many = s->targets.n > 1;
    char sql[2048], steps[96], rank[48] = "true";
    FILE *to = fmemopen(sql, sizeof(sql), "w");

    if (!to)
        return pb_fail(err, -ENOMEM, "out of memory");
    snprintf(steps, sizeof(steps), "step BETWEEN %ld AND %ld", s->first, s->last);
    if (many && s->rank >= 0)
        snprintf(rank, sizeof(rank), "rank = %ld", s->rank);
    /* Columns that only several sources have; without them a step is that of one process. */
    fill_in(m->sql, many ? "target_pid," : "", steps, rank, to);
    fclose(to);
    return run_query(s, m->kind, sql, err);
}

/* --- versions --- */

/* Lines "torch: version = '2.12.0'" and "library: /usr/lib/libcuda.so.550". */
static int read_versions(struct pb_diff_side *s, const char *path)
{
    char line[PATH_MAX];
    FILE *in = fopen(path, "re");
    int r = 0;

    while (in && r == 0 && fgets(line, sizeof(line), in)) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strstr(line, " = ");
        size_t skip = 3;
        if (!value && (value = strrchr(line, '/')) != NULL)
            skip = 1;
        if (!value)
            continue;
        /* A library is the same one whatever number follows its name. */
        int name = skip == 3 ? (int)(value - line) : (int)strcspn(value + 1, ".-");
        r = add_text(&s->versions, &s->nversions, strndup(skip == 3 ? line : value + 1, (size_t)name),
                     strdup(value + skip));
    }
    if (in)
        fclose(in);
    return r;
}

struct versions_of {
    const struct pb_bundle *b;
    const struct pb_target *target;
};

/* In a child: its maps may hang. */
static int put_versions(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct versions_of *of = arg;
    (void)ask, (void)room;

    return pb_bundle_put_versions(of->b, of->target, err);
}

/* Of the first process: those of one job are alike. */
static int find_versions(struct pb_diff_side *s, struct pb_err *err)
{
    struct pb_bundle b = {0};
    struct versions_of of = {&b, s->targets.at};
    struct pb_task task = {.work = put_versions, .arg = &of, .limit_ms = VERSIONS_MS, .room_size = ROOM};
    char path[2 * PATH_MAX];
    bool file = s->folder[0];

    if (!s->targets.n || (s->targets.at[0].dead && !file))
        return 0;
    int r = file ? 0 : pb_bundle_folder_make(b.folder, err);
    if (r < 0)
        return r;
    if (!file)
        (void)pb_task_run(&s->ask, &task, NULL); /* what cannot be read is not compared */
    pb_room_free(task.room);
    for (size_t i = 0; r == 0 && s->nversions == 0 && i < s->targets.n; i++) {
        snprintf(path, sizeof(path), "%s/versions/%d.txt", file ? s->folder : b.folder,
                 (int)s->targets.at[i].pid);
        r = read_versions(s, path);
    }
    if (!file)
        pb_bundle_folder_remove(b.folder);
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}

static int take_setting(void *arg, const char *name, const char *value)
{
    struct pb_diff_side *s = arg;
    return add_text(&s->settings, &s->nsettings, strdup(name), strdup(value));
}

int pb_diff_read(struct pb_diff_side *s, struct pb_err *err)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(measures) / sizeof(measures[0]); i++)
        r = measure(s, &measures[i], err);
    if (r == 0 && s->left_out)
        pb_ask_note(&s->ask, "%.100s: %zu values are not compared: it has more than %d names or %d steps",
                    s->text, s->left_out, PB_DIFF_SERIES, PB_DIFF_SLOTS);
    if (r == 0 && s->folder[0])
        r = pb_bundle_settings(s->folder, take_setting, s);
    else if (r == 0)
        r = run_query(s, PB_DIFF_KINDS, settings_sql, err);
    return r < 0 ? r : find_versions(s, err);
}
