/* skill_when: the conditions of a playbook's rules, such as
 * "step:rank_latency | rows >= 2 | column:avg_ms | max/min(ratio) > 1.5", over the rows of its steps. */
#pragma once

#include "diagnose/skills/skill_run.h"

/* All clauses hold: 1; one does not: 0. -EINVAL: a clause is not known, or names a step or column that is not
 * there; why says which. Of a step that was skipped or failed nothing holds. when: placeholders filled in. */
int pb_skill_when(const char *when, const struct pb_skill_result *result,
                  const struct pb_skill_step **ret_step, char *why, size_t size);
