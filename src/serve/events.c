/* events: see events.h. */
#include "serve/events.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "print/records.h"
#include "serve/errand.h"
#include "serve/routes.h"
#include "serve/service.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TOPICS = 32,            /* at once */
    KEPT = 16,              /* events of a topic */
    KEPT_BYTES = 2 << 20,   /* and of those so many bytes, but the newest is kept whatever it takes */
    DOCUMENT_MAX = 1 << 20, /* of one answer */
    WORDS = 16,
    LINGER_MS = 3000, /* a page that is loaded again finds the command still running */
    RETRY_MS = 2000,  /* after a command that failed */
    BEAT_MS = 15000,  /* so a client that went is noticed */
};

/* What can be followed: a route, what its command is told beside, and how long after its end it runs
 * again. */
static const struct follow {
    const char *name, *path;
    const char *more;
    const char *form; /* NULL: the route's first */
    unsigned every_ms;
} follows[] = {
    {"now", "/api/v1/now", "--watch", NULL, 1000},
    {"targets", "/api/v1/targets", NULL, NULL, 3000},
    {"alerts", "/api/v1/alerts", NULL, NULL, 2000},
    {"hangs", "/api/v1/hangs", NULL, NULL, 2000},
    {"stacks", "/api/v1/targets/{id}/stacks", "--watch", NULL, 1000},
    {"memory", "/api/v1/targets/{id}/memory", NULL, NULL, 2000},
    {"torch", "/api/v1/targets/{id}/torch", NULL, NULL, 2000},
    {"profile", "/api/v1/targets/{id}/profile", "--duration=5", "speedscope", 0},
};
enum { FOLLOWS = sizeof(follows) / sizeof(follows[0]) };

/* An event as it is sent, shared by all who send it. */
struct event {
    unsigned refs;
    uint64_t number;
    size_t length;
    char text[];
};

struct topic {
    struct topic *next;
    const struct follow *follow;
    char name[96], id[64]; /* id: the process, "" where it is about none */
    struct event *kept[KEPT];
    size_t nkept;
    unsigned subscribers;
    uint64_t idle_since; /* when the last one left */
    /* Of the thread alone: */
    struct pb_errand *job;
    uint64_t due;
    char *document; /* what has come of an answer */
    size_t length;
    bool too_long;
    bool answered;   /* the command has given an answer */
    uint64_t digest; /* of the last one */
};

struct pb_events {
    struct pb_service *s;
    struct pb_errands *jobs; /* its own: who follows something takes no place from those who ask */
    pthread_mutex_t lock;    /* topics, their events, subscribers; under it libmicrohttpd's are taken */
    pthread_t thread;
    int wake;
    bool ending;
    uint64_t numbers; /* of events so far; the thread's alone */
    char boot[17];    /* events of another life of the service have other names */
    struct topic *topics;
    unsigned ntopics;
    struct pb_subscriber *subscribers;
};

struct followed {
    struct topic *topic;
    uint64_t after; /* the number of the last event that was sent, or is not wanted */
};

struct pb_subscriber {
    struct pb_events *events;
    struct pb_subscriber *next;
    struct pb_subscription to;
    struct followed at[PB_EVENTS_TOPICS];
    size_t n;
    struct event *sending;
    size_t sent;
    bool waiting, beat;
    uint64_t heard; /* when something was sent last */
};

const char *pb_events_topics(void)
{
    return "now, targets, alerts, hangs, stacks:ID, memory:ID, torch:ID, profile:ID";
}

static void wake_thread(void *arg)
{
    struct pb_events *ev = arg;
    uint64_t one = 1;

    (void)!write(ev->wake, &one, sizeof(one));
}

static void release_event(struct event *e)
{
    if (e && --e->refs == 0)
        free(e);
}

/* --- events --- */

/* With the lock held, as is the next. */
static void wake_subscriber(struct pb_subscriber *sub)
{
    if (sub->waiting) {
        sub->waiting = false;
        sub->to.resume(sub->to.arg);
    }
}

