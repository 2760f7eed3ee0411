/* targets: the processes a question is about: what they are, and how they are found by what a person typed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_ask;
struct pb_err;

#define PB_LABEL_MAX 32

struct pb_target {
    pid_t pid;
    char label[PB_LABEL_MAX]; /* "rank 3", or "pid 4711" where there is no rank */
    bool unlabelled;          /* the rank is not known yet: pb_targets_label, or pb_target_label in a child */
    bool dead;                /* only its run is left */
    uint64_t start_time;      /* then: of its process, since others had that pid as well; 0: any */
    unsigned program;         /* then: which of its programs, as struct pb_run_id has it */
    const char *core;         /* it is this core file; NULL: a process */
    const char *root;         /* then: where its files are; NULL: "/" */
};

struct pb_targets {
    struct pb_target *at;
    size_t n;
    bool probed; /* all that are probed, however many: a query tells their rows apart also where it is one */
};

/* text: a pid; the id of a run (pb_run_id_text); or a pattern: text that stands in the command line, not
 * empty. Without all exactly one process must fit; otherwise err names the candidates. With all: every match,
 * or the workers below a launcher given by its pid. dead: a process that has ended counts when its run, a
 * recording or an archive of it is left. Of several that had a pid the live one is taken, else the newest; a
 * note names the others. */
int pb_targets_resolve(const struct pb_ask *ask, const char *text, bool all, bool dead,
                       struct pb_targets *ret, struct pb_err *err);
void pb_targets_done(struct pb_targets *targets);

/* All processes that are probed. There may be none. */
int pb_targets_probed(const struct pb_ask *ask, struct pb_targets *ret, struct pb_err *err);

/* Reads the ranks that pb_targets_resolve left out: of one process that was given by its pid, since that
 * takes a child, which a question may have anyway. */
void pb_targets_label(const struct pb_ask *ask, struct pb_targets *targets);

/* "rank 3" or "pid 4711". */
void pb_target_label(pid_t pid, char *ret, size_t size);
/* The rank that a label names; -1: none. */
int32_t pb_label_rank(const char *label);
