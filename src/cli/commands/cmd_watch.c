/* watch: changes of variables of a running program, as rows of python.variables. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/ranks/ranks.h"
#include "cli/talk/question.h"

static const char *const column_names[] = {"target", "variable", "file", "line", "changes"};
static const struct pb_question_columns columns = {column_names, "ttnn", false};

static int run_watch(const struct pb_call *call, struct pb_err *err)
{
    struct pb_question question = {.used = 0};

    if (call->format != PB_FORMAT_TABLE)
        return pb_question_print_rows(call, "watch", &columns, err);
    int r = pb_question_add_request(&question, call, "name", err);
    if (r == 0)
        r = pb_question_add_given(&question, call, "rate", err);
    if (r == 0)
        r = pb_question_add_duration(&question, call, "duration", "duration_ms", err);
    return r < 0 ? r : pb_question_ask(call, "watch", &question, stdout, err);
}

static const struct pb_option options[] = {
    {0, "rate", PB_COUNT("N", .least = 1, .most = 100000),
     "record at most N changes a second, and how many were left out (default 1000)"},
    {0, "duration", PB_TIME(.least = 1),
     "stop by itself after this long (default: until --stop; before Python 3.12 1m)"},
    {0, "stop", NULL, "stop watching these variables, or all"},
    {0},
};

const struct pb_command pb_cmd_watch = {
    .name = "watch",
    .summary = "record each change of a variable of a function",
    .synopsis = "[VARIABLE@FUNCTION...]",
    .text = "Each change becomes a row of python.variables: old value, new value, line, time. A "
            "variable is a name in the function, or a path from one (self.lr, groups[0]['lr']). A "
            "function is as for trace; <module> is the script itself. Tensors are shown by shape, "
            "and changes in place are seen.\n\n"
            "From Python 3.12 on only that function is slower, by 0.7 us a line. Without a "
            "variable, lists what is watched.",
    .example = "probing -t 4711 watch loss@train optimizer.lr@Trainer.step\n"
               "probing -t 4711 query \"SELECT line, new_number FROM python.variables\"",
    .options = options,
    .max_args = 64,
    .flags = PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TIMEOUT | PB_CMD_CLUSTER,
    .run = run_watch,
    .run_over = pb_cluster_debug,
};
