/* inject: brings the agent into a running process. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/talk/catch.h"
#include "inject/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const struct pb_option options[] = {
    {'P', "pprof", NULL, "sample stacks from the start (needs the profiler: not in this release)"},
    {'b', "background", NULL, "start the service (needs the service: not in this release)"},
    {'a', "address", "ADDR", "where the service listens (needs the service: not in this release)"},
    {'c', "crash", NULL, "keep the scene of a crash, and serve the failing frame: the same as catch"},
    {0, "assume-seccomp-ok", NULL, "go on where a seccomp filter cannot be read that might kill the process"},
    {0},
};

enum { TO_COME = 3 }; /* of the options: those that are not in this release */

/* Before anything is touched: a person who asked for the service does not want half of it. */
static int refuse_what_is_to_come(const struct pb_call *call, struct pb_err *err)
{
    for (size_t i = 0; i < TO_COME; i++)
        if (call->values[i])
            return pb_fail(err, -ENOTSUP,
                           "--%s is not in this release yet; nothing was injected (plain inject works)",
                           options[i].name);
    return 0;
}

static int catch_crashes(const struct pb_call *call, struct pb_err *err)
{
    struct pb_catch how = {.token = "", .prompt = true, .limit_ms = PB_CATCH_LIMIT_MS};

    fflush(stdout);
    int r = pb_address_parse(NULL, &how.address, err);
    return r < 0 ? r : pb_catch_start(call, &how, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_session session;
    pid_t pid = call->targets.at[0].pid;

    int r = refuse_what_is_to_come(call, err);
    if (pb_call_option(call, "assume-seccomp-ok"))
        setenv(PB_ASSUME_SECCOMP_OK, "1", 1);
    if (r == 0)
        r = pb_parts_session(&call->ask, pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    if (session.injected)
        printf("process %d is probed now; it was held for %.2f ms\n", (int)pid,
               (double)session.stopped_ns / 1e6);
    else
        printf("process %d is probed already\n", (int)pid);
    pb_session_done(&session);
    return pb_call_option(call, "crash") ? catch_crashes(call, err) : 0;
}

const struct pb_command pb_cmd_inject = {
    .name = "inject",
    .summary = "bring the agent into a running process",
    .synopsis = "[-P] [-c] [-b] [-a ADDR] [--assume-seccomp-ok]",
    .text = "Loads a small library into the process and starts its one thread. No restart, no change to the "
            "code; the process\n"
            "is held for a fraction of a millisecond. `detach` takes it out again. Commands that need it "
            "inject by themselves.",
    .example = "probing -t 4711 inject\nprobing -t train.py --all inject",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run,
};
