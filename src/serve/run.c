/* run: a request becomes a command of this program, run in a child (jobs.h). See request.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "serve/answer.h"
#include "serve/jobs.h"
#include "serve/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct arguments {
    struct pb_request *q;
    struct pb_words *words;
    struct pb_err *err;
    int r;
};

/* One argument of the query string. Unknown arguments are errors. */
static enum MHD_Result take_argument(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct arguments *a = cls;
    const struct pb_route *route = a->q->route;

    (void)kind;
    value = value ? value : "true"; /* ?native alone */
    if (a->r < 0 || strcmp(key, "format") == 0 || strcmp(key, "token") == 0)
        return MHD_YES;
    if ((route->flags & PB_ROUTE_TARGET && strcmp(key, "target") == 0) ||
        (route->flags & PB_ROUTE_ALL && strcmp(key, "all") == 0))
        return MHD_YES;
    for (const struct pb_param *p = route->params; p && p->name; p++)
        if (strcmp(p->name, key) == 0) {
            a->r = pb_words_add_param(a->words, p, value, a->err);
            return MHD_YES;
        }
    a->r = pb_fail(a->err, -EINVAL, "there is no argument '%.100s' here", key);
    return MHD_YES;
}

int pb_request_arguments(struct pb_request *q, struct pb_words *w, struct pb_err *err)
{
    struct arguments a = {.q = q, .words = w, .err = err};

    MHD_get_connection_values(q->connection, MHD_GET_ARGUMENT_KIND, take_argument, &a);
    for (const struct pb_param *p = q->route->params; a.r == 0 && p && p->name; p++)
        if (p->needed && !pb_request_argument(q, p->name))
            a.r = pb_fail(err, -EINVAL, "the argument '%s' is missing: %s", p->name, p->help);
    return a.r;
}

/* The first type of Accept that the route has. Browsers list HTML first and get the route's default: a
 * link to a flame graph shows the picture. */
static void choose_by_accept(struct pb_request *q, const char *accept)
{
    if (strstr(accept, "text/html"))
        return;
    for (const char *at = accept; *at; at += strcspn(at, ","), at += strspn(at, ", ")) {
        size_t n = strcspn(at, ",; ");
        for (const struct pb_form *f = q->route->forms; f->name; f++)
            if (strcspn(f->type, ";") == n && strncasecmp(f->type, at, n) == 0) {
                q->form = f;
                return;
            }
    }
}

static int choose_form(struct pb_request *q, struct pb_err *err)
{
    const char *wanted = pb_request_argument(q, "format"), *accept = pb_request_header(q, "Accept");

    q->form = q->route->forms;
    if (!wanted) {
        choose_by_accept(q, accept ? accept : "");
        return 0;
    }
    q->form = pb_route_form(q->route, wanted);
    return q->form ? 0 : pb_fail(err, -EINVAL, "there is no format '%.100s' here", wanted);
}

bool pb_request_check(struct pb_request *q, enum MHD_Result *ret)
{
    _cleanup_(pb_words_done) struct pb_words ignored = {0};
    struct pb_err err = {0};

    int r = choose_form(q, &err);
    if (r == 0)
        r = pb_request_arguments(q, &ignored, &err);
    if (r < 0)
        *ret = pb_answer_error(q->connection, 400, pb_err_text(&err, r), NULL);
    return r < 0;
}

static int add_target(struct pb_request *q, struct pb_words *w, struct pb_err *err)
{
    const char *target = pb_request_argument(q, "target"), *all = pb_request_argument(q, "all");
    bool given = q->route->flags & PB_ROUTE_ALL &&
                 MHD_lookup_connection_value_n(q->connection, MHD_GET_ARGUMENT_KIND, "all", 3, NULL, NULL);

    if (target && pb_words_check_text("target", target, err) < 0)
        return -EINVAL;
    all = given && !all ? "true" : all;
    if (given && !pb_words_is_flag(all))
        return pb_fail(err, -EINVAL, "all is true or false, not '%.100s'", all);
    target = target ? target : q->offer.target;
    if (!target && q->route->flags & PB_ROUTE_ONE)
        return pb_fail(err, -EINVAL, "which process? (?target=PID; /api/v1/targets lists them)");
    if (target)
        pb_words_add_option(w, "--target", target);
    if (given && pb_words_is_true(all))
        pb_words_add(w, "--all");
    return 0;
}

static int make_command(struct pb_request *q, struct pb_words *w, struct pb_err *err)
{
    pb_words_add(w, q->s->program);
    for (const char *const *word = q->route->words; *word; word++)
        if (strcmp(*word, "{file}") == 0)
            pb_words_add_path(w, q->offer.cores, q->id);
        else
            pb_words_add(w, strcmp(*word, "{id}") == 0 ? q->id : *word);
    int r = choose_form(q, err);
    if (r < 0)
        return r;
    if (q->form->option)
        pb_words_add(w, q->form->option);
    if (q->route->flags & PB_ROUTE_TARGET)
        r = add_target(q, w, err);
    if (r == 0)
        r = pb_request_arguments(q, w, err);
    bool body = q->route->flags & (PB_ROUTE_STDIN | PB_ROUTE_ARGUMENT);
    if (r == 0 && body && (!q->length || strlen(q->body) != q->length))
        r = pb_fail(err, -EINVAL, q->length ? "the body has a NUL in it" : "the body is empty");
    if (r == 0 && q->route->flags & PB_ROUTE_ARGUMENT) {
        pb_words_add(w, "--");
        pb_words_add(w, q->body);
    }
    return r;
}

