/* query_prompt: see query_prompt.h. */
#include "cli/query/query_prompt.h"

#include "base/cleanup.h"
#include "base/time.h"
#include "cli/line/line_edit.h"
#include "cli/print/terminal.h"
#include "cli/query/query_names.h"
#include "engine/shared/sql_text.h"
#include "print/outlet.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct sql_prompt {
    const struct pb_call *call;
    struct pb_query_options o;
    struct pb_query_names names;
    bool timing, over;
};

/* --- hooks of the line editor --- */

static const char *after_blanks(const char *text)
{
    return text + strspn(text, " \t\n");
}

/* A statement ends with a semicolon or an empty line, unless a quote is open. */
static bool is_whole(void *arg, const char *text, size_t length)
{
    if (*after_blanks(text) == '.' || *after_blanks(text) == '\0')
        return true;
    /* A semicolon is appended: if no end is found then, a quote or a comment is open. */
    char *ended = malloc(length + 3);
    if (!ended)
        return true;
    snprintf(ended, length + 3, "%s\n;", text);
    const char *end = ended + length + 2, *p = ended, *stop;
    while ((stop = pb_sql_statement_end(p, end)) < end - 1)
        p = stop + 1;
    bool open = stop == end;
    bool blank = pb_sql_is_blank(p, end - 1);
    bool empty_line = length > 0 && text[length - 1] == '\n';
    free(ended);
    return !open && (blank || empty_line);
}

static size_t complete(void *arg, const char *text, size_t cursor, struct pb_line_words *to)
{
    static const char *const commands[] = {".tables", ".schema", ".format", ".expanded",
                                           ".timing", ".help",   ".quit"};
    struct sql_prompt *p = arg;
    struct pb_err err = {0};

    if (text[0] == '.' && !memchr(text, ' ', cursor)) {
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
            if (strncmp(commands[i], text, cursor) == 0)
                pb_line_offer(to, commands[i]);
        return 0;
    }
    /* Names that cannot be read now must not disturb the person typing. */
    pb_query_names_read(&p->names, p->call, &err);
    return pb_query_names_complete(&p->names, text, cursor, to);
}

/* --- statements and dot commands --- */

static void print_error(const char *text)
{
    fflush(stdout);
    fputs("error: ", stderr);
    pb_put_sentence(stderr, text);
}

/* A process that has ended since the last statement is read from its run folder from now on. */
static void notice_ended_targets(const struct pb_call *call)
{
    for (size_t i = 0; i < call->targets.n; i++) {
        struct pb_target *t = &call->targets.at[i];
        if (t->dead || kill(t->pid, 0) == 0 || errno != ESRCH)
            continue;
        t->dead = true;
        fprintf(stderr, "note: process %d has ended; this is its recorded data\n", (int)t->pid);
    }
}

static void run_sql(struct sql_prompt *p, const char *sql)
{
    struct pb_err err = {0};
    uint64_t began = pb_now_ns();

    notice_ended_targets(p->call);
    /* Keys typed while a query runs wait for the prompt, and are not echoed among the rows. */
    pb_terminal_take(STDIN_FILENO, STDOUT_FILENO, PB_TERMINAL_KEYS, "", "");
    int r = pb_query_run(p->call, &p->o, sql, strlen(sql), stdout, &err);
    pb_terminal_give_back();
    if (r == PB_STOPPED(SIGINT))
        fputs("stopped\n", stderr);
    else if (r < 0)
        print_error(pb_err_text(&err, r));
    /* Ctrl-C ends only the query; other signals end the prompt too. */
    p->over = r < PB_STOPPED(0) && r != PB_STOPPED(SIGINT);
    if (r == 0 && p->timing)
        fprintf(stderr, "%.1f ms\n", (double)(pb_now_ns() - began) / 1e6);
}

static void show_tables(struct sql_prompt *p, const char *argument)
{
    run_sql(p, "SELECT name, kind, rows, comment FROM probing.tables ORDER BY name");
}

static void show_schema(struct sql_prompt *p, const char *argument)
{
    static const char all[] = "SELECT CASE WHEN schema_name = 'main' THEN '' ELSE schema_name || '.' END || "
                              "table_name AS \"table\", "
                              "column_name AS \"column\", data_type AS type, comment FROM duckdb_columns() "
                              "WHERE NOT internal%s%s%s ORDER BY 1, column_index";
    struct pb_err err = {0};
    char sql[1024];

    pb_query_names_read(&p->names, p->call, &err);
    /* Only known names are accepted, so that a quote is the only character to refuse. */
    if (*argument && (!pb_query_names_has_table(&p->names, argument) || strchr(argument, '\''))) {
        print_error("there is no such table (.tables lists them)");
        return;
    }
    int n = snprintf(sql, sizeof(sql), all, *argument ? " AND lower(\"table\") = lower('" : "", argument,
                     *argument ? "')" : "");
    if (n < (int)sizeof(sql))
        run_sql(p, sql);
}

