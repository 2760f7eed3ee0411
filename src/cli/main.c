/* main: parses the command line, resolves the targets, runs the command, and turns its result into an exit
 * status: 0, 1 (failed), 2 (called wrongly), 3 (a part did not answer), 10 (diagnose found something), 128
 * + n (stopped by signal n). Errors go to stderr as "probing: what: why (what to do)". */
#include "ask/targets.h"
#include "base/children.h"
#include "cli/bundle/bundle.h"
#include "cli/cli.h"
#include "cli/diagnose_jobs.h"
#include "cli/fanout.h"
#include "cli/parse.h"
#include "cli/print/rows.h"
#include "cli/ranks/ranks.h"
#include "cli/remote.h"
#include "cli/served.h"
#include "cli/values.h"
#include "print/outlet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print_error(const char *what, int r, const struct pb_err *err)
{
    if (r >= 0)
        return 0;
    if (r <= PB_EXITED(0))
        return PB_EXITED(0) - r;
    if (r != PB_FAILED && r != PB_PARTIAL && r != PB_FOUND) {
        fflush(stdout);
        fprintf(stderr, PB_ERR_LEADS "%s%s", what ? what : "", what ? ": " : "");
        pb_put_sentence(stderr, pb_err_text(err, r));
    }
    if (r < PB_STOPPED(0))
        return 128 + (PB_STOPPED(0) - r);
    return r == PB_USAGE     ? PB_EXIT_USAGE
           : r == PB_PARTIAL ? 3
           : r == PB_FOUND   ? 10
           : r == PB_NOTHING ? PB_EXIT_NOTHING
                             : 1;
}

int pb_call_status(const struct pb_call *call, int r, const struct pb_err *err)
{
    return r > 0 ? r : print_error(call->command->name, r, err);
}

int pb_run_one(const struct pb_call *call)
{
    struct pb_err err = {0};
    return print_error(call->command->name, call->command->run(call, &err), &err);
}

/* A command of several questions may note the same of each. */
static void put_note(void *arg, const char *text)
{
    static char last[400];

    if (strcmp(last, text) == 0)
        return;
    snprintf(last, sizeof(last), "%s", text);
    fputs("note: ", stderr);
    pb_put_sentence(stderr, text);
}

/* A query's own --timeout also limits the questions to processes: half of it, so that a process that does not
 * answer leaves time for the rows of the others. */
static void limit_questions(struct pb_call *call)
{
    enum { LEAST_MS = 1000 };
    unsigned ms = pb_call_option(call, "timeout") ? pb_call_ms(call, "timeout") : 0;

    if (ms)
        call->ask.limit_ms = ms / 2 > LEAST_MS ? ms / 2 : LEAST_MS;
}

/* With targets that were found. */
static int run_found(struct pb_call *call)
{
    const struct pb_command *command = call->command;
    struct pb_err err = {0};

    limit_questions(call);
    /* Rows for a program are one table, whichever process printed them. */
    if (command->flags & PB_CMD_TOGETHER || call->targets.n <= 1 || call->format != PB_FORMAT_TABLE)
        return pb_run_one(call);
    return print_error(command->name, pb_fanout(call, &err), &err);
}

/* About an incident's file. */
static int run_incident(struct pb_call *call)
{
    struct pb_err err = {0};

    call->ask = (struct pb_ask){.note = put_note};
    if (call->ranks || call->nodes || call->token_file)
        return print_error(call->command->name,
                           pb_fail(&err, PB_USAGE, "--ranks, --nodes and --token-file are not for a file"),
                           &err);
    int r = pb_bundle_served() ? pb_bundle_run_served(call, run_found, &err)
                               : pb_bundle_run(call, run_found, &err);
    return pb_call_status(call, r, &err);
}

static bool is_about_incident(const struct pb_call *call)
{
    /* Commands of a service of a file answer from that alone, or are refused: never about this machine. */
    if (pb_bundle_served())
        return true;
    /* A service takes no path of its machine from a client. */
    return call->target && !call->served_at && pb_bundle_is(call->target);
}

static int run_call(struct pb_call *call)
{
    const struct pb_command *command = call->command;
    struct pb_err err = {0};
    int r = 0;

    call->ask = (struct pb_ask){.archive = pb_call_option(call, "archive"), .note = put_note};
    if (call->target && !(command->flags & (PB_CMD_TARGET | PB_CMD_MAY_TARGET)))
        r = pb_fail(&err, PB_USAGE, "this command takes no target");
    else if (call->token_file)
        r = pb_fail(&err, PB_USAGE, "--token-file goes with -t HOST:PORT: a process here needs no token");
    else if (call->target && !call->target[0]) /* "" would match every command line */
        r = pb_fail(&err, PB_USAGE, "the target is empty (give a pid, or text of its command line)");
    else if (call->ranks || call->nodes)
        r = pb_fail(&err, PB_USAGE, "--ranks and --nodes go with -t cluster");
    else if (pb_served_must_choose(call))
        r = pb_served_choose(call, &err);
    else if (call->target)
        r = pb_targets_resolve(&call->ask, call->target, call->all || command->flags & PB_CMD_JOB,
                               command->flags & PB_CMD_DEAD, &call->targets, &err);
    else if (call->all)
        r = pb_targets_probed(&call->ask, &call->targets, &err);
    if (r >= 0 && !(command->flags & PB_CMD_LABELS))
        pb_targets_label(&call->ask, &call->targets);
    return r < 0 ? print_error(command->name, r, &err) : run_found(call);
}

/* Whether the output is for a program: rows in a format for one, bytes of the process, a file of it. */
static bool prints_bytes(const struct pb_call *call)
{
    return call->format != PB_FORMAT_TABLE || call->command->flags & PB_CMD_BYTES ||
           pb_call_option(call, "format") || pb_call_option(call, "source");
}

int pb_run_line(int argc, char **argv)
{
    struct pb_err err = {0};
    struct pb_call call;

    if (argc < 2 && isatty(STDOUT_FILENO)) {
        pb_outlet_begin(false);
        return print_error(NULL, pb_diagnose_jobs(&(struct pb_ask){.note = put_note}, &err), &err);
    }
    int r = pb_parse(argc, argv, &call, &err);
    if (r == 2) {
        puts("probing " PROBING_VERSION);
        return 0;
    }
    if (r != 0)
        return r > 0 ? 0 : print_error(call.command ? call.command->name : NULL, r, &err);
    pb_outlet_begin(prints_bytes(&call));
    int status;
    if (is_about_incident(&call)) {
        status = run_incident(&call);
    } else if (call.target && pb_remote_is(call.target)) {
        status = pb_remote_run(argc, argv, &call, &err);
        status = status < 0 ? print_error(call.command->name, status, &err) : status;
    } else if (call.target && pb_cluster_is_target(call.target, NULL)) {
        call.ask = (struct pb_ask){.note = put_note};
        status = print_error(call.command->name, pb_cluster_run(&call, &err), &err);
    } else {
        status = run_call(&call);
    }
    pb_targets_done(&call.targets);
    return status;
}

int main(int argc, char **argv)
{
    pb_children_begin();
    int status = pb_run_line(argc, argv);

    if (status == PB_EXIT_NOTHING) /* for ranks of a cluster (ranks/ranks_debug.c) */
        status = 1;

    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        fprintf(stderr, "probing: the output cannot be written%s%s\n", errno ? ": " : "",
                errno ? strerror(errno) : "");
        status = 1;
    }
    return status;
}
