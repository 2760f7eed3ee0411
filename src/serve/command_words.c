/* command_words: see command_words.h. */
#include "serve/command_words.h"

#include "base/err.h"
#include "serve/routes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pb_words_done(struct pb_words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->at[i]);
}

void pb_words_add(struct pb_words *w, const char *word)
{
    char *copy = w->n < PB_WORDS_MAX ? strdup(word) : NULL;
    if (copy)
        w->at[w->n++] = copy;
}

void pb_words_add_option(struct pb_words *w, const char *option, const char *value)
{
    char *word = NULL;

    if (asprintf(&word, "%s=%s", option, value) >= 0 && w->n < PB_WORDS_MAX)
        w->at[w->n++] = word;
}

void pb_words_add_path(struct pb_words *w, const char *folder, const char *name)
{
    char *word = NULL;

    if (asprintf(&word, "%s/%s", folder, name) >= 0 && w->n < PB_WORDS_MAX)
        w->at[w->n++] = word;
}

bool pb_words_is_true(const char *value)
{
    return strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
}

bool pb_words_is_flag(const char *value)
{
    return pb_words_is_true(value) || strcmp(value, "false") == 0 || strcmp(value, "0") == 0;
}

int pb_words_check_text(const char *name, const char *value, struct pb_err *err)
{
    size_t characters = 0;

    for (const char *c = value; *c; c++)
        characters += (*c & 0xc0) != 0x80;
    if (!characters)
        return pb_fail(err, -EINVAL, "%s is empty", name);
    return characters > PB_TEXT_MOST
               ? pb_fail(err, -EINVAL, "%s is longer than %d characters", name, (int)PB_TEXT_MOST)
               : 0;
}

int pb_words_add_param(struct pb_words *w, const struct pb_param *p, const char *value, struct pb_err *err)
{
    char *end;
    double number;

    switch (p->kind) {
    case PB_PARAM_FLAG:
        if (!pb_words_is_flag(value))
            return pb_fail(err, -EINVAL, "%s is true or false, not '%.100s'", p->name, value);
        if (pb_words_is_true(value))
            pb_words_add(w, p->option);
        return 0;
    case PB_PARAM_NUMBER:
        number = strtod(value, &end);
        if (end == value || *end || !isfinite(number) || number < p->least || number > p->most)
            return pb_fail(err, -EINVAL, "%s is a number from %g to %g, not '%.100s'", p->name, p->least,
                           p->most, value);
        char text[32];
        snprintf(text, sizeof(text), "%g", number);
        pb_words_add_option(w, p->option, text);
        return 0;
    case PB_PARAM_TEXT:
        if (pb_words_check_text(p->name, value, err) < 0)
            return -EINVAL;
        pb_words_add_option(w, p->option, value);
        return 0;
    }
    return -EINVAL;
}
