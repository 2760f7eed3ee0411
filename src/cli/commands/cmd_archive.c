/* archive: moves recorded rows of a process into Parquet files, before newer rows overwrite them. */
#include "ask/archive_parts.h"
#include "ask/process_settings.h"
#include "base/cleanup.h"
#include "base/null.h"
#include "base/process.h"
#include "base/retry.h"
#include "cli/cli.h"
#include "cli/ranks/ranks.h"
#include "cli/stop.h"
#include "cli/values.h"
#include "engine/archive/archive_keep.h"
#include "inject/session.h"
#include "print/outlet.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEEP_S = 60, MANY_SEGMENTS = 64, MANY_PERCENT = 12 };
enum { LOOK_S = 2 };                    /* between two searches for new recordings of the process */
#define LAST_LOOKS_NS (5 * PB_NS_PER_S) /* recordings end a moment after the process */

struct job {
    const struct pb_target *target;
    char folder[PATH_MAX];
    struct pb_archive_limits limits;
    struct pb_archive_seen *seen; /* files that earlier rounds found in the archive */
    struct pb_settings settings;
    unsigned every_ms;
    bool once, background;
    bool prune;     /* the limits apply to every run in the archive, not only to this process */
    bool own;       /* the process has an arena of its own */
    int own_result; /* negative: its own tables cannot be archived; recordings of it still can */
    struct pb_err own_err;
    struct pb_run_info run; /* run description; no folder where the process could not make one */
    struct pb_archive_parts parts;
    uint64_t files, rows;     /* archived by this command */
    struct pb_err last_error; /* the last error that was printed */
};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = number;
}

/* --- options --- */

static void read_limits(const struct pb_call *call, struct job *job)
{
    job->limits.days = pb_call_option(call, "retention") ? pb_call_number(call, "retention")
                                                         : job->settings.at[PB_SET_RETENTION_DAYS].number;
    job->limits.bytes = (uint64_t)pb_call_number(call, "max-size");
}

static int read_options(const struct pb_call *call, struct job *job, struct pb_err *err)
{
    job->once = pb_call_option(call, "once");
    job->background = pb_call_option(call, "background");
    job->prune = pb_call_option(call, "prune");
    job->every_ms = pb_call_ms(call, "every");
    if (job->once && job->background)
        return pb_fail(err, PB_USAGE, "--once or --background, not both");
    int r = pb_archive_folder(pb_call_option(call, "to"), job->folder, sizeof(job->folder), err);
    if (r < 0)
        return r;
    pb_settings_for(&call->ask, job->target, &job->settings);
    read_limits(call, job);
    return 0;
}

/* --- the run --- */

static int open_parts(struct job *job, struct pb_err *err)
{
    pid_t pid = job->target->pid;

    job->parts.folder = job->folder;
    job->parts.compression = job->settings.at[PB_SET_COMPRESSION].text;
    job->parts.about = job->run.about;
    int fd = pb_archive_parts_find(&job->parts, job->target, &job->run, err);
    if (fd < 0 && fd != -ENOENT)
        return fd;
    err->text[0] = '\0';
    job->own_result = fd >= 0 ? pb_archive_parts_own(&job->parts, fd, &job->own_err) : 0;
    job->own = fd >= 0 && job->own_result == 0;
    /* A part that fails does not stop the others: each round tries it again and reports it. */
    int r = pb_archive_parts_look(&job->parts, err);
    if (job->own_result == -EBUSY || (job->own_result < 0 && !job->parts.n)) {
        *err = job->own_err;
        return job->own_result;
    }
    if (job->parts.n) {
        err->text[0] = '\0';
        r = 0;
    }
    /* The background process changes its working directory: the folder must be absolute. */
    char *whole = r == 0 && job->parts.n ? realpath(job->folder, NULL) : NULL;
    if (whole)
        snprintf(job->folder, sizeof(job->folder), "%s", whole);
    free(whole);
    if (r < 0 || job->parts.n)
        return r;
    if (job->target->dead)
        return pb_fail(err, -ENOENT, "process %d left nothing but its archive", (int)pid);
    return pb_fail(err, -ENOENT,
                   "process %d is neither probed nor recorded (probing -t %d inject, or record)", (int)pid,
                   (int)pid);
}

/* Whether the arena gets no more rows: the process has ended, runs another program, or was detached. */
static bool has_ended(const struct job *job)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    struct pb_procinfo info;

    if (job->target->dead || pb_procinfo_read(job->target->pid, &info, NULL) < 0 ||
        info.start_time != job->parts.start_time || info.state == 'Z' || info.state == 'X')
        return true;
    if (!job->own)
        return false;
    if (pb_run_of(&info, &run) == 0)
        return job->run.path[0] && strcmp(run.about, job->run.about) != 0;
    return !pb_session_probed(&info);
}

/* --- rounds --- */

