/* now: one line per process: what it is doing at this moment.
 *
 * The verdict comes from diagnose. It runs only if some process has made no progress for a while, because it
 * costs two looks a second apart. */
#include "ask/now.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/values.h"
#include "diagnose/headline_keeper.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {"pid",  "rank", "state",   "since", "step", "memory_mb", "function",
                                      "file", "line", "verdict", "waits", "id",   "worker",    "command"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void add_text(struct pb_rows *rows, const char *text)
{
    pb_rows_text(rows, text[0] ? text : NULL);
}

static void add_number(struct pb_rows *rows, double value, const char *format)
{
    if (value < 0) {
        pb_rows_text(rows, NULL);
        return;
    }
    char text[32];
    snprintf(text, sizeof(text), format, value);
    pb_rows_number(rows, "%s", text);
}

static void add_line(struct pb_rows *rows, const struct pb_now_line *l, const char *verdict)
{
    const struct pb_running *p = &l->process;
    char id[PB_RUN_ID_SIZE];

    pb_rows_number(rows, "%d", (int)p->pid);
    add_text(rows, p->rank);
    add_text(rows, l->state);
    add_number(rows, l->seconds, "%.1f");
    add_number(rows, (double)l->step, "%.0f");
    add_number(rows, p->memory_mb, "%.1f");
    add_text(rows, l->function);
    add_text(rows, l->file);
    add_number(rows, l->line ? l->line : -1, "%.0f");
    add_text(rows, verdict);
    add_text(rows, l->waits);
    pb_rows_text(rows, pb_run_id_text(&(struct pb_run_id){p->pid, p->start_time, 0}, id));
    add_text(rows, l->worker);
    pb_rows_text(rows, p->command);
}

/* Where headlines come from: a thread while the command goes on, or else one look. */
struct headline_source {
    struct pb_headline_keeper *keeper;
    struct pb_headlines once;
};

/* Whether it has stood still for so long that diagnose would name it. */
static bool stands_still(const struct pb_now_line *l)
{
    return l->verdict[0] || (l->seconds >= PB_DIAG_PATIENCE_S && (l->process.rank[0] || l->waits[0]));
}

/* One look: at the jobs of those that stand still alone. */
static void look_once(const struct pb_call *call, const struct pb_now_lines *lines, struct pb_headlines *ret)
{
    struct pb_targets still = {.at = calloc(lines->n + 1, sizeof(*still.at))};
    struct pb_err ignored = {0};

    for (size_t i = 0; still.at && i < lines->n; i++)
        if (stands_still(&lines->at[i]))
            still.at[still.n++].pid = lines->at[i].process.pid;
    if (still.n)
        (void)pb_headlines_ask(&call->ask, &still, true, ret, &ignored);
    free(still.at);
}

static void look_for_headlines(const struct pb_call *call, const struct pb_now_lines *lines,
                               struct headline_source *from)
{
    bool any = false;

    for (size_t i = 0; i < lines->n; i++)
        any |= stands_still(&lines->at[i]);
    if (any && from->keeper)
        pb_headline_keeper_look(from->keeper);
    else if (any)
        look_once(call, lines, &from->once);
}

/* What a prompt of ours holds says itself how it goes on. */
static const char *verdict_of(struct headline_source *from, const struct pb_now_line *l,
                              struct pb_headline *buf)
{
    const struct pb_headline *h = from->keeper ? NULL : pb_headline_of(&from->once, l->process.pid);

    if (from->keeper && pb_headline_keeper_of(from->keeper, l->process.pid, buf))
        h = buf;
    return h && strcmp(h->kind, "held") != 0 ? h->text : l->verdict;
}

static int show_once(const struct pb_call *call, struct pb_now *now, struct headline_source *from,
                     struct pb_err *err)
{
    struct pb_now_lines lines;
    struct pb_rows rows;
    struct pb_headline buf;

    int r = pb_now_look(now, &call->ask, &call->targets, &lines, err);
    if (r < 0)
        return r;
    look_for_headlines(call, &lines, from);
    pb_rows_init(&rows, columns, COLUMNS);
    for (size_t i = 0; i < lines.n; i++)
        add_line(&rows, &lines.at[i], verdict_of(from, &lines.at[i], &buf));
    r = pb_rows_print(&rows, call->format, "no Python process that you may read is running here", err);
    pb_rows_done(&rows);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    unsigned interval_ms = pb_call_ms(call, "interval");
    bool watch = pb_call_option(call, "watch");
    struct headline_source from = {0};

    struct pb_now *now = pb_now_new();
    if (!now)
        return pb_fail(err, -ENOMEM, "out of memory");
    uint64_t next = pb_now_ns();
    int r = watch ? pb_headline_keeper_start(&call->ask, &call->targets, &from.keeper, err) : 0;
    if (r == 0)
        r = show_once(call, now, &from, err);
    while (r == 0 && watch) {
        uint64_t time = pb_now_ns();
        next += interval_ms * PB_NS_PER_MS;
        if (next > time)
            pb_sleep_ns(next - time);
        else
            next = time; /* printing took longer than the interval */
        if (call->format == PB_FORMAT_TABLE)
            putchar('\n');
        r = show_once(call, now, &from, err);
    }
    pb_headline_keeper_stop(from.keeper);
    pb_headlines_done(&from.once);
    pb_now_free(now);
    return r;
}

static const struct pb_option options[] = {
    {'w', "watch", NULL, "repeat until Ctrl-C"},
    {0, "interval", PB_TIME(.least = 100, .usual = 1000), "time between two rounds (default 1s)"},
    {0},
};

const struct pb_command pb_cmd_now = {
    .name = "now",
    .summary = "a line for each Python process: state, innermost frame of its own code, step",
    .synopsis = "",
    .text = "Shows every Python process that you may read, whether probed or not; with a target, "
            "only that one. The columns: the state of the main thread, for how many seconds it has "
            "slept, as the kernel counts, the step of its training if steps are recorded, its "
            "memory, and the innermost frame that belongs neither to Python nor to an installed "
            "package. A worker of a torch data loader shows its number, and for how long it has "
            "given no batch.\n\n"
            "Everything is read from outside, as backtrace does. If something has stood still for "
            "five seconds, a line says what is wrong and who waits for whom, in the words of "
            "`diagnose`.",
    .example = "probing now\nprobing now --watch\nprobing now --json",
    .options = options,
    .flags = PB_CMD_CLUSTER | PB_CMD_MAY_TARGET | PB_CMD_PROBED | PB_CMD_ROWS | PB_CMD_TOGETHER,
    .run = run,
};
