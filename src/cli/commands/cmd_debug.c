/* debug: the Debug Adapter Protocol over TCP, for VS Code and other clients of it. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/talk/address.h"
#include "cli/talk/dialog.h"
#include "cli/values.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define KIND "debug"

static int listen_for_clients(const struct pb_call *call, const struct pb_address *address,
                              const char *arguments, struct pb_err *err)
{
    struct pb_session session;

    int r = pb_parts_session(&call->ask, call->targets.at[0].pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    r = pb_address_listen_bytes(call->targets.at[0].pid, &session, KIND, address, arguments, err);
    pb_session_done(&session);
    if (r >= 0)
        pb_address_tell_plain(address, r);
    return r < 0 ? r : 0;
}

/* Starts debugpy in the process instead, where it can be imported. */
static int start_debugpy(const struct pb_call *call, const struct pb_address *address, struct pb_err *err)
{
    const char *folder = pb_call_option(call, "debugpy-path");
    char words[4096], answer[512];

    int size = snprintf(words, sizeof(words), "%s %u %s", address->host, address->port, folder ? folder : "");
    if (size < 0 || (size_t)size >= sizeof(words))
        return pb_fail(err, PB_USAGE, "the folder's name is too long");
    int r = pb_dialog_ask(call, "debugpy", words, answer, sizeof(answer), err);
    if (r < 0)
        return r;
    pb_put_plain(stdout, answer);
    putchar('\n');
    return 0;
}

static int run_debug(const struct pb_call *call, struct pb_err *err)
{
    unsigned limit_ms = pb_call_ms(call, "limit");
    struct pb_address address;
    char token[256], arguments[300];

    if (pb_call_option(call, "stop"))
        return pb_address_stop_all(call, KIND, "it was not listening for debuggers", err);
    int r = pb_address_parse(call->nargs ? call->args[0] : NULL, &address, err);
    if (r < 0)
        return r;
    if (pb_call_option(call, "debugpy") || pb_call_option(call, "debugpy-path")) {
        if (pb_call_option(call, "token") || !address.loopback)
            return pb_fail(err, PB_USAGE,
                           "debugpy asks for no token, and so listens on loopback addresses only");
        return start_debugpy(call, &address, err);
    }
    r = pb_address_token(call, &address, token, sizeof(token), err);
    if (r < 0)
        return r;
    snprintf(arguments, sizeof(arguments), "%u %s", limit_ms, token);
    return listen_for_clients(call, &address, arguments, err);
}

static const struct pb_option options[] = {
    {0, "limit", PB_TIME(.least = 1, .usual = 600000),
     "resume all threads if the client is silent for this long while a thread is stopped (10m)"},
    {0, "token", PB_TEXT("TOKEN"),
     "token that a client must have in its launch.json; \"-\": read it from stdin"},
    {0, "stop", NULL, "stop listening, end the debuggers that connected, and resume all threads"},
    {0, "debugpy", NULL, "start debugpy in the process instead, where it is installed"},
    {0, "debugpy-path", PB_TEXT("DIR"), "the same, with debugpy from that folder"},
    {0},
};

const struct pb_command pb_cmd_debug = {
    .name = "debug",
    .summary = "serve the Debug Adapter Protocol, for VS Code and others",
    .synopsis = "[ADDR]",
    .text =
        "The agent listens on 127.0.0.1 and a free port, or on ADDR (as for listen), and prints HOST:PORT.\n"
        "VS Code attaches there: \"type\": \"debugpy\", \"request\": \"attach\", \"connect\": {\"host\": "
        "HOST,\n"
        "\"port\": PORT}. Breakpoints (conditions, hit counts, log messages, functions, exceptions), steps,\n"
        "stacks, variables and code in a frame work on every Python from 3.6 on. Only the thread that comes\n"
        "to a breakpoint stops. A client that disconnects or vanishes leaves the program running at full\n"
        "speed. It goes on listening until debug --stop or detach. One client at a time.",
    .example =
        "probing -t 4711 debug\nprobing -t 4711 debug 0.0.0.0:5678 --token SECRET\nprobing -t 4711 debug "
        "--stop",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_CLUSTER | PB_CMD_BYTES | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_debug,
};
