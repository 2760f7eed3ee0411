/* trace: calls of functions of a running program, as rows of python.trace_event. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/talk/dialog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_SIZE 4096
#define DEPTH_MAX  16

struct words {
    char text[WORDS_SIZE];
    size_t used;
};

/* Appends a line "NAME=VALUE". What does not fit shows in add_words' caller: used is WORDS_SIZE then. */
static void add_line(struct words *w, const char *name, const char *value)
{
    int n = snprintf(w->text + w->used, WORDS_SIZE - w->used, "%s=%s\n", name, value);

    w->used = (size_t)n >= WORDS_SIZE - w->used ? WORDS_SIZE : w->used + (size_t)n;
}

static int add_duration(struct words *w, const char *given, struct pb_err *err)
{
    char number[24];
    unsigned ms;

    if (pb_parse_duration(given, &ms) < 0 || ms == 0)
        return pb_fail(err, PB_USAGE, "--duration takes a time such as 10, 500ms or 2m, not '%s'", given);
    snprintf(number, sizeof(number), "%u", ms);
    add_line(w, "duration_ms", number);
    return 0;
}

static int add_depth(struct words *w, const char *given, struct pb_err *err)
{
    char *end;
    long depth = strtol(given, &end, 10);

    if (end == given || *end || depth < 1 || depth > DEPTH_MAX)
        return pb_fail(err, PB_USAGE, "--depth takes a number from 1 to %d, not '%s'", DEPTH_MAX, given);
    add_line(w, "depth", given);
    return 0;
}

static int run_trace(const struct pb_call *call, struct pb_err *err)
{
    const char *depth = pb_call_option(call, "depth"), *duration = pb_call_option(call, "duration");
    const char *locals = pb_call_option(call, "locals");
    struct words w = {.used = 0};
    char answer[16384];
    int r = 0;

    add_line(&w, "do", pb_call_option(call, "stop") ? "stop" : call->nargs ? "start" : "list");
    if (pb_call_option(call, "args"))
        add_line(&w, "args", "1");
    if (locals)
        add_line(&w, "locals", locals);
    if (depth)
        r = add_depth(&w, depth, err);
    if (r == 0 && duration)
        r = add_duration(&w, duration, err);
    if (r < 0)
        return r;
    for (int i = 0; i < call->nargs; i++) {
        if (strchr(call->args[i], '\n'))
            return pb_fail(err, PB_USAGE, "a function's name has no line break");
        add_line(&w, "function", call->args[i]);
    }
    if (w.used >= WORDS_SIZE)
        return pb_fail(err, PB_USAGE, "too many functions for one command; use several");
    r = pb_dialog_ask(call, "trace", w.text, answer, sizeof(answer), err);
    if (r < 0)
        return r;
    for (char *line = strtok(answer, "\n"); line; line = strtok(NULL, "\n")) {
        pb_put_plain(stdout, line);
        putchar('\n');
    }
    return 0;
}

static const struct pb_option options[] = {
    {0, "args", NULL, "record arguments and results"},
    {0, "locals", "NAMES", "record these local variables at the end of each call: a,b"},
    {0, "depth", "N", "record calls that the function makes too, N levels (default 1: the function alone)"},
    {0, "duration", "TIME", "stop by itself after this long (default: until --stop; before Python 3.12 10s)"},
    {0, "stop", NULL, "stop tracing these functions, or all"},
    {0},
};

const struct pb_command pb_cmd_trace = {
    .name = "trace",
    .summary = "record calls of functions: times, arguments, results",
    .synopsis = "[MODULE:FUNCTION...]",
    .text =
        "Each call of the functions becomes a row of python.trace_event, while it runs already. A function "
        "is\n"
        "pkg.mod:Class.method, or a name of the program itself (train, Model.forward). No code of the\n"
        "program is called for that: numbers and texts are recorded as they are, tensors by shape, other\n"
        "objects by type. The functions take some 0.5 us a call longer, nothing else does. Before Python "
        "3.12\n"
        "the main thread and new threads run with a trace function, and are slower while it lasts.\n"
        "Without a function it lists what is traced. Tracing ends with --stop, --duration or detach.",
    .example = "probing -t 4711 trace pkg.data:Loader.fetch --args --duration 10s\n"
               "probing -t 4711 query \"SELECT name, duration_ms, arguments FROM python.trace_event\"",
    .options = options,
    .max_args = 64,
    .flags = PB_CMD_TARGET | PB_CMD_TIMEOUT,
    .run = run_trace,
};
