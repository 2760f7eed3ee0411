/* commands: the table of commands, and finding one by name. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which help lists them. */
#define COMMANDS(X)                                                                                          \
    X(diagnose)                                                                                              \
    X(list)                                                                                                  \
    X(now)                                                                                                   \
    X(backtrace)                                                                                             \
    X(core)                                                                                                  \
    X(flamegraph)                                                                                            \
    X(top)                                                                                                   \
    X(torch)                                                                                                 \
    X(gpu)                                                                                                   \
    X(track)                                                                                                 \
    X(inspect)                                                                                               \
    X(show)                                                                                                  \
    X(record)                                                                                                \
    X(pprof)                                                                                                 \
    X(inject)                                                                                                \
    X(launch)                                                                                                \
    X(eval)                                                                                                  \
    X(execute)                                                                                               \
    X(repl)                                                                                                  \
    X(listen)                                                                                                \
    X(pause)                                                                                                 \
    X(continue)                                                                                              \
    X(catch)                                                                                                 \
    X(trace)                                                                                                 \
    X(watch)                                                                                                 \
    X(break)                                                                                                 \
    X(debug)                                                                                                 \
    X(groups)                                                                                                \
    X(query)                                                                                                 \
    X(archive)                                                                                               \
    X(export)                                                                                                \
    X(memory)                                                                                                \
    X(report)                                                                                                \
    X(skill)                                                                                                 \
    X(bundle)                                                                                                \
    X(diff)                                                                                                  \
    X(tables)                                                                                                \
    X(config)                                                                                                \
    X(probes)                                                                                                \
    X(detach)                                                                                                \
    X(doctor)                                                                                                \
    X(cluster)                                                                                               \
    X(serve)                                                                                                 \
    X(version)                                                                                               \
    X(help)                                                                                                  \
    X(completions)                                                                                           \
    X(man)

#define DECLARE(name) extern const struct pb_command pb_cmd_##name;
COMMANDS(DECLARE)

#define ENTER(name) &pb_cmd_##name,
const struct pb_command *const pb_commands[] = {COMMANDS(ENTER) NULL};

const struct pb_option pb_common_options[] = {
    {'t', "target", PB_TEXT("TARGET"),
     "a pid, the id of a run (list shows it), or part of one process's command line; HOST:PORT/PID: of a "
     "machine that runs `probing serve` (without PID: the process of that service, or the only one there); "
     "cluster or cluster:NAME: all ranks of a job (probing cluster)"},
    {0, "all", NULL,
     "every process that TARGET matches, or all workers of a launcher; the rank leads each line; without "
     "TARGET (query, now) every probed process"},
    {0, "format", PB_CHOICE("FORMAT", PB_FORMATS), "rows as table, json, csv or tsv"},
    {0, "json", NULL, "the same as --format json"},
    {0, "timeout", PB_TIME(.usual = 10000), "give up after this long: 30, 500ms, 2m (default 10s; 0: never)"},
    {0, "token-file", PB_TEXT("FILE"),
     "with -t HOST:PORT: the token of that service (default: PROBING_TOKEN; your own service here needs "
     "none)"},
    {0, "ranks", PB_TEXT("RANKS"), "with -t cluster: these ranks, 0-7,64, or by role: pp=3,tp=*"},
    {0, "nodes", PB_TEXT("NODES"), "with -t cluster: these nodes, n[01-16],m3"},
    {'h', "help", NULL, "this text"},
    {0},
};

/* In the order of pb_common_options: a command with any of these flags takes the option. */
static const struct {
    const char *option;
    unsigned flags;
} takers[] = {
    {"target", PB_CMD_TARGET | PB_CMD_MAY_TARGET},
    {"all", PB_CMD_TARGET | PB_CMD_MAY_TARGET},
    {"format", PB_CMD_ROWS},
    {"json", PB_CMD_ROWS},
    {"timeout", PB_CMD_TIMEOUT},
    {"token-file", PB_CMD_TARGET | PB_CMD_MAY_TARGET},
    {"ranks", PB_CMD_CLUSTER},
    {"nodes", PB_CMD_CLUSTER},
};

