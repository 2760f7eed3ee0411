/* diff: what changed between two profiles, by function. */
#pragma once

#include <stddef.h>

#include "profile/profile.h"

/* Shares of all samples, in percent, that a function had as the innermost one. */
struct pb_profile_change {
    uint32_t function; /* of names */
    double before, after;
};

struct pb_profile_diff {
    struct pb_profile *names;
    struct pb_profile_change *at; /* the largest change first */
    size_t n;
};

/* Caller-owned; done also after a failure. */
int pb_profile_diff(const struct pb_profile *before, const struct pb_profile *after,
                    struct pb_profile_diff *ret);
void pb_profile_diff_done(struct pb_profile_diff *d);
