/* skill_text: the texts of a playbook with their placeholders filled in: {parameter}, the names of tables
 * that depend on use_global, and {step.column}. */
#pragma once

#include "diagnose/skills/skill_run.h"

enum { PB_SKILL_VALUES = 64 };

struct pb_skill_value {
    char name[PB_SKILL_NAME], value[PB_SKILL_TEXT];
};

struct pb_skill_values {
    struct pb_skill_value at[PB_SKILL_VALUES];
    size_t n;
};

/* The parameters with their defaults or what was given, what follows from use_global, and the playbook's own
 * variables. -EINVAL: err says what is wrong with what was given. */
int pb_skill_values_read(const struct pb_skill_request *request, struct pb_skill_values *ret,
                         struct pb_err *err);

/* A statement: placeholders, and global.SCHEMA.TABLE as the table of all ranks with _rank and _host. NULL:
 * err says why; free it. */
char *pb_skill_sql(const struct pb_skill_values *values, const char *template, struct pb_err *err);

/* A text for people. of: the step that {column} is looked for in; NULL: none. What is not known becomes "?".
 * NULL: out of memory. */
char *pb_skill_words(const struct pb_skill_values *values, const struct pb_skill_result *result,
                     const struct pb_skill_step *of, const char *template);

/* A cell of the first row; NULL: there is none. */
const char *pb_skill_cell(const struct pb_skill_step *s, const char *column);
const struct pb_skill_step *pb_skill_step_named(const struct pb_skill_result *result, const char *id,
                                                size_t length);
