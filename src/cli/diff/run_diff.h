/* run_diff: two runs compared: what each measured, as series of values a step, and which differences are more
 * than noise. */
#pragma once

#include "ask/targets.h"
#include "cli/cli.h"

#include <limits.h>

enum pb_diff_kind {
    PB_DIFF_STEP,
    PB_DIFF_PHASE,
    PB_DIFF_MODULE,
    PB_DIFF_COLLECTIVE,
    PB_DIFF_MEMORY,
    PB_DIFF_LINE,
    PB_DIFF_KINDS
};

/* Names and slots of a side that are kept. */
enum { PB_DIFF_SERIES = 20000, PB_DIFF_SLOTS = 1000 };

/* One value for each step (of memory: for each row or second), in the order of time. What a series lacks of
 * the slots of its kind is zero: a module that did not run took no time. */
struct pb_diff_series {
    enum pb_diff_kind kind;
    char *name;
    double *values;
    size_t n, cap;
};

struct pb_diff_text {
    char *name, *value;
};

/* One of the two. */
struct pb_diff_side {
    const char *text; /* as given */
    struct pb_ask ask;
    struct pb_targets targets;
    char folder[PATH_MAX], rows[PATH_MAX + 8]; /* of an incident's file that was unpacked; "": none */
    long first, last;                          /* steps that count */
    long rank;                                 /* -1: all */
    struct pb_diff_series *series;
    size_t nseries;
    size_t slots[PB_DIFF_KINDS]; /* of all series of the kind */
    size_t left_out;             /* values for which there was no name or slot */
    struct pb_diff_text *settings, *versions;
    size_t nsettings, nversions;
};

/* --- diff_side.c --- */
/* Fills in series, settings and versions of a side whose targets are known. */
int pb_diff_read(struct pb_diff_side *s, struct pb_err *err);
void pb_diff_side_done(struct pb_diff_side *s);

/* --- diff_series.c --- */
/* Adds to the value of a slot. */
int pb_diff_take(struct pb_diff_side *s, enum pb_diff_kind kind, const char *name, double slot, double value);
void pb_diff_series_done(struct pb_diff_side *s);
const struct pb_diff_series *pb_diff_find(const struct pb_diff_side *s, enum pb_diff_kind kind,
                                          const char *name);

/* --- diff_noise.c --- */
struct pb_diff_change {
    enum pb_diff_kind kind;
    const char *name;   /* of a side */
    double a, b;        /* means */
    double least, most; /* 99% interval of b - a */
    bool real;          /* more than the noise and than 3% */
};

struct pb_diff_changes {
    struct pb_diff_change *at; /* real changes, the most expensive first; the step is apart */
    size_t n;
    struct pb_diff_change step;
    /* The step or a phase of it is real. Of hundreds of modules and lines some differ by chance. */
    bool differs;
};

int pb_diff_compare(const struct pb_diff_side *a, const struct pb_diff_side *b, struct pb_diff_changes *ret,
                    struct pb_err *err);
void pb_diff_changes_done(struct pb_diff_changes *c);
