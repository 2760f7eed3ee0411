/* pause: stops the main thread between two bytecodes and serves a prompt in its frame, for nc or telnet. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/talk/address.h"
#include "cli/talk/dialog.h"
#include "cli/values.h"

#include <stdio.h>
#include <string.h>

#define KIND  "paused"
#define AGAIN "held "

static int continue_process(const struct pb_call *call, struct pb_err *err)
{
    char answer[64];

    return pb_dialog_ask(call, "pause", "continue", answer, sizeof(answer), err);
}

static int listen_for_clients(const struct pb_call *call, const struct pb_address *address, const char *token,
                              struct pb_err *err)
{
    struct pb_session session;

    int r = pb_parts_session(&call->ask, call->targets.at[0].pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    r = pb_address_stop(&session, KIND, false, err); /* the address of an earlier pause */
    if (r >= 0)
        r = pb_address_listen(call->targets.at[0].pid, &session, KIND, address, token, err);
    pb_session_done(&session);
    return r;
}

/* The answer's first line says where the main thread is; each further line names a thread that still runs. */
static void tell_where(char *answer, unsigned limit_ms)
{
    char *rest = NULL;
    char *line = strtok_r(answer, "\n", &rest);

    fputs("paused at ", stderr);
    pb_put_plain(stderr, line ? line : "?");
    fprintf(stderr, "; it goes on by continue there, by pause --continue, or in %g s\n", limit_ms / 1e3);
    while ((line = strtok_r(NULL, "\n", &rest))) {
        pb_put_plain(stderr, line);
        fputc('\n', stderr);
    }
}

/* The answer where it is paused already: "held", how to connect, and since when. */
static int tell_again(char *answer)
{
    char *since = strchr(answer, '\n');

    if (since)
        *since++ = '\0';
    fputs("the process is paused already, ", stderr);
    pb_put_plain(stderr, since ? since : "?");
    fputs("; its address is\n", stderr);
    pb_put_plain(stdout, answer + strlen(AGAIN));
    putchar('\n');
    return 0;
}

/* Names the address in `now` and `backtrace`, and for a second pause. */
static void keep_address(const struct pb_call *call, const struct pb_address *address, int port)
{
    char words[128], answer[64];
    struct pb_err unused;

    snprintf(words, sizeof(words), "at nc %s %d", pb_address_host(address), port);
    pb_dialog_ask(call, "pause", words, answer, sizeof(answer), &unused);
}

static int run_pause(const struct pb_call *call, struct pb_err *err)
{
    unsigned limit_ms = pb_call_ms(call, "limit");
    struct pb_address address;
    char token[256], words[64], answer[16384];

    if (pb_call_option(call, "continue"))
        return continue_process(call, err);
    int r = pb_address_parse(call->nargs ? call->args[0] : NULL, &address, err);
    if (r == 0)
        r = pb_address_token(call, &address, token, sizeof(token), err);
    if (r < 0)
        return r;
    snprintf(words, sizeof(words), "stop %u %u%s", call->timeout_ms, limit_ms,
             pb_call_option(call, "all") ? " all" : "");
    r = pb_dialog_ask(call, "pause", words, answer, sizeof(answer), err);
    if (r < 0)
        return r;
    if (strncmp(answer, AGAIN, strlen(AGAIN)) == 0)
        return tell_again(answer);
    int port = listen_for_clients(call, &address, token, err);
    if (port < 0) {
        struct pb_err unused;
        continue_process(call, &unused);
        return port;
    }
    keep_address(call, &address, port);
    tell_where(answer, limit_ms);
    pb_address_tell(&address, port);
    return 0;
}

static const struct pb_option options[] = {
    {0, "all", NULL, "stop every Python thread, not the main thread alone"},
    {0, "limit", PB_TIME(.least = 1, .usual = 600000),
     "go on after this long without input of a client (default 10m)"},
    {0, "token", PB_TEXT("TOKEN"), "token that a client must send first; \"-\": read it from stdin"},
    {0, "continue", NULL, "let a process go on that is paused"},
    {0},
};

const struct pb_command pb_cmd_pause = {
    .name = "pause",
    .summary = "stop the main thread, or all, and serve a prompt in its frame",
    .synopsis = "[ADDR]",
    .text = "The main thread stops between two bytecodes. A client that connects with nc to the "
            "printed address gets a prompt in its frame: it can read and assign locals, and use "
            "step, next, until, return, up, down, where, list and continue as in pdb. ADDR is as "
            "for listen.\n\n"
            "Other threads run on. --all stops them too: `threads` lists them, `thread N` looks "
            "into one, and a thread that stays in C code is named. If the main thread stays in C "
            "code, it cannot be stopped: after --timeout, the error names the frame that called "
            "it.\n\n"
            "If the client leaves without continue, the thread stays paused until pause "
            "--continue, detach or --limit.",
    .example = "probing -t 4711 pause\nprobing -t 4711 pause --continue",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_pause,
};

/* With several processes, one that is not held is no failure. */
static int run_continue(const struct pb_call *call, struct pb_err *err)
{
    char answer[64];

    int r = pb_dialog_ask(call, "pause", "continue quietly", answer, sizeof(answer), err);
    if (r == 0)
        puts(answer);
    return r;
}

const struct pb_command pb_cmd_continue = {
    .name = "continue",
    .summary = "let a process go on that is paused or held at a breakpoint",
    .synopsis = "",
    .text = "With -t cluster, all held ranks go on. Breakpoints stay: break --stop removes them.",
    .example = "probing -t 4711 continue\nprobing -t cluster continue",
    .flags = PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_CLUSTER,
    .run = run_continue,
};
