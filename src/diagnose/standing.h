/* standing: which findings are new and which are over, from one diagnosis to the next. */
#pragma once

#include "diagnose/diagnose.h"

enum { PB_DIAG_STANDING = 256 };

/* What is known of a finding that stands. */
struct pb_diag_stands {
    char job[96], kind[32], says[400];
    pid_t job_pid; /* of its launcher, or its first process: names recur */
    int rank;
    pid_t pid;
    enum pb_diag_sure sure;
    uint64_t began; /* when it was seen first: CLOCK_MONOTONIC */
    unsigned missed;
    bool seen;
};

struct pb_diag_standing {
    struct pb_diag_stands at[PB_DIAG_STANDING];
    size_t n;
};

struct pb_diag_event {
    const struct pb_diag_stands *what;
    bool over;
    double seconds; /* since it was seen first */
    /* Where it began: what was found. */
    const struct pb_diag_answer *answer;
    const struct pb_diag_finding *finding;
};

/* Calls each for what is new, and for what two diagnoses in a row have not found any more. */
void pb_diag_standing_take(struct pb_diag_standing *s, const struct pb_diagnosis *d,
                           void (*each)(void *arg, const struct pb_diag_event *e), void *arg);
