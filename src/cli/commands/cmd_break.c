/* break: breakpoints and log points in a running program, by place or by the change of a variable. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/ranks/ranks.h"
#include "cli/talk/address.h"
#include "cli/talk/question.h"

#include <stdio.h>
#include <string.h>

#define KIND "paused" /* the agent's name for this kind of listening address; pause uses the same */

/* Appends the words "FILE:LINE if COND", given as one argument or several. */
static int add_place(const struct pb_call *call, struct pb_question *question, struct pb_err *err)
{
    char words[PB_QUESTION_SIZE] = "";
    size_t used = 0;

    for (int i = 0; i < call->nargs && used < sizeof(words); i++) {
        int n = snprintf(words + used, sizeof(words) - used, "%s%s", i ? " " : "", call->args[i]);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used >= sizeof(words))
        return pb_fail(err, PB_USAGE, "the condition is too long");
    bool changes = pb_call_option(call, "on-change") != NULL;
    char *condition = changes && strncmp(words, "if ", 3) == 0 ? words : strstr(words, " if ");
    int r = 0;
    if (condition) {
        r = pb_question_add(question, "condition", condition + (condition == words ? 3 : 4), err);
        *condition = '\0';
    }
    if (r == 0 && changes == (words[0] != '\0'))
        r = pb_fail(err, PB_USAGE, changes ? "a place or --on-change, not both" : "FILE:LINE is missing");
    return r == 0 && words[0] ? pb_question_add(question, "place", words, err) : r;
}

/* Has the agent listen for clients of the breakpoint. Returns the port. */
static int listen_for_clients(const struct pb_call *call, const struct pb_address *address, const char *token,
                              struct pb_err *err)
{
    struct pb_session session;

    int r = pb_parts_session(&call->ask, call->targets.at[0].pid, true, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    r = pb_address_stop(&session, KIND, false, err); /* the address of an earlier break */
    if (r >= 0)
        r = pb_address_listen(call->targets.at[0].pid, &session, KIND, address, token, err);
    pb_session_done(&session);
    return r;
}

static int set_break(const struct pb_call *call, struct pb_err *err)
{
    const char *log = pb_call_option(call, "log"), *change = pb_call_option(call, "on-change");
    bool silent = pb_call_option(call, "no-listen") != NULL;
    struct pb_question question = {.used = 0};
    struct pb_address address;
    char token[256];

    int r = pb_question_add(&question, "do", "start", err);
    if (r == 0)
        r = add_place(call, &question, err);
    if (r == 0 && change)
        r = pb_question_add(&question, "on_change", change, err);
    if (r == 0 && pb_call_option(call, "as"))
        r = pb_question_add(&question, "as", pb_call_option(call, "as"), err);
    if (r == 0 && silent)
        r = pb_question_add(&question, "no_listen", "1", err);
    if (r == 0 && log)
        r = pb_question_add(&question, "log", log, err);
    if (r == 0)
        r = pb_question_add_duration(&question, call, "duration", "duration_ms", err);
    if (r == 0)
        r = pb_question_add_duration(&question, call, "limit", "limit_ms", err);
    if (r == 0)
        r = pb_address_parse(pb_call_option(call, "listen"), &address, err);
    if (r == 0)
        r = pb_address_token(call, &address, token, sizeof(token), err);
    if (r == 0)
        r = pb_question_ask(call, "break", &question, log || silent ? stdout : stderr, err);
    if (r < 0 || log || silent)
        return r;
    int port = listen_for_clients(call, &address, token, err);
    if (port < 0)
        return port;
    pb_address_tell(&address, port);
    return 0;
}

static const char *const column_names[] = {"target",    "number", "action", "place",
                                           "condition", "hits",   "errors"};
static const struct pb_question_columns columns = {column_names, "ntttnn", false};

static int run_break(const struct pb_call *call, struct pb_err *err)
{
    bool stop = pb_call_option(call, "stop") != NULL;

    if (call->format != PB_FORMAT_TABLE)
        return pb_question_print_rows(call, "break", &columns, err);
    if (!stop && (call->nargs || pb_call_option(call, "on-change")))
        return set_break(call, err);
    struct pb_question question = {.used = 0};
    int r = pb_question_add(&question, "do", stop ? "stop" : "list", err);
    for (int i = 0; r == 0 && i < call->nargs; i++)
        r = pb_question_add(&question, "name", call->args[i], err);
    return r < 0 ? r : pb_question_ask(call, "break", &question, stdout, err);
}

static const struct pb_option options[] = {
    {0, "log", PB_TEXT("TEXT"), "do not stop: record TEXT with each hit, \"loss={loss:.3f}\""},
    {0, "on-change", PB_TEXT("VAR@FUNCTION"),
     "where this variable of a function changes, instead of a place"},
    {0, "listen", PB_TEXT("ADDR"), "where clients are served (default 127.0.0.1 and a free port)"},
    {0, "token", PB_TEXT("TOKEN"), "token that a client must send first; \"-\": read it from stdin"},
    {0, "limit", PB_TIME(.least = 1, .usual = 600000),
     "without a client, remove the breakpoint and resume after this time (default 10m)"},
    {0, "duration", PB_TIME(.least = 1),
     "end by itself after this long (default: until --stop; before Python 3.12 1m)"},
    {0, "as", PB_TEXT("NAME"), "a name, for --stop"},
    {0, "no-listen", NULL, "no address for clients: `continue` and --stop resume the thread"},
    {0, "stop", NULL, "remove these breakpoints (FILE:LINE, the number or the name), or all"},
    {0},
};

const struct pb_command pb_cmd_break = {
    .name = "break",
    .summary = "stop or log at a line, or when a variable changes",
    .synopsis = "[FILE:LINE [if CONDITION]]",
    .text = "A thread that reaches the line is held. A client that connects with nc to the printed "
            "address gets a prompt in its frame, as with pause; it may connect before the hit. "
            "continue runs to the next hit. With --log the program is not held.\n\n"
            "Hits are rows of python.break_hits. The file may be loaded later. From Python 3.12 on "
            "only that function is slower, by its line. Without a place, lists the breakpoints.",
    .example = "probing -t 4711 break train.py:42 if \"loss > 10\"\n"
               "probing -t 4711 break train.py:42 --log \"step={step} loss={loss:.3f}\"\n"
               "probing -t 4711 break --on-change lr@train",
    .options = options,
    .max_args = 64,
    .flags = PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TIMEOUT | PB_CMD_CLUSTER,
    .run = run_break,
    .run_over = pb_cluster_debug,
};
