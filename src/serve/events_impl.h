/* events_impl: shared by topics.c, which runs commands and turns their output into events, and events.c,
 * which sends events to subscribers. */
#pragma once

#include "serve/events.h"
#include "serve/service.h"

#include <pthread.h>
#include <stdbool.h>

enum {
    PB_TOPICS = 32,       /* at once */
    PB_TOPICS_OTHERS = 8, /* of these for one other user */
    PB_TOPIC_EVENTS = 16  /* events of a topic */
};

struct pb_serve_job;
struct pb_serve_jobs;
struct pb_route;

/* An event as it is sent, shared by all subscribers. */
struct pb_topic_event {
    unsigned refs;
    uint64_t number;
    size_t length;
    char text[];
};

struct pb_topic {
    struct pb_topic *next;
    const struct pb_route *route;
    char name[96], id[64]; /* id: the process; "" for none */
    struct pb_credentials credentials;
    struct pb_topic_event *events[PB_TOPIC_EVENTS];
    size_t nevents;
    unsigned subscribers;
    uint64_t idle_since; /* when the last subscriber left */
    /* Used by the thread only: */
    struct pb_serve_job *job;
    uint64_t due, started;
    char *document; /* the part of an answer that has arrived */
    size_t length;
    char begin[2]; /* the first bytes of the current line, also of an answer that is too long to store */
    size_t nbegin;
    bool too_long;
    bool answered;   /* the command has given an answer */
    uint64_t digest; /* of the last one */
};

struct pb_events {
    struct pb_service *s;
    struct pb_serve_jobs *jobs; /* a separate pool: topics take no places from requests */
    pthread_mutex_t lock;       /* topics, their events, subscribers; under it libmicrohttpd's are taken */
    pthread_t thread;
    int wake;
    bool ending;
    uint64_t numbers; /* of events so far; the thread's alone */
    char boot[17];    /* ids of events of an earlier run of the service differ */
    struct pb_topic *topics;
    unsigned ntopics;
    char names[256]; /* of all topics that there are, for a person */
    struct pb_subscriber *subscribers;
};

struct pb_followed {
    struct pb_topic *topic;
    uint64_t after; /* the number of the last event that was sent or skipped */
};

struct pb_subscriber {
    struct pb_events *events;
    struct pb_subscriber *next;
    struct pb_subscription to;
    struct pb_followed at[PB_EVENTS_TOPICS];
    size_t n;
    struct pb_topic_event *sending;
    size_t sent;
    bool waiting, beat;
    uint64_t sent_at; /* when something was sent last */
};

/* --- topics.c --- */
/* The thread that runs the commands of all topics; arg: the events. */
void *pb_events_run(void *arg);
/* Has it look again. arg: the events. */
void pb_events_wake(void *arg);
/* The route of a topic; id: what followed the colon, or "". NULL: there is no such topic. */
const struct pb_route *pb_events_find(const char *name, size_t n, const char *id);
void pb_event_release(struct pb_topic_event *e);
/* With the lock held, as is the next. */
bool pb_subscriber_follows(const struct pb_subscriber *sub, const struct pb_topic *t);
void pb_subscriber_wake(struct pb_subscriber *sub);
