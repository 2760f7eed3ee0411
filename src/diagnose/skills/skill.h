/* skill: a playbook of the original tool: a folder with SKILL.md (what it is for) and steps.yaml (statements,
 * and rules over their rows). It comes from elsewhere: it is read strictly (base/yaml.h), its statements run
 * in the sandboxed worker, and nothing else of it is run.
 *
 * Folders of playbooks, each over those before it: ~/.probing/skills, .probing/skills in the working folder
 * or above it, and PROBING_SKILLS_DIR. */
#pragma once

#include "base/json.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct pb_err;

enum { PB_SKILL_NAME = 64, PB_SKILL_TEXT = 400, PB_SKILLS_MOST = 256 };

struct pb_skill {
    char id[PB_SKILL_NAME], category[PB_SKILL_NAME];
    char title[PB_SKILL_TEXT], about[PB_SKILL_TEXT];
    char folder[PATH_MAX];
    char broken[PB_SKILL_TEXT]; /* why its steps cannot be read; "": they can */
    char *text;                 /* steps.yaml as JSON; NULL: it has none, or is broken */
    struct pb_json doc;
};

struct pb_skills {
    struct pb_skill *at; /* by id */
    size_t n;
};

/* All playbooks, broken ones too. */
int pb_skills_find(struct pb_skills *ret, struct pb_err *err);
void pb_skills_done(struct pb_skills *skills);
const struct pb_skill *pb_skill_named(const struct pb_skills *skills, const char *id);

/* "~/.probing/skills, ...": for a message. */
void pb_skills_where(char *ret, size_t size);

/* Copies the playbook in a folder, or all playbooks of a folder of such, to ~/.probing/skills: SKILL.md and
 * steps.yaml. A broken one is named on `notes` and left out. Returns how many were copied. */
int pb_skills_install(const char *from, FILE *notes, char ret_to[PATH_MAX], struct pb_err *err);

/* A member of an object as text; "" where there is none, or it is no scalar. */
const char *pb_skill_get(const struct pb_skill *s, uint32_t node, const char *key, char *ret, size_t size);
/* The same, however long, on the heap; NULL: out of memory. */
char *pb_skill_copy(const struct pb_skill *s, uint32_t node, const char *key);
/* spec.NAME; 0: none. */
uint32_t pb_skill_part(const struct pb_skill *s, const char *name);
/* The first element of an array, or member of an object; 0: none. */
uint32_t pb_skill_first(const struct pb_skill *s, uint32_t node);
