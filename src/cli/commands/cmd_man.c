/* man: the manual page, made from the tables of commands and options so that it cannot fall behind them. */
#include "ask/tool_settings.h"
#include "cli/cli.h"
#include "control/settings.h"

#include <stdio.h>
#include <string.h>

/* Prints text as roff: escapes backslashes, hyphens, and a leading dot or quote. */
static void put_roff(const char *text)
{
    bool line_start = true;

    for (const char *p = text; *p; p++) {
        if (line_start && (*p == '.' || *p == '\''))
            fputs("\\&", stdout);
        if (*p == '\\')
            fputs("\\e", stdout);
        else if (*p == '-')
            fputs("\\-", stdout);
        else
            putchar(*p);
        line_start = *p == '\n';
    }
}

static void put_option(const struct pb_option *o)
{
    fputs(".TP\n.B ", stdout);
    if (o->letter)
        printf("\\-%c, ", o->letter);
    fputs("\\-\\-", stdout);
    put_roff(o->name);
    if (o->value)
        printf(" \\fI%s\\fR", o->value->name);
    putchar('\n');
    put_roff(o->help);
    putchar('\n');
}

static void put_shared_option(const struct pb_option *o)
{
    char takers[256];

    put_option(o);
    if (strcmp(o->name, "help") == 0)
        return;
    pb_option_takers(o->name, takers, sizeof(takers));
    printf("(%s)\n", takers);
}

static void put_command(const struct pb_command *c)
{
    printf(".SS %s\n", c->name);
    if (c->alias)
        printf("Also: %s.\n.br\n", c->alias);
    fputs(".B probing ", stdout);
    put_roff(c->flags & PB_CMD_TARGET ? "-t TARGET " : "");
    put_roff(c->name);
    putchar(' ');
    put_roff(c->synopsis);
    fputs("\n.PP\n", stdout);
    put_roff(c->summary);
    fputs(".\n", stdout);
    if (c->text) {
        fputs(".PP\n", stdout);
        put_roff(c->text);
        putchar('\n');
    }
    for (size_t i = 0; c->options && c->options[i].name; i++)
        put_option(&c->options[i]);
    fputs(".PP\n.nf\n.RS\n", stdout);
    put_roff(c->example);
    fputs("\n.RE\n.fi\n", stdout);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    (void)call;
    (void)err;
    puts(".TH PROBING 1 \"\" \"probing " PROBING_VERSION "\" \"User Commands\"\n"
         ".SH NAME\nprobing, probe \\- find out what a running AI job is doing\n"
         ".SH SYNOPSIS\n.B probing\n\\-t \\fITARGET COMMAND\\fR ...\n.br\n.B probing\n\\fIPID COMMAND\\fR "
         "...\n"
         ".SH DESCRIPTION\n"
         "Attaches to a running process, without a change to its code and without a restart, and answers "
         "what it is doing.\n"
         "Only the owner of a process, or root, may probe it.\n"
         ".SH OPTIONS\nThese may stand anywhere before a \"\\-\\-\"; the commands that take one are named "
         "with it.");
    for (size_t i = 0; pb_common_options[i].name; i++)
        put_shared_option(&pb_common_options[i]);
    puts(".SH COMMANDS");
    for (size_t i = 0; pb_commands[i]; i++)
        if (!(pb_commands[i]->flags & PB_CMD_HIDDEN))
            put_command(pb_commands[i]);
    puts(".SH EXIT STATUS\n0: success; 1: failure; 2: usage error; 3: a part did not answer; "
         "10: diagnose has found something.\n"
         ".SH ENVIRONMENT\n"
         ".TP\n.B PROBING_DIR\nthe folder for runs, instead of /dev/shm, /tmp "
         "and /var/tmp\n"
         ".TP\n.B NO_COLOR\nno colour on a terminal");
    for (int i = 0; i < PB_SETTINGS; i++) {
        printf(".TP\n.B %s\n", pb_setting_info[i].variable);
        put_roff(pb_setting_info[i].text);
        printf("; takes %s (default: %s)\n", pb_setting_info[i].allowed, pb_setting_info[i].fallback);
    }
    for (int i = 0; i < PB_TOOL_SETTINGS; i++) {
        printf(".TP\n.B %s\n", pb_tool_setting_info[i].variable);
        put_roff(pb_tool_setting_info[i].text);
        putchar('\n');
    }
    return 0;
}

const struct pb_command pb_cmd_man = {
    .name = "man",
    .summary = "print the manual page",
    .synopsis = "",
    .example = "probing man | man -l -",
    .flags = PB_CMD_BYTES | PB_CMD_HIDDEN,
    .run = run,
};
