/* parse: see parse.h.
 *
 * The command is found first, since its options decide how the rest is read: it is the first word that is not
 * an option, or the second where the first is a target (`probing 4711 eval ..`). Options may stand anywhere,
 * up to "--". */
#include "cli/parse.h"

#include "base/options.h"
#include "cli/ranks/ranks.h"
#include "cli/remote.h"
#include "cli/served.h"
#include "cli/values.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool looks_like_target(const char *word)
{
    bool digits = *word != '\0';

    for (const char *p = word; *p; p++)
        digits = digits && isdigit((unsigned char)*p);
    /* A run's id, PID@START. */
    size_t pid = strspn(word, "0123456789");
    digits = digits || (pid && word[pid] == '@');
    return digits || pb_remote_is(word) || pb_cluster_is_target(word, NULL);
}

/* Finds the first two words that are neither options nor values of common options. */
static void find_words(int argc, char **argv, int ret[2])
{
    int found = 0;

    ret[0] = ret[1] = 0;
    for (int i = 1; i < argc && found < 2; i++) {
        const char *value;
        int index;
        if (strcmp(argv[i], "--") == 0)
            break;
        if (!pb_option_is(argv[i])) {
            ret[found++] = i;
            continue;
        }
        const struct pb_option *o = pb_option_match(pb_common_options, argv[i], &value, &index);
        if (o && o->value && !value)
            i++;
    }
}

static int unknown_command(const char *word, struct pb_err *err)
{
    const struct pb_command *nearest = pb_command_nearest(word);

    if (nearest)
        return pb_fail(err, PB_USAGE, "there is no command '%s'; did you mean '%s'?", word, nearest->name);
    return pb_fail(err, PB_USAGE, "there is no command '%s' (probing help lists them)", word);
}

/* Finds the command and a target before it. *ret_skip: the words that were used. */
static int find_command(int argc, char **argv, struct pb_call *call, int ret_skip[2], struct pb_err *err)
{
    int words[2];

    find_words(argc, argv, words);
    ret_skip[0] = ret_skip[1] = 0;
    if (!words[0])
        return pb_fail(err, PB_USAGE, "which command? (probing help lists them)");
    call->command = pb_command_find(argv[words[0]]);
    if (call->command) {
        ret_skip[0] = words[0];
        return 0;
    }
    const struct pb_command *second = words[1] ? pb_command_find(argv[words[1]]) : NULL;
    if (!second && !looks_like_target(argv[words[0]]))
        return unknown_command(argv[words[0]], err);
    if (!words[1])
        return pb_fail(err, PB_USAGE, "which command for %s? (probing help lists them)", argv[words[0]]);
    if (!second)
        return unknown_command(argv[words[1]], err);
    call->command = second;
    call->target = argv[words[0]];
    ret_skip[0] = words[0];
    ret_skip[1] = words[1];
    return 0;
}

/* A command with its own --format takes --json as one of its formats. */
static int set_json(struct pb_call *call)
{
    for (int i = 0; call->command->options && call->command->options[i].name; i++)
        if (strcmp(call->command->options[i].name, "format") == 0) {
            call->values[i] = "json";
            return 0;
        }
    call->format = PB_FORMAT_JSON;
    return 0;
}

static int set_common(struct pb_call *call, const char *name, const char *value, struct pb_err *err)
{
    if (strcmp(name, "help") == 0) {
        pb_help_command(call->command);
        return 1;
    }
    if (strcmp(name, "token-file") == 0)
        call->token_file = value;
    if (strcmp(name, "ranks") == 0)
        call->ranks = value;
    if (strcmp(name, "nodes") == 0)
        call->nodes = value;
    if (strcmp(name, "all") == 0)
        call->all = true;
    if (strcmp(name, "target") == 0) {
        if (call->target && strcmp(call->target, value) != 0)
            return pb_fail(err, PB_USAGE, "two targets were given, %s and %s (--all takes several)",
                           call->target, value);
        call->target = value;
    }
    if (strcmp(name, "format") == 0)
        call->format = (enum pb_format)pb_value_choice(PB_FORMATS, value);
    if (strcmp(name, "json") == 0)
        return set_json(call);
    if (strcmp(name, "timeout") == 0) {
        call->timeout_given = true;
        return pb_parse_duration(value, &call->timeout_ms);
    }
    return 0;
}

