/* memory: how much memory a process uses, and whether that grows. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/print/diagnosis_print.h"
#include "cli/print/memory_print.h"
#include "cli/print/rows.h"
#include "print/outlet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Growth alone is no leak: whether it is one says diagnose. */
static void print_leaks(const struct pb_call *call, const struct pb_memory_answer *answers)
{
    struct pb_headlines headlines;
    struct pb_err ignored = {0};
    bool any = false;

    for (size_t i = 0; i < call->targets.n; i++)
        any |= answers[i].result == 0 && !answers[i].memory.dead && answers[i].memory.growth > 0;
    if (!any || pb_headlines_ask(&call->ask, &call->targets, true, &headlines, &ignored) < 0)
        return;
    for (size_t i = 0; i < call->targets.n; i++) {
        const struct pb_headline *h = pb_headline_of(&headlines, call->targets.at[i].pid);
        if (h && strcmp(h->kind, "leak") == 0)
            pb_headline_print(h);
    }
    pb_headlines_done(&headlines);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    enum pb_format format = call->format;
    _cleanup_free_ struct pb_memory_answer *answers = calloc(call->targets.n, sizeof(*answers));
    struct pb_ask ask = call->ask;
    struct pb_json_writer json = {.out = stdout};
    struct pb_rows rows;
    int failed = 0, shown = 0;

    ask.limit_ms = pb_call_limit(call);
    if (!answers || pb_memory_ask(&ask, &call->targets, answers) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    pb_rows_init(&rows, pb_memory_columns, pb_memory_ncolumns);
    for (size_t i = 0; i < call->targets.n; i++) {
        const struct pb_memory *memory = &answers[i].memory;
        if (answers[i].result < 0) {
            *err = answers[i].err;
            failed = pb_target_failed(call, &call->targets.at[i], answers[i].result, err);
            continue;
        }
        if (format == PB_FORMAT_JSON) {
            if (shown++)
                pb_json_line(&json, 1);
            else
                pb_json_open(&json, NULL, '[');
            pb_memory_put_json(&json, memory);
        } else if (format == PB_FORMAT_TABLE) {
            if (call->targets.n > 1)
                pb_put_between(stdout, shown ? "\n" : "", memory->label, "\n");
            shown++;
            pb_memory_print(memory);
        } else {
            pb_memory_add_row(&rows, memory);
        }
    }
    if (format == PB_FORMAT_TABLE && shown)
        print_leaks(call, answers);
    /* One process that cannot be read is an error, and no output. */
    if (format == PB_FORMAT_JSON && (shown || call->targets.n > 1)) {
        if (!shown)
            pb_json_open(&json, NULL, '[');
        pb_json_close(&json);
        putchar('\n');
    }
    bool in_rows = format == PB_FORMAT_CSV || format == PB_FORMAT_TSV;
    int r = in_rows && !(failed && call->targets.n == 1) ? pb_rows_print(&rows, format, NULL, err) : 0;
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_memory = {
    .name = "memory",
    .summary = "how much memory a process uses, and whether it grows",
    .synopsis = "",
    .text = "Shows:\n"
            "  memory in RAM and mapped, from the kernel\n"
            "  Python's heap, read from outside\n"
            "  growth, once an agent or `record` has recorded for a minute: measured over the "
            "second half of that time, with the line that holds what grew if allocations are "
            "sampled (probing.memory.sampling=on)\n"
            "  memory on GPUs, from the driver; and torch's own count, for which an agent asks "
            "Python, for a second at most\n\n"
            "For a process that has ended, shows what was recorded.",
    .example = "probing -t 4711 memory\nprobing -t train.py --all memory --format csv",
    .flags = PB_CMD_INCIDENT | PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER |
             PB_CMD_TIMEOUT,
    .run = run,
};