static void keep_event(struct topic *t, struct event *e)
{
    size_t bytes = e->length, from = t->nkept;

    while (from > 0 && t->nkept - from < KEPT - 1 && bytes + t->kept[from - 1]->length <= KEPT_BYTES)
        bytes += t->kept[--from]->length;
    for (size_t i = 0; i < from; i++)
        release_event(t->kept[i]);
    t->nkept -= from;
    for (size_t i = 0; i < t->nkept; i++)
        t->kept[i] = t->kept[i + from];
    t->kept[t->nkept++] = e;
}

static bool follows_topic(const struct pb_subscriber *sub, const struct topic *t)
{
    for (size_t i = 0; i < sub->n; i++)
        if (sub->at[i].topic == t)
            return true;
    return false;
}

/* The text as SSE has it: a line of data for each of its lines. */
static char *write_event(const struct pb_events *ev, const struct topic *t, uint64_t number, const char *data,
                         size_t length, size_t *ret_length)
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

static void publish(struct pb_events *ev, struct topic *t, const char *data, size_t length)
{
    size_t n;

    uint64_t number = ++ev->numbers;
    _cleanup_free_ char *text = write_event(ev, t, number, data, length, &n);
    struct event *e = text ? malloc(sizeof(*e) + n) : NULL;
    if (!e)
        return;
    *e = (struct event){.refs = 1, .number = number, .length = n};
    memcpy(e->text, text, n);
    pthread_mutex_lock(&ev->lock);
    keep_event(t, e);
    for (struct pb_subscriber *sub = ev->subscribers; sub; sub = sub->next)
        if (sub->waiting && follows_topic(sub, t))
            wake_subscriber(sub);
    pthread_mutex_unlock(&ev->lock);
}

/* --- the thread: commands and what they print --- */

static uint64_t digest(const char *text, size_t length)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* An answer that says the same as the one before is no event. */
static void end_document(struct pb_events *ev, struct topic *t)
{
    static const char late[] =
        "{\"error\":{\"code\":\"too_long\",\"message\":\"the answer is too long for an "
        "event\",\"retryable\":false}}";
    const char *data = t->too_long ? late : t->document;
    size_t length = t->too_long ? sizeof(late) - 1 : t->length;

    while (length && data[length - 1] == '\n')
        length--;
    uint64_t hash = digest(data, length);
    t->answered = t->answered || length;
    if (length && hash != t->digest) {
        t->digest = hash;
        publish(ev, t, data, length);
    }
    t->length = 0;
    t->too_long = false;
}

static void add_to_document(struct topic *t, const char *bytes, size_t n)
{
    if (!t->document)
        t->document = malloc(DOCUMENT_MAX);
    t->too_long = t->too_long || !t->document || n > DOCUMENT_MAX - t->length;
    if (t->too_long)
        return;
    memcpy(t->document + t->length, bytes, n);
    t->length += n;
}

/* A command that goes on prints one JSON array after the other; each ends with a line that begins with its
 * bracket, which no line inside of it does. */
static void take_output(struct pb_events *ev, struct topic *t, const char *bytes, size_t n)
{
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t length = end ? (size_t)(end - bytes) + 1 : n;
        add_to_document(t, bytes, length);
        bytes += length;
        n -= length;
        if (!end || t->length < 2 || t->too_long)
            continue;
        const char *line = memrchr(t->document, '\n', t->length - 1);
        line = line ? line + 1 : t->document;
        if (line[0] == ']' || strncmp(line, "[]", 2) == 0)
            end_document(ev, t);
    }
}

static void take_file(struct pb_events *ev, struct topic *t)
{
    char piece[16384];
    _cleanup_close_ int fd = pb_errand_open_file(t->job);
    ssize_t n;

    while (fd >= 0 && (n = read(fd, piece, sizeof(piece))) > 0)
        add_to_document(t, piece, (size_t)n);
    end_document(ev, t);
}

