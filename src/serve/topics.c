/* topics: the thread that runs a command for each topic and makes events of what it prints. See
 * events_impl.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/time.h"
#include "serve/answer.h"
#include "serve/events_impl.h"
#include "serve/jobs.h"
#include "serve/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    EVENT_BYTES = 2 << 20,  /* limit for the events of a topic; the newest is always kept */
    DOCUMENT_MAX = 1 << 20, /* of one answer */
    WORDS = 16,
    LINGER_MS = 3000, /* a page that is reloaded finds the command still running */
    RETRY_MS = 2000,  /* after a command that failed */
    REST = 3,         /* so many times as long as it took */
    BEAT_MS = 15000,  /* so that a closed connection is noticed */
};

const struct pb_route *pb_events_find(const char *name, size_t n, const char *id)
{
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));)
        if (r->topic.name && strlen(r->topic.name) == n && strncmp(r->topic.name, name, n) == 0 &&
            (strstr(r->path, "{id}") || (r->topic.target && *id) ? pb_route_is_id(id) : !*id))
            return r;
    return NULL;
}

void pb_events_wake(void *arg)
{
    struct pb_events *ev = arg;
    uint64_t one = 1;

    (void)!write(ev->wake, &one, sizeof(one));
}

void pb_event_release(struct pb_topic_event *e)
{
    if (e && --e->refs == 0)
        free(e);
}

/* --- events --- */

void pb_subscriber_wake(struct pb_subscriber *sub)
{
    if (sub->waiting) {
        sub->waiting = false;
        sub->to.resume(sub->to.arg);
    }
}

static void add_event(struct pb_topic *t, struct pb_topic_event *e)
{
    size_t bytes = e->length, from = t->nevents;

    while (from > 0 && t->nevents - from < PB_TOPIC_EVENTS - 1 &&
           bytes + t->events[from - 1]->length <= EVENT_BYTES)
        bytes += t->events[--from]->length;
    for (size_t i = 0; i < from; i++)
        pb_event_release(t->events[i]);
    t->nevents -= from;
    for (size_t i = 0; i < t->nevents; i++)
        t->events[i] = t->events[i + from];
    t->events[t->nevents++] = e;
}

bool pb_subscriber_follows(const struct pb_subscriber *sub, const struct pb_topic *t)
{
    for (size_t i = 0; i < sub->n; i++)
        if (sub->at[i].topic == t)
            return true;
    return false;
}

/* Formats an event for SSE: a data line for each line of the text. */
static char *write_event(const struct pb_events *ev, const struct pb_topic *t, uint64_t number,
                         const char *data, size_t length, size_t *ret_length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_length);

    if (!out)
        return NULL;
    fprintf(out, "id: %s-%" PRIu64 "\nevent: %s\n", ev->boot, number, t->name);
    while (length) {
        const char *end = memchr(data, '\n', length);
        size_t n = end ? (size_t)(end - data) : length;
        fputs("data: ", out);
        fwrite(data, 1, n, out);
        putc('\n', out);
        n += end != NULL;
        data += n;
        length -= n;
    }
    putc('\n', out);
    return fclose(out) == 0 ? text : NULL;
}

static void publish(struct pb_events *ev, struct pb_topic *t, const char *data, size_t length)
{
    size_t n;

    uint64_t number = ++ev->numbers;
    _cleanup_free_ char *text = write_event(ev, t, number, data, length, &n);
    struct pb_topic_event *e = text ? malloc(sizeof(*e) + n) : NULL;
    if (!e)
        return;
    *e = (struct pb_topic_event){.refs = 1, .number = number, .length = n};
    memcpy(e->text, text, n);
    pthread_mutex_lock(&ev->lock);
    add_event(t, e);
    for (struct pb_subscriber *sub = ev->subscribers; sub; sub = sub->next)
        if (sub->waiting && pb_subscriber_follows(sub, t))
            pb_subscriber_wake(sub);
    pthread_mutex_unlock(&ev->lock);
}

/* --- the thread: commands and what they print --- */

/* An error as a document: its message is the first line of `why`. NULL: out of memory. */
static char *error_text(const char *code, const char *why, bool retryable, size_t *ret_length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_length);

    *ret_length = 0;
    if (!out)
        return NULL;
    pb_answer_put_error(out, code, why, strcspn(why, "\n"), retryable);
    fclose(out);
    return text;
}

