/* lookout: the service looks by itself for what is wrong with the jobs of this machine (serve --diagnose):
 * one command, `probing diagnose --every`, in a child, which says what is new and what is over. */
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
