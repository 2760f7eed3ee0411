/* targets: the processes that a question is about, and how a pid, a run id or a pattern is resolved to
 * them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_ask;
struct pb_err;
struct pb_run_id;

#define PB_LABEL_MAX 32

enum pb_label_by { PB_LABEL_BY_PID, PB_LABEL_BY_RANK, PB_LABEL_BY_NAME };

struct pb_target {
    pid_t pid;
    char label[PB_LABEL_MAX]; /* for people: "rank 3", or "pid 4711" where there is no rank */
    enum pb_label_by labelled_by;
    int32_t rank;        /* by its rank: the number; -1: it is not written as one */
    bool unlabelled;     /* the rank was not read yet: pb_targets_label, or pb_target_label in a child */
    bool dead;           /* the process has ended; its run is left */
    uint64_t start_time; /* if dead: start time of the process, since pids are reused; 0: any */
    unsigned program;    /* if dead: which of its programs, as in struct pb_run_id */
    const char *core;    /* a core file; NULL: a process */
    const char *root;    /* for a core: root of its files; NULL: "/" */
};

struct pb_targets {
    struct pb_target *at;
    size_t n;
    bool probed; /* all probed processes: a query adds rank and target_pid even for a single one */
};

/* text: a pid; the id of a run (pb_run_id_text); or a pattern: a non-empty part of the command line. Without
 * all exactly one process must match; otherwise err names the candidates. With all: every match; of a pid
 * that process and those below it, or those alone where it launched ranks. dead: an ended process also
 * matches when a run, recording or archive of it is left. Of several with the same pid the live one is taken,
 * else the newest; a note names the others. */
int pb_targets_resolve(const struct pb_ask *ask, const char *text, bool all, bool dead,
                       struct pb_targets *ret, struct pb_err *err);
void pb_targets_done(struct pb_targets *targets);

/* Whether the process of that run still runs. */
bool pb_targets_is_running(const struct pb_run_id *id);

/* All probed processes. There may be none. */
int pb_targets_probed(const struct pb_ask *ask, struct pb_targets *ret, struct pb_err *err);

/* Reads ranks that pb_targets_resolve did not read (of a single process given by pid: it needs a child, which
 * the question may start anyway). */
void pb_targets_label(const struct pb_ask *ask, struct pb_targets *targets);

/* Labels it by the rank in its environment, or else by its pid. */
void pb_target_label(struct pb_target *t);
/* Labels it by this rank. */
void pb_target_set_rank(struct pb_target *t, int32_t rank);
/* The number of its rank; -1: it has none. */
int32_t pb_target_rank(const struct pb_target *t);
/* A rank as it is written in an environment; -1: that is no number. */
int32_t pb_rank_parse(const char *text);
