/* finding: what a rule has found, and which finding explains which. */
#pragma once

#include "diagnose/facts.h"

#include <stdint.h>

enum pb_diag_sure { PB_DIAG_REMARK, PB_DIAG_LIKELY, PB_DIAG_CERTAIN };

enum { PB_DIAG_EVIDENCE = 6, PB_DIAG_FIELDS = 4 };

/* A line below the sentence: a label, and up to three fields. */
struct pb_diag_evidence {
    char field[PB_DIAG_FIELDS][256];
};

struct pb_diag_finding {
    char kind[32], cause[32];
    int rank;       /* -1: of no rank */
    pid_t pid;      /* 0: none */
    char ranks[64]; /* ranks that it explains, as "0, 1, 3" */
    int explains;   /* how many that are */
    enum pb_diag_sure sure;
    double since; /* seconds ago; negative: unknown */
    double cost;  /* share of the job's time, 0 to 1 */
    int severity; /* of its kind: explain.c */
    char thread[48];
    struct pb_diag_place place;
    char says[400], why[200], next[300], more[200];
    struct pb_diag_evidence evidence[PB_DIAG_EVIDENCE];
    size_t nevidence;
    bool root;   /* no other finding explains it */
    bool second; /* a root that is shown beside the verdict */
};

struct pb_diag_findings {
    struct pb_diag_finding *at;
    size_t n;
};

/* Marks roots, and puts the verdict first. Returns the verdict; NULL: there is none. */
const struct pb_diag_finding *pb_diag_explain(struct pb_diag_findings *findings);

/* The table of explanations, for a test of it: pairs of kinds. */
struct pb_diag_explains {
    const char *cause, *effect;
    enum { PB_DIAG_SAME_RANK, PB_DIAG_GROUP, PB_DIAG_JOB } scope;
};
extern const struct pb_diag_explains pb_diag_table[];
extern const size_t pb_diag_ntable;
/* Kinds by severity, the worst first. */
extern const char *const pb_diag_kinds[];
extern const size_t pb_diag_nkinds;