static void take_failure(struct pb_events *ev, struct topic *t, const struct pb_errand_end *end)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const char *said = strncmp(end->errors, "probing: ", 9) == 0 ? end->errors + 9 : end->errors;

    if (!out)
        return;
    fputs("{\"error\":{\"code\":\"failed\",\"message\":", out);
    pb_put_json(out, said, strcspn(said, "\n"));
    fputs(",\"retryable\":true}}", out);
    fclose(out);
    t->length = 0;
    add_to_document(t, text, size);
    free(text);
    end_document(ev, t);
}

static void finish_job(struct pb_events *ev, struct topic *t)
{
    struct pb_errand_end end = pb_errand_end(t->job);

    if (!end.status)
        end_document(ev, t);
    else if (!t->answered)
        take_failure(ev, t, &end);
    t->length = 0;
    pb_errand_release(t->job);
    t->job = NULL;
    t->due = pb_now_ns() + (end.status ? RETRY_MS : t->follow->every_ms) * PB_NS_PER_MS;
}

static const struct pb_form *form_of(const struct follow *f, const struct pb_route *route)
{
    for (const struct pb_form *form = route->forms; f->form && form->name; form++)
        if (strcmp(form->name, f->form) == 0)
            return form;
    return route->forms;
}

static const struct pb_route *route_of(const struct follow *f)
{
    for (const struct pb_route *r = pb_routes; r->method; r++)
        if (strcmp(r->method, "GET") == 0 && strcmp(r->path, f->path) == 0)
            return r;
    return NULL;
}

static void ignore(void *arg)
{
    (void)arg;
}

static void start_job(struct pb_events *ev, struct topic *t)
{
    const struct pb_route *route = route_of(t->follow);
    const struct pb_form *form = form_of(t->follow, route);
    char *words[WORDS] = {ev->s->program};
    struct pb_err err = {0};
    size_t n = 1;

    for (const char *const *word = route->words; *word && n < WORDS - 3; word++)
        words[n++] = strcmp(*word, "{id}") == 0 ? t->id : (char *)(uintptr_t)*word;
    if (form->option)
        words[n++] = (char *)(uintptr_t)form->option;
    if (t->follow->more)
        words[n++] = (char *)(uintptr_t)t->follow->more;
    const struct pb_errand_plan plan = {.argv = words,
                                        .file = form->file,
                                        .limit_ms = t->follow->more ? UINT_MAX : route->limit_s * 1000,
                                        .resume = wake_thread,
                                        .arg = ev};
    t->answered = false;
    if (pb_errand_start(ev->jobs, &plan, &t->job, &err) < 0) {
        t->job = NULL;
        t->due = pb_now_ns() + RETRY_MS * PB_NS_PER_MS;
    }
}

static void advance_job(struct pb_events *ev, struct topic *t)
{
    char piece[16384];
    ssize_t n;

    if (form_of(t->follow, route_of(t->follow))->file) {
        if (!pb_errand_ready(t->job, ignore))
            return;
        if (pb_errand_end(t->job).status == 0)
            take_file(ev, t);
        finish_job(ev, t);
        return;
    }
    while ((n = pb_errand_read(t->job, piece, sizeof(piece), ignore)) > 0)
        take_output(ev, t, piece, (size_t)n);
    if (n != -EAGAIN)
        finish_job(ev, t);
}

static void free_topic(struct topic *t)
{
    for (size_t i = 0; i < t->nkept; i++)
        release_event(t->kept[i]);
    if (t->job)
        pb_errand_release(t->job);
    free(t->document);
    free(t);
}

