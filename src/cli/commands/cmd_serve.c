/* serve: starts the service, a separate program (serve_program.h), shows where it is, ends it. */
#include "base/ending.h"
#include "cli/bundle/bundle.h"
#include "cli/cli.h"
#include "cluster/link/serve_program.h"
#include "serve/serve_options.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int show_status(struct pb_err *err)
{
    struct pb_own_service own;

    if (pb_own_service_find(&own) < 0)
        return pb_fail(err, -ESRCH, "no service of yours runs here (probing serve)");
    printf("%s/?token=%s\npid %d, socket %s/socket\n", own.url, own.token, (int)own.pid, own.folder);
    return 0;
}

static int stop_service(struct pb_err *err)
{
    enum { STOP_MS = 10000 };
    struct pb_own_service own;
    struct pb_ending service;

    if (pb_own_service_find(&own) < 0 || pb_ending_open(own.pid, 0, &service) < 0)
        return pb_fail(err, -ESRCH, "no service of yours runs here");
    int r = pb_ending_signal(&service, SIGTERM);
    if (r < 0 && r != -ESRCH)
        pb_fail(err, r, "cannot end process %d: %s", (int)own.pid, strerror(-r));
    else if ((r = pb_ending_wait(&service, STOP_MS)) < 0)
        pb_fail(err, r, "process %d did not exit within %d s of SIGTERM (kill -9 %d ends it)", (int)own.pid,
                STOP_MS / 1000, (int)own.pid);
    pb_ending_close(&service);
    return r;
}

static int check_watch(const struct pb_call *call, struct pb_err *err)
{
    if (pb_call_option(call, "watchdog") && !pb_call_option(call, "record"))
        return pb_fail(err, PB_USAGE, "--watchdog goes with --record");
    if (pb_call_option(call, "retention") && !pb_call_option(call, "archive"))
        return pb_fail(err, PB_USAGE, "--retention goes with --archive");
    return 0;
}

static int become_service(void *arg, struct pb_err *err)
{
    return pb_serve_become(arg, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *file = NULL, *address = NULL;
    const char *words[PB_SERVE_WORDS] = {"probing-serve"};
    char names[PB_SERVE_OPTIONS][24];
    size_t n = 1;

    if (pb_call_option(call, "stop"))
        return stop_service(err);
    if (pb_call_option(call, "status"))
        return show_status(err);
    int r = check_watch(call, err);
    if (r < 0)
        return r;
    if (!pb_call_option(call, "cert") != !pb_call_option(call, "key"))
        return pb_fail(err, PB_USAGE, "--cert and --key go together");
    for (size_t i = 0; i < PB_SERVE_OPTIONS; i++)
        if (call->values[i]) {
            snprintf(names[i], sizeof(names[i]), "--%s", pb_serve_options[i].name);
            words[n++] = names[i];
            if (pb_serve_options[i].value)
                words[n++] = call->values[i];
        }
    for (int i = 0; i < call->nargs; i++) {
        const char **to = pb_bundle_is(call->args[i]) ? &file : &address;
        if (*to)
            return pb_fail(err, PB_USAGE, "'%.100s' is one word too many", call->args[i]);
        *to = call->args[i];
    }
    if (file && pb_call_option(call, "background"))
        return pb_fail(err, PB_USAGE,
                       "--background is not for an incident's file: it is unpacked while served");
    if (address)
        words[n++] = "--", words[n++] = address;
    return file ? pb_bundle_serve(call, file, become_service, words, err) : pb_serve_become(words, err);
}

const struct pb_command pb_cmd_serve = {
    .name = "serve",
    .summary = "answer for this node's processes by HTTP: a page, an API, metrics",
    .synopsis = "[FILE] [ADDRESS] [--background | --status | --stop]",
    .text = "Serves the processes that you may probe: to browsers, curl, Prometheus, go tool "
            "pprof, and to `probing -t HOST:PORT/PID` on other machines. ADDRESS is HOST:PORT or a "
            "port (default: a free port of 127.0.0.1). It prints its address with the token, which "
            "every request needs; /openapi.json describes all requests.\n\n"
            "FILE: an incident's file (bundle); the service then answers about that, until it is "
            "ended.\n\n"
            "There is one service for each user and node: a second start prints the address of the "
            "first. Beyond this machine use --cert and --key, or ssh -L.",
    .example = "probing serve\n"
               "probing serve --background 127.0.0.1:7070\n"
               "curl -H \"Authorization: Bearer $TOKEN\" http://127.0.0.1:7070/api/v1/targets",
    .options = pb_serve_options,
    .max_args = 2,
    .run = run,
};
