/* profile_from: options of flamegraph for recorded profiles, and the summary of the difference of two. */
#pragma once

#include "cli/cli.h"
#include "profile/profile.h"

struct pb_profile_range {
    int64_t since, until; /* UTC ns */
};

/* Reads --since and --until; the whole time where they are not given. */
int pb_profile_range(const struct pb_call *call, struct pb_profile_range *ret, struct pb_err *err);

/* Prints the functions that grew and shrank most to stdout. */
void pb_profile_say_diff(const char *output, const struct pb_profile *before, const struct pb_profile *after);