/* Those that nobody has followed for a while. */
static void drop_idle(struct pb_events *ev, uint64_t now)
{
    struct topic *dropped = NULL;

    pthread_mutex_lock(&ev->lock);
    for (struct topic **at = &ev->topics; *at;) {
        struct topic *t = *at;
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
        if (sub->waiting && now - sub->heard > BEAT_MS * PB_NS_PER_MS) {
            sub->beat = true;
            wake_subscriber(sub);
        }
    pthread_mutex_unlock(&ev->lock);
    while (dropped) {
        struct topic *t = dropped;
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
    struct topic *t =
        ev->ending ? NULL : ev->topics; /* others add only in front, and this thread alone removes */
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

static void *run_thread(void *arg)
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

/* --- subscribers --- */

static const struct follow *find_follow(const char *name, size_t n, const char *id)
{
    for (size_t i = 0; i < FOLLOWS; i++)
        if (strlen(follows[i].name) == n && strncmp(follows[i].name, name, n) == 0 &&
            (strstr(follows[i].path, "{id}") ? pb_route_is_id(id) : !*id))
            return &follows[i];
    return NULL;
}

/* With the lock held. */
static int add_topic(struct pb_events *ev, struct pb_subscriber *sub, const char *name, struct pb_err *err)
{
    const char *colon = strchr(name, ':'), *id = colon ? colon + 1 : "";
    struct topic *t = ev->topics;

    if (sub->n == PB_EVENTS_TOPICS)
        return pb_fail(err, -EINVAL, "more than %d topics", (int)PB_EVENTS_TOPICS);
    while (t && strcmp(t->name, name) != 0)
        t = t->next;
    if (!t) {
        const struct follow *f = find_follow(name, colon ? (size_t)(colon - name) : strlen(name), id);
        if (!f)
            return pb_fail(err, -EINVAL, "there is no topic '%.60s'; there are %s", name, pb_events_topics());
        if (ev->ntopics == TOPICS)
            return pb_fail(err, -EBUSY, "%d topics are followed already: ask again", (int)TOPICS);
        t = calloc(1, sizeof(*t));
        if (!t)
            return pb_fail(err, -ENOMEM, "out of memory");
        t->follow = f;
        snprintf(t->name, sizeof(t->name), "%s", name);
        snprintf(t->id, sizeof(t->id), "%s", id);
        t->next = ev->topics;
        ev->topics = t;
        ev->ntopics++;
    }
    if (follows_topic(sub, t))
        return 0;
    t->subscribers++;
    sub->at[sub->n++] = (struct followed){.topic = t};
    return 0;
}

/* Where it goes on: behind the event that it saw last; a new one begins with the newest of each topic. */
static void set_places(const struct pb_events *ev, struct pb_subscriber *sub)
{
    const char *last = sub->to.last_id;
    size_t n = strlen(ev->boot);
    bool known = last && strncmp(last, ev->boot, n) == 0 && last[n] == '-';
    uint64_t number = known ? strtoull(last + n + 1, NULL, 10) : 0;

    for (size_t i = 0; i < sub->n; i++) {
        const struct topic *t = sub->at[i].topic;
        sub->at[i].after = known ? number : t->nkept ? t->kept[t->nkept - 1]->number - 1 : 0;
    }
}

static void leave_topics(struct pb_subscriber *sub)
{
    for (size_t i = 0; i < sub->n; i++)
        if (--sub->at[i].topic->subscribers == 0)
            sub->at[i].topic->idle_since = sub->at[i].topic->nkept ? pb_now_ns() : 0;
    sub->n = 0;
}

int pb_events_subscribe(struct pb_events *ev, const struct pb_subscription *to, struct pb_subscriber **ret,
                        struct pb_err *err)
{
    struct pb_subscriber *sub = calloc(1, sizeof(*sub));
    _cleanup_free_ char *copy = strdup(to->topics);
    char *rest = copy;
    int r = sub && copy ? 0 : pb_fail(err, -ENOMEM, "out of memory");

    if (r < 0) {
        free(sub);
        return r;
    }
    *sub = (struct pb_subscriber){.events = ev, .to = *to, .heard = pb_now_ns()};
    pthread_mutex_lock(&ev->lock);
    if (ev->ending)
        r = pb_fail(err, -EBUSY, "the service ends");
    for (char *name; r == 0 && (name = strsep(&rest, ","));)
        if (*name)
            r = add_topic(ev, sub, name, err);
    if (r == 0 && sub->n == 0)
        r = pb_fail(err, -EINVAL, "topics= names none; there are %s", pb_events_topics());
    if (r == 0) {
        set_places(ev, sub);
        sub->next = ev->subscribers;
        ev->subscribers = sub;
        *ret = sub;
    } else {
        leave_topics(sub);
    }
    pthread_mutex_unlock(&ev->lock);
    wake_thread(ev);
    if (r < 0)
        free(sub);
    return r;
}

/* The oldest event that it has not seen, over all its topics. */
static bool take_next(struct pb_subscriber *sub)
{
    struct followed *from = NULL;
    struct event *next = NULL;

    for (size_t i = 0; i < sub->n; i++) {
        const struct topic *t = sub->at[i].topic;
        for (size_t k = 0; k < t->nkept; k++)
            if (t->kept[k]->number > sub->at[i].after) {
                if (!next || t->kept[k]->number < next->number) {
                    next = t->kept[k];
                    from = &sub->at[i];
                }
                break;
            }
    }
    if (!next)
        return false;
    from->after = next->number;
    next->refs++;
    sub->sending = next;
    sub->sent = 0;
    return true;
}

ssize_t pb_subscriber_read(struct pb_subscriber *sub, char *ret, size_t size)
{
    struct pb_events *ev = sub->events;
    ssize_t n = -EAGAIN;

    pthread_mutex_lock(&ev->lock);
    if (ev->ending) {
        n = 0;
    } else if (sub->sending || take_next(sub)) {
        size_t left = sub->sending->length - sub->sent;
        n = (ssize_t)(left < size ? left : size);
        memcpy(ret, sub->sending->text + sub->sent, (size_t)n);
        sub->sent += (size_t)n;
        if (sub->sent == sub->sending->length) {
            release_event(sub->sending);
            sub->sending = NULL;
        }
    } else if (sub->beat && size >= 3) {
        memcpy(ret, ":\n\n", 3);
        n = 3;
    } else {
        sub->waiting = true;
        sub->to.suspend(sub->to.arg);
    }
    if (n > 0) {
        sub->beat = false;
        sub->heard = pb_now_ns();
    }
    pthread_mutex_unlock(&ev->lock);
    return n;
}

void pb_subscriber_leave(struct pb_subscriber *sub)
{
    struct pb_events *ev = sub->events;

    pthread_mutex_lock(&ev->lock);
    for (struct pb_subscriber **at = &ev->subscribers; *at; at = &(*at)->next)
        if (*at == sub) {
            *at = sub->next;
            break;
        }
    leave_topics(sub);
    release_event(sub->sending);
    pthread_mutex_unlock(&ev->lock);
    free(sub);
    wake_thread(ev);
}

/* --- its life --- */

int pb_events_new(struct pb_service *s, struct pb_events **ret, struct pb_err *err)
{
    struct pb_events *ev = calloc(1, sizeof(*ev));
    uint64_t random = 0;

    if (!ev)
        return pb_fail(err, -ENOMEM, "out of memory");
    ev->s = s;
    ev->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&ev->lock, NULL);
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        random = pb_now_ns();
    snprintf(ev->boot, sizeof(ev->boot), "%016" PRIx64, random);
    int r = pb_errands_new(s->folder, TOPICS, &ev->jobs, err);
    if (r == 0 && (ev->wake < 0 || pthread_create(&ev->thread, NULL, run_thread, ev) != 0)) {
        r = pb_fail(err, -EAGAIN, "the service cannot start its threads");
        pb_errands_free(ev->jobs);
    }
    if (r < 0) {
        free(ev);
        return r;
    }
    *ret = ev;
    return 0;
}

void pb_events_end(struct pb_events *ev)
{
    pthread_mutex_lock(&ev->lock);
    ev->ending = true;
    for (struct pb_subscriber *sub = ev->subscribers; sub; sub = sub->next)
        wake_subscriber(sub); /* libmicrohttpd ends only where nobody is suspended */
    pthread_mutex_unlock(&ev->lock);
    wake_thread(ev);
}

void pb_events_free(struct pb_events *ev)
{
    if (!ev)
        return;
    pb_events_end(ev);
    pthread_join(ev->thread, NULL);
    pb_errands_free(ev->jobs);
    close(ev->wake);
    pthread_mutex_destroy(&ev->lock);
    free(ev);
}
