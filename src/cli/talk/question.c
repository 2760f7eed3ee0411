/* question: see question.h. */
#include "cli/talk/question.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/print/rows.h"
#include "cli/talk/dialog.h"
#include "cli/values.h"
#include "inject/session.h"
#include "remote/procinfo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pb_question_add(struct pb_question *question, const char *name, const char *value, struct pb_err *err)
{
    size_t room = PB_QUESTION_SIZE - question->used;

    if (strchr(value, '\n'))
        return pb_fail(err, PB_USAGE, "'%s' has a line break", value);
    int n = snprintf(question->text + question->used, room, "%s=%s\n", name, value);
    question->used = n < 0 || (size_t)n >= room ? PB_QUESTION_SIZE : question->used + (size_t)n;
    return question->used < PB_QUESTION_SIZE
               ? 0
               : pb_fail(err, PB_USAGE, "the arguments are too long for one command: use several commands");
}

int pb_question_add_duration(struct pb_question *question, const struct pb_call *call, const char *option,
                             const char *name, struct pb_err *err)
{
    char number[24];
    unsigned ms = pb_call_ms(call, option);

    if (!ms)
        return 0;
    snprintf(number, sizeof(number), "%u", ms);
    return pb_question_add(question, name, number, err);
}

int pb_question_add_given(struct pb_question *question, const struct pb_call *call, const char *option,
                          struct pb_err *err)
{
    const char *given = pb_call_option(call, option);

    return given ? pb_question_add(question, option, given, err) : 0;
}

int pb_question_add_request(struct pb_question *question, const struct pb_call *call, const char *name,
                            struct pb_err *err)
{
    const char *what = pb_call_option(call, "stop") ? "stop" : call->nargs ? "start" : "list";

    int r = pb_question_add(question, "do", what, err);
    for (int i = 0; r == 0 && i < call->nargs; i++)
        r = pb_question_add(question, name, call->args[i], err);
    return r;
}

int pb_question_ask(const struct pb_call *call, const char *kind, const struct pb_question *question,
                    FILE *to, struct pb_err *err)
{
    _cleanup_free_ char *answer = NULL;
    char *rest = NULL;

    int r = pb_dialog_ask_whole(call, kind, question->text, &answer, err);
    if (r < 0)
        return r;
    for (char *line = strtok_r(answer, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        pb_put_plain(to, line);
        fputc('\n', to);
    }
    return 0;
}

/* Adds lines of tab-separated cells; an empty cell is NULL. The answer is untrusted. */
static void add_rows(struct pb_rows *rows, const char *label, const char *kinds, char *answer)
{
    char *rest = NULL;

    for (char *line = strtok_r(answer, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        pb_rows_text(rows, label);
        for (size_t i = 0; kinds[i]; i++) {
            char *cell = line ? strsep(&line, "\t") : NULL, *end;
            double number = cell ? strtod(cell, &end) : 0;
            if (!cell || !*cell)
                pb_rows_text(rows, NULL);
            else if (kinds[i] == 'n' && !*end && isfinite(number))
                pb_rows_number(rows, "%.10g", number);
            else
                pb_rows_text(rows, cell);
        }
    }
}

/* To look changes nothing: a process that is not probed has nothing to list, and gets no agent for it. */
static bool has_no_agent(pid_t pid)
{
    struct pb_procinfo info;

    return pb_procinfo_read(pid, &info, NULL) == 0 && !pb_session_probed(&info);
}

int pb_question_print_answer(const struct pb_call *call, const char *kind, const char *request,
                             const struct pb_question_columns *columns, struct pb_err *err)
{
    struct pb_rows rows;
    int failed = 0;

    pb_rows_init(&rows, columns->names, strlen(columns->kinds) + 1);
    for (size_t i = 0; i < call->targets.n; i++) {
        _cleanup_free_ char *answer = NULL;
        struct pb_call one = *call;
        one.targets = (struct pb_targets){.at = &call->targets.at[i], .n = 1};
        if (!columns->injects && has_no_agent(call->targets.at[i].pid))
            continue;
        int r = pb_dialog_ask_whole(&one, kind, request, &answer, err);
        if (r < 0)
            failed = pb_target_failed(call, &call->targets.at[i], r, err);
        else
            add_rows(&rows, call->targets.at[i].label, columns->kinds, answer);
    }
    int r = failed && call->targets.n == 1 ? failed : pb_rows_print(&rows, call->format, NULL, err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

int pb_question_print_rows(const struct pb_call *call, const char *kind,
                           const struct pb_question_columns *columns, struct pb_err *err)
{
    if (call->nargs || pb_call_option(call, "stop"))
        return pb_fail(err, PB_USAGE, "--format and --json apply to the list alone: give no other argument");
    return pb_question_print_answer(call, kind, "do=rows\n", columns, err);
}
