/* completions: shell completions, made from the tables of commands and options. */
#include "base/err.h"
#include "cli/cli.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PIDS "$(probing list --format tsv 2>/dev/null | tail -n +2 | cut -f1)"

static void each_visible(void (*print)(const struct pb_command *))
{
    for (size_t i = 0; pb_commands[i]; i++)
        if (!(pb_commands[i]->flags & PB_CMD_HIDDEN))
            print(pb_commands[i]);
}

static void print_name(const struct pb_command *c)
{
    printf("%s ", c->name);
}

/* A pattern of all names for the shell's `case`. The last alternative (a blank) matches no word. */
static void print_pattern(const struct pb_command *c)
{
    printf("%s|", c->name);
}

/* Prints text within single quotes: a quote ends them, is escaped, and begins them again. special: characters
 * that need a backslash in this shell. */
static void print_quoted(const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(special, *text) ? "\\" : "", *text);
    }
}

static void print_long_options(const struct pb_option *o)
{
    for (size_t i = 0; o && o[i].name; i++)
        printf("--%s ", o[i].name);
}

/* --- bash --- */

static void bash_case(const struct pb_command *c)
{
    printf("        %s) words=\"", c->name);
    print_long_options(c->options);
    for (const struct pb_option *o = pb_common_options; o->name; o++)
        if (pb_option_applies(c, o))
            printf("--%s ", o->name);
    printf("\" ;;\n");
}

/* A target completes to the pids of `probing list`. The first command name on the line is the command. */
static void bash(void)
{
    printf("_probing() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} word command= words=\n"
           "    case $prev in\n"
           "        -t|--target) COMPREPLY=($(compgen -W \"" PIDS "\" -- \"$cur\")); return ;;\n"
           "        --format) COMPREPLY=($(compgen -W \"" PB_FORMATS "\" -- \"$cur\")); return ;;\n"
           "    esac\n"
           "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
           "        case $word in\n        ");
    each_visible(print_pattern);
    printf(
        "' ') command=$word; break ;;\n        esac\n    done\n    case $command in\n        '') words=\"");
    each_visible(print_name);
    print_long_options(pb_common_options);
    puts("\" ;;");
    each_visible(bash_case);
    puts("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "}\ncomplete -o filenames -F _probing probing probe");
}

/* --- zsh --- */

static void zsh_command(const struct pb_command *c)
{
    printf("        '%s:", c->name);
    print_quoted(c->summary, ":\\");
    puts("'");
}

static void zsh_option(const struct pb_option *o)
{
    if (o->letter)
        printf(" '(-%c --%s)'{-%c,--%s}", o->letter, o->name, o->letter, o->name);
    else
        printf(" --%s", o->name);
    printf("'[");
    print_quoted(o->help, ":[]\\");
    printf("]");
    if (strcmp(o->name, "target") == 0)
        printf(":target:->pids");
    else if (o->value && o->value->choices)
        printf(":%s:(%s)", o->name, o->value->choices);
    else if (o->value)
        printf(":value:_files");
    printf("'");
}

static void zsh_options(const struct pb_command *c)
{
    for (size_t i = 0; c && c->options && c->options[i].name; i++)
        zsh_option(&c->options[i]);
    for (size_t i = 0; pb_common_options[i].name; i++)
        if (!c || pb_option_applies(c, &pb_common_options[i]))
            zsh_option(&pb_common_options[i]);
}

static void zsh_case(const struct pb_command *c)
{
    printf("        %s) options=(", c->name);
    zsh_options(c);
    puts(") ;;");
}

static void zsh(void)
{
    puts("#compdef probing probe\n_probing() {\n    local -a commands options\n"
         "    local curcontext=$curcontext state line word command=\n    commands=(");
    each_visible(zsh_command);
    printf("    )\n    for word in ${words[2,CURRENT-1]}; do\n        case $word in\n        ");
    each_visible(print_pattern);
    printf(
        "' ') command=$word; break ;;\n        esac\n    done\n    case $command in\n        '') options=(");
    zsh_options(NULL);
    puts(") ;;");
    each_visible(zsh_case);
    puts("    esac\n"
         "    _arguments -s $options '1:command:->command' '*:argument:_files'\n"
         "    case $state in\n"
         "        pids) compadd -- " PIDS " ;;\n"
         "        command) _describe command commands ;;\n"
         "    esac\n}\n"
         "(( $+functions[compdef] )) && compdef _probing probing probe");
}

/* --- fish --- */

/* What follows it; other: where that is no word of a list. */
static void fish_value(const struct pb_option *o, const char *other)
{
    if (o->value && o->value->choices)
        printf(" -x -a '%s'", o->value->choices);
    else if (o->value)
        fputs(other, stdout);
}

static void fish_command(const struct pb_command *c)
{
    printf("complete -c probing -n 'not __probing_command >/dev/null' -f -a %s -d '", c->name);
    print_quoted(c->summary, "\\");
    puts("'");
    for (size_t i = 0; c->options && c->options[i].name; i++) {
        printf("complete -c probing -n 'contains -- %s (__probing_command)' -l %s", c->name,
               c->options[i].name);
        fish_value(&c->options[i], " -r");
        printf(" -d '");
        print_quoted(c->options[i].help, "\\");
        puts("'");
    }
}

/* A shared option is offered while no command is given, and for the commands that take it. */
static void fish_shared(const struct pb_option *o)
{
    printf("complete -c probing -n 'not __probing_command >/dev/null; or contains -- (__probing_command)");
    for (size_t i = 0; pb_commands[i]; i++)
        if (pb_option_applies(pb_commands[i], o))
            printf(" %s", pb_commands[i]->name);
    printf("' -l %s", o->name);
    fish_value(o, " -x");
    printf(" -d '");
    print_quoted(o->help, "\\");
    puts("'");
}

/* fish's own __fish_use_subcommand would take the value of an option (-t 4711) for the command. */
static void fish(void)
{
    printf("function __probing_command\n    for word in (commandline -opc)[2..-1]\n        if contains -- "
           "$word ");
    each_visible(print_name);
    puts("\n            echo $word\n            return 0\n        end\n    end\n    return 1\nend\n"
         "complete -c probing -s t -l target -x -a '(probing list --format tsv 2>/dev/null | tail -n +2 | "
         "cut -f1)'");
    for (const struct pb_option *o = pb_common_options; o->name; o++)
        if (strcmp(o->name, "target") != 0)
            fish_shared(o);
    each_visible(fish_command);
    puts("complete -c probe -w probing");
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    if (strcmp(call->args[0], "bash") == 0)
        bash();
    else if (strcmp(call->args[0], "zsh") == 0)
        zsh();
    else if (strcmp(call->args[0], "fish") == 0)
        fish();
    else
        return pb_fail(err, PB_USAGE, "there are completions for bash, zsh and fish, not for '%s'",
                       call->args[0]);
    return 0;
}

const struct pb_command pb_cmd_completions = {
    .name = "completions",
    .summary = "print completions for a shell",
    .synopsis = "bash|zsh|fish",
    .text = "To use them: source <(probing completions bash), or put the output where your shell looks.",
    .example = "source <(probing completions bash)",
    .min_args = 1,
    .max_args = 1,
    .flags = PB_CMD_BYTES | PB_CMD_HIDDEN,
    .run = run,
};
