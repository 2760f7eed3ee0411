/* skill_run: a playbook, run over the ranks of a job: the rows of its steps, and what its rules say of them.
 *
 * A step is one statement in the sandboxed worker. What cannot be run is named and skipped. What a rule says
 * is a remark, and never a verdict: rules of playbooks compare numbers, and prove no mechanism. */
#pragma once

#include "diagnose/skills/skill.h"

struct pb_ask;
struct pb_targets;

enum { PB_SKILL_ROWS_MAX = 10000 };

enum pb_skill_state {
    PB_SKILL_ROWS,
    PB_SKILL_EMPTY,   /* text: what the playbook says of it */
    PB_SKILL_SKIPPED, /* text: why */
    PB_SKILL_FAILED,  /* text: why */
    PB_SKILL_HINT,    /* no statement: text is what a person can do */
};

struct pb_skill_step {
    char id[PB_SKILL_NAME], title[PB_SKILL_TEXT];
    enum pb_skill_state state;
    char text[2 * PB_SKILL_TEXT];
    char **columns, **cells; /* a cell NULL: SQL's NULL */
    bool *numeric;           /* a column */
    unsigned ncolumns;
    size_t nrows;
    bool cut; /* there were more than PB_SKILL_ROWS_MAX rows */
};

struct pb_skill_remark {
    char rule[PB_SKILL_NAME], severity[PB_SKILL_NAME], says[PB_SKILL_TEXT];
};

struct pb_skill_result {
    struct pb_skill_step *steps;
    struct pb_skill_remark *remarks, *unjudged; /* unjudged: says is why */
    char *summary, **next;
    size_t nsteps, nremarks, nunjudged, nnext;
    bool ended; /* a step without rows ended it */
};

/* NAME=VALUE. */
struct pb_skill_given {
    const char *const *at;
    size_t n;
};

struct pb_skill_request {
    const struct pb_skill *skill;
    const struct pb_targets *targets; /* the ranks, with `probed` set */
    const char *target;               /* as a person names it, for hints */
    struct pb_skill_given given;
    unsigned timeout_ms; /* of all steps together */
};

/* -EINVAL: a parameter is wrong, or the playbook cannot be run; -ENOENT: no table that it needs is here. */
int pb_skill_run(const struct pb_ask *ask, const struct pb_skill_request *request,
                 struct pb_skill_result *ret, struct pb_err *err);
void pb_skill_result_done(struct pb_skill_result *result);
