/* autorecord: see autorecord.h. */
#include "serve/autorecord.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/time.h"
#include "serve/command_words.h"
#include "serve/jobs.h"
#include "serve/service.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    WATCHED = 64,     /* processes at once */
    LOOK_MS = 3000,   /* between looks for new processes */
    RETRY_MS = 60000, /* after a command that ended before its process */
    LIST_MS = 30000,  /* limit of `list` */
    LIST_MAX = 4 << 20
};

enum { RECORD, ARCHIVE, COMMANDS };

/* A process, and the commands that record it. */
struct watched {
    char id[64];
    bool seen; /* in the list just read */
    struct pb_serve_job *jobs[COMMANDS];
    uint64_t due[COMMANDS];
};

struct pb_autorecord {
    const struct pb_service *s;
    struct pb_autorecord_plan plan;
    struct pb_serve_jobs *jobs;
    pthread_t thread;
    int wake;
    _Atomic bool ending;
    struct watched at[WATCHED];
    size_t n;
};

static void wake_thread(void *arg)
{
    struct pb_autorecord *w = arg;
    uint64_t one = 1;

    (void)!write(w->wake, &one, sizeof(one));
}

static void ignore(void *arg)
{
    (void)arg;
}

static void wait_ms(struct pb_autorecord *w, int ms)
{
    uint64_t count;

    if (poll(&(struct pollfd){w->wake, POLLIN, 0}, 1, ms) > 0)
        (void)!read(w->wake, &count, sizeof(count));
}

/* --- commands --- */

static struct pb_serve_job *start_words(struct pb_autorecord *w, struct pb_words *words, unsigned limit_ms)
{
    const struct pb_serve_job_plan plan = {
        .argv = words->at, .limit_ms = limit_ms, .resume = wake_thread, .arg = w};
    struct pb_serve_job *job = NULL;
    struct pb_err err = {0};

    return pb_serve_job_start(w->jobs, &plan, &job, &err) < 0 ? NULL : job;
}

static void start_command(struct pb_autorecord *w, struct watched *at, int which)
{
    _cleanup_(pb_words_done) struct pb_words words = {0};

    if (which == RECORD ? !w->plan.rate : !w->plan.archive)
        return;
    pb_words_add(&words, w->s->program);
    pb_words_add(&words, "-t");
    pb_words_add(&words, at->id);
    pb_words_add(&words, which == RECORD ? "record" : "archive");
    if (which == RECORD)
        pb_words_add_option(&words, "--rate", w->plan.rate);
    if (which == RECORD && w->plan.watchdog)
        pb_words_add_option(&words, "--watchdog", w->plan.watchdog);
    if (which == ARCHIVE && w->plan.retention)
        pb_words_add_option(&words, "--retention", w->plan.retention);
    at->jobs[which] = start_words(w, &words, UINT_MAX);
}

/* Drains the output of a command, since a full pipe would block it. A command that ended is tried again
 * later: the process may not have been ready for archiving. */
static void look_at_command(struct pb_autorecord *w, struct watched *at, int which, uint64_t now)
{
    char piece[4096];
    ssize_t n = -EAGAIN;

    if (!at->jobs[which] && now >= at->due[which])
        start_command(w, at, which);
    while (at->jobs[which] && (n = pb_serve_job_read(at->jobs[which], piece, sizeof(piece), ignore)) > 0)
        ;
    if (!at->jobs[which] || n == -EAGAIN)
        return;
    pb_serve_job_release(at->jobs[which]);
    at->jobs[which] = NULL;
    at->due[which] = now + RETRY_MS * PB_NS_PER_MS;
}

static void release(struct watched *at)
{
    for (int i = 0; i < COMMANDS; i++)
        if (at->jobs[i])
            pb_serve_job_release(at->jobs[i]);
}

/* --- processes --- */

static void see(struct pb_autorecord *w, const char *id)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->at[i].id, id) == 0) {
            w->at[i].seen = true;
            return;
        }
    if (w->n == WATCHED)
        return;
    w->at[w->n] = (struct watched){.seen = true};
    snprintf(w->at[w->n++].id, sizeof(w->at[0].id), "%s", id);
}

