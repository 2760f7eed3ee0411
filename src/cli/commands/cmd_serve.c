/* serve: starts the service, a separate program (serve_program.h). */
#include "cli/cli.h"
#include "cli/serve_program.h"

#include <stddef.h>

static int run(const struct pb_call *call, struct pb_err *err)
{
    static const char *const letters[][2] = {{"token-file", "-T"}, {"cert", "-c"}, {"key", "-k"},
                                             {"host", "-n"},       {"open", "-a"}, {"cores", "-C"}};
    const char *words[PB_SERVE_WORDS] = {"probing-serve"};
    size_t n = 1;

    if (pb_call_option(call, "status") || pb_call_option(call, "stop"))
        words[n++] = pb_call_option(call, "stop") ? "--stop" : "--status";
    if (!pb_call_option(call, "cert") != !pb_call_option(call, "key"))
        return pb_fail(err, PB_USAGE, "--cert and --key go together");
    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++)
        if (pb_call_option(call, letters[i][0])) {
            words[n++] = letters[i][1];
            words[n++] = pb_call_option(call, letters[i][0]);
        }
    if (pb_call_option(call, "background"))
        words[n++] = "-b";
    if (pb_call_option(call, "read-only"))
        words[n++] = "-r";
    if (pb_call_option(call, "mcp-changes"))
        words[n++] = "-m";
    if (call->nargs)
        words[n++] = "--", words[n++] = call->args[0];
    return pb_serve_become(words, err);
}

static const struct pb_option options[] = {
    {'b', "background", NULL, "go on when the terminal is gone"},
    {0, "read-only", NULL, "nothing that changes a process: no eval, no settings, no inject"},
    {0, "mcp-changes", NULL, "let an assistant (/mcp) run code in processes and change settings"},
    {0, "open", "TARGET", "what a request that names no process is about"},
    {0, "cores", "DIR", "answer for the core files in this folder too"},
    {0, "token-file", "FILE", "64 hexadecimal digits, readable by you alone; else one is made and kept"},
    {0, "host", "NAME", "answer under this name too"},
    {0, "cert", "FILE", "TLS: the certificate (PEM)"},
    {0, "key", "FILE", "TLS: its key (PEM)"},
    {0, "status", NULL, "where your service is, with its token"},
    {0, "stop", NULL, "end it"},
    {0},
};

const struct pb_command pb_cmd_serve = {
    .name = "serve",
    .summary = "everything known of this node's processes at one address, by HTTP",
    .synopsis = "[ADDRESS] [--background | --status | --stop]",
    .text =
        "Serves the processes that you may probe to browsers, curl, Prometheus, go tool pprof, and to\n"
        "`probing -t HOST:PORT/PID` elsewhere. ADDRESS is HOST:PORT, or a port (default: a free one of\n"
        "127.0.0.1). It prints its address with the token that every request needs. One per user and node: "
        "a\n"
        "second start says where the first is. /openapi.json describes what it answers. Beyond this machine\n"
        "use --cert and --key, or ssh -L.",
    .example = "probing serve\n"
               "probing serve --background 127.0.0.1:7070\n"
               "curl -H \"Authorization: Bearer $TOKEN\" http://127.0.0.1:7070/api/v1/targets",
    .options = options,
    .max_args = 1,
    .run = run,
};
