/* rule: a rule of diagnosis: a file with a header and one SELECT over the facts, and running rules.
 *
 *   -- kind: stopped
 *   -- asks: whether a rank is stopped while others wait for it
 *   -- sure: certain
 *   -- says: {Who} is stopped: ...
 *   -- evidence: holds | {who} | {place} | {source}
 *   -- why: ..
 *   -- next: ..
 *   SELECT .. FROM ends WHERE how = 'stopped'
 *
 * {column} stands for a column of the SELECT, {Column} for it with a capital letter. A line of evidence is
 * left out where a column that it names is NULL. Columns of these names fill in the finding: cause, rank,
 * pid, sure, since, cost, ranks, explains, thread, file, line, function, source. */
#pragma once

#include "diagnose/finding.h"

struct pb_ask;
struct pb_err;
struct pb_targets;

struct pb_diag_rule {
    char name[64]; /* of its file, without .sql */
    char *text;    /* the whole file, owned */
    const char *select;
    bool own;      /* of the user, not ours */
    bool recorded; /* its header has "needs": it is run over recorded tables (recorded.h) */
};

struct pb_diag_rules {
    struct pb_diag_rule *at;
    size_t n;
};

/* Ours, and those of a folder (NULL: none). Of the user's a broken one is named in a note and skipped. */
int pb_diag_rules_read(const struct pb_ask *ask, const char *folder, struct pb_diag_rules *ret,
                       struct pb_err *err);
void pb_diag_rules_done(struct pb_diag_rules *rules);

/* Those over recorded tables, or the others. Their texts stay those of rules; free ret->at. -ENOMEM. */
int pb_diag_rules_part(const struct pb_diag_rules *rules, bool recorded, struct pb_diag_rules *ret);

/* A value of the header, "" where there is none; index: which of several. */
const char *pb_diag_rule_get(const struct pb_diag_rule *rule, const char *name, unsigned index, char *ret,
                             size_t size);

/* Runs all rules on the facts of a job. targets: its probed processes, whose recorded tables rules see. */
int pb_diag_rules_run(const struct pb_ask *ask, const struct pb_diag_rules *rules,
                      const struct pb_diag_job *job, const struct pb_targets *targets, unsigned timeout_ms,
                      struct pb_diag_findings *ret, struct pb_err *err);
