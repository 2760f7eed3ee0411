/* pprof: samples a process in the background; its flame graph is had by curl from then on. */
#include "base/err.h"
#include "cli/profile/pprof.h"
#include "cli/profile/profile_run.h"
#include "cli/profile/recordings.h"
#include "cli/values.h"
#include "cluster/link/serve_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pb_option options[] = {
    {'d', "duration", PB_TIME(.usual = PB_PPROF_LIMIT_MS),
     "how long to sample at most (default 1h; 0: until the process ends)"},
    {'a', "address", PB_TEXT("ADDR"),
     "where the service listens, where none runs yet: HOST:PORT (default 127.0.0.1)"},
    {0, "stop", NULL, "stop sampling; the samples can still be fetched"},
    {'r', "rate", PB_NUMBER("HZ", .least = 0.01, .most = 1e6),
     "samples a second of each thread (default: probing.sample_rate, 100)"},
    {0, "cpu", NULL, "only threads that run: CPU time"},
    {0, "native", NULL, "native frames (C, C++) among the Python frames"},
    {0},
};

/* A service with TLS has a certificate that curl may not know: its socket asks for neither that nor a token.
 */
static void print_curl(const struct pb_call *call, const struct pb_own_service *service)
{
    int pid = (int)call->targets.at[0].pid;

    if (strncmp(service->url, "https://", 8) == 0)
        printf("curl --unix-socket '%s/socket' 'http://localhost/flamegraph?target=%d' > flamegraph.svg\n",
               service->folder, pid);
    else /* a tool elsewhere reaches the service by the address that it has used */
        printf("curl '%s%s/flamegraph?target=%d&token=%s' > flamegraph.svg\n",
               call->served_at ? "http://" : "", call->served_at ? call->served_at : service->url, pid,
               service->token);
}

int pb_pprof_start(const struct pb_call *call, const struct pb_own_service *service, unsigned limit_ms,
                   struct pb_err *err)
{
    int pid = (int)call->targets.at[0].pid, r = 0;
    char path[1024], limit[48] = "";
    bool goes_on = false;
    pid_t recorder;

    if (limit_ms)
        snprintf(limit, sizeof(limit), ", or %g minutes have passed", limit_ms / 60000.0);
    if (pb_recordings_shown(call->targets.at[0].pid, path, sizeof(path), &goes_on) < 0 || !goes_on)
        r = pb_recordings_start(call, true, limit_ms, path, &recorder, err);
    if (r < 0)
        return r;
    if (goes_on)
        printf("process %d is sampled already (probing %d pprof --stop ends that)\n", pid, pid);
    else
        printf("process %d is sampled until it ends%s, or `probing %d pprof --stop`\n", pid, limit, pid);
    print_curl(call, service);
    return 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *address = pb_call_option(call, "address");
    struct pb_own_service service;
    char pid[24];

    if (pb_call_option(call, "stop"))
        return pb_recordings_stop(call, true, err);
    snprintf(pid, sizeof(pid), "%d", (int)call->targets.at[0].pid);
    int r = pb_serve_check(address, err);
    if (r == 0)
        r = pb_serve_start(pid, address, &service, err);
    return r < 0 ? r : pb_pprof_start(call, &service, pb_call_ms(call, "duration"), err);
}

const struct pb_command pb_cmd_pprof = {
    .name = "pprof",
    .summary = "sample in the background; curl gets the flame graph at any time",
    .synopsis = "[--duration TIME] [-a ADDR] | --stop",
    .text = "Starts to sample the process from outside, starts the service if none runs, and "
            "returns at once. It prints a curl line that gets the samples so far as a flame graph, "
            "as often as you like. With &seconds=10 in the address, it samples for that long "
            "first. `record --list` lists what is being sampled.",
    .example = "probing 4711 pprof\nprobing 4711 pprof --stop",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_CLUSTER,
    .run = run,
};
