/* agent: the one instance of everything that runs inside the target, owned by the resident thread. */
#pragma once

#include "agent/run.h"
#include "agent/server.h"
#include "control/settings.h"

#include <stdint.h>

struct pb_arena;
struct pb_table;

struct pb_agent {
    struct pb_settings settings;
    struct pb_run run;
    struct pb_server server;
    struct pb_arena *arena;
    struct pb_table *memory_usage;
    int detach; /* somebody asked for it; who is told in his client */
};

/* Deals with one request of a client (the server's handler; owner is the agent). requests.c */
void pb_agent_request(void *owner, struct pb_server *s, struct pb_server_client *c,
                      const struct pb_frame *frame);
