/* numbers: what is in an array of numbers of another process: a tensor's or numpy's. Read from outside, a
 * piece at a time: the process allocates nothing, runs nothing, and may change or free it meanwhile. */
#pragma once

#include "ask/ask.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { PB_NUMBERS_DIMS = 64, PB_NUMBERS_BINS = 16 };

/* Where it lies: the process's word. Strides are in bytes. */
struct pb_numbers_place {
    uint64_t address;
    char dtype[24]; /* as torch and numpy call it */
    unsigned ndim;
    int64_t sizes[PB_NUMBERS_DIMS], strides[PB_NUMBERS_DIMS];
};

struct pb_numbers {
    uint64_t elements; /* that were looked at */
    bool all;          /* false: the time was over first, or memory was gone */
    uint64_t nan, infinite, zero;
    double min, max, mean, std; /* of the finite ones; NaN where there are none */
    uint64_t bins[PB_NUMBERS_BINS];
};

/* Whether the place can be read at all: a known type, sizes that do not overflow. */
int pb_numbers_check(const struct pb_numbers_place *place, struct pb_err *err);

/* Complex numbers count by their absolute value. ask->limit_ms bounds it, or 5 s: then of as many as could be
 * read. -EFAULT: nothing could be read. */
int pb_numbers_ask(const struct pb_ask *ask, pid_t pid, const struct pb_numbers_place *place,
                   struct pb_numbers *ret, struct pb_err *err);