static void take_list(struct pb_autorecord *w, const char *text, size_t length)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    char id[64];

    if (pb_json_parse(text, length, &j) < 0)
        return;
    for (size_t i = 0; i < w->n; i++)
        w->at[i].seen = false;
    for (uint32_t row = j.nodes[1].child; row; row = j.nodes[row].next) {
        uint32_t state = pb_json_get(&j, row, "state");
        if (state && (pb_json_is(&j, state, "probed") || pb_json_is(&j, state, "python")) &&
            pb_json_text(&j, pb_json_get(&j, row, "id"), id, sizeof(id)) > 0 && pb_route_is_id(id))
            see(w, id);
    }
    /* Commands of an ended process end by themselves, after its last rows. */
    for (size_t i = 0; i < w->n;) {
        bool busy = w->at[i].jobs[RECORD] || w->at[i].jobs[ARCHIVE];
        if (w->at[i].seen || busy) {
            i++;
            continue;
        }
        w->at[i] = w->at[--w->n];
    }
}

static void look_for_processes(struct pb_autorecord *w)
{
    _cleanup_(pb_words_done) struct pb_words words = {0};
    _cleanup_free_ char *text = malloc(LIST_MAX);
    size_t length = 0;
    ssize_t n = text ? -EAGAIN : 0;

    pb_words_add(&words, w->s->program);
    pb_words_add(&words, "list");
    pb_words_add(&words, "--json");
    struct pb_serve_job *job = text ? start_words(w, &words, LIST_MS) : NULL;
    while (job && !w->ending && length < LIST_MAX) {
        n = pb_serve_job_read(job, text + length, LIST_MAX - length, ignore);
        if (n > 0)
            length += (size_t)n;
        else if (n == -EAGAIN)
            wait_ms(w, 1000);
        else
            break;
    }
    if (job)
        pb_serve_job_release(job);
    if (job && n == 0)
        take_list(w, text, length);
}

static void *run_thread(void *arg)
{
    struct pb_autorecord *w = arg;
    uint64_t next = 0;

    while (!w->ending) {
        uint64_t now = pb_now_ns();
        if (now >= next) {
            look_for_processes(w);
            next = pb_now_ns() + LOOK_MS * PB_NS_PER_MS;
        }
        for (size_t i = 0; i < w->n; i++)
            for (int which = 0; which < COMMANDS; which++)
                if (w->at[i].seen || w->at[i].jobs[which])
                    look_at_command(w, &w->at[i], which, now);
        now = pb_now_ns();
        if (!w->ending && now < next)
            wait_ms(w, (int)((next - now) / PB_NS_PER_MS) + 1);
    }
    return NULL;
}

/* --- start and stop --- */

int pb_autorecord_new(const struct pb_service *s, const struct pb_autorecord_plan *plan,
                      struct pb_autorecord **ret, struct pb_err *err)
{
    *ret = NULL;
    if (!plan->rate && !plan->archive)
        return 0;
    struct pb_autorecord *w = calloc(1, sizeof(*w));
    if (!w)
        return pb_fail(err, -ENOMEM, "out of memory");
    w->s = s;
    w->plan = *plan;
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = pb_serve_jobs_new(s->folder, COMMANDS * WATCHED + 1, 0, &w->jobs, err);
    if (r == 0 && (w->wake < 0 || pthread_create(&w->thread, NULL, run_thread, w) != 0)) {
        r = pb_fail(err, -EAGAIN, "the service cannot start its threads");
        pb_serve_jobs_free(w->jobs);
    }
    if (r < 0) {
        free(w);
        return r;
    }
    *ret = w;
    return 0;
}

void pb_autorecord_free(struct pb_autorecord *w)
{
    if (!w)
        return;
    w->ending = true;
    wake_thread(w);
    pthread_join(w->thread, NULL);
    for (size_t i = 0; i < w->n; i++)
        release(&w->at[i]);
    pb_serve_jobs_free(w->jobs);
    close(w->wake);
    free(w);
}
