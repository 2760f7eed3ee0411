/* groups: the process groups of torch.distributed: what role they give a process, and their timeouts. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/talk/question.h"

static const char *const column_names[] = {"target", "name",      "description",      "backend", "ranks",
                                           "rank",   "timeout_s", "timeout_before_s", "issued"};
static const struct pb_question_columns columns = {column_names, "ttttnnnn", true};

static int run_groups(const struct pb_call *call, struct pb_err *err)
{
    const char *longer = pb_call_option(call, "raise");
    bool restore = pb_call_option(call, "restore") != NULL, roles = pb_call_option(call, "roles") != NULL;
    struct pb_question question = {.used = 0};

    if ((longer != NULL) + restore + roles > 1)
        return pb_fail(err, PB_USAGE, "one of --roles, --raise and --restore");
    int r = pb_question_add(&question, "do",
                            longer    ? "raise"
                            : restore ? "restore"
                            : roles   ? "roles"
                                      : "rows",
                            err);
    if (r == 0)
        r = pb_question_add_duration(&question, call, "raise", "ms", err);
    if (r < 0)
        return r;
    return roles ? pb_question_ask(call, "groups", &question, stdout, err)
                 : pb_question_print_answer(call, "groups", question.text, &columns, err);
}

static const struct pb_option options[] = {
    {0, "roles", NULL, "only the roles of the process in its job, as tp=1,pp=3"},
    {0, "raise", PB_TIME(.least = 1), "raise timeouts by TIME, for TIME, for operations issued from now on"},
    {0, "restore", NULL, "put the timeouts back"},
    {0},
};

const struct pb_command pb_cmd_groups = {
    .name = "groups",
    .summary = "process groups of torch.distributed: ranks, backend, timeout, operations issued",
    .synopsis = "",
    .text =
        "A rank that is held (break, pause, a debugger) lets the others wait in their next operation, and\n"
        "when that takes longer than the group's timeout they fail and the job ends. --raise lets gloo and\n"
        "NCCL wait longer; a timeout counts for operations that are issued later. It is put back after that\n"
        "time, by --restore and by detach, unless the program has set another. Roles come from Megatron,\n"
        "vLLM and SGLang, from names of groups and from torch's device mesh.",
    .example = "probing -t 4711 groups\nprobing -t cluster groups --raise 10m",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TIMEOUT | PB_CMD_CLUSTER,
    .run = run_groups,
};
