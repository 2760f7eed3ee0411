/* part: what the agent is made of, beside its core: jobs, channels, probes and others, each a struct of
 * functions.
 *
 * parts.c lists them. The resident thread calls these functions for each part, in the order of the list, so
 * the core knows none of them by name. Only `forget` runs elsewhere: in a child of fork. None of them may
 * wait. NULL: the part has nothing to do there. */
#pragma once

#include "agent/core/server.h"

#include <stddef.h>
#include <stdint.h>

struct pb_agent;

struct pb_part {
    /* The tables are open, and no client can connect yet. -errno with a message in why: the agent does not
     * start. Then `end` is called too, also for parts that did not start. */
    int (*begin)(struct pb_agent *agent, char *why, size_t why_size);
    /* Rows can be recorded. */
    void (*ready)(struct pb_agent *agent);

    /* Fills in descriptors to poll (server.others). */
    void (*before_poll)(struct pb_agent *agent);
    /* Handles the events of the last poll. */
    void (*after_poll)(struct pb_agent *agent);
    /* Does what is due. Returns for how many ms there is nothing to do; -1: until something wakes the
     * resident thread. */
    int (*turn)(struct pb_agent *agent, uint64_t now);

    /* Handles a request of a client. 1: done; 0: it belongs to another part. */
    int (*request)(struct pb_agent *agent, struct pb_server_client *client, const struct pb_frame *frame);
    /* Whether something runs for a client, which may therefore stay silent. */
    int (*busy)(pb_client_id client);
    /* A client has disconnected. */
    void (*gone)(pb_client_id client);
    /* A person has set that setting of the process. -errno with a sentence in why. */
    int (*configure)(struct pb_agent *agent, const char *changed, char *why, size_t why_size);

    /* The program has ended, and only threads of ours are left: interrupts them. */
    void (*abandon)(void);
    /* The agent detaches: removes what is in the program, answers clients. Tables are still open. */
    void (*end)(struct pb_agent *agent);
    /* In a child of fork, which has none of our threads: resets the state. Locks are free. Async-signal-safe
     * calls only. */
    void (*forget)(void);
};

/* All parts; ends with NULL. */
extern const struct pb_part *const pb_parts[];
