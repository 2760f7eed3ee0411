/* listen: the Python prompt in plain bytes, for nc and telnet. */
#include "ask/parts.h"
#include "cli/cli.h"
#include "cli/talk/address.h"

#include <stdio.h>

#define KIND "prompt"

static int run_listen(const struct pb_call *call, struct pb_err *err)
{
    struct pb_address address;
    struct pb_session session;
    char token[256];

    if (pb_call_option(call, "stop"))
        return pb_address_stop_all(call, KIND, "it was not listening", err);
    int r = pb_address_parse(call->nargs ? call->args[0] : NULL, &address, err);
    if (r == 0)
        r = pb_address_token(call, &address, token, sizeof(token), err);
    if (r == 0)
        r = pb_parts_session(&call->ask, call->targets.at[0].pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    r = pb_address_listen(call->targets.at[0].pid, &session, KIND, &address, token, err);
    pb_session_done(&session);
    if (r < 0)
        return r;
    pb_address_tell(&address, r);
    return 0;
}

static const struct pb_option options[] = {
    {0, "token", PB_TEXT("TOKEN"), "token that a client must send first; \"-\": read it from stdin"},
    {0, "stop", NULL, "stop listening, and end the prompts that came that way"},
    {0},
};

const struct pb_command pb_cmd_listen = {
    .name = "listen",
    .summary = "the prompt of repl over TCP, for nc or telnet",
    .synopsis = "[ADDR]",
    .text = "The agent listens on 127.0.0.1 and a free port, or on ADDR: PORT, HOST:PORT or "
            "[HOST]:PORT, with a numeric host. The command to connect with is printed. Each "
            "connection is a prompt as that of repl, in lines of text.\n\n"
            "On loopback only this user and root may connect. Other addresses need --token; "
            "nothing is encrypted. listen --stop or detach ends it.",
    .example = "probing -t 4711 listen\nprobing -t 4711 listen 0.0.0.0:4000 --token SECRET\nprobing -t 4711 "
               "listen --stop",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_CLUSTER | PB_CMD_BYTES | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_listen,
};
