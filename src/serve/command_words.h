/* command_words: builds a command line, word by word, from a request. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct pb_err;
struct pb_param;

enum { PB_WORDS_MAX = 32 };

struct pb_words {
    char *at[PB_WORDS_MAX + 1]; /* ends with NULL; more words are dropped */
    size_t n;
};

void pb_words_done(struct pb_words *w);
void pb_words_add(struct pb_words *w, const char *word);
/* OPTION=VALUE: a value is never taken for an option. */
void pb_words_add_option(struct pb_words *w, const char *option, const char *value);
void pb_words_add_path(struct pb_words *w, const char *folder, const char *name);
/* Adds the option of a request's argument. -EINVAL: the value is not of its kind. */
int pb_words_add_param(struct pb_words *w, const struct pb_param *p, const char *value, struct pb_err *err);

/* -EINVAL: the text is empty, or longer than /openapi.json allows. */
int pb_words_check_text(const char *name, const char *value, struct pb_err *err);

/* true or 1; false or 0 besides. */
bool pb_words_is_true(const char *value);
bool pb_words_is_flag(const char *value);