void pb_request_suspend(void *arg)
{
    struct pb_request *q = arg;
    MHD_suspend_connection(q->connection);
}

void pb_request_resume(void *arg)
{
    struct pb_request *q = arg;
    MHD_resume_connection(q->connection);
}

static void begin_audit(struct pb_request *q)
{
    char peer[PB_AUDIT_PEER];

    pb_audit_peer(q->connection, peer);
    q->audit = pb_audit_begin(
        q->s,
        &(struct pb_audited){
            .peer = peer, .target = q->id, .what = q->route->path, .body = q->body, .length = q->length});
}

void pb_request_end_audit(const struct pb_request *q)
{
    char text[256] = "the command was not started";

    if (q->job) {
        struct pb_serve_job_result end = pb_serve_job_result(q->job);
        if (!end.over)
            snprintf(text, sizeof(text), "ended: the client disconnected");
        else if (end.late)
            snprintf(text, sizeof(text), "timed out");
        else if (end.status)
            snprintf(text, sizeof(text), "exit status %d: %.*s", end.status, (int)strcspn(end.errors, "\n"),
                     end.errors);
        else
            snprintf(text, sizeof(text), "ok");
    }
    pb_audit_end(q->s, q->audit, text);
}

static bool is_query(const struct pb_route *route)
{
    return route->words && route->flags & PB_ROUTE_STDIN && strcmp(route->words[0], "query") == 0;
}

static const char *body_of(const struct pb_route *route, const char *body)
{
    return route->flags & PB_ROUTE_STDIN ? body : NULL;
}

/* Starts a command for the request. what: the command; the rest of the plan is set here. */
static enum MHD_Result run_words(struct pb_request *q, const struct pb_serve_job_plan *what)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(q->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pb_serve_job_plan plan = *what;
    struct pb_err err = {0};

    plan.credentials = q->credentials;
    plan.client = info ? info->connect_fd : 0;
    plan.resume = pb_request_resume;
    plan.arg = q;
    int r = pb_serve_job_start(q->s->jobs, &plan, &q->job, &err);
    if (r < 0)
        return pb_request_fail(q, r == -EBUSY ? 503 : 500, pb_err_text(&err, r));
    pb_serve_job_ready(q->job, pb_request_suspend);
    return MHD_YES;
}

enum MHD_Result pb_request_run(struct pb_request *q)
{
    _cleanup_(pb_words_done) struct pb_words w = {0};
    struct pb_err err = {0};
    const char *seconds = pb_request_argument(q, "seconds");

    if (strstr(q->route->path, "{id}") && !pb_route_is_id(q->id))
        return pb_answer_error(q->connection, 404, "there is no such process: an id is a pid or PID@START",
                               NULL);
    if (strstr(q->route->path, "{file}") && !pb_route_is_file(q->id))
        return pb_answer_error(q->connection, 404, "there is no file of that name", NULL);
    int r = make_command(q, &w, &err);
    if (r < 0)
        return pb_request_fail(q, 400, pb_err_text(&err, r));
    if (q->route->flags & PB_ROUTE_CHANGES)
        begin_audit(q);
    unsigned limit_ms = q->route->limit_s * 1000 + (unsigned)(seconds ? strtod(seconds, NULL) * 1000 : 0);
    return run_words(q, &(struct pb_serve_job_plan){.argv = w.at,
                                                    .input = body_of(q->route, q->body),
                                                    .input_length = q->length,
                                                    .file = q->form->file,
                                                    .limit_ms = limit_ms,
                                                    .query = is_query(q->route)});
}

enum MHD_Result pb_request_run_mcp(struct pb_request *q)
{
    const struct pb_mcp_request request = {.body = q->body ? q->body : "",
                                           .length = q->length,
                                           .version = pb_request_header(q, "MCP-Protocol-Version"),
                                           .method = pb_request_header(q, "Mcp-Method"),
                                           .name = pb_request_header(q, "Mcp-Name"),
                                           .changes = q->s->mcp_changes,
                                           .program = q->s->program,
                                           .offer = &q->offer};

    if (pb_mcp_take(&request, &q->mcp) < 0)
        return MHD_NO;
    if (q->mcp.status) {
        char *text = q->mcp.text;
        q->mcp.text = NULL;
        return pb_answer(q->connection, q->mcp.status,
                         MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE),
                         q->route->forms->type);
    }
    if (q->mcp.route->flags & PB_ROUTE_CHANGES)
        begin_audit(q);
    return run_words(q, &(struct pb_serve_job_plan){.argv = q->mcp.words.at,
                                                    .input = body_of(q->mcp.route, q->mcp.input),
                                                    .input_length = q->mcp.input ? strlen(q->mcp.input) : 0,
                                                    .file = q->mcp.file,
                                                    .limit_ms = q->route->limit_s * 1000,
                                                    .query = is_query(q->mcp.route)});
}