static void print_table_result(void *arg, const struct pb_archiver_table *t)
{
    struct job *job = arg;

    job->files += t->files;
    job->rows += t->rows;
    if (t->files)
        printf("%s: %" PRIu64 " rows of %" PRIu64 " segments archived\n", t->name, t->rows, t->segments);
    if (t->merged)
        printf("%s: %u small files merged into one\n", t->name, t->merged);
    if (t->trouble.text[0]) {
        fflush(stdout);
        fprintf(stderr,
                "probing: archive: small files of %s were not merged (they are read as they are): %s\n",
                t->name, t->trouble.text);
    }
    if (t->lost_now) {
        fflush(stdout);
        fprintf(stderr,
                "probing: archive: %s: %" PRIu64 " rows were overwritten before they were archived, %" PRIu64
                " in all (archive more often, or raise probing.max_memory)\n",
                t->name, t->lost_now, t->lost);
    }
    fflush(stdout);
}

/* Prints an error once: the next round tries again. */
static void print_error_once(struct job *job, int r, const struct pb_err *err)
{
    if (strcmp(job->last_error.text, pb_err_text(err, r)) == 0)
        return;
    pb_put_between(stderr, "probing: archive: ", pb_err_text(err, r), "\n");
    snprintf(job->last_error.text, sizeof(job->last_error.text), "%s", pb_err_text(err, r));
}

static int apply_limits(struct job *job, struct pb_archive_left *ret, struct pb_err *err)
{
    struct pb_archive_limits limits = job->limits;
    _cleanup_free_ char(*runs)[PB_ARCHIVE_RUN] = NULL;

    /* Without --prune the limits of this process's settings remove only its own files. */
    if (!job->prune) {
        runs = calloc(job->parts.n + 1, sizeof(*runs));
        if (!runs)
            return pb_fail(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < job->parts.n; i++)
            memcpy(runs[i], job->parts.at[i].id, sizeof(runs[i]));
        limits.runs = (const char(*)[PB_ARCHIVE_RUN])runs;
        limits.nruns = job->parts.n;
    }
    int r = pb_archive_keep(job->folder, &limits, job->seen, ret, err);
    if (ret->removed)
        printf("%" PRIu64 " old files removed, %.1f MB\n", ret->removed,
               (double)ret->removed_bytes / (1 << 20));
    fflush(stdout);
    return r;
}

/* Archives every closed segment once; of an ended process also the open ones. */
static int archive_once(struct job *job, bool ended, struct pb_err *err)
{
    struct pb_archive_left kept = {0};

    /* Recordings end with the process, a moment later. */
    struct pb_err bad = {0};
    int r = pb_archive_parts_look(&job->parts, &bad);
    struct pb_retry again =
        pb_retry_until(pb_now_ns() + LAST_LOOKS_NS, 100 * PB_NS_PER_MS, 100 * PB_NS_PER_MS);
    while (r == 0 && ended && pb_archive_parts_recorded(&job->parts) && pb_retry_wait(&again))
        r = pb_archive_parts_look(&job->parts, &bad);
    /* A recording that cannot be archived does not stop the others; its error becomes the command's. */
    int round = pb_archive_parts_round(&job->parts, ended, print_table_result, job, err);
    if (round == 0)
        round = apply_limits(job, &kept, err);
    if (r < 0 && round < 0)
        print_error_once(job, r, &bad);
    else if (r < 0)
        *err = bad;
    r = round < 0 ? round : r;
    if (r < 0)
        return r;
    if (job->files == 0)
        printf("nothing to archive: %s\n",
               ended ? "everything was archived before"
                     : "nothing new to archive; rows of open segments are read live");
    printf("%s holds %" PRIu64 " files%s, %.1f MB\n", job->folder, kept.files,
           job->prune ? "" : " of this process", (double)kept.bytes / (1 << 20));
    return 0;
}

/* Archives until the process ends or a signal comes. Closed segments wait until there are many or --every has
 * passed: few large files are better than many small ones. */
static int archive_until_end(struct job *job, struct pb_err *err)
{
    uint64_t archived = 0, kept_at = 0, looked = pb_now_ns();

    while (!stop) {
        struct pb_archive_left kept;
        unsigned percent = 0;
        uint64_t now = pb_now_ns();
        if (has_ended(job))
            return archive_once(job, true, err);
        bool due = now - archived >= job->every_ms * PB_NS_PER_MS;
        int r = 0;
        if (due || now - looked >= LOOK_S * PB_NS_PER_S) {
            looked = now;
            /* A recording that cannot be archived does not stop the others. */
            if ((r = pb_archive_parts_look(&job->parts, err)) < 0)
                print_error_once(job, r, err);
            r = 0;
        }
        int n = pb_archive_parts_pending(&job->parts, &percent);
        if (n < 0)
            r = pb_fail(err, n, "the tables cannot be read: %s", strerror(-n));
        if (r == 0 && (due || n >= MANY_SEGMENTS || percent >= MANY_PERCENT)) {
            archived = now;
            r = pb_archive_parts_round(&job->parts, false, print_table_result, job, err);
        }
        if (r == 0 && (kept_at == 0 || now - kept_at >= KEEP_S * PB_NS_PER_S)) {
            kept_at = now;
            r = apply_limits(job, &kept, err);
        }
        if (r < 0)
            print_error_once(job, r, err);
        uint64_t pause = job->every_ms < 1000 ? job->every_ms : 1000;
        pb_sleep_ns((r < 0 ? 1000 : pause / 2) * PB_NS_PER_MS);
    }
    return 0;
}

