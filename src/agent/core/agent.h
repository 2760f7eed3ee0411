/* agent: the one instance of everything that runs inside the target, owned by the resident thread. */
#pragma once

#include "agent/core/run.h"
#include "agent/core/server.h"
#include "control/settings.h"

#include <stddef.h>
#include <stdint.h>

struct pb_arena;

struct pb_agent {
    struct pb_settings settings;
    struct pb_run run;
    struct pb_server server;
    struct pb_arena *arena;
    uint64_t copy_ns; /* when rows are copied next to the file that outlives the process */
    int detach;       /* a client asked to detach: it is marked, and answered when the detach is done */
};

/* Handles one request of a client (the server's handler; owner is the agent). requests.c */
void pb_agent_request(void *owner, struct pb_server *s, struct pb_server_client *c,
                      const struct pb_frame *frame);

/* The value of an option that the tool gave ("name=value" in the text of pb_agent_start), copied to ret; "":
 * it gave none. For the resident thread. */
const char *pb_agent_option(const char *name, char *ret, size_t size);

/* The entry point, and the status struct whose address it returns: resident.c. Exported: tools find them by
 * name. */
struct pb_agent_status;
__attribute__((visibility("default"))) extern struct pb_agent_status pb_agent_status;
__attribute__((visibility("default"))) void *pb_agent_start(const char *text);
