/* events: one stream of events (SSE) for all clients that follow the same topics.
 *
 * A topic is a route whose command runs again and again, once for all subscribers, as long as there are any.
 * Its answers are events: each is written once, stored for a while, and shared by all connections that send
 * it. A subscriber is an index into the list of events, so a slow one costs nothing and misses events that
 * were dropped. One thread runs the commands of all topics. */
#pragma once

#include "serve/credentials.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_events;
struct pb_service;
struct pb_subscriber;

#define PB_EVENTS_TOPICS 16 /* of one subscriber */

/* A reader. suspend is called when there is nothing to read, resume when there is again, both under one lock,
 * so that no wakeup is lost. */
struct pb_subscription {
    const char *topics;  /* NAME or NAME:ID, separated by commas */
    const char *last_id; /* the last event that was seen, as Last-Event-ID has it; NULL: none */
    void (*suspend)(void *arg);
    void (*resume)(void *arg);
    void *arg;
    struct pb_credentials credentials; /* whose rights the commands have: each user has separate topics */
};

int pb_events_new(struct pb_service *s, struct pb_events **ret, struct pb_err *err);
/* Ends all streams and commands; pb_subscriber_read returns 0 from now on. */
void pb_events_end(struct pb_events *events);
/* When all subscribers have left. */
void pb_events_free(struct pb_events *events);

/* -EINVAL: there is no such topic; -EBUSY: too many topics. */
int pb_events_subscribe(struct pb_events *events, const struct pb_subscription *to,
                        struct pb_subscriber **ret, struct pb_err *err);
/* The next bytes of the stream; -EAGAIN: suspend was called; 0: the service ends. */
ssize_t pb_subscriber_read(struct pb_subscriber *sub, char *ret, size_t size);
void pb_subscriber_leave(struct pb_subscriber *sub);