/* --- in the background --- */

static const char *place_of(const struct job *job)
{
    return pb_archiver_place(job->parts.at[0].recorder);
}

/* Returns 0 in the child, its pid in the parent. The child's output goes to the log in the archive. */
static pid_t go_to_background(struct job *job, struct pb_err *err)
{
    char path[PATH_MAX + 8];

    snprintf(path, sizeof(path), "%s/log", place_of(job));
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
    pid_t pid = log < 0 ? -errno : pb_process_fork(0);
    if (pid < 0)
        pb_fail(err, pid, "cannot start a process in the background: %s", strerror(-pid));
    if (pid == 0) {
        setsid();
        pb_null_over(STDIN_FILENO, STDIN_FILENO);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        if (chdir("/") < 0)
            _exit(1);
        for (size_t i = 0; i < job->parts.n; i++)
            pb_archiver_sign(job->parts.at[i].recorder);
    }
    if (log >= 0)
        close(log);
    return pid;
}

static int run_job(struct job *job, struct pb_err *err)
{
    if (job->once || job->target->dead) {
        int r = archive_once(job, job->target->dead, err);
        if (r == 0 && job->own_result < 0)
            *err = job->own_err;
        return r == 0 ? job->own_result : r;
    }
    if (job->own_result < 0)
        print_error_once(job, job->own_result, &job->own_err);
    if (job->background) {
        pid_t pid = go_to_background(job, err);
        if (pid > 0)
            printf("process %d is archived to %s in the background, by process %d (log: %s/log)\n",
                   (int)job->target->pid, job->folder, (int)pid, place_of(job));
        if (pid != 0)
            return pid < 0 ? -ECHILD : 0;
    } else {
        printf("process %d is archived to %s until it ends, or Ctrl-C\n", (int)job->target->pid, job->folder);
        fflush(stdout);
    }
    pb_signal_take(SIGINT, on_signal);
    pb_signal_take(SIGTERM, on_signal);
    return archive_until_end(job, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct job *job = calloc(1, sizeof(*job));

    if (!job)
        return pb_fail(err, -ENOMEM, "out of memory");
    job->target = &call->targets.at[0];
    job->run.dir_fd = -1;
    job->seen = pb_archive_seen_new();
    int r = job->seen ? read_options(call, job, err) : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = open_parts(job, err);
    if (r == 0)
        r = run_job(job, err);
    pb_archive_parts_done(&job->parts);
    pb_run_done(&job->run);
    pb_archive_seen_free(job->seen);
    free(job);
    return r < 0 ? r : 0;
}

static int run_over(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err)
{
    bool background = pb_call_option(call, "background");

    if (background && pb_cluster_check_background(c, "--once", err) < 0)
        return PB_USAGE;
    if (!background && !pb_call_option(call, "once"))
        return pb_fail(err, PB_USAGE, "over a cluster it takes --once or --background");
    return pb_cluster_each(call, c, s, 0, false, err);
}

static const struct pb_option options[] = {
    {0, "to", PB_TEXT("DIR"), "the archive (default: PROBING_ARCHIVE, or ~/.local/share/probing/archive)"},
    {0, "once", NULL, "archive closed segments once, then exit"},
    {'b', "background", NULL, "keep archiving in the background until the process ends"},
    {0, "every", PB_TIME(.least = 100, .usual = 30000),
     "how long closed rows may wait: 30s; sooner when there are many"},
    {0, "retention", PB_NUMBER("DAYS", .most = 1e6),
     "remove files whose rows are older (default: probing.retention_days; 0: never)"},
    {0, "max-size", PB_SIZE(), "remove the oldest files beyond this size, such as 20GB"},
    {0, "prune", NULL,
     "apply --retention and --max-size to every run in the archive, not only to this process"},
    {0},
};

const struct pb_command pb_cmd_archive = {
    .name = "archive",
    .summary = "keep what a process records as Parquet files",
    .synopsis = "[--to DIR] [--once | --background]",
    .text = "Tables are bounded: new rows replace the oldest. archive moves rows to Parquet files "
            "before that, as DIR/TABLE/job=/node=/rank=/date=/*.parquet, which DuckDB, Spark and "
            "pyarrow can read. query and export see archived and live rows as one table, even when "
            "the process and its run directory are gone. Rows of `record` are archived too.\n\n"
            "A file is there whole or not at all. If archive is killed, the next one continues "
            "without losing or doubling a row. It never touches files of others.",
    .example = "probing -t 4711 archive --background\n"
               "probing -t 4711 archive --once --to /data/archive\n"
               "probing -t 4711 archive --once --prune --max-size 20GB --retention 30\n"
               "probing query --archive /data/archive \"SELECT count(*) FROM memory_usage\"",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_CLUSTER,
    .run = run,
    .run_over = run_over,
};
