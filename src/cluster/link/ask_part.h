/* ask_part: a question to the nodes of a cluster that are reached in one way: by their services, or by the
 * launcher. ask_parts.c asks the parts of a cluster at once; ask_nodes.c is one of them. */
#pragma once

#include "cluster/link/link.h"

struct pb_ask_part;

struct pb_ask_part_plan {
    struct pb_link_plan link; /* its cluster has the way of this part, and its selection the nodes */
    const struct pb_cluster_question *q;
    struct pb_cluster_result *result; /* of all parts */
    uint64_t began, deadline;         /* CLOCK_MONOTONIC */
    size_t most_open;                 /* links */
    /* Set for a node whose service cannot have started to answer: another part settles it, or no part does.
     * NULL: this part settles every node. */
    bool *fallen;
};

int pb_ask_part_open(const struct pb_ask_part_plan *plan, struct pb_ask_part **ret);
void pb_ask_part_free(struct pb_ask_part *a);

struct pb_ask_part_state {
    int fd;        /* readable when there is something for pb_ask_part_turn */
    size_t left;   /* nodes that are not settled */
    size_t fallen; /* nodes that fell back */
    bool waits;    /* nodes wait for places, which become free by time too */
};
struct pb_ask_part_state pb_ask_part_state(const struct pb_ask_part *a);
/* From now on none falls back. */
void pb_ask_part_settle_all(struct pb_ask_part *a);

int pb_ask_part_start(struct pb_ask_part *a);
/* Takes what is there, without waiting. */
int pb_ask_part_turn(struct pb_ask_part *a);
/* What is still open has not answered in time. */
void pb_ask_part_end(struct pb_ask_part *a);
