/* help: the list of commands, and the text for each, from their tables. */
#include "base/err.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 80, NAMES = 14, OPTIONS = 25 };

/* The overview, grouped by purpose. Every visible command is in exactly one group. */
static const struct {
    const char *title, *commands;
} groups[] = {
    {"what is it doing",
     "diagnose list now backtrace top torch gpu track inspect show groups memory core doctor"},
    {"profiles", "flamegraph pprof record"},
    {"run code in it",
     "launch eval execute repl listen pause continue catch trace watch break debug inject detach"},
    {"recorded data", "query skill tables probes export archive report bundle diff"},
    {"from elsewhere", "serve cluster"},
    {"settings and help", "config version help"},
};

/* Prints words from column *at on, wrapped at WIDTH; new lines are indented. */
static void put_words(const char *text, size_t length, int indent, int *at)
{
    const char *end = text + length;

    while (text < end) {
        int n = 0;
        while (text + n < end && text[n] != ' ')
            n++;
        if (*at > indent && *at + 1 + n > WIDTH) {
            printf("\n%*s", indent, "");
            *at = indent;
        } else if (*at > indent) {
            putchar(' ');
            (*at)++;
        }
        printf("%.*s", n, text);
        *at += n;
        text += n;
        while (text < end && *text == ' ')
            text++;
    }
}

/* Prints paragraphs, wrapped. Lines that follow each other are joined, except indented ones (lists,
 * examples). */
static void put_text(const char *text)
{
    int at = 0;

    for (const char *line = text; *line; line += *line == '\n') {
        size_t n = strcspn(line, "\n"), indent = strspn(line, " ");
        if (n == 0 || indent > 0) {
            printf("%s%s", at > 0 ? "\n" : "", n == 0 ? "\n" : "");
            at = 0;
        }
        if (indent > 0 && n > 0) {
            printf("%*s", (int)indent, "");
            at = (int)indent;
            put_words(line + indent, n - indent, (int)indent + 2, &at);
            putchar('\n');
            at = 0;
        } else if (n > 0) {
            put_words(line, n, 0, &at);
        }
        line += n;
    }
    if (at > 0)
        putchar('\n');
}

static void put_pair(const char *left, int column, const char *right)
{
    int at = column;

    printf("  %-*s", column - 2, left);
    /* A long left part gets a line of its own. */
    if ((int)strlen(left) + 3 > column)
        printf("\n%*s", column, "");
    put_words(right, strlen(right), column, &at);
    putchar('\n');
}

void pb_help_overview(void)
{
    char name[32];

    puts("probing finds out what a running AI job is doing, without a change to its code\n"
         "and without a restart.\n\n"
         "usage: probing -t TARGET COMMAND ...     or: probing PID COMMAND ...");
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        printf("\n%s:\n", groups[i].title);
        for (const char *p = groups[i].commands; *p; p += strspn(p, " ")) {
            int n = (int)strcspn(p, " ");
            snprintf(name, sizeof(name), "%.*s", n, p);
            const struct pb_command *c = pb_command_find(name);
            put_pair(name, NAMES, c ? c->summary : "");
            p += n;
        }
    }
    puts("\nTARGET is a pid, the id of a run (list shows it), or part of the command line of\n"
         "one process; --all takes every match, the workers of a launcher, or a process\n"
         "and its children.\n"
         "probing help COMMAND explains one.\n"
         "`probe` is the same program.");
}

static void print_option(const struct pb_option *o)
{
    char left[48];

    snprintf(left, sizeof(left), "%c%c%s --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
             o->letter ? "," : " ", o->name, o->value ? " " : "", o->value ? o->value->name : "");
    put_pair(left, OPTIONS, o->help);
}

void pb_help_command(const struct pb_command *command)
{
    bool target = command->flags & PB_CMD_TARGET;
    int at = printf("usage: probing");

    if (target)
        put_words("-t TARGET", 9, 8, &at);
    put_words(command->name, strlen(command->name), 8, &at);
    put_words(command->synopsis, strlen(command->synopsis), 8, &at);
    at = 0;
    puts("\n");
    put_words(command->summary, strlen(command->summary), 0, &at);
    puts(".");
    if (command->text) {
        putchar('\n');
        put_text(command->text);
    }
    puts("\noptions:");
    for (size_t i = 0; command->options && command->options[i].name; i++)
        print_option(&command->options[i]);
    for (size_t i = 0; pb_common_options[i].name; i++)
        if (pb_option_applies(command, &pb_common_options[i]))
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
