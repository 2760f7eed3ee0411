/* lookout: diagnoses the jobs of this machine all the time (serve --diagnose). One child runs
 * `probing diagnose --every`, which prints each new finding and each one that is over. */
#pragma once

#include <stdio.h>

struct pb_err;
struct pb_service;
struct pb_lookout;

/* every: such as "30s"; NULL: it does not look. 0 with NULL then. */
int pb_lookout_new(const struct pb_service *s, const char *every, struct pb_lookout **ret,
                   struct pb_err *err);
void pb_lookout_free(struct pb_lookout *l); /* NULL is allowed */

/* What stands now, for Prometheus. */
void pb_lookout_put_metrics(FILE *to);
