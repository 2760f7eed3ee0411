/* headline_keeper: headlines for a command that shows processes again and again: a thread of its own looks,
 * since a diagnosis takes seconds. A headline stays for ten seconds. */
#pragma once

#include "diagnose/headline.h"

struct pb_headline_keeper;

/* targets: as of pb_headlines_ask; they and ask must outlive it. */
int pb_headline_keeper_start(const struct pb_ask *ask, const struct pb_targets *targets,
                             struct pb_headline_keeper **ret, struct pb_err *err);
void pb_headline_keeper_stop(struct pb_headline_keeper *k);

/* Something has stood still for a while: it is to look, if it has not done so within ten seconds. */
void pb_headline_keeper_look(struct pb_headline_keeper *k);
/* A copy of the headline of the process. False: it has none. */
bool pb_headline_keeper_of(struct pb_headline_keeper *k, pid_t pid, struct pb_headline *ret);
