/* list: probed processes, Python processes that could be probed, and runs whose process has ended. */
#include "ask/running.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "engine/archive/archive_list.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DAY_S 86400
enum { COMMAND_SHOWN = 160 };
enum { DEAD_SHOWN = 5 }; /* without --dead: many ended runs would hide the running ones */

static const char *const columns[] = {"pid",    "state",     "python", "rank",
                                      "uptime", "memory_mb", "id",     "command"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static double seconds_since_boot(void)
{
    char text[64];
    return pb_proc_read(0, "../uptime", text, sizeof(text)) > 0 ? strtod(text, NULL) : 0;
}

/* For a person "3h 12m", for a program seconds. */
static void add_duration(struct pb_rows *rows, enum pb_format format, double seconds)
{
    long s = (long)seconds;
    char text[32];

    if (format != PB_FORMAT_TABLE) {
        pb_rows_number(rows, "%.0f", seconds);
        return;
    }
    if (s >= DAY_S)
        snprintf(text, sizeof(text), "%ldd %ldh", s / DAY_S, s % DAY_S / 3600);
    else if (s >= 3600)
        snprintf(text, sizeof(text), "%ldh %ldm", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(text, sizeof(text), "%ldm %lds", s / 60, s % 60);
    else
        snprintf(text, sizeof(text), "%lds", s);
    pb_rows_text(rows, text);
}

/* Whole for a program. In a table that is not on a terminal, which has no width, one long command would make
 * every line as long. */
static void add_command(struct pb_rows *rows, enum pb_format format, const char *text)
{
    char cut[COMMAND_SHOWN + 4];

    if (format == PB_FORMAT_TABLE && strlen(text) > COMMAND_SHOWN) {
        int n = COMMAND_SHOWN;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) /* not within a character */
            n--;
        snprintf(cut, sizeof(cut), "%.*s...", n, text);
        text = cut;
    }
    pb_rows_text(rows, text);
}

static void add_live(struct pb_rows *rows, const struct pb_call *call, const struct pb_running *p, double now)
{
    char id[PB_RUN_ID_SIZE];

    pb_rows_number(rows, "%d", (int)p->pid);
    pb_rows_text(rows, p->probed ? "probed" : "python");
    pb_rows_text(rows, p->python[0] ? p->python : NULL);
    pb_rows_text(rows, p->rank[0] ? p->rank : NULL);
    add_duration(rows, call->format, now - (double)p->start_time / (double)sysconf(_SC_CLK_TCK));
    if (p->memory_mb >= 0)
        pb_rows_number(rows, "%.1f", p->memory_mb);
    else
        pb_rows_text(rows, NULL);
    pb_rows_text(rows, pb_run_id_text(&(struct pb_run_id){p->pid, p->start_time, 0}, id));
    add_command(rows, call->format, p->command);
}

/* A run whose process has ended. */
struct ended_run {
    const char *state;
    struct pb_run_id id;
    time_t changed;
    const char *about; /* points into the list that it was read from */
};

struct ended_runs {
    struct ended_run *at;
    size_t n;
};

static void release_ended(struct ended_runs *runs)
{
    free(runs->at);
}

static int keep_ended(struct ended_runs *to, const struct ended_run *run)
{
    struct ended_run *more = realloc(to->at, (to->n + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    to->at = more;
    to->at[to->n++] = *run;
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct ended_run *x = a, *y = b;
    return x->changed < y->changed ? 1 : x->changed > y->changed ? -1 : 0;
}

static void add_ended(struct pb_rows *rows, const struct pb_call *call, const struct ended_run *ended)
{
    struct pb_run_info run = {.dir_fd = -1};
    char text[1024];

    snprintf(run.about, sizeof(run.about), "%s", ended->about);
    pb_rows_number(rows, "%d", (int)ended->id.pid);
    pb_rows_text(rows, ended->state);
    pb_rows_text(rows, pb_run_get(&run, "python", text, sizeof(text))[0] ? text : NULL);
    pb_rows_text(rows, pb_run_get(&run, "rank", text, sizeof(text))[0] ? text : NULL);
    double since = strtod(pb_run_get(&run, "probed_since", text, sizeof(text)), NULL);
    add_duration(rows, call->format,
                 since > 0 && (double)ended->changed > since ? (double)ended->changed - since : 0);
    pb_rows_text(rows, NULL);
    pb_rows_text(rows, pb_run_id_text(&ended->id, text));
    add_command(rows, call->format, pb_run_get(&run, "command", text, sizeof(text)));
}

/* Whether only the archive is left of a run. */
static bool is_gone(const struct pb_archive_run *archived, const struct pb_runs *runs)
{
    struct pb_procinfo info;
    struct pb_run_info run = {.dir_fd = -1};

    for (size_t i = 0; i < runs->n; i++)
        if (strcmp(runs->at[i].about, archived->about) == 0)
            return false;
    /* Its directory may be in another mount namespace. */
    bool alive = pb_procinfo_read(archived->pid, &info, NULL) == 0 && pb_run_of(&info, &run) == 0 &&
                 strcmp(run.about, archived->about) == 0;
    pb_run_done(&run);
    return !alive;
}

/* Whether a recording is the only trace of its process. */
static bool is_orphan(const struct pb_archive_runs *all, size_t at, const struct pb_runs *runs)
{
    const struct pb_archive_run *r = &all->at[at];
    struct pb_procinfo info;
    char of[64];

    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].pid == r->pid && all->at[i].start_time == r->start_time &&
            (!all->at[i].recording || i < at))
            return false;
    snprintf(of, sizeof(of), PB_ARCHIVE_OF "%d-%llu", (int)r->pid, (unsigned long long)r->start_time);
    for (size_t i = 0; i < runs->n; i++)
        if (strstr(runs->at[i].path, of))
            return false;
    return pb_procinfo_read(r->pid, &info, NULL) < 0 || info.start_time != r->start_time;
}

static int find_archived(struct pb_archive_runs *archived, const struct pb_runs *runs, struct ended_runs *to,
                         struct pb_err *err)
{
    char folder[PATH_MAX];

    int r = pb_archive_folder(NULL, folder, sizeof(folder), NULL) < 0
                ? 0
                : pb_archive_runs_read(folder, archived, err);
    for (size_t i = 0; r == 0 && i < archived->n; i++) {
        const struct pb_archive_run *run = &archived->at[i];
        if (run->recording ? is_orphan(archived, i, runs) : is_gone(run, runs))
            r = keep_ended(to, &(struct ended_run){
                                   "archived", {run->pid, run->start_time, 0}, run->changed, run->about});
    }
    return r;
}

/* Newest first. A person gets the newest few unless --dead is given; a program gets all. */
static size_t add_all_ended(struct pb_rows *rows, const struct pb_call *call, struct ended_runs *ended)
{
    bool few = call->format == PB_FORMAT_TABLE && !pb_call_option(call, "dead");
    size_t shown = few && ended->n > DEAD_SHOWN ? DEAD_SHOWN : ended->n;

    if (ended->n)
        qsort(ended->at, ended->n, sizeof(*ended->at), newest_first);
    for (size_t i = 0; i < shown; i++)
        add_ended(rows, call, &ended->at[i]);
    return ended->n - shown;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_running_done) struct pb_running_list running = {0};
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    _cleanup_(pb_archive_runs_done) struct pb_archive_runs archived = {0};
    _cleanup_(release_ended) struct ended_runs ended = {0};
    struct pb_rows rows;

    int r = pb_running_read(&call->ask, &running, err);
    if (r == 0)
        r = pb_runs_scan(&runs, err);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        /* What a detach left in a process that runs is shown under its pid (query, tables). */
        if (!runs.at[i].alive && !(runs.at[i].detached && pb_targets_is_running(&runs.at[i].id)))
            r = keep_ended(&ended,
                           &(struct ended_run){"dead", runs.at[i].id, runs.at[i].changed, runs.at[i].about});
    if (r < 0)
        return r;
    /* An unreadable archive does not hide running processes. */
    struct pb_err unread = {0};
    if (find_archived(&archived, &runs, &ended, &unread) < 0)
        pb_ask_note(&call->ask, "archived runs are missing: %s", unread.text);
    double now = seconds_since_boot();
    pb_rows_init(&rows, columns, COLUMNS);
    for (size_t i = 0; i < running.n; i++)
        add_live(&rows, call, &running.at[i], now);
    size_t left = add_all_ended(&rows, call, &ended);
    r = pb_rows_print(&rows, call->format, "no Python process is running here, and no run was left behind",
                      err);
    if (r == 0 && left)
        printf("and %zu more that ended (probing list --dead)\n", left);
    pb_rows_done(&rows);
    return r;
}

static const struct pb_option options[] = {
    {0, "dead", NULL, "all runs whose process has ended, not only the newest 5"},
    {0},
};

static const struct pb_printed_parts printed = {.options = " dead "};

const struct pb_command pb_cmd_list = {
    .name = "list",
    .alias = "ls",
    .summary = "probed processes, Python processes that could be probed, runs that ended",
    .synopsis = "",
    .text = "state:\n"
            "  probed: an agent is in it\n"
            "  python: could be probed\n"
            "  dead: the process has ended; its tables can still be read, and uptime is how long "
            "it was probed. Dead runs are kept for 7 days and up to 1 GB\n"
            "  archived: only its archive is left\n\n"
            "id is PID@START, which no later process with the same pid has. It works as a target "
            "like a pid, also after the process has ended.",
    .example = "probing list\nprobing list --dead\nprobing -t 4711@2x7k1q tables\nprobing list --json",
    .options = options,
    .printed = &printed,
    .flags = PB_CMD_INCIDENT | PB_CMD_ROWS,
    .run = run,
};
