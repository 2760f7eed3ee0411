/* memory: the quick overview of what a process takes of the machine's memory, and whether it grows. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/print/memory_print.h"
#include "cli/print/rows.h"

#include <stdio.h>

static int run(const struct pb_call *call, struct pb_err *err)
{
    enum pb_format format = call->format;
    struct pb_memory memory;
    struct pb_rows rows;
    int failed = 0, shown = 0;

    pb_rows_init(&rows, pb_memory_columns, pb_memory_ncolumns);
    for (size_t i = 0; i < call->targets.n; i++) {
        int r = pb_memory_take(&call->ask, &call->targets.at[i], &memory, err);
        if (r < 0) {
            failed = pb_target_failed(call, &call->targets.at[i], r, err);
            continue;
        }
        if (format == PB_FORMAT_JSON) {
            fputs(shown++ ? ",\n " : "[", stdout);
            pb_memory_print_json(&memory);
        } else if (format == PB_FORMAT_TABLE) {
            if (call->targets.n > 1)
                printf("%s%s\n", shown++ ? "\n" : "", memory.label);
            pb_memory_print(&memory);
        } else {
            pb_memory_add_row(&rows, &memory);
        }
    }
    if (format == PB_FORMAT_JSON && (shown || call->targets.n > 1))
        puts(shown ? "]" : "[]");
    bool in_rows = format == PB_FORMAT_CSV || format == PB_FORMAT_TSV;
    int r = in_rows && !(failed && call->targets.n == 1) ? pb_rows_print(&rows, format, NULL, err) : 0;
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_memory = {
    .name = "memory",
    .summary = "what a process takes of the memory, and whether it grows",
    .synopsis = "",
    .text = "In RAM and mapped now, from the kernel; Python's heap, read from outside; growth, from the row "
            "a second "
            "that an\nagent or `record` keeps; memory on GPUs, from the driver. torch's own memory on GPUs "
            "is asked of "
            "Python, where an\nagent is in the process, for a second at most. Of a process that has ended: "
            "what was "
            "recorded.",
    .example = "probing -t 4711 memory\nprobing -t train.py --all memory --format csv",
    .flags = PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER,
    .run = run,
};
