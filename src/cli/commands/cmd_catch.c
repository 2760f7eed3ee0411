/* catch: keeps the scene of an uncaught exception or a fatal signal, and serves the failing frame. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/talk/catch.h"
#include "cli/values.h"

#include <stddef.h>

static int run_catch(const struct pb_call *call, struct pb_err *err)
{
    char token[256];
    struct pb_catch how = {
        .token = token, .prompt = !pb_call_option(call, "no-prompt"), .limit_ms = pb_call_ms(call, "limit")};

    if (pb_call_option(call, "stop"))
        return pb_catch_stop(call, err);
    int r = pb_address_parse(call->nargs ? call->args[0] : NULL, &how.address, err);
    if (r == 0)
        r = pb_address_token(call, &how.address, token, sizeof(token), err);
    return r < 0 ? r : pb_catch_start(call, &how, err);
}

static const struct pb_option options[] = {
    {0, "no-prompt", NULL, "keep the scene and let the program die at once"},
    {0, "limit", PB_TIME(.least = 1, .usual = PB_CATCH_LIMIT_MS),
     "resume the thread after this time without client input (default 10m)"},
    {0, "token", PB_TEXT("TOKEN"), "token that a client must send first; \"-\": read it from stdin"},
    {0, "stop", NULL, "stop: restore hooks and handlers"},
    {0},
};

const struct pb_command pb_cmd_catch = {
    .name = "catch",
    .summary = "keep all frames of a crash, and debug it afterwards",
    .synopsis = "[ADDR]",
    .text = "An uncaught exception in any thread, SIGSEGV, SIGBUS, SIGFPE and SIGABRT become rows "
            "of python.exceptions and python.crash_frames: the stacks of all threads with their "
            "locals. You can query them after the process has died.\n\n"
            "After a Python exception the thread is held, and a client that connects with nc to "
            "the printed address gets a prompt in the frame that failed. ADDR is as for listen. "
            "The program's own handling (sys.excepthook, faulthandler, signal handlers) still "
            "happens. A process of ours waits outside, and reads the stacks when a fatal signal "
            "comes.",
    .example = "probing -t 4711 catch\nprobing -t 4711 query \"SELECT * FROM python.exceptions\"",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT,
    .run = run_catch,
};
