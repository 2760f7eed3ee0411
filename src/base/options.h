/* options: reads a command line by tables of options. Tools only.
 *
 * Options may stand anywhere up to "--": --name VALUE, --name=VALUE, and letters of which the last may take a
 * value (-xo FILE). */
#pragma once

#include <stdbool.h>

struct pb_err;

enum pb_option_kind {
    PB_OPTION_TEXT,
    PB_OPTION_TIME,   /* 30, 500ms, 2m */
    PB_OPTION_SIZE,   /* 500MB */
    PB_OPTION_COUNT,  /* a whole number */
    PB_OPTION_NUMBER, /* also with a fraction */
    PB_OPTION_CHOICE  /* one of some words */
};

/* What an option takes. */
struct pb_option_value {
    const char *name; /* in the help */
    enum pb_option_kind kind;
    double least, most;  /* of a time: in milliseconds; most 0: any */
    double usual;        /* where the option is not given */
    const char *choices; /* words with a blank between */
    bool again;          /* it may stand several times: each value becomes an argument */
};

#define PB_TEXT(argument) (&(const struct pb_option_value){.name = argument})
/* It may stand several times. */
#define PB_TEXT_AGAIN(argument) (&(const struct pb_option_value){.name = argument, .again = true})
#define PB_TIME(...)            (&(const struct pb_option_value){.name = "TIME", .kind = PB_OPTION_TIME, __VA_ARGS__})
#define PB_SIZE(...)            (&(const struct pb_option_value){.name = "SIZE", .kind = PB_OPTION_SIZE, __VA_ARGS__})
#define PB_COUNT(argument, ...)                                                                              \
    (&(const struct pb_option_value){.name = argument, .kind = PB_OPTION_COUNT, __VA_ARGS__})
#define PB_NUMBER(argument, ...)                                                                             \
    (&(const struct pb_option_value){.name = argument, .kind = PB_OPTION_NUMBER, __VA_ARGS__})
#define PB_CHOICE(argument, words)                                                                           \
    (&(const struct pb_option_value){.name = argument, .kind = PB_OPTION_CHOICE, .choices = words})

struct pb_option {
    char letter; /* 0: none */
    const char *name;
    const struct pb_option_value *value; /* NULL: it takes none */
    const char *help;
};

struct pb_options {
    int argc, at; /* at: the next word to read */
    char **argv;
    const struct pb_option *tables[2]; /* each ends with a NULL name; NULL: none. The first has precedence. */
    const char *letters;               /* within a word of letters: those that are left; NULL: none */
    bool only_arguments;               /* after "--" */
};

/* What was read: an option, or an argument where option is NULL. */
struct pb_option_read {
    const struct pb_option *option;
    int table, index;  /* where the option is */
    const char *value; /* of the option, NULL if it takes none; or the argument */
    int at;            /* the word */
};

/* Reads the next option or argument. 1: into *ret; 0: there are no more. -ENOENT: no such option, and err is
 * not written. -EINVAL: the option, which is in *ret, lacks its value or takes none. */
int pb_options_next(struct pb_options *o, struct pb_option_read *ret, struct pb_err *err);

/* The option that a word names, --name or - and a letter. NULL: none. *ret_value: what follows "=" or the
 * letter; NULL: nothing. */
const struct pb_option *pb_option_match(const struct pb_option *table, const char *word,
                                        const char **ret_value, int *ret_index);

/* Whether a word is an option and not an argument ("-" and "--" are none). */
bool pb_option_is(const char *word);
