/* inject_driver: pb_inject from the command line, for tests: one injection, one line of JSON.
 *
 * usage: inject_driver PID AGENT_DIR [OPTIONS [TIMEOUT_MS]]
 * With PROBING_DIE_AT=K it kills itself with SIGKILL at its K-th step (inject/step.h), or the one of that
 * name, like a tool that is killed without cleaning up; with PROBING_STOP_AT it stops itself there, once,
 * like one that gets no CPU; with PROBING_STEPS=1 it prints each step to stderr.
 * `inject_driver doctor PID` prints the checks. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/time.h"
#include "inject/doctor.h"
#include "inject/inject.h"
#include "inject/step.h"

#ifdef PROBING_TEST_STEPS
void pb_step(const char *name)
{
    static int count, stopped;
    const char *die = getenv("PROBING_DIE_AT"), *stop = getenv("PROBING_STOP_AT");
    count++;
    if (getenv("PROBING_STEPS"))
        fprintf(stderr, "%d %s\n", count, name);
    if (die && (atoi(die) == count || strcmp(die, name) == 0))
        kill(getpid(), SIGKILL);
    if (stop && strcmp(stop, name) == 0 && !stopped++)
        kill(getpid(), SIGSTOP);
}
#endif

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    putchar('"');
}

static int doctor(pid_t pid)
{
    static const char *const states[] = {"ok", "warn", "fail"};
    struct pb_check checks[PB_CHECKS_MAX];
    int n = pb_inject_check(pid, checks, PB_CHECKS_MAX);
    for (int i = 0; i < n; i++)
        printf("%s\t%s\t%s\t%s\n", checks[i].name, states[checks[i].state], checks[i].found,
               checks[i].remedy);
    return 0;
}

static void say(const char *sentence, void *arg)
{
    (void)arg;
    fprintf(stderr, "%s\n", sentence);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "doctor") == 0)
        return doctor(atoi(argv[2]));
    if (argc < 3)
        return 2;
    struct pb_inject_request req = {.pid = atoi(argv[1]),
                                    .agent_dir = argv[2],
                                    .options = argc > 3 ? argv[3] : "",
                                    .timeout_ms = argc > 4 ? (unsigned)atoi(argv[4]) : 0,
                                    .say = say};
    struct pb_inject_result res = {0};
    struct pb_err err = {""};
    uint64_t start = pb_now_ns();
    int r = pb_inject(&req, &res, &err);
    printf("{\"r\": %d, \"status\": %" PRIu64 ", \"stopped_ns\": %" PRIu64 ", \"longest_ns\": %" PRIu64
           ", \"whole_ns\": %" PRIu64 ", \"unsafe_looks\": %u, \"unsafe_rounds\": %u, \"stops\": %u, "
           "\"direct\": %d, \"reused\": %d, \"by_remote_debug\": %d, \"process_stopped\": %d, \"error\": ",
           r, res.status_address, res.stopped_ns, res.longest_ns, pb_now_ns() - start, res.unsafe_looks,
           res.unsafe_rounds, res.stops, res.direct, res.reused, res.by_remote_debug, res.process_stopped);
    print_text(r < 0 ? pb_err_text(&err, r) : "");
    printf("}\n");
    return r < 0;
}
