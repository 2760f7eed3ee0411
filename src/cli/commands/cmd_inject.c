/* inject: loads the agent into a running process. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/profile/pprof.h"
#include "cli/talk/catch.h"
#include "cluster/link/serve_program.h"
#include "inject/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pb_option options[] = {
    {'P', "pprof", NULL, "start the service, and sample for its /flamegraph (as `pprof` does)"},
    {'b', "background", NULL, "start the service (probing serve), about this process"},
    {'a', "address", PB_TEXT("ADDR"), "the same, listening there: HOST:PORT"},
    {'c', "crash", NULL, "keep the scene of a crash, and serve the failing frame: the same as catch"},
    {0, "assume-seccomp-ok", NULL, "inject although an unreadable seccomp filter might kill the process"},
    {0},
};

static int catch_crashes(const struct pb_call *call, struct pb_err *err)
{
    struct pb_catch how = {.token = "", .prompt = true, .limit_ms = PB_CATCH_LIMIT_MS};

    fflush(stdout);
    int r = pb_address_parse(NULL, &how.address, err);
    return r < 0 ? r : pb_catch_start(call, &how, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *address = pb_call_option(call, "address");
    bool samples = pb_call_option(call, "pprof"),
         serves = samples || address || pb_call_option(call, "background");
    struct pb_own_service service;
    char text[24];
    struct pb_session session;
    pid_t pid = call->targets.at[0].pid;

    int r = pb_serve_check(address, err);
    if (r < 0)
        return r;
    if (pb_call_option(call, "assume-seccomp-ok"))
        setenv(PB_ASSUME_SECCOMP_OK, "1", 1);
    r = pb_parts_session(&call->ask, pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    if (session.injected)
        printf("process %d is probed now; it was held for %.2f ms\n", (int)pid,
               (double)session.stopped_ns / 1e6);
    else
        printf("process %d is probed already\n", (int)pid);
    pb_session_done(&session);
    fflush(stdout);
    snprintf(text, sizeof(text), "%d", (int)pid);
    if (serves)
        r = pb_serve_start(text, address, &service, err);
    if (r < 0)
        return r;
    if (serves)
        printf("%s/?token=%s\n", service.url, service.token);
    if (samples)
        r = pb_pprof_start(call, &service, PB_PPROF_LIMIT_MS, err);
    if (r < 0)
        return r;
    return pb_call_option(call, "crash") ? catch_crashes(call, err) : 0;
}

const struct pb_command pb_cmd_inject = {
    .name = "inject",
    .summary = "bring the agent into a running process",
    .synopsis = "[-P] [-c] [-b] [-a ADDR] [--assume-seccomp-ok]",
    .text = "Loads a small library into the process and starts its one thread. The job needs no "
            "restart and no change of code; one thread is held for a fraction of a millisecond. "
            "Commands that need the agent inject it themselves. `detach` removes it.",
    .example = "probing -t 4711 inject\nprobing -t train.py --all inject",
    .options = options,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run,
};
