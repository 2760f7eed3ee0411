/* doctor: can this process be probed, and what would lift what stands in the way. */
#include "cli/cli.h"
#include "cli/rows.h"
#include "inject/doctor.h"

static const char *const columns[] = {"target", "check", "state", "found", "remedy"};
static const char *const states[] = {
    [PB_CHECK_OK] = "ok", [PB_CHECK_WARN] = "warning", [PB_CHECK_FAIL] = "fail"};

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_rows rows;
    bool failed = false;

    pb_rows_init(&rows, columns, 5);
    for (size_t t = 0; t < call->targets.n; t++) {
        struct pb_check checks[PB_CHECKS_MAX];
        int n = pb_inject_check(call->targets.at[t].pid, checks, PB_CHECKS_MAX);
        for (int i = 0; i < n; i++) {
            pb_rows_text(&rows, call->targets.at[t].label);
            pb_rows_text(&rows, checks[i].name);
            pb_rows_text(&rows, states[checks[i].state]);
            pb_rows_text(&rows, checks[i].found);
            pb_rows_text(&rows, checks[i].remedy[0] ? checks[i].remedy : NULL);
            failed = failed || checks[i].state == PB_CHECK_FAIL;
        }
    }
    int r = pb_rows_print(&rows, call->format, NULL, err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed ? PB_FAILED : 0;
}

const struct pb_command pb_cmd_doctor = {
    .name = "doctor",
    .summary = "can this process be probed, and what would lift what stands in the way",
    .synopsis = "",
    .text = "Looks only; nothing is attached. Exit status 1 when something stands in the way.",
    .example = "probing -t 4711 doctor",
    .flags = PB_CMD_TARGET | PB_CMD_ROWS,
    .run = run,
};