/* An answer equal to the one before is no event. */
static void end_document(struct pb_events *ev, struct pb_topic *t)
{
    _cleanup_free_ char *error = NULL;
    const char *data = t->document;
    size_t length = t->length;

    if (t->too_long) {
        error = error_text("too_long", "the answer is too long for an event", false, &length);
        data = error;
    }

    while (length && data[length - 1] == '\n')
        length--;
    uint64_t hash = pb_hash_bytes(PB_HASH_START, data, length);
    t->answered = t->answered || length;
    if (length && hash != t->digest) {
        t->digest = hash;
        publish(ev, t, data, length);
    }
    t->length = 0;
    t->too_long = false;
}

static void add_to_document(struct pb_topic *t, const char *bytes, size_t n)
{
    if (!t->document)
        t->document = malloc(DOCUMENT_MAX);
    t->too_long = t->too_long || !t->document || n > DOCUMENT_MAX - t->length;
    if (t->too_long)
        return;
    memcpy(t->document + t->length, bytes, n);
    t->length += n;
}

/* A command with --watch prints one JSON array after the other. Only the last line of an array begins with
 * its closing bracket. */
static void take_output(struct pb_events *ev, struct pb_topic *t, const char *bytes, size_t n)
{
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t length = end ? (size_t)(end - bytes) + 1 : n;
        add_to_document(t, bytes, length);
        for (size_t i = 0; i < length && t->nbegin < sizeof(t->begin); i++)
            t->begin[t->nbegin++] = bytes[i];
        bytes += length;
        n -= length;
        if (!end)
            continue;
        bool last = t->begin[0] == ']' || (t->nbegin == 2 && memcmp(t->begin, "[]", 2) == 0);
        t->nbegin = 0;
        if (last)
            end_document(ev, t);
    }
}

static void take_file(struct pb_events *ev, struct pb_topic *t)
{
    char piece[16384];
    _cleanup_close_ int fd = pb_serve_job_open_file(t->job);
    ssize_t n;

    while (fd >= 0 && (n = read(fd, piece, sizeof(piece))) > 0)
        add_to_document(t, piece, (size_t)n);
    end_document(ev, t);
}

static void take_failure(struct pb_events *ev, struct pb_topic *t, const struct pb_serve_job_result *end)
{
    size_t size;
    _cleanup_free_ char *text = error_text("failed", pb_err_without_program(end->errors), true, &size);

    if (!text)
        return;
    t->length = 0;
    t->too_long = false;
    add_to_document(t, text, size);
    end_document(ev, t);
}

/* Whether the command answered: diagnose exits with other statuses if it found something, or if a process did
 * not answer. */
static bool has_answered(const struct pb_topic *t, const struct pb_serve_job_result *end)
{
    return end->status == 0 || end->status == PB_EXIT_FOUND ||
           (t->route->flags & PB_ROUTE_PARTIAL && end->status == 3 && !end->late);
}

/* A command that looks at a job takes longer the more there is: it rests in proportion, so that its share of
 * a CPU stays the same. */
static uint64_t pause_ns(const struct pb_topic *t, bool answered, int status)
{
    const struct pb_topic_spec *spec = &t->route->topic;
    uint64_t least = (!answered                                  ? RETRY_MS
                      : spec->calm_ms && status != PB_EXIT_FOUND ? spec->calm_ms
                                                                 : spec->every_ms) *
                     PB_NS_PER_MS,
             rest = spec->calm_ms ? REST * (pb_now_ns() - t->started) : 0;

    return rest > least ? rest : least;
}

static void finish_job(struct pb_events *ev, struct pb_topic *t)
{
    struct pb_serve_job_result end = pb_serve_job_result(t->job);
    bool answered = has_answered(t, &end);

    if (answered)
        end_document(ev, t);
    else if (!t->answered)
        take_failure(ev, t, &end);
    t->length = t->nbegin = 0;
    t->too_long = false;
    pb_serve_job_release(t->job);
    t->job = NULL;
    t->due = pb_now_ns() + pause_ns(t, answered, end.status);
}

static void ignore(void *arg)
{
    (void)arg;
}

