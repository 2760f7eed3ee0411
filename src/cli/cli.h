/* cli: the command table and struct pb_call, which a command is run with. One file per command
 * (commands/cmd_*.c); the table is in commands.c.
 *
 * A command parses no options: parse.c has read them by the command's own table. It returns 0, a negative
 * errno with a sentence in err (exit status 1), or PB_USAGE (exit status 2, err says what is wrong with the
 * call). */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"
#include "base/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PB_USAGE           (-10000)
#define PB_FAILED          (-10001) /* failed, and the error was printed already */
#define PB_PARTIAL         (-10002) /* the same: a part of a cluster did not answer: exit status 3 */
#define PB_NOTHING         (-10003) /* nothing was there to end */
#define PB_FOUND           (-10004) /* diagnose printed a finding: exit status 10 */
#define PB_STOPPED(signal) (-10100 - (signal)) /* a signal asked us to stop: exit status 128 + signal */
#define PB_EXITED(status)  (-10400 - (status)) /* a child did the work and has printed: its exit status */
#define PB_ARGS_MAX        1024                /* launch: arguments of the program that it starts */
#define PB_OPTS_MAX        24

enum pb_format { PB_FORMAT_TABLE, PB_FORMAT_JSON, PB_FORMAT_CSV, PB_FORMAT_TSV };
#define PB_FORMATS "table json csv tsv"

enum { PB_EXIT_NOTHING = 4 }; /* of pb_run_line; of the program 1 */

struct pb_cluster;
struct pb_selection;

struct pb_call {
    struct pb_ask ask;
    const struct pb_command *command;
    const char *target;        /* as given, NULL: none */
    const char *served_target; /* the process that this service was started for; NULL: none */
    const char *served_at;  /* HOST:PORT of the service that runs this command for a tool elsewhere; NULL */
    struct pb_err which;    /* served_at without a process, and none could be chosen: why */
    const char *token_file; /* token of a service on another machine */
    const char *ranks, *nodes; /* of a cluster: the selected ones; NULL: all */
    const char *incident;      /* folder of an unpacked incident's file that it is about; NULL */
    bool all;
    enum pb_format format;
    unsigned timeout_ms;
    bool timeout_given; /* else timeout_ms is what most commands wait */
    const char *args[PB_ARGS_MAX];
    int nargs;
    const char *values[PB_OPTS_MAX]; /* by index of the command's options; "" for an option without value;
                                        NULL: not given */
    struct pb_targets targets;       /* resolved, for commands that have targets */
};

enum pb_command_flags {
    PB_CMD_TARGET = 1,      /* needs a target */
    PB_CMD_DEAD = 2,        /* a dead run is a target too */
    PB_CMD_ROWS = 4,        /* prints rows: --format and --json */
    PB_CMD_HIDDEN = 8,      /* not in the list of commands */
    PB_CMD_MAY_TARGET = 16, /* takes a target or none */
    PB_CMD_TOGETHER = 32,   /* run is called once with all targets; without the flag once per target */
    PB_CMD_TIMEOUT = 64,    /* waits for an answer of the process: takes --timeout */
    PB_CMD_PROBED = 256,    /* --all without a target means every probed process */
    PB_CMD_CLUSTER = 512,   /* works on the ranks of a cluster: -t cluster */
    PB_CMD_LABELS = 128,    /* the command reads the target's rank itself, or does not show it */
    PB_CMD_BYTES = 1024,    /* prints bytes of a program, or for one: they go into a pipe as they are */
    PB_CMD_JOB = 4096,      /* all processes that -t names are one target */
    PB_CMD_INCIDENT = 8192, /* works on an incident's file too: -t FILE.probing */
    PB_CMD_SERVED = 2048    /* with MAY_TARGET: of -t HOST:PORT it is about the process of the service */
};

/* The parts of an incident's file (cli/bundle/) that have what a command printed when the file was made. */
struct pb_printed_parts {
    const char *text, *json;
    const char *options; /* the options it supports, with blanks around each */
    bool by_process;     /* text and JSON are cut to the processes that are asked for */
    bool finding;        /* its exit status is that of then */
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
    const struct pb_printed_parts *printed; /* NULL: of an incident's file, it asks the rows */
    /* With PB_CMD_TOGETHER call has all targets, otherwise one. */
    int (*run)(const struct pb_call *call, struct pb_err *err);
    /* With PB_CMD_CLUSTER: how it runs over the selected ranks of a cluster. NULL: in each of them, as on its
     * node; ranks that print the same are shown once (pb_cluster_each in cli/ranks/ranks.h). */
    int (*run_over)(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err);
};

extern const struct pb_command *const pb_commands[]; /* ends with NULL */

/* Options that several commands share; a command's flags say which of them it takes. */
extern const struct pb_option pb_common_options[];

/* Whether a command takes a shared option. False also where it has an option of that name itself. */
bool pb_option_applies(const struct pb_command *command, const struct pb_option *shared);

/* Names of the visible commands that take an option (shared or their own), as "a, b and c". Returns how
 * many. */
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

/* What a command returned as an exit status; prints its error, as for every command. */
int pb_call_status(const struct pb_call *call, int r, const struct pb_err *err);

/* A command line from its first word, "probing", on, as main does it: its exit status. */
int pb_run_line(int argc, char **argv);
