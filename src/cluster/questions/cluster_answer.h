/* cluster_answer: the node's end. `probing cluster answer` reads a question from standard input and writes a
 * framed answer (link/node_wire.h). The launcher or the node's service starts it.
 *
 * A table maps each question to the function that answers it. The function gets the ranks of this node and
 * writes their answers. Each is in the file of its question, beside the side that asks. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "cluster/link/node_wire.h"
#include "cluster/members.h"

/* The commands of this program, which are two layers up. */
struct pb_answer_commands {
    bool (*takes_cluster)(const char *name); /* whether a command of that name works on ranks */
    int (*run)(int argc, char **argv);       /* a command line, in a child: its exit status */
};

struct pb_answering {
    struct pb_ask ask;
    const struct pb_answer_commands *commands;
    const struct pb_node_question *question;
    const struct pb_node_members *members;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC: the asking end waits no longer */
    struct pb_answer_writer *out;
};

/* how: NULL; "text": base64, for launchers that pass lines; "/FOLDER@NODE": not of processes, but of what an
 * archive has of a node. */
int pb_answer_run(const struct pb_ask *ask, const struct pb_answer_commands *commands, const char *how,
                  struct pb_err *err);

/* Every rank that is here, without output: for answers that are the node's. */
void pb_answer_ranks(const struct pb_answering *a);
/* The ranks that are here as targets of questions of this node; ret->at is to be freed. -ENOMEM. */
int pb_answer_targets(const struct pb_answering *a, struct pb_targets *ret);

/* cluster_stacks.c: "stacks" [ROUNDS [INTERVAL_MS [native]]]: the set of stacks (ask/stackset.h) of all ranks
 * in the last round. The errors of a rank are why it could not be read, or what it waits for; its status says
 * which, and whether it stood still. */
int pb_answer_stacks(const struct pb_answering *a, struct pb_err *err);
/* cluster_look.c: "look": every rank that is here, with what would keep it from being probed as its errors.
 * -EINVAL where they are of several jobs, which the sentence names. */
int pb_answer_look(const struct pb_answering *a, struct pb_err *err);
/* cluster_profile.c: "profile" MS RATE|- FLAGS..: samples of all ranks as a stream (profile/stream.h). */
int pb_answer_profile(const struct pb_answering *a, struct pb_err *err);
/* cluster_query.c: "rows" (STATEMENT INSTEAD)..: the rows of statements over all ranks (ask/rank_rows.h). */
int pb_answer_rows(const struct pb_answering *a, struct pb_err *err);
/* cluster_command.c: "command" WORDS..: a command of this program for each rank, each in a child. */
int pb_answer_command(const struct pb_answering *a, struct pb_err *err);
/* The same as "once": in the first rank that is here only. */
int pb_answer_once(const struct pb_answering *a, struct pb_err *err);
/* cluster_service.c: "service" find|wait|start|hold|end MARK ADDRESS..: the user's service on this node, as
 * "URL TOKEN own|other", or nothing where there is none; own: it was started with this mark. wait: it is
 * about to come. start: where there is none it is started, at the node's address towards the ADDRESSes. hold:
 * the same, and this process becomes it, so nothing is answered. end: only with this mark. */
int pb_answer_service(const struct pb_answering *a, struct pb_err *err);
/* cluster_command.c: asks the ranks that have torch, and whose environment has no roles, for theirs. A rank
 * that does not answer has none. */
void pb_answer_take_roles(const struct pb_answering *a);
