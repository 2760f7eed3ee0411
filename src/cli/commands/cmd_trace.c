/* trace: calls of functions of a running program, as rows of python.trace_event. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/ranks/ranks.h"
#include "cli/talk/question.h"

static const char *const column_names[] = {"target", "function", "calls", "errors", "mean_ms"};
static const struct pb_question_columns columns = {column_names, "tnnn", false};

static int run_trace(const struct pb_call *call, struct pb_err *err)
{
    const char *locals = pb_call_option(call, "locals");
    struct pb_question question = {.used = 0};

    if (call->format != PB_FORMAT_TABLE)
        return pb_question_print_rows(call, "trace", &columns, err);
    int r = pb_question_add_request(&question, call, "function", err);
    if (r == 0 && pb_call_option(call, "args"))
        r = pb_question_add(&question, "args", "1", err);
    if (r == 0 && pb_call_option(call, "yes"))
        r = pb_question_add(&question, "yes", "1", err);
    if (r == 0 && locals)
        r = pb_question_add(&question, "locals", locals, err);
    if (r == 0)
        r = pb_question_add_given(&question, call, "depth", err);
    if (r == 0)
        r = pb_question_add_duration(&question, call, "duration", "duration_ms", err);
    return r < 0 ? r : pb_question_ask(call, "trace", &question, stdout, err);
}

static const struct pb_option options[] = {
    {0, "args", NULL, "record arguments and results"},
    {0, "locals", PB_TEXT("NAMES"), "record these local variables at the end of each call: a,b"},
    {0, "depth", PB_COUNT("N", .least = 1, .most = 16),
     "record calls that the function makes too, N levels (default 1: the function alone)"},
    {0, "duration", PB_TIME(.least = 1),
     "stop by itself after this long (default: until --stop; before Python 3.12 10s)"},
    {0, "yes", NULL, "before Python 3.12: also where it takes more than 10% of the program's time"},
    {0, "stop", NULL, "stop tracing these functions, or all"},
    {0},
};

const struct pb_command pb_cmd_trace = {
    .name = "trace",
    .summary = "record calls of functions: times, arguments, results",
    .synopsis = "[MODULE:FUNCTION...]",
    .text = "Each call of these functions becomes a row of python.trace_event, as soon as it "
            "begins. A function is pkg.mod:Class.method, or a name of the program itself (train, "
            "Model.forward). Arguments and results are recorded without running code of the "
            "program: numbers and strings as they are, tensors by shape, other objects by type.\n\n"
            "A call takes some 0.5 us longer, and nothing else does. Before Python 3.12, the main "
            "thread and new threads run with a trace function, and are slower meanwhile: what it takes of "
            "their time is measured at once, and more than 10% needs --yes. --stop, --duration or "
            "detach end it. Without a function, lists what is traced.",
    .example = "probing -t 4711 trace pkg.data:Loader.fetch --args --duration 10s\n"
               "probing -t 4711 query \"SELECT name, duration_ms FROM python.trace_event\"",
    .options = options,
    .max_args = 64,
    .flags = PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TIMEOUT | PB_CMD_CLUSTER,
    .run = run_trace,
    .run_over = pb_cluster_debug,
};
