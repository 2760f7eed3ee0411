/* events: subscribers, and what is sent to them. See events.h and events_impl.h. */
#include "serve/events_impl.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "serve/jobs.h"
#include "serve/routes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* With the lock held. */
static int add_topic(struct pb_events *ev, struct pb_subscriber *sub, const char *name, struct pb_err *err)
{
    const char *colon = strchr(name, ':'), *id = colon ? colon + 1 : "";
    struct pb_topic *t = ev->topics;
    uid_t uid = sub->to.credentials.uid;
    unsigned same = 0;

    if (sub->n == PB_EVENTS_TOPICS)
        return pb_fail(err, -EINVAL, "more than %d topics", (int)PB_EVENTS_TOPICS);
    for (; t && (t->credentials.uid != uid || strcmp(t->name, name) != 0); t = t->next)
        same += t->credentials.uid == uid;
    if (!t) {
        const struct pb_route *route =
            pb_events_find(name, colon ? (size_t)(colon - name) : strlen(name), id);
        if (!route)
            return pb_fail(err, -EINVAL, "there is no topic '%.60s'; there are %s", name, ev->names);
        if (!pb_credentials_may_take(uid, PB_TOPICS, ev->ntopics, same) || (uid && same >= PB_TOPICS_OTHERS))
            return pb_fail(err, -EBUSY, "too many topics are followed already; try again later");
        t = calloc(1, sizeof(*t));
        if (!t)
            return pb_fail(err, -ENOMEM, "out of memory");
        t->route = route;
        t->credentials = sub->to.credentials;
        snprintf(t->name, sizeof(t->name), "%s", name);
        snprintf(t->id, sizeof(t->id), "%s", id);
        t->next = ev->topics;
        ev->topics = t;
        ev->ntopics++;
    }
    if (pb_subscriber_follows(sub, t))
        return 0;
    t->subscribers++;
    sub->at[sub->n++] = (struct pb_followed){.topic = t};
    return 0;
}

/* A subscriber continues after its last event (Last-Event-ID); a new one begins with the newest event of each
 * topic. */
static void set_places(const struct pb_events *ev, struct pb_subscriber *sub)
{
    const char *last = sub->to.last_id;
    size_t n = strlen(ev->boot);
    bool known = last && strncmp(last, ev->boot, n) == 0 && last[n] == '-';
    uint64_t number = known ? strtoull(last + n + 1, NULL, 10) : 0;

    for (size_t i = 0; i < sub->n; i++) {
        const struct pb_topic *t = sub->at[i].topic;
        sub->at[i].after = known ? number : t->nevents ? t->events[t->nevents - 1]->number - 1 : 0;
    }
}

static void leave_topics(struct pb_subscriber *sub)
{
    for (size_t i = 0; i < sub->n; i++)
        if (--sub->at[i].topic->subscribers == 0)
            sub->at[i].topic->idle_since = sub->at[i].topic->nevents ? pb_now_ns() : 0;
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
    *sub = (struct pb_subscriber){.events = ev, .to = *to, .sent_at = pb_now_ns()};
    pthread_mutex_lock(&ev->lock);
    if (ev->ending)
        r = pb_fail(err, -EBUSY, "the service ends");
    for (char *name; r == 0 && (name = strsep(&rest, ","));)
        if (*name)
            r = add_topic(ev, sub, name, err);
    if (r == 0 && sub->n == 0)
        r = pb_fail(err, -EINVAL, "topics= names none; there are %s", ev->names);
    if (r == 0) {
        set_places(ev, sub);
        sub->next = ev->subscribers;
        ev->subscribers = sub;
        *ret = sub;
    } else {
        leave_topics(sub);
    }
    pthread_mutex_unlock(&ev->lock);
    pb_events_wake(ev);
    if (r < 0)
        free(sub);
    return r;
}

/* Takes the oldest event that was not sent yet, over all topics of the subscriber. */
static bool take_next(struct pb_subscriber *sub)
{
    struct pb_followed *from = NULL;
    struct pb_topic_event *next = NULL;

    for (size_t i = 0; i < sub->n; i++) {
        const struct pb_topic *t = sub->at[i].topic;
        for (size_t k = 0; k < t->nevents; k++)
            if (t->events[k]->number > sub->at[i].after) {
                if (!next || t->events[k]->number < next->number) {
                    next = t->events[k];
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
            pb_event_release(sub->sending);
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
        sub->sent_at = pb_now_ns();
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
    pb_event_release(sub->sending);
    pthread_mutex_unlock(&ev->lock);
    free(sub);
    pb_events_wake(ev);
}

/* --- start and stop --- */

static void write_names(struct pb_events *ev)
{
    size_t n = 0;

    for (const struct pb_route *r = NULL; (r = pb_route_next(r));)
        if (r->topic.name && n < sizeof(ev->names))
            n +=
                (size_t)snprintf(ev->names + n, sizeof(ev->names) - n, "%s%s%s", n ? ", " : "", r->topic.name,
                                 strstr(r->path, "{id}") ? ":ID"
                                 : r->topic.target       ? "[:ID]"
                                                         : "");
}

int pb_events_new(struct pb_service *s, struct pb_events **ret, struct pb_err *err)
{
    struct pb_events *ev = calloc(1, sizeof(*ev));
    uint64_t random = 0;

    if (!ev)
        return pb_fail(err, -ENOMEM, "out of memory");
    ev->s = s;
    write_names(ev);
    ev->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&ev->lock, NULL);
    if (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random))
        random = pb_now_ns();
    snprintf(ev->boot, sizeof(ev->boot), "%016" PRIx64, random);
    int r = pb_serve_jobs_new(s->folder, PB_TOPICS, 0, &ev->jobs, err);
    if (r == 0 && (ev->wake < 0 || pthread_create(&ev->thread, NULL, pb_events_run, ev) != 0)) {
        r = pb_fail(err, -EAGAIN, "the service cannot start its threads");
        pb_serve_jobs_free(ev->jobs);
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
        pb_subscriber_wake(sub); /* libmicrohttpd cannot stop while a connection is suspended */
    pthread_mutex_unlock(&ev->lock);
    pb_events_wake(ev);
}

void pb_events_free(struct pb_events *ev)
{
    if (!ev)
        return;
    pb_events_end(ev);
    pthread_join(ev->thread, NULL);
    pb_serve_jobs_free(ev->jobs);
    close(ev->wake);
    pthread_mutex_destroy(&ev->lock);
    free(ev);
}