static void start_job(struct pb_events *ev, struct pb_topic *t)
{
    const struct pb_route *route = t->route;
    const struct pb_form *form = pb_route_form(route, route->topic.form);
    char *words[WORDS] = {ev->s->program};
    struct pb_err err = {0};
    size_t n = 1;

    if (route->topic.target && t->id[0]) {
        words[n++] = (char *)(uintptr_t) "-t";
        words[n++] = t->id;
    }
    for (const char *const *word = route->words; *word && n < WORDS - 3; word++)
        words[n++] = strcmp(*word, "{id}") == 0 ? t->id : (char *)(uintptr_t)*word;
    if (form->option)
        words[n++] = (char *)(uintptr_t)form->option;
    if (route->topic.more)
        words[n++] = (char *)(uintptr_t)route->topic.more;
    const struct pb_serve_job_plan plan = {.argv = words,
                                           .file = form->file,
                                           .limit_ms = route->topic.more ? UINT_MAX : route->limit_s * 1000,
                                           .credentials = t->credentials,
                                           .resume = pb_events_wake,
                                           .arg = ev};
    t->answered = false;
    t->started = pb_now_ns();
    if (pb_serve_job_start(ev->jobs, &plan, &t->job, &err) < 0) {
        t->job = NULL;
        t->due = pb_now_ns() + RETRY_MS * PB_NS_PER_MS;
    }
}

static void advance_job(struct pb_events *ev, struct pb_topic *t)
{
    char piece[16384];
    ssize_t n;

    if (pb_route_form(t->route, t->route->topic.form)->file) {
        if (!pb_serve_job_ready(t->job, ignore))
            return;
        if (pb_serve_job_result(t->job).status == 0)
            take_file(ev, t);
        finish_job(ev, t);
        return;
    }
    while ((n = pb_serve_job_read(t->job, piece, sizeof(piece), ignore)) > 0)
        take_output(ev, t, piece, (size_t)n);
    if (n != -EAGAIN)
        finish_job(ev, t);
}

static void free_topic(struct pb_topic *t)
{
    for (size_t i = 0; i < t->nevents; i++)
        pb_event_release(t->events[i]);
    if (t->job)
        pb_serve_job_release(t->job);
    free(t->document);
    free(t);
}

/* Frees topics without subscribers for a while, and sends heartbeats. */
static void drop_idle(struct pb_events *ev, uint64_t now)
{
    struct pb_topic *dropped = NULL;

    pthread_mutex_lock(&ev->lock);
    for (struct pb_topic **at = &ev->topics; *at;) {
        struct pb_topic *t = *at;
        if (t->subscribers || (!ev->ending && now - t->idle_since < LINGER_MS * PB_NS_PER_MS)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->next = dropped;
        dropped = t;
        ev->ntopics--;
    }
    for (struct pb_subscriber *sub = ev->subscribers; sub; sub = sub->next)
        if (sub->waiting && now - sub->sent_at > BEAT_MS * PB_NS_PER_MS) {
            sub->beat = true;
            pb_subscriber_wake(sub);
        }
    pthread_mutex_unlock(&ev->lock);
    while (dropped) {
        struct pb_topic *t = dropped;
        dropped = t->next;
        free_topic(t);
    }
}

/* The time until something is to be done, in ms. */
static int advance_all(struct pb_events *ev)
{
    uint64_t now = pb_now_ns(), next = now + 1000 * PB_NS_PER_MS;

    drop_idle(ev, now);
    pthread_mutex_lock(&ev->lock);
    struct pb_topic *t =
        ev->ending ? NULL : ev->topics; /* other threads only prepend; this thread alone removes */
    bool any = ev->topics || ev->subscribers;
    pthread_mutex_unlock(&ev->lock);
    for (; t; t = t->next) {
        if (!t->job && now >= t->due)
            start_job(ev, t);
        if (t->job)
            advance_job(ev, t);
        if (!t->job && t->due < next)
            next = t->due;
    }
    now = pb_now_ns();
    return !any ? -1 : next > now ? (int)((next - now) / PB_NS_PER_MS) + 1 : 0;
}

void *pb_events_run(void *arg)
{
    struct pb_events *ev = arg;
    uint64_t count;
    bool ended = false;

    while (!ended) {
        int ms = advance_all(ev);
        pthread_mutex_lock(&ev->lock);
        ended = ev->ending && !ev->topics;
        pthread_mutex_unlock(&ev->lock);
        if (!ended && poll(&(struct pollfd){ev->wake, POLLIN, 0}, 1, ms) > 0)
            (void)!read(ev->wake, &count, sizeof(count));
    }
    return NULL;
}
