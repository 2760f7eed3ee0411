/* completions: what a shell needs to complete our command line, made from the tables of commands and options.
 */
#include "base/err.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

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

static void print_long_options(const struct pb_option *o)
{
    for (size_t i = 0; o && o[i].name; i++)
        printf("--%s ", o[i].name);
}

static void bash_case(const struct pb_command *c)
{
    printf("        %s) words=\"", c->name);
    print_long_options(c->options);
    printf("\" ;;\n");
}

/* Pids complete to Python processes, which `list` knows. */
static void bash(void)
{
    puts("_probing() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} word words=\n"
         "    case $prev in\n"
         "        -t|--target) COMPREPLY=($(compgen -W \"$(probing list --format tsv 2>/dev/null | tail -n "
         "+2 | cut -f1)\" -- \"$cur\")); return ;;\n"
         "        --format) COMPREPLY=($(compgen -W \"table json csv tsv\" -- \"$cur\")); return ;;\n"
         "    esac\n"
         "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "        case $word in");
    each_visible(bash_case);
    printf("        esac\n    done\n    [ -n \"$words\" ] || words=\"");
    each_visible(print_name);
    printf("\"\n    COMPREPLY=($(compgen -W \"$words ");
    print_long_options(pb_common_options);
    puts("\" -- \"$cur\"))\n"
         "    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "}\ncomplete -o filenames -F _probing probing probe");
}

static void zsh_command(const struct pb_command *c)
{
    printf("        '%s:%s'\n", c->name, c->summary);
}

static void zsh(void)
{
    puts("#compdef probing probe\n_probing() {\n    local -a commands\n    commands=(");
    each_visible(zsh_command);
    printf("    )\n    _arguments -s '(-t --target)'{-t,--target}'[the process]:target:->pids' '--all[every "
           "match]' "
           "'--format[of rows]:format:(table json csv tsv)' '--timeout[give up after]:time:' "
           "'1:command:->command' '*:argument:_files'\n"
           "    case $state in\n"
           "        pids) compadd -- $(probing list --format tsv 2>/dev/null | tail -n +2 | cut -f1) ;;\n"
           "        command) _describe command commands ;;\n"
           "    esac\n}\n"
           "(( $+functions[compdef] )) && compdef _probing probing probe\n");
}

static void fish_command(const struct pb_command *c)
{
    printf("complete -c probing -n __fish_use_subcommand -f -a %s -d '%s'\n", c->name, c->summary);
    for (size_t i = 0; c->options && c->options[i].name; i++)
        printf("complete -c probing -n '__fish_seen_subcommand_from %s' -l %s -d '%s'\n", c->name,
               c->options[i].name, c->options[i].help);
}

static void fish(void)
{
    puts("complete -c probing -s t -l target -x -a '(probing list --format tsv 2>/dev/null | tail -n +2 | "
         "cut -f1)'\n"
         "complete -c probing -l all\ncomplete -c probing -l format -x -a 'table json csv tsv'\ncomplete -c "
         "probing -l timeout -x");
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
    .flags = PB_CMD_HIDDEN,
    .run = run,
};
