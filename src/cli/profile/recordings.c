/* recordings: see recordings.h. */
#include "cli/profile/recordings.h"

#include "base/cleanup.h"
#include "base/ending.h"
#include "cli/print/rows.h"
#include "control/rundir.h"
#include "print/outlet.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000 };

static pid_t recorded_pid(const struct pb_run_info *run)
{
    char text[24];

    return (pid_t)strtol(pb_run_get(run, "recorded_pid", text, sizeof(text)), NULL, 10);
}

static bool is_wanted(const struct pb_call *call, const struct pb_run_info *run)
{
    pid_t pid = recorded_pid(run);

    if (!pid)
        return false; /* the run of an agent */
    for (size_t i = 0; i < call->targets.n; i++)
        if (call->targets.at[i].pid == pid)
            return true;
    return call->targets.n == 0;
}

static void add_time(struct pb_rows *rows, time_t at)
{
    char text[32];
    struct tm tm;

    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", gmtime_r(&at, &tm));
    pb_rows_text(rows, text);
}

static void add_recording(struct pb_rows *rows, const struct pb_run_info *run)
{
    char text[1024];

    pb_rows_number(rows, "%d", (int)recorded_pid(run));
    pb_rows_text(rows, run->alive ? "recording" : "ended");
    add_time(rows, (time_t)strtoll(pb_run_get(run, "probed_since", text, sizeof(text)), NULL, 10));
    add_time(rows, run->changed);
    pb_rows_number(rows, "%g", strtod(pb_run_get(run, "rate", text, sizeof(text)), NULL));
    pb_rows_number(rows, "%" PRIu64, run->bytes);
    pb_rows_number(rows, "%d", (int)run->id.pid);
    pb_rows_text(rows, run->path);
    pb_rows_text(rows, pb_run_get(run, "command", text, sizeof(text)));
}

int pb_recordings_list(const struct pb_call *call, struct pb_err *err)
{
    static const char *const columns[] = {"pid",   "state",    "since",  "until",  "rate",
                                          "bytes", "recorder", "folder", "command"};
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    struct pb_rows rows;

    int r = pb_runs_scan(&runs, err);
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < runs.n; i++)
        if (is_wanted(call, &runs.at[i]))
            add_recording(&rows, &runs.at[i]);
    r = pb_rows_print(&rows, call->format, "nothing is recorded (probing -t PID record)", err);
    pb_rows_done(&rows);
    return r;
}

/* The recorder that a run names may have ended since, and its pid be another's: it is taken by its start.
 * Root sees the runs of all users, who give them any name: it must be a process of the run's owner. */
static int stop_recorder(const struct pb_run_info *run, bool shown, struct pb_err *err)
{
    struct pb_procinfo process;
    struct pb_ending recorder;

    if (pb_ending_open(run->id.pid, run->id.start_time, &recorder) < 0)
        return 0;
    if (pb_procinfo_identify(run->id.pid, &process) < 0 || process.euid != run->uid) {
        pb_ending_close(&recorder);
        return 0;
    }
    int r = pb_ending_signal(&recorder, SIGTERM);
    if (r < 0 && r != -ESRCH)
        pb_fail(err, r, "cannot end recorder %d: %s", (int)run->id.pid, strerror(-r));
    else if ((r = pb_ending_wait(&recorder, PATIENCE_MS)) < 0)
        pb_fail(err, r, "recorder %d did not exit within %d s of SIGTERM", (int)run->id.pid,
                PATIENCE_MS / 1000);
    pb_ending_close(&recorder);
    if (r == 0 && shown)
        printf("process %d: sampling ended; /flamegraph shows what was sampled until now\n",
               (int)recorded_pid(run));
    else if (r == 0)
        pb_put_between(stdout, "", run->path, ": ended\n");
    return r < 0 ? r : 1;
}

static bool is_shown(const struct pb_run_info *run)
{
    char text[8];
    return strcmp(pb_run_get(run, "shown", text, sizeof(text)), "1") == 0;
}

int pb_recordings_stop(const struct pb_call *call, bool shown, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    int n = 0;

    int r = pb_runs_scan(&runs, err);
    for (size_t i = 0; r >= 0 && i < runs.n; i++)
        if (runs.at[i].alive && is_wanted(call, &runs.at[i]) && (!shown || is_shown(&runs.at[i])))
            n += (r = stop_recorder(&runs.at[i], shown, err)) > 0;
    if (r < 0)
        return r;
    return n ? 0 : pb_fail(err, -ESRCH, shown ? "nothing samples it" : "nothing records it");
}

int pb_recordings_shown(pid_t pid, char *ret, size_t size, bool *ret_goes_on)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    struct pb_procinfo info;
    char of[64];

    int r = pb_procinfo_identify(pid, &info);
    if (r == 0)
        r = pb_runs_scan(&runs, NULL);
    snprintf(of, sizeof(of), PB_RUNDIR_OF "%d-%" PRIu64, (int)pid, r < 0 ? 0 : info.start_time);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (strstr(runs.at[i].path, of) && runs.at[i].uid == geteuid() && is_shown(&runs.at[i])) {
            snprintf(ret, size, "%s", runs.at[i].path);
            *ret_goes_on = runs.at[i].alive;
            return 0;
        }
    return -ENOENT;
}
