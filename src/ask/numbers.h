/* numbers: statistics of an array of numbers (a tensor, a numpy array) in another process. Read from outside,
 * a piece at a time: the process allocates and runs nothing, and may change or free the array meanwhile. */
#pragma once

#include "ask/ask.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { PB_NUMBERS_DIMS = 64, PB_NUMBERS_BINS = 16 };

/* Where the array is, as the process says: untrusted. Strides are in bytes. */
struct pb_numbers_place {
    uint64_t address;
    char dtype[24]; /* as torch and numpy name it */
    unsigned ndim;
    int64_t sizes[PB_NUMBERS_DIMS], strides[PB_NUMBERS_DIMS];
};

struct pb_numbers {
    uint64_t elements; /* that were read */
    bool all;          /* false: the deadline came first, or memory was gone */
    uint64_t nan, infinite, zero;
    double min, max, mean, std; /* of the finite elements; NaN where there are none */
    uint64_t bins[PB_NUMBERS_BINS];
};

/* Whether the place can be read at all: a known type, sizes that do not overflow. */
int pb_numbers_check(const struct pb_numbers_place *place, struct pb_err *err);

/* Complex numbers count by absolute value. Bounded by ask->limit_ms, or 5 s: then the statistics are of the
 * elements read so far. -EFAULT: nothing could be read. */
int pb_numbers_ask(const struct pb_ask *ask, pid_t pid, const struct pb_numbers_place *place,
                   struct pb_numbers *ret, struct pb_err *err);
