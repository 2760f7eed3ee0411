/* skill_print: playbooks, and what one has found, for people and programs. */
#pragma once

#include "diagnose/skills/skill_run.h"

void pb_skills_print(const struct pb_skills *skills, bool json);
void pb_skill_result_print(const struct pb_skill *skill, const struct pb_skill_result *result,
                           const char *target);
void pb_skill_result_print_json(const struct pb_skill *skill, const struct pb_skill_result *result);
