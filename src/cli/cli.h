/* cli: what a command is, and what it is given. One file a command, cmd_*.c; the table of them is in
 * commands.c.
 *
 * A command parses nothing: main.c has read the options by the command's own table. It returns 0, a negative
 * errno with a sentence in err (exit status 1), or PB_USAGE (exit status 2, err says what is wrong with the
 * call). */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PB_USAGE           (-10000)
#define PB_FAILED          (-10001)            /* failed, and everything there is to say has been said */
#define PB_STOPPED(signal) (-10100 - (signal)) /* a signal asked us to stop: exit status 128 + signal */
#define PB_ARGS_MAX        1024                /* launch: those of a program */
#define PB_OPTS_MAX        24

struct pb_option {
    char letter; /* 0: none */
    const char *name;
    const char *argument; /* what it takes, for the help; NULL: nothing */
    const char *help;
};

enum pb_format { PB_FORMAT_TABLE, PB_FORMAT_JSON, PB_FORMAT_CSV, PB_FORMAT_TSV };

struct pb_call {
    struct pb_ask ask;
    const struct pb_command *command;
    const char *target;     /* as given, NULL: none */
    const char *token_file; /* of a service elsewhere */
    bool all;
    enum pb_format format;
    unsigned timeout_ms;
    const char *args[PB_ARGS_MAX];
    int nargs;
    const char *values[PB_OPTS_MAX]; /* of the command's own options, "" for those without argument; NULL: not
                                        given */
    struct pb_targets targets;       /* resolved, for commands that have targets */
};

enum pb_command_flags {
    PB_CMD_TARGET = 1,      /* needs a target */
    PB_CMD_DEAD = 2,        /* a dead run is a target too */
    PB_CMD_ROWS = 4,        /* prints rows: --format and --json */
    PB_CMD_HIDDEN = 8,      /* not in the list of commands */
    PB_CMD_MAY_TARGET = 16, /* takes a target, does without */
    PB_CMD_TOGETHER = 32,   /* called once for all targets, otherwise once for each */
    PB_CMD_TIMEOUT = 64,    /* waits for an answer of the process: --timeout */
    PB_CMD_PROBED = 256,    /* --all without a target is every process that is probed */
    PB_CMD_LABELS = 128     /* reads the rank of a single target itself, or does not show it */
};

struct pb_command {
    const char *name, *alias;
    const char *summary;  /* for the list of commands */
    const char *synopsis; /* the arguments, for the help */
    const char *text;     /* more help: what it does, in a few lines */
    const char *example;
    const struct pb_option *options; /* ends with a NULL name; may be NULL */
    int min_args, max_args;
    unsigned flags;
    /* call has all targets with PB_CMD_TOGETHER, otherwise one. */
    int (*run)(const struct pb_call *call, struct pb_err *err);
};

extern const struct pb_command *const pb_commands[]; /* ends with NULL */

/* Options that several commands share, each taken by those commands alone to which it means something. */
extern const struct pb_option pb_common_options[];

/* Whether a command takes a shared option. False also where it has an option of that name itself. */
bool pb_option_applies(const struct pb_command *command, const struct pb_option *shared);

/* The names of the commands, but for hidden ones, that take an option, whether shared or their own, as "a, b
 * and c". Returns how many. */
size_t pb_option_takers(const char *name, char *ret, size_t size);

const struct pb_command *pb_command_find(const char *name);

/* The command whose name is nearest to a mistyped one, or NULL when none is near. */
const struct pb_command *pb_command_nearest(const char *name);

/* The option of a command, or of all commands, whose name is nearest to a mistyped one; NULL when none is
 * near. */
const char *pb_option_nearest(const struct pb_command *command, const char *word);

/* The value of a command's own option; NULL when it was not given. */
const char *pb_call_option(const struct pb_call *call, const char *name);

/* --timeout as the limit of a struct pb_ask, which has no "never": 0 gives some weeks. */
unsigned pb_call_limit(const struct pb_call *call);

void pb_help_overview(void);
void pb_help_command(const struct pb_command *command);

/* "30", "1.5s", "500ms", "2m": milliseconds. -EINVAL. */
int pb_parse_duration(const char *text, unsigned *ret_ms);
