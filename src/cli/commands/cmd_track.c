/* track: expressions of a training, evaluated at the end of each step. The command composes a setting of the
 * process (probing.torch.profiling). */
#include "cli/cli.h"
#include "cli/commands/config.h"
#include "control/settings.h"

#include <stdio.h>
#include <string.h>

/* What has a value without a function; the same as in python/probing/_track.py. */
static bool needs_function(const char *word)
{
    static const char *const known[] = {"lr",         "grad_norm", "grad_norm_local", "grad_norm_used",
                                        "throughput", "loss",      "epoch",           "step"};
    const char *at = strchr(word, '@');

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(word, known[i]) == 0)
            return false;
    return !at || at == word || !at[1];
}

/* For a person: what is tracked, rather than the setting that says so. */
static void print_tracked(const struct pb_shown_setting *s)
{
    const char *list = strstr(s->value, "exprs=");

    if (!list) {
        puts(strncmp(s->value, "on", 2) == 0 ? "nothing is tracked; steps are recorded"
                                             : "nothing is tracked");
        return;
    }
    fputs("tracked after each step:", stdout);
    for (const char *each = list + strlen("exprs="); *each;) {
        size_t n = strcspn(each, ",");
        printf(" %.*s", (int)n, each);
        each += n + (each[n] == ',');
    }
    puts("\nin python.variables and, a row a step, in training_logs");
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_call config = *call;
    char setting[PB_SETTING_LENGTH + 64];
    const char *name = pb_setting_info[PB_SET_TORCH_PROFILING].name;

    int n = snprintf(setting, sizeof(setting), "%s%s", name, call->nargs ? "=on" : "");
    bool off = call->nargs == 1 && strcmp(call->args[0], "off") == 0;
    for (int i = 0; !off && i < call->nargs && n > 0 && (size_t)n < sizeof(setting); i++) {
        if (strchr(call->args[i], ',') || !call->args[i][0])
            return pb_fail(err, PB_USAGE, "'%.60s' has a comma, or is empty: give each expression by itself",
                           call->args[i]);
        if (needs_function(call->args[i]))
            return pb_fail(
                err, PB_USAGE,
                "'%.60s' is no VARIABLE@FUNCTION, such as loss@train; without a function there are "
                "loss, epoch, step, lr, grad_norm and throughput",
                call->args[i]);
        n += snprintf(setting + n, sizeof(setting) - (size_t)n, "%s%s", i ? "," : ",exprs=", call->args[i]);
    }
    if (n < 0 || (size_t)n >= strlen(name) + PB_SETTING_LENGTH)
        return pb_fail(err, PB_USAGE, "all expressions together have at most %d bytes",
                       PB_SETTING_LENGTH - 11);
    config.args[0] = setting;
    config.nargs = 1;
    return pb_config_run(&config, print_tracked, err);
}

const struct pb_command pb_cmd_track = {
    .name = "track",
    .summary = "log expressions of a PyTorch training, one row for each step",
    .synopsis = "[EXPRESSION@FUNCTION ... | off]",
    .text = "After each step of the optimizer, the value of each expression becomes a row of "
            "python.variables, and a column of training_logs. loss@train is the variable loss of "
            "the function train. lr, grad_norm, throughput, loss, epoch and step need no function. "
            "Values on a GPU may be a step late; gradients that are sharded over ranks give NULL. "
            "A NaN or an infinity also becomes a row of python.alerts.\n\n"
            "A new list replaces the old one. off tracks nothing, but steps are still recorded. "
            "Without arguments, prints the list.",
    .example = "probing -t 4711 track loss@train acc1@train lr grad_norm\n"
               "probing -t 4711 query \"SELECT step, loss FROM training_logs\"",
    .max_args = 16,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER | PB_CMD_TIMEOUT,
    .run = run,
};
