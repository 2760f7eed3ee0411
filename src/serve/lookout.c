/* lookout: see lookout.h. */
#include "serve/lookout.h"

#include "base/err.h"
#include "base/json.h"
#include "base/time.h"
#include "serve/answer.h"
#include "serve/command_words.h"
#include "serve/jobs.h"
#include "serve/service.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STANDING = 256, LINE_MAX_BYTES = 16384, RETRY_MS = 30000 };

struct standing {
    char job[96], job_pid[16], kind[32], rank[16], sure[16];
};

struct pb_lookout {
    const struct pb_service *s;
    const char *every;
    struct pb_serve_jobs *jobs;
    struct pb_serve_job *job;
    pthread_t thread;
    int wake;
    _Atomic bool ending;
    uint64_t due;
    char line[LINE_MAX_BYTES];
    size_t length;
};

/* Read by the threads of requests. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct standing standing[STANDING];
static size_t nstanding;
static bool looking;

static void wake_thread(void *arg)
{
    struct pb_lookout *l = arg;
    uint64_t one = 1;

    (void)!write(l->wake, &one, sizeof(one));
}

static void ignore(void *arg)
{
    (void)arg;
}

static void get(const struct pb_json *j, const char *key, char *ret, size_t size)
{
    uint32_t node = pb_json_get(j, 1, key);

    ret[0] = '\0';
    if (node && (j->nodes[node].kind || j->nodes[node].at[0] != 'n')) /* null */
        pb_json_text(j, node, ret, size);
}

static bool is_same(const struct standing *a, const struct standing *b)
{
    return strcmp(a->job_pid, b->job_pid) == 0 && strcmp(a->kind, b->kind) == 0 &&
           strcmp(a->rank, b->rank) == 0;
}

static void take_line(struct pb_lookout *l)
{
    struct pb_json j = {0};
    struct standing is = {0};
    char status[16];
    size_t i = 0;

    if (pb_json_parse(l->line, l->length, &j) < 0)
        return;
    get(&j, "status", status, sizeof(status));
    get(&j, "job", is.job, sizeof(is.job));
    get(&j, "job_pid", is.job_pid, sizeof(is.job_pid));
    get(&j, "kind", is.kind, sizeof(is.kind));
    get(&j, "rank", is.rank, sizeof(is.rank));
    get(&j, "sure", is.sure, sizeof(is.sure));
    pb_json_done(&j);
    pthread_mutex_lock(&lock);
    while (i < nstanding && !is_same(&standing[i], &is))
        i++;
    if (strcmp(status, "resolved") == 0 && i < nstanding)
        standing[i] = standing[--nstanding];
    else if (strcmp(status, "firing") == 0 && i == nstanding && nstanding < STANDING)
        standing[nstanding++] = is;
    pthread_mutex_unlock(&lock);
}

static void take_bytes(struct pb_lookout *l, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != '\n') {
            if (l->length < sizeof(l->line))
                l->line[l->length++] = bytes[i];
        } else {
            if (l->length < sizeof(l->line))
                take_line(l);
            l->length = 0;
        }
}

static void start(struct pb_lookout *l)
{
    struct pb_words words = {0};
    struct pb_err err = {0};

    pb_words_add(&words, l->s->program);
    pb_words_add(&words, "diagnose");
    pb_words_add_option(&words, "--every", l->every);
    pb_words_add(&words, "--json");
    const struct pb_serve_job_plan plan = {
        .argv = words.at, .limit_ms = UINT_MAX, .resume = wake_thread, .arg = l};
    if (pb_serve_job_start(l->jobs, &plan, &l->job, &err) < 0)
        l->job = NULL;
    pb_words_done(&words);
}

/* A command that has ended forgot what stands: it begins anew. */
static void end(struct pb_lookout *l)
{
    struct pb_serve_job_result result = pb_serve_job_result(l->job);

    if (result.over && !l->ending)
        fprintf(stderr, "probing: serve --diagnose: %s\n",
                result.errors && result.errors[0] ? pb_err_without_program(result.errors)
                                                  : "the command has ended");
    pb_serve_job_release(l->job);
    l->job = NULL;
    l->length = 0;
    /* A usage error would repeat: do not retry. */
    l->due = result.status == PB_EXIT_USAGE ? UINT64_MAX : pb_now_ns() + RETRY_MS * PB_NS_PER_MS;
    pthread_mutex_lock(&lock);
    nstanding = 0;
    pthread_mutex_unlock(&lock);
}

static void *run_thread(void *arg)
{
    struct pb_lookout *l = arg;
    char piece[4096];
    uint64_t count;
    ssize_t n;

    while (!l->ending) {
        if (!l->job && pb_now_ns() >= l->due)
            start(l);
        while (l->job && !l->ending &&
               (n = pb_serve_job_read(l->job, piece, sizeof(piece), ignore)) != -EAGAIN)
            if (n > 0)
                take_bytes(l, piece, (size_t)n);
            else
                end(l);
        if (!l->ending && poll(&(struct pollfd){l->wake, POLLIN, 0}, 1, 1000) > 0)
            (void)!read(l->wake, &count, sizeof(count));
    }
    return NULL;
}

int pb_lookout_new(const struct pb_service *s, const char *every, struct pb_lookout **ret, struct pb_err *err)
{
    *ret = NULL;
    if (!every)
        return 0;
    struct pb_lookout *l = calloc(1, sizeof(*l));
    if (!l)
        return pb_fail(err, -ENOMEM, "out of memory");
    l->s = s;
    l->every = every;
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = pb_serve_jobs_new(s->folder, 1, 0, &l->jobs, err);
    looking = true;
    if (r == 0 && (l->wake < 0 || pthread_create(&l->thread, NULL, run_thread, l) != 0)) {
        r = pb_fail(err, -EAGAIN, "the service cannot start its threads");
        pb_serve_jobs_free(l->jobs);
    }
    if (r < 0) {
        free(l);
        return r;
    }
    *ret = l;
    return 0;
}

void pb_lookout_free(struct pb_lookout *l)
{
    if (!l)
        return;
    l->ending = true;
    wake_thread(l);
    pthread_join(l->thread, NULL);
    if (l->job)
        pb_serve_job_release(l->job);
    pb_serve_jobs_free(l->jobs);
    close(l->wake);
    free(l);
}

static void put_label(FILE *to, const char *name, const char *value)
{
    fprintf(to, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            fputc('\\', to);
        if (*value != '\n')
            fputc(*value, to);
    }
    fputc('"', to);
}

void pb_lookout_put_metrics(FILE *to)
{
    pthread_mutex_lock(&lock);
    if (looking)
        fputs(
            "# HELP probing_finding What diagnose says is wrong with a job.\n# TYPE probing_finding gauge\n",
            to);
    for (size_t i = 0; i < nstanding; i++) {
        fputs("probing_finding{", to);
        put_label(to, "job", standing[i].job);
        put_label(to, ",kind", standing[i].kind);
        put_label(to, ",rank", standing[i].rank);
        put_label(to, ",sure", standing[i].sure);
        fputs("} 1\n", to);
    }
    pthread_mutex_unlock(&lock);
}
