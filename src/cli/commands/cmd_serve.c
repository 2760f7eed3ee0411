/* serve: starts the service, a separate program (serve_program.h). */
#include "cli/cli.h"
#include "cli/serve_program.h"

#include <stddef.h>
#include <stdlib.h>

/* They are options of record and archive, whose complaints nobody would see. */
static int check_watch(const struct pb_call *call, struct pb_err *err)
{
    const char *rate = pb_call_option(call, "record"), *watchdog = pb_call_option(call, "watchdog"),
               *retention = pb_call_option(call, "retention");
    char *end = NULL;
    unsigned ms;

    double hz = rate ? strtod(rate, &end) : 1;
    if (rate && (*end || !(hz >= 0.1 && hz <= 1000)))
        return pb_fail(err, PB_USAGE, "--record takes samples a second from 0.1 to 1000, not '%s'", rate);
    if (watchdog && (!rate || pb_parse_duration(watchdog, &ms) < 0 || ms == 0))
        return pb_fail(err, PB_USAGE, "--watchdog takes a time such as 60s, and goes with --record");
    double days = retention ? strtod(retention, &end) : 0;
    if (retention && (!pb_call_option(call, "archive") || end == retention || *end || !(days >= 0)))
        return pb_fail(err, PB_USAGE, "--retention takes days, and goes with --archive");
    return 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    static const char *const letters[][2] = {
        {"token-file", "-T"}, {"cert", "-c"},   {"key", "-k"},      {"host", "-n"},      {"open", "-a"},
        {"cores", "-C"},      {"record", "-R"}, {"watchdog", "-W"}, {"retention", "-D"}, {"socket", "-S"}};
    const char *words[PB_SERVE_WORDS] = {"probing-serve"};
    size_t n = 1;

    if (pb_call_option(call, "status") || pb_call_option(call, "stop"))
        words[n++] = pb_call_option(call, "stop") ? "--stop" : "--status";
    int r = check_watch(call, err);
    if (r < 0)
        return r;
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
    if (pb_call_option(call, "archive"))
        words[n++] = "-A";
    if (call->nargs)
        words[n++] = "--", words[n++] = call->args[0];
    return pb_serve_become(words, err);
}

static const struct pb_option options[] = {
    {'b', "background", NULL, "go on when the terminal is gone"},
    {0, "read-only", NULL, "nothing that changes a process: no eval, no settings, no inject"},
    {0, "mcp-changes", NULL, "let an assistant (/mcp) run code in processes and change settings"},
    {0, "open", "TARGET", "what a request that names no process is about"},
    {0, "record", "HZ", "keep watch: record every process that is served, at this rate, such as 1"},
    {0, "watchdog", "TIME", "with --record: keep all stacks when a main thread stands still that long"},
    {0, "archive", NULL, "keep watch: archive what they record"},
    {0, "retention", "DAYS", "with --archive: remove files whose rows are older"},
    {0, "cores", "DIR", "answer for the core files in this folder too"},
    {0, "token-file", "FILE", "64 hexadecimal digits, readable by you alone; else one is made and kept"},
    {0, "host", "NAME", "answer under this name too"},
    {0, "socket", "PATH", "as root: a unix socket for all users, each served what that user may see"},
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
