/* help: the list of commands, and the text for each, from their tables. */
#include "base/err.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

void pb_help_overview(void)
{
    puts("probing finds out what a running AI job is doing, without a change to its code and without a "
         "restart.\n\n"
         "usage: probing -t TARGET COMMAND ...     or: probing PID COMMAND ...\n");
    for (size_t i = 0; pb_commands[i]; i++)
        if (!(pb_commands[i]->flags & PB_CMD_HIDDEN))
            printf("  %-11s %s\n", pb_commands[i]->name, pb_commands[i]->summary);
    puts("\nTARGET is a pid, or part of the command line of one process; --all takes every match, or the "
         "workers of a launcher.\n"
         "probing help COMMAND explains one. `probe` is the same program.");
}

static void print_option(const struct pb_option *o)
{
    char left[48];

    snprintf(left, sizeof(left), "%c%c%s --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
             o->letter ? "," : " ", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
    printf("  %-22s %s\n", left, o->help);
}

/* Whether a common option means something to this command, which may have one of that name itself. */
static bool applies(const struct pb_command *command, const struct pb_option *o)
{
    bool target = command->flags & (PB_CMD_TARGET | PB_CMD_MAY_TARGET);

    for (size_t i = 0; command->options && command->options[i].name; i++)
        if (strcmp(command->options[i].name, o->name) == 0)
            return false;
    switch (o->name[0]) {
    case 'f':
        return command->flags & PB_CMD_ROWS;
    case 'h':
        return true;
    default:
        return target;
    }
}

void pb_help_command(const struct pb_command *command)
{
    bool target = command->flags & PB_CMD_TARGET;

    printf("usage: probing %s%s %s\n\n", target ? "-t TARGET " : "", command->name, command->synopsis);
    printf("%s.\n", command->summary);
    if (command->text)
        printf("\n%s\n", command->text);
    puts("\noptions:");
    for (size_t i = 0; command->options && command->options[i].name; i++)
        print_option(&command->options[i]);
    for (size_t i = 0; pb_common_options[i].name; i++)
        if (applies(command, &pb_common_options[i]))
            print_option(&pb_common_options[i]);
    puts("\nexample:");
    for (const char *line = command->example; *line; line += strspn(line, "\n")) {
        int len = (int)strcspn(line, "\n");
        printf("  %.*s\n", len, line);
        line += len;
    }
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    if (call->nargs == 0) {
        pb_help_overview();
        return 0;
    }
    const struct pb_command *command = pb_command_find(call->args[0]);
    if (!command) {
        const struct pb_command *nearest = pb_command_nearest(call->args[0]);
        return pb_fail(err, PB_USAGE, "there is no command '%s'%s%s%s", call->args[0],
                       nearest ? "; did you mean '" : "", nearest ? nearest->name : "", nearest ? "'?" : "");
    }
    pb_help_command(command);
    return 0;
}

const struct pb_command pb_cmd_help = {
    .name = "help",
    .summary = "explain a command",
    .synopsis = "[COMMAND]",
    .example = "probing help eval",
    .max_args = 1,
    .run = run,
};
