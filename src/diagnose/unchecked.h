/* unchecked: what a diagnosis could not look at, why, and the command that lets it. */
#pragma once

#include "diagnose/diagnose.h"

enum { PB_DIAG_UNCHECKED = 4 };

struct pb_diag_unchecked {
    char what[48], why[96], command[128];
};

/* Returns how many. */
size_t pb_diag_unchecked(const struct pb_diag_answer *a, struct pb_diag_unchecked ret[PB_DIAG_UNCHECKED]);
