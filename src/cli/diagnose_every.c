/* diagnose_every: see diagnose_every.h. */
#include "cli/diagnose_every.h"
#include "cli/bundle/bundle.h"

#include "ask/alert.h"
#include "ask/stackset.h"
#include "ask/tool_settings.h"
#include "base/cleanup.h"
#include "base/json_write.h"
#include "base/replace.h"
#include "base/time.h"
#include "cli/print/diagnosis_print.h"
#include "cli/print/stacks_print.h"
#include "cli/webhook.h"
#include "diagnose/standing.h"
#include "print/outlet.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KEPT = 64 }; /* files of evidence */

struct every {
    const struct pb_call *call;
    const char *webhook;
    struct pb_diag_standing standing;
};

static void note(const struct every *e, const char *what, int r, const struct pb_err *err)
{
    pb_ask_note(&e->call->ask, "%s: %s", what, pb_err_text(err, r));
}

/* --- the evidence --- */

static int find_folder(char ret[PATH_MAX])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = state && state[0] ? snprintf(ret, PATH_MAX, "%s/probing/findings", state)
            : home && home[0] ? snprintf(ret, PATH_MAX, "%s/.local/state/probing/findings", home)
                              : PATH_MAX;

    if (n >= PATH_MAX)
        return -ENOENT;
    for (char *at = ret + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(ret, 0700);
        *at = '/';
    }
    return mkdir(ret, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int is_evidence(const struct dirent *e)
{
    size_t n = strlen(e->d_name);

    return e->d_name[0] == '2' && n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

/* Names begin with the time. */
static void remove_oldest(const char *folder)
{
    struct dirent **names = NULL;
    char path[PATH_MAX + 256];

    int n = scandir(folder, &names, is_evidence, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);
        if (i < n - KEPT)
            unlink(path);
        free(names[i]);
    }
    free(names);
}

static void put_part(struct pb_json_writer *w, const char *key, const char *text, size_t size)
{
    while (size && text[size - 1] == '\n')
        size--;
    if (size)
        pb_json_put_made(w, key, text, size);
    else
        pb_json_put_null(w, key);
}

static void put_stacks(FILE *to, const struct pb_diag_job *job)
{
    const struct pb_stacks **shown = calloc(job->nanswers + 1, sizeof(struct pb_stacks *));
    size_t n = 0;

    for (size_t i = 0; shown && i < job->nanswers; i++)
        if (job->answers[i].stacks)
            shown[n++] = job->answers[i].stacks;
    if (shown)
        pb_stacks_print_json(to, shown, n, NULL, 0);
    free(shown);
}

static void write_evidence(FILE *to, const struct pb_diag_answer *a)
{
    struct pb_json_writer w = {.out = to};

    pb_json_open(&w, NULL, '{');
    for (int stacks = 0; stacks < 2; stacks++) {
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        FILE *part = open_memstream(&text, &size);
        if (part && stacks)
            put_stacks(part, a->job);
        else if (part)
            pb_diagnosis_write_job(part, a);
        bool whole = part && fclose(part) == 0;
        put_part(&w, stacks ? "stacks" : "diagnosis", text, whole ? size : 0);
    }
    pb_json_close(&w);
    fputc('\n', to);
}

/* What was found, and the stacks of all processes of the job as they were then. */
static int keep_evidence(const struct pb_diag_event *e, char ret[PATH_MAX], struct pb_err *err)
{
    char folder[PATH_MAX], when[40];
    struct pb_replace file;
    time_t now = time(NULL);
    struct tm tm;

    int r = find_folder(folder);
    if (r == 0) {
        strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
        snprintf(ret, PATH_MAX, "%.3800s/%s-%s-%d.json", folder, when, e->what->kind, (int)e->what->pid);
        mode_t mask = umask(077);
        r = pb_replace_begin(ret, &file);
        if (r == 0) {
            write_evidence(file.out, e->answer);
            r = pb_replace_end(&file, 0);
        }
        umask(mask);
    }
    if (r < 0)
        return pb_fail(err, r, "the evidence cannot be kept: %s", strerror(-r));
    remove_oldest(folder);
    return 0;
}

/* --- python.alerts --- */

/* In the process that it is about; where no agent is in that, in another one of its job. */
static void add_alert(const struct every *every, const struct pb_diag_event *e, const char *file)
{
    char text[512];
    struct pb_err err = {0};

    if (e->over)
        snprintf(text, sizeof(text), "over after %.0f s: %.400s", e->seconds, e->what->says);
    else
        snprintf(text, sizeof(text), "%s", e->what->says);
    const struct pb_alert_row row = {.kind = e->over ? "over" : e->what->kind,
                                     .severity = e->over ? "note" : "error",
                                     .subject = file[0] ? file : NULL,
                                     .text = text};
    int r = e->what->pid > 0 ? pb_alert_send(&every->call->ask, e->what->pid, &row, &err) : -ENOENT;
    for (size_t i = 0; r < 0 && e->answer && i < e->answer->job->nprocesses; i++) {
        const struct pb_diag_process *p = &e->answer->job->processes[i];
        if (p->parent == PB_NOBODY && p->pid != e->what->pid && p->state != 'Z' && p->state != 'X')
            r = pb_alert_send(&every->call->ask, p->pid, &row, &err);
    }
}

/* --- events --- */

static void print_event(const struct pb_call *call, const struct pb_diag_event *e, const char *file)
{
    static const char *const sures[] = {"remark", "likely", "certain"};
    struct pb_json_writer w = {.out = stdout};
    char when[40];
    time_t now = time(NULL);
    struct tm tm;

    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    if (!pb_call_option(call, "json")) {
        printf("%s ", when);
        pb_put_name(stdout, e->what->job);
        if (e->over)
            printf(": over after %.0f s", e->seconds);
        pb_put_between(stdout, ": ", e->what->says, "\n");
        return;
    }
    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "time", when);
    pb_json_put_text(&w, "status", e->over ? "resolved" : "firing");
    pb_json_put_text(&w, "job", e->what->job);
    pb_json_put_number(&w, "job_pid", "%d", (int)e->what->job_pid);
    pb_json_put_text(&w, "kind", e->what->kind);
    if (e->what->rank >= 0)
        pb_json_put_number(&w, "rank", "%d", e->what->rank);
    else
        pb_json_put_null(&w, "rank");
    pb_json_put_number(&w, "pid", "%d", (int)e->what->pid);
    pb_json_put_text(&w, "sure", sures[e->what->sure]);
    pb_json_put_text(&w, "says", e->what->says);
    pb_json_put_number(&w, "seconds", "%.1f", e->seconds);
    pb_json_put_text(&w, "evidence", file[0] ? file : NULL);
    pb_json_close(&w);
    putchar('\n');
}

