/* detach: removes the agent from a process. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "control/message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_session session;
    struct pb_frame frame;
    pid_t pid = call->targets.at[0].pid;

    int r = pb_parts_session(&call->ask, pid, true, call->timeout_ms, &session, err);
    if (r == -ENOENT) {
        printf("process %d is not probed\n", (int)pid);
        return 0;
    }
    if (r < 0)
        return r;
    pb_client_limit(&session.client, call->timeout_ms);
    r = pb_client_signal(&session.client, PB_MSG_DETACH, 1);
    if (r == 0)
        r = pb_client_next(&session.client, &frame, -1);
    pb_session_done(&session);
    if (r == -ECONNRESET || r == -EPIPE) { /* another tool detached it at the same time */
        r = pb_parts_session(&call->ask, pid, true, call->timeout_ms, &session, err);
        if (r == 0)
            pb_session_done(&session);
        r = r == -ENOENT ? 0 : r == 0 ? -ECONNRESET : r;
    }
    if (r < 0)
        return pb_fail(err, r, "the agent of process %d does not answer: %s (is the process stopped?)",
                       (int)pid, strerror(-r));
    printf("process %d is not probed any more\n", (int)pid);
    return 0;
}

const struct pb_command pb_cmd_detach = {
    .name = "detach",
    .summary = "take the agent out of a process again",
    .synopsis = "",
    .text = "Its threads, sockets and memory go. Recorded rows can still be read (query, tables). "
            "The code stays mapped, since Python might still call it; the next inject uses it "
            "again.",
    .example = "probing -t 4711 detach",
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run,
};