static void set_format(struct sql_prompt *p, const char *argument)
{
    enum pb_query_format format;

    if (pb_query_format(argument, &format) < 0 || format == PB_QUERY_PARQUET || format == PB_QUERY_ARROW) {
        print_error("a format is table, json, jsonl, csv, tsv or markdown");
        return;
    }
    p->o.format = format;
}

static void set_flag(bool *flag, const char *argument)
{
    if (strcasecmp(argument, "on") == 0 || strcasecmp(argument, "off") == 0)
        *flag = strcasecmp(argument, "on") == 0;
    else if (*argument)
        print_error("give on or off");
    else
        *flag = !*flag;
}

static void set_expanded(struct sql_prompt *p, const char *argument)
{
    set_flag(&p->o.print.expanded, argument);
    p->o.format = PB_QUERY_TABLE;
}

static void set_timing(struct sql_prompt *p, const char *argument)
{
    set_flag(&p->timing, argument);
}

static void quit_prompt(struct sql_prompt *p, const char *argument)
{
    p->over = true;
}

static void show_help(struct sql_prompt *p, const char *argument);

static const struct {
    const char *name, *argument, *help;
    void (*run)(struct sql_prompt *p, const char *argument);
} commands[] = {
    {".tables", "", "the tables there are", show_tables},
    {".schema", "[TABLE]", "their columns, or those of one", show_schema},
    {".format", "FORMAT", "rows as table, json, jsonl, csv, tsv or markdown", set_format},
    {".expanded", "[on|off]", "tables with one column a line", set_expanded},
    {".timing", "[on|off]", "say how long each query took", set_timing},
    {".help", "", "this", show_help},
    {".quit", "", "leave, as Ctrl-D does", quit_prompt},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void show_help(struct sql_prompt *p, const char *argument)
{
    for (size_t i = 0; i < COMMANDS; i++)
        printf("%-10s %-9s %s\n", commands[i].name, commands[i].argument, commands[i].help);
    puts("\nA statement ends with a semicolon or an empty line, and may span several lines.\n"
         "Tab completes, Up and Down go through the history, Ctrl-R searches it, Alt-Enter begins a line.\n"
         "Ctrl-C clears what is typed, or stops the query that runs.");
}

static void run_command(struct sql_prompt *p, const char *text)
{
    char name[32], argument[300];
    size_t n = strcspn(text, " \t\n");
    const char *rest = after_blanks(text + n);

    size_t length = strlen(rest);
    while (length > 0 && strchr(" \t\n;", rest[length - 1]))
        length--;
    snprintf(name, sizeof(name), "%.*s", (int)n, text);
    snprintf(argument, sizeof(argument), "%.*s", (int)length, rest);
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) {
            commands[i].run(p, argument);
            return;
        }
    print_error("there is no such command (.help lists them)");
}

static void print_greeting(const struct pb_call *call)
{
    printf("probing " PROBING_VERSION ": SQL over ");
    if (call->targets.n == 1)
        printf("process %d%s", (int)call->targets.at[0].pid,
               call->targets.at[0].dead ? ", which has ended" : "");
    else if (call->targets.n)
        printf("%zu processes", call->targets.n);
    else
        printf("no process (-t names one)");
    puts("; .help explains");
}

int pb_query_prompt(const struct pb_call *call, const struct pb_query_options *o, struct pb_err *err)
{
    struct sql_prompt p = {.call = call, .o = *o};
    const struct pb_line_hooks hooks = {.is_whole = is_whole, .complete = complete, .arg = &p};
    struct pb_line *line;

    int r = pb_line_open_prompt("sql", &hooks, &line, err);
    if (r < 0)
        return r;
    print_greeting(call);
    while (r == 0 && !p.over) {
        _cleanup_free_ char *text = NULL;
        fflush(stdout);
        r = pb_line_read(line, "sql> ", "...> ", &text);
        const char *begin = r == 0 ? after_blanks(text) : "";
        if (*begin == '.')
            run_command(&p, begin);
        else if (*begin && !pb_sql_is_blank(begin, begin + strlen(begin)))
            run_sql(&p, text);
    }
    pb_line_close(line);
    pb_query_names_done(&p.names);
    return r == -ENODATA ? 0 : r;
}
