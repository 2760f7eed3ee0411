/* ask_nodes: one question to all nodes of a cluster at once, and the answer of each.
 *
 * One loop over descriptors serves 128 nodes at a time; nodes that stay silent for a while give their places
 * to others. Each node ends in one of six states, and none delays another. At the deadline, what has arrived
 * is the answer. Memory is limited for each answer and for all buffered answers together. */
#pragma once

#include "cluster/link/node_wire.h"
#include "cluster/select.h"

enum pb_node_state {
    PB_NODE_NOT_ASKED, /* not selected */
    PB_NODE_ANSWERED,
    PB_NODE_LATE,          /* connected or started, no whole answer by the deadline */
    PB_NODE_UNREACHABLE,   /* no connection, or it ended */
    PB_NODE_REFUSED,       /* the node refused: no permission, no program there, or a malformed answer */
    PB_NODE_OTHER_VERSION, /* of the frames, or a service that knows no clusters */
    PB_NODE_STATES
};

/* "answered", "late", ..., "other version". */
const char *pb_node_state_name(enum pb_node_state state);

struct pb_node_result {
    enum pb_node_state state;
    unsigned ms;  /* from the start to its end */
    size_t bytes; /* that travelled from it */
    int64_t sent_ns,
        received_ns; /* by our wall clock: its question began to leave, the end of its answer came */
    char why[256];   /* "" where it answered */
};

struct pb_cluster_result {
    struct pb_node_result *nodes; /* one for each node of the cluster */
    size_t nnodes, asked, answered;
    size_t bytes;     /* that travelled, both ways */
    unsigned ms;      /* of all */
    unsigned last_ms; /* when the last good answer was whole */
};
void pb_cluster_result_done(struct pb_cluster_result *r);

/* Links that stay open for the next question: connections to services, and children that read one question
 * after the other. One thread at a time. */
struct pb_links;
int pb_links_new(const struct pb_cluster *c, struct pb_links **ret);
void pb_links_free(struct pb_links *l);

struct pb_cluster_question {
    const struct pb_selection *selection;
    const char *const
        *words; /* the first says what: "look", "stacks", "command", .. (questions/cluster_answer.c) */
    size_t nwords;
    unsigned deadline_ms; /* from now; 0: 2 s */
    size_t most;          /* bytes of one answer; 0: 64 MB */
    /* Idle links to reuse; links that answered are added. NULL: none are reused. The link of a launcher that
     * starts all nodes at once serves questions to the same nodes only. */
    struct pb_links *links;
    /* Called once for each whole answer, as it comes. It may take what the answer holds (and set it to 0).
     * Negative: the node lied, and counts as refused, with the sentence in err. */
    int (*answer)(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err);
    void *arg;
};

/* 0 also where no node answered: *ret has what each did. -EINVAL, -ENOMEM, and what of the machine failed. */
int pb_cluster_ask(const struct pb_cluster *c, const struct pb_cluster_question *q,
                   struct pb_cluster_result *ret, struct pb_err *err);