/* Takes some seconds, minutes where a rank hangs, in which nothing is diagnosed: whoever waits for the
 * finding is told first. */
static void keep_incident(const struct every *every, const struct pb_diag_event *e)
{
    const char *folder = pb_call_option(every->call, "bundle");
    bool ranks = e->answer && e->answer->job->ranks && e->what->job_pid > 0;
    pid_t pid = ranks ? e->what->job_pid : e->what->pid;
    struct pb_err err = {0};
    char path[PATH_MAX];

    if (!folder || pid <= 0)
        return;
    int r = pb_bundle_keep(folder, pid, e->what->kind, path, &err);
    if (r < 0)
        note(every, "bundle", r, &err);
}

static void take_event(void *arg, const struct pb_diag_event *e)
{
    const struct every *every = arg;
    char file[PATH_MAX] = "";
    struct pb_err err = {0};
    int r;

    if (!e->over && (r = keep_evidence(e, file, &err)) < 0) {
        note(every, "diagnose", r, &err);
        file[0] = '\0';
    }
    print_event(every->call, e, file);
    fflush(stdout);
    if (every->webhook && (r = pb_webhook_post(every->webhook, e, &err)) < 0)
        note(every, "probing.alert.webhook", r, &err);
    add_alert(every, e, file);
    if (!e->over)
        keep_incident(every, e);
}

int pb_diagnose_every(const struct pb_call *call, const struct pb_diag_request *request, unsigned every_ms,
                      struct pb_err *err)
{
    struct every *every = calloc(1, sizeof(*every));
    struct pb_diagnosis d;
    struct pb_err why = {0};

    if (!every)
        return pb_fail(err, -ENOMEM, "out of memory");
    every->call = call;
    every->webhook = pb_tool_setting_get(PB_TOOL_ALERT_WEBHOOK);
    int r = pb_webhook_check(every->webhook, err);
    for (uint64_t next = pb_now_ns(); r == 0 && !ferror(stdout);) {
        next += every_ms * PB_NS_PER_MS;
        int e = pb_diagnose(&call->ask, request, &d, &why);
        if (e < 0) {
            note(every, "diagnose", e, &why);
        } else {
            pb_diag_standing_take(&every->standing, &d, take_event, every);
            pb_diagnosis_done(&d);
        }
        uint64_t now = pb_now_ns();
        if (next > now)
            pb_sleep_ns(next - now);
        else
            next = now;
    }
    free(every);
    return r;
}
