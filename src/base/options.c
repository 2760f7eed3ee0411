/* options: see options.h. */
#include "base/options.h"

#include "base/err.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

bool pb_option_is(const char *word)
{
    return word[0] == '-' && word[1] && strcmp(word, "--") != 0;
}

const struct pb_option *pb_option_match(const struct pb_option *table, const char *word,
                                        const char **ret_value, int *ret_index)
{
    for (int i = 0; table && table[i].name; i++) {
        const struct pb_option *o = &table[i];
        size_t n = strlen(o->name);
        *ret_value = NULL;
        *ret_index = i;
        if (word[1] == '-') {
            if (strncmp(word + 2, o->name, n) != 0 || (word[2 + n] && word[2 + n] != '='))
                continue;
            *ret_value = word[2 + n] ? word + 3 + n : NULL;
            return o;
        }
        if (o->letter && word[1] == o->letter) {
            *ret_value = word[2] ? word + 2 : NULL;
            return o;
        }
    }
    return NULL;
}

/* word: --name, or any character and a letter. */
static int read_option(struct pb_options *o, const char *word, struct pb_option_read *ret, struct pb_err *err)
{
    const char *value = NULL;

    o->letters = NULL;
    for (ret->table = 0; ret->table < 2 && !ret->option; ret->table += !ret->option)
        ret->option = pb_option_match(o->tables[ret->table], word, &value, &ret->index);
    if (!ret->option)
        return -ENOENT;
    /* The text after a letter is its value, or the next letter where the option takes no value. */
    if (word[1] != '-' && !ret->option->value && word[2]) {
        o->letters = word + 1;
        value = NULL;
    }
    if (value && !ret->option->value)
        return pb_fail(err, -EINVAL, "--%s takes no value", ret->option->name);
    if (ret->option->value && !value && o->at == o->argc)
        return pb_fail(err, -EINVAL, "--%s needs a value: %s", ret->option->name, ret->option->value->name);
    ret->value = ret->option->value && !value ? o->argv[o->at++] : value;
    return 1;
}

int pb_options_next(struct pb_options *o, struct pb_option_read *ret, struct pb_err *err)
{
    *ret = (struct pb_option_read){.at = o->at - 1};
    if (o->letters)
        return read_option(o, o->letters, ret, err);
    if (o->at < o->argc && !o->only_arguments && strcmp(o->argv[o->at], "--") == 0) {
        o->only_arguments = true;
        o->at++;
    }
    if (o->at >= o->argc)
        return 0;
    ret->at = o->at++;
    if (!o->only_arguments && pb_option_is(o->argv[ret->at]))
        return read_option(o, o->argv[ret->at], ret, err);
    ret->value = o->argv[ret->at];
    return 1;
}