static int unknown_option(const struct pb_call *call, const char *word, struct pb_err *err)
{
    const char *name = call->command->name, *nearest = NULL;
    char option[32] = "", takers[512]; /* all names of commands: some 300 characters */

    if (word[1] == '-')
        snprintf(option, sizeof(option), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    size_t n = option[0] ? pb_option_takers(option, takers, sizeof(takers)) : 0;
    if (n)
        return pb_fail(err, PB_USAGE, "%s does not take --%s (%s %s)", name, option, takers,
                       n == 1 ? "does" : "do");
    if (word[1] == '-')
        nearest = pb_option_nearest(call->command, word + 2);
    if (nearest)
        return pb_fail(err, PB_USAGE, "%s does not take %s; did you mean '--%s'?", name, word, nearest);
    return pb_fail(err, PB_USAGE, "%s does not take %s (probing %s --help)", name, word, name);
}

static int add_argument(struct pb_call *call, const char *word, struct pb_err *err)
{
    if (call->nargs == PB_ARGS_MAX)
        return pb_fail(err, PB_USAGE, "more than %d words", PB_ARGS_MAX);
    call->args[call->nargs++] = word;
    return 0;
}

/* Takes one option. found: what pb_options_next has returned. */
static int take_option(struct pb_call *call, const struct pb_option_read *read, const char *word, int found,
                       struct pb_err *err)
{
    const struct pb_option *o = read->option;

    /* A target may also be given as a word: main.c refuses a target for all commands that take none. */
    if (found == -ENOENT || (read->table == 1 && o->letter != 't' && strcmp(o->name, "token-file") != 0 &&
                             !pb_option_applies(call->command, o)))
        return unknown_option(call, word, err);
    if (found < 0 || (o->value && pb_value_check(o, read->value, err) < 0))
        return PB_USAGE;
    if (read->table == 1)
        return set_common(call, o->name, read->value, err);
    if (o->value && o->value->again)
        return add_argument(call, read->value, err);
    call->values[read->index] = read->value ? read->value : "";
    return 0;
}

static int check_args(const struct pb_call *call, struct pb_err *err)
{
    const struct pb_command *c = call->command;

    if (call->nargs < c->min_args)
        return pb_fail(err, PB_USAGE, "an argument is missing. Usage: probing %s%s %s",
                       c->flags & PB_CMD_TARGET ? "-t TARGET " : "", c->name, c->synopsis);
    if (call->nargs > c->max_args)
        return pb_fail(err, PB_USAGE, "'%s' is one word too many. Usage: probing %s%s %s",
                       call->args[c->max_args], c->flags & PB_CMD_TARGET ? "-t TARGET " : "", c->name,
                       c->synopsis);
    if (call->served_at) /* served.c chooses the process */
        return 0;
    if (c->flags & PB_CMD_TARGET && !call->target)
        return pb_fail(err, PB_USAGE, "which process? (-t PID, or probing PID %s; probing list shows them)",
                       c->name);
    if (call->all && !call->target && !(c->flags & PB_CMD_PROBED))
        return pb_fail(err, PB_USAGE, "--all of what? It needs a target (-t TARGET)");
    return 0;
}

int pb_parse(int argc, char **argv, struct pb_call *ret, struct pb_err *err)
{
    struct pb_call call = {.timeout_ms = 10000};
    struct pb_option_read read;
    int skip[2], r;

    if (argc < 2) {
        pb_help_overview();
        return 1;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        pb_help_overview();
        return 1;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        return 2;
    r = find_command(argc, argv, &call, skip, err);
    *ret = call;
    if (r < 0)
        return r;
    struct pb_options o = {
        .argc = argc, .at = 1, .argv = argv, .tables = {call.command->options, pb_common_options}};
    while ((r = pb_options_next(&o, &read, err)) != 0) {
        if (r < 0 || read.option) {
            r = take_option(&call, &read, argv[read.at], r, err);
            if (r != 0)
                return r;
        } else if (read.at == skip[0] || read.at == skip[1]) {
            continue;
        } else if ((r = add_argument(&call, read.value, err)) != 0) {
            return r;
        }
    }
    pb_served_read(&call);
    *ret = call;
    return check_args(&call, err);
}
