/* cluster_clock: how far the clocks of nodes are from ours.
 *
 * An exchange has four times: our question leaves (1), comes (2), its answer leaves (3), comes here (4). The
 * node's clock less ours lies between (3)-(4) and (2)-(1), whatever the ways took: half of that is the error.
 * Of eight exchanges over one link the one with the shortest way counts. */
#pragma once

#include "cluster/link/ask_nodes.h"

enum { PB_CLOCK_EXCHANGES = 8 };

/* The question. */
#define PB_CLOCK_WORD "clock"

/* Measures the clocks of the selected nodes and writes them into the cluster; of a node that does not answer
 * what is known stays. links: of earlier questions to these nodes; NULL: none. The time is bounded. */
int pb_cluster_measure(struct pb_cluster *c, const struct pb_selection *s, struct pb_links *links,
                       unsigned limit_ms, struct pb_err *err);
/* The same for all nodes, and keeps the result in the cluster's file: for work that takes long. */
int pb_cluster_renew_clocks(struct pb_cluster *c, struct pb_links *links, struct pb_err *err);

/* Starts a child that measures the nodes' clocks again and again, in the end every ten seconds, and stores
 * the results in the cluster's file: for commands that run long. 0: no child was started. */
pid_t pb_clocks_follow(const struct pb_cluster *c);
void pb_clocks_end(pid_t child);

/* How far a node's clock may be from offset_ns at a moment (wall clock, here): the error of the measurement,
 * and what clocks drift apart. */
int64_t pb_clock_error_at(const struct pb_cluster_clock *clock, int64_t at_ns);

/* The node's end: reports its clock. received_ns: when the question arrived. */
void pb_clock_say(struct pb_answer_writer *w, int64_t received_ns);
/* A whole answer in w.waiting, where the line is a question for the clock; false: it is another. */
bool pb_clock_answer(const char *line, size_t n, const char *node, int64_t received_ns,
                     struct pb_answer_writer *w);