static bool has_own(const struct pb_command *command, const char *name)
{
    for (size_t i = 0; command->options && command->options[i].name; i++)
        if (strcmp(command->options[i].name, name) == 0)
            return true;
    return false;
}

bool pb_option_applies(const struct pb_command *command, const struct pb_option *shared)
{
    if (has_own(command, shared->name))
        return false;
    for (size_t i = 0; i < sizeof(takers) / sizeof(takers[0]); i++)
        if (strcmp(takers[i].option, shared->name) == 0)
            return command->flags & takers[i].flags;
    return true; /* --help */
}

static bool takes_option(const struct pb_command *command, const char *name)
{
    for (const struct pb_option *o = pb_common_options; o->name; o++)
        if (strcmp(o->name, name) == 0 && pb_option_applies(command, o))
            return true;
    return has_own(command, name);
}

size_t pb_option_takers(const char *name, char *ret, size_t size)
{
    size_t total = 0, n = 0, len = 0;

    ret[0] = '\0';
    for (size_t i = 0; pb_commands[i]; i++)
        total += !(pb_commands[i]->flags & PB_CMD_HIDDEN) && takes_option(pb_commands[i], name);
    for (size_t i = 0; pb_commands[i] && len < size; i++) {
        if (pb_commands[i]->flags & PB_CMD_HIDDEN || !takes_option(pb_commands[i], name))
            continue;
        n++;
        len += (size_t)snprintf(ret + len, size - len, "%s%s",
                                n == 1       ? ""
                                : n == total ? " and "
                                             : ", ",
                                pb_commands[i]->name);
    }
    return total;
}

const struct pb_command *pb_command_find(const char *name)
{
    for (size_t i = 0; pb_commands[i]; i++)
        if (strcmp(pb_commands[i]->name, name) == 0 ||
            (pb_commands[i]->alias && strcmp(pb_commands[i]->alias, name) == 0))
            return pb_commands[i];
    return NULL;
}

#define WORD_MAX 32

/* Edits (insert, delete, replace, swap neighbours) between two words. */
static int edit_distance(const char *a, const char *b)
{
    int d[WORD_MAX + 1][WORD_MAX + 1];
    int n = (int)strnlen(a, WORD_MAX), m = (int)strnlen(b, WORD_MAX);

    for (int i = 0; i <= n; i++)
        for (int j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const struct pb_command *pb_command_nearest(const char *name)
{
    const struct pb_command *nearest = NULL;
    int best = 3; /* an edit distance above 2 is another word */

    for (size_t i = 0; pb_commands[i]; i++) {
        int d = edit_distance(name, pb_commands[i]->name);
        if (d < best && !(pb_commands[i]->flags & PB_CMD_HIDDEN)) {
            best = d;
            nearest = pb_commands[i];
        }
    }
    return nearest;
}

/* Compares the part of the word before "=". */
const char *pb_option_nearest(const struct pb_command *command, const char *word)
{
    const struct pb_option *const tables[] = {command->options, pb_common_options};
    const char *nearest = NULL;
    char name[WORD_MAX];
    int best = 3;

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    for (size_t t = 0; t < 2; t++)
        for (const struct pb_option *o = tables[t]; o && o->name; o++) {
            if (t == 1 && !pb_option_applies(command, o))
                continue;
            int d = edit_distance(name, o->name);
            if (d < best) {
                best = d;
                nearest = o->name;
            }
        }
    return nearest;
}

unsigned pb_call_limit(const struct pb_call *call)
{
    return call->timeout_ms ? call->timeout_ms : INT_MAX;
}

const char *pb_call_option(const struct pb_call *call, const char *name)
{
    const struct pb_option *o = call->command->options;

    for (size_t i = 0; o && o[i].name; i++)
        if (strcmp(o[i].name, name) == 0)
            return call->values[i];
    return NULL;
}
