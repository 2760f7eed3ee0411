/* catch: see catch.h. */
#include "cli/talk/catch.h"

#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/talk/dialog.h"
#include "cli/talk/keeper.h"
#include "inject/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define KIND "caught"

/* Closes the address of an earlier catch. If `how` is given, listens again and returns the port. */
static int listen_anew(const struct pb_call *call, const struct pb_catch *how, struct pb_err *err)
{
    struct pb_session session;

    int r = pb_parts_session(&call->ask, call->targets.at[0].pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    r = pb_address_stop(&session, KIND, !how, err);
    if (r >= 0)
        r = how ? pb_address_listen(call->targets.at[0].pid, &session, KIND, &how->address, how->token, err)
                : 0;
    pb_session_done(&session);
    return r;
}

static void undo_catch(const struct pb_call *call)
{
    struct pb_err unused;

    pb_catch_stop(call, &unused);
}

/* Sets the hooks of Python. Returns the port; 0: no prompt is wanted. */
static int set_hooks(const struct pb_call *call, const struct pb_catch *how, struct pb_err *err)
{
    char words[256], answer[64];

    int port = how->prompt ? listen_anew(call, how, err) : 0;
    if (port < 0)
        return port;
    int n = snprintf(words, sizeof(words), "on %d %u", how->prompt, how->limit_ms);
    if (how->prompt)
        snprintf(words + n, sizeof(words) - (size_t)n, " nc %s %d", pb_address_host(&how->address), port);
    int r = pb_dialog_ask(call, "catch", words, answer, sizeof(answer), err);
    return r < 0 ? r : port;
}

int pb_catch_start(const struct pb_call *call, const struct pb_catch *how, struct pb_err *err)
{
    struct pb_keeper_state keeper = {0};
    int pid = (int)call->targets.at[0].pid, port = 0;

    int r = listen_anew(call, NULL, err); /* also injects the agent */
    if (r >= 0)
        r = pb_inject_check_use(pid, PB_SECCOMP_CATCH, err);
    if (r >= 0)
        r = pb_keeper_start(call, &keeper, err);
    if (r >= 0 && keeper.has_python)
        r = port = set_hooks(call, how, err);
    if (r < 0) {
        undo_catch(call);
        return r;
    }
    fputs(keeper.left_out, stderr);
    if (!keeper.has_python)
        fprintf(stderr,
                "fatal signals of process %d are recorded in python.exceptions; there is no Python in it\n",
                pid);
    else
        fprintf(stderr,
                "uncaught exceptions and fatal signals of process %d are recorded in python.exceptions%s\n",
                pid, port ? "; the failing frame will be served at" : "");
    if (port)
        pb_address_tell(&how->address, port);
    return 0;
}

int pb_catch_stop(const struct pb_call *call, struct pb_err *err)
{
    char answer[64] = "was_off";
    bool has_python = false;

    int r = pb_keeper_stop(call, &has_python, err);
    bool was_off = r == 1;
    if (r >= 0 && has_python) {
        r = pb_dialog_ask(call, "catch", "off", answer, sizeof(answer), err);
        was_off = was_off && strcmp(answer, "was_off") == 0;
    }
    if (r >= 0)
        r = listen_anew(call, NULL, err);
    if (r >= 0 && was_off)
        return pb_fail(err, -ENOENT, "catch is not on in this process");
    return r < 0 ? r : 0;
}
