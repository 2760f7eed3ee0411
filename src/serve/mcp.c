/* mcp: see mcp.h. */
#include "serve/mcp.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_write.h"
#include "serve/routes.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *const versions[] = {"2025-11-25", "2026-07-28", "2025-06-18", "2025-03-26"};
enum { VERSIONS = sizeof(versions) / sizeof(versions[0]), ARGUMENTS = 16 };

static bool is_version(const char *text)
{
    for (size_t i = 0; i < VERSIONS; i++)
        if (strcmp(versions[i], text) == 0)
            return true;
    return false;
}

/* --- tools --- */

static bool is_always_given(const struct pb_tool *t, const char *option)
{
    for (const char *const *word = t->more; word && *word; word++)
        if (strcmp(*word, option) == 0)
            return true;
    return false;
}

/* The arguments of a tool. target without an option stands for {id}. */
static size_t list_arguments(const struct pb_route *r, const struct pb_tool *t,
                             struct pb_param ret[ARGUMENTS])
{
    bool id = strstr(r->path, "{id}");
    size_t n = 0;

    if (id || r->flags & PB_ROUTE_TARGET)
        ret[n++] = (struct pb_param){"target",
                                     id ? NULL : "--target",
                                     PB_PARAM_TEXT,
                                     0,
                                     0,
                                     "a pid, or part of one process's command line",
                                     id || r->flags & PB_ROUTE_ONE};
    for (const struct pb_param *p = r->params; p && p->name && n < ARGUMENTS - 2; p++)
        if (!is_always_given(t, p->option))
            ret[n++] = *p;
    if (r->flags & PB_ROUTE_ALL && !is_always_given(t, "--all"))
        ret[n++] = (struct pb_param){
            "all", "--all", PB_PARAM_FLAG,
            0,     0,       "every process that target matches; without target every probed one",
            false};
    if (t->body)
        ret[n++] = (struct pb_param){t->body, NULL, PB_PARAM_TEXT, 0, 0, t->body_help, true};
    return n;
}

static bool is_tool_offered(const struct pb_mcp_request *q, const struct pb_route *r)
{
    return pb_route_is_offered(q->offer, r) && (q->changes || !(r->flags & PB_ROUTE_CHANGES));
}

/* --- answers --- */

/* Opens an answer of JSON-RPC, which end_answer ends. id: JSON, or NULL. */
static struct pb_json_writer begin_answer(FILE *out, const char *id)
{
    struct pb_json_writer w = {.out = out, .tight = true};

    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "jsonrpc", "2.0");
    pb_json_put_value(&w, "id", id ? id : "null", strlen(id ? id : "null"));
    return w;
}

static void end_answer(struct pb_json_writer *w)
{
    while (w->depth)
        pb_json_close(w);
    putc('\n', w->out);
}

static struct pb_json_writer begin_result(FILE *out, const char *id)
{
    struct pb_json_writer w = begin_answer(out, id);

    pb_json_open(&w, "result", '{');
    return w;
}

static void put_error(FILE *out, const char *id, int code, const char *message)
{
    struct pb_json_writer w = begin_answer(out, id);

    pb_json_open(&w, "error", '{');
    pb_json_put_number(&w, "code", "%d", code);
    pb_json_put_text(&w, "message", message);
    end_answer(&w);
}

static void put_server(struct pb_json_writer *w)
{
    pb_json_open(w, "capabilities", '{');
    pb_json_open(w, "tools", '{');
    pb_json_close(w);
    pb_json_close(w);
    pb_json_open(w, "serverInfo", '{');
    pb_json_put_text(w, "name", "probing");
    pb_json_put_text(w, "version", PROBING_VERSION);
    pb_json_close(w);
    pb_json_put_text(w, "instructions", "Begin with list_targets or now; a target is a pid.");
    pb_json_put_text(w, "resultType", "complete");
    end_answer(w);
}

static void put_tool(struct pb_json_writer *w, const struct pb_route *r, const struct pb_tool *t)
{
    static const char *const kinds[] = {
        [PB_PARAM_FLAG] = "boolean", [PB_PARAM_NUMBER] = "number", [PB_PARAM_TEXT] = "string"};
    struct pb_param arguments[ARGUMENTS];
    size_t n = list_arguments(r, t, arguments);

    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "name", t->name);
    pb_json_put_text(w, "description", t->about);
    pb_json_open(w, "annotations", '{');
    pb_json_put_bool(w, "readOnlyHint", !(r->flags & PB_ROUTE_CHANGES));
    pb_json_close(w);
    pb_json_open(w, "inputSchema", '{');
    pb_json_put_text(w, "type", "object");
    pb_json_open(w, "properties", '{');
    for (size_t i = 0; i < n; i++) {
        pb_json_open(w, arguments[i].name, '{');
        pb_json_put_text(w, "type", kinds[arguments[i].kind]);
        pb_json_put_text(w, "description", arguments[i].help);
        pb_json_close(w);
    }
    pb_json_close(w);
    pb_json_open(w, "required", '[');
    for (size_t i = 0; i < n; i++)
        if (arguments[i].needed)
            pb_json_put_text(w, NULL, arguments[i].name);
    pb_json_close(w);
    pb_json_close(w);
    pb_json_close(w);
}

static void put_tools(struct pb_json_writer *w, const struct pb_mcp_request *q)
{
    pb_json_open(w, "tools", '[');
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));)
        for (const struct pb_tool *t = r->tools; t && t->name && is_tool_offered(q, r); t++)
            put_tool(w, r, t);
    pb_json_close(w);
    pb_json_put_text(w, "resultType", "complete");
    pb_json_put_number(w, "ttlMs", "%d", 3600000);
    pb_json_put_text(w, "cacheScope", "public");
    end_answer(w);
}

void pb_mcp_put_result(FILE *out, const char *id, bool failed, const char *text, size_t length)
{
    struct pb_json_writer w = begin_result(out, id);

    pb_json_open(&w, "content", '[');
    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "type", "text");
    pb_json_put_bytes(&w, "text", text, length);
    pb_json_close(&w);
    pb_json_close(&w);
    pb_json_put_bool(&w, "isError", failed);
    pb_json_put_text(&w, "resultType", "complete");
    end_answer(&w);
}

/* --- calls --- */

struct message {
    const struct pb_mcp_request *request;
    struct pb_json j;
    char *text; /* room for texts of the message */
    uint32_t params;
};

/* A string, number or boolean as text; NULL: another kind of value. */
static const char *value_of(struct message *m, uint32_t node)
{
    bool plain = node && (m->j.nodes[node].kind == '"' || m->j.nodes[node].kind == 0);

    return plain && pb_json_text(&m->j, node, m->text, m->request->length + 1) >= 0 ? m->text : NULL;
}

/* The same on the heap. */
static char *copy_value(struct message *m, uint32_t node)
{
    const char *value = value_of(m, node);

    return value ? strdup(value) : NULL;
}

static int check_names(const struct message *m, uint32_t given, const struct pb_param *arguments, size_t n,
                       struct pb_err *err)
{
    for (uint32_t c = given ? m->j.nodes[given].child : 0; c; c = m->j.nodes[c].next) {
        const struct pb_json_node *node = &m->j.nodes[c];
        size_t i = 0;
        while (i < n && (strlen(arguments[i].name) != node->key_length ||
                         memcmp(arguments[i].name, node->key, node->key_length) != 0))
            i++;
        if (i == n)
            return pb_fail(err, -EINVAL, "the tool has no argument '%.*s'",
                           (int)(node->key_length < 60 ? node->key_length : 60), node->key);
    }
    return 0;
}

/* Adds the options that the arguments become. */
static int add_options(struct message *m, uint32_t given, const struct pb_param *arguments, size_t n,
                       struct pb_words *w, struct pb_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct pb_param *p = &arguments[i];
        const char *value = value_of(m, pb_json_get(&m->j, given, p->name));
        if (!value && strcmp(p->name, "target") == 0)
            value = m->request->offer->target;
        if (p->needed && (!value || !*value))
            return pb_fail(err, -EINVAL, "the tool needs '%s': %s", p->name, p->help);
        int r = value && p->option ? pb_words_add_param(w, p, value, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int make_command(struct message *m, const struct pb_route *route, const struct pb_tool *t,
                        struct pb_mcp_reply *ret, struct pb_err *err)
{
    uint32_t given = pb_json_get(&m->j, m->params, "arguments");
    _cleanup_free_ char *target = copy_value(m, pb_json_get(&m->j, given, "target"));
    const struct pb_form *form = t->form ? pb_route_form(route, t->form) : NULL;
    struct pb_param arguments[ARGUMENTS];
    size_t n = list_arguments(route, t, arguments);
    const char *id = target ? target : m->request->offer->target;

    pb_words_add(&ret->words, m->request->program);
    for (const char *const *word = route->words; *word; word++)
        pb_words_add(&ret->words, strcmp(*word, "{id}") == 0 && id ? id : *word);
    if (form && form->option)
        pb_words_add(&ret->words, form->option);
    for (const char *const *word = t->more; word && *word; word++)
        pb_words_add(&ret->words, *word);
    int r = check_names(m, given, arguments, n, err);
    if (r == 0)
        r = add_options(m, given, arguments, n, &ret->words, err);
    if (r < 0)
        return r;
    ret->file = form ? form->file : NULL;
    ret->route = route;
    if (!t->body)
        return 0;
    ret->input = copy_value(m, pb_json_get(&m->j, given, t->body));
    if (ret->input && route->flags & PB_ROUTE_ARGUMENT) {
        pb_words_add(&ret->words, "--");
        pb_words_add(&ret->words, ret->input);
    }
    return ret->input ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

static void call_tool(struct message *m, struct pb_mcp_reply *ret, FILE *out)
{
    const char *name = value_of(m, pb_json_get(&m->j, m->params, "name"));
    const struct pb_route *route = NULL;
    const struct pb_tool *tool = NULL;
    struct pb_err err = {0};

    while (name && !tool && (route = pb_route_next(route)))
        for (const struct pb_tool *t = route->tools; t && t->name && is_tool_offered(m->request, route); t++)
            if (strcmp(t->name, name) == 0)
                tool = t;
    if (!tool) {
        put_error(out, ret->id, -32602, "there is no such tool (tools/list names them)");
        return;
    }
    int r = make_command(m, route, tool, ret, &err);
    if (r < 0) {
        const char *why = pb_err_text(&err, r);
        pb_mcp_put_result(out, ret->id, true, why, strlen(why));
        return;
    }
    ret->status = 0;
}

static bool is_header_right(const char *header, struct message *m, uint32_t node)
{
    const char *value = header ? value_of(m, node) : NULL;

    return !header || (value && strcmp(header, value) == 0);
}

static void answer_method(struct message *m, const char *method, struct pb_mcp_reply *ret, FILE *out)
{
    struct pb_json_writer w;

    if (strcmp(method, "tools/call") == 0) {
        call_tool(m, ret, out);
    } else if (strcmp(method, "tools/list") == 0) {
        w = begin_result(out, ret->id);
        put_tools(&w, m->request);
    } else if (strcmp(method, "initialize") == 0) {
        const char *wanted = value_of(m, pb_json_get(&m->j, m->params, "protocolVersion"));
        w = begin_result(out, ret->id);
        pb_json_put_text(&w, "protocolVersion", wanted && is_version(wanted) ? wanted : versions[0]);
        put_server(&w);
    } else if (strcmp(method, "server/discover") == 0) {
        w = begin_result(out, ret->id);
        pb_json_open(&w, "supportedVersions", '[');
        for (size_t i = 0; i < VERSIONS; i++)
            pb_json_put_text(&w, NULL, versions[i]);
        pb_json_close(&w);
        put_server(&w);
    } else if (strcmp(method, "ping") == 0) {
        w = begin_result(out, ret->id);
        end_answer(&w);
    } else {
        ret->status = 404;
        put_error(out, ret->id, -32601, "method not found");
    }
}

/* Letters of method names, as /openapi.json has them. */
#define METHOD_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/"

static void answer(struct message *m, struct pb_mcp_reply *ret, FILE *out)
{
    uint32_t id = pb_json_get(&m->j, 1, "id"), method = pb_json_get(&m->j, 1, "method");
    char name[64];
    size_t n;

    if (id && (m->j.nodes[id].kind == '"' || m->j.nodes[id].kind == 0)) {
        const char *span = pb_json_span(&m->j, id, &n);
        ret->id = strndup(span, n);
    }
    ret->status = 400;
    if (!method || m->j.nodes[method].kind != '"' || pb_json_text(&m->j, method, name, sizeof(name)) <= 0 ||
        strspn(name, METHOD_LETTERS) != strlen(name)) {
        put_error(out, ret->id, -32600, "not a JSON-RPC message");
    } else if (m->request->version && !is_version(m->request->version)) {
        put_error(out, ret->id, -32022, "unsupported protocol version (server/discover lists them)");
    } else if (!is_header_right(m->request->method, m, method) ||
               !is_header_right(m->request->name, m, pb_json_get(&m->j, m->params, "name"))) {
        put_error(out, ret->id, -32020, "HTTP headers and JSON-RPC message disagree");
    } else if (!ret->id) {
        ret->status = 202; /* a notification */
    } else {
        ret->status = 200;
        answer_method(m, name, ret, out);
    }
}

int pb_mcp_take(const struct pb_mcp_request *request, struct pb_mcp_reply *ret)
{
    struct message m = {.request = request, .text = malloc(request->length + 1)};
    size_t size = 0;

    *ret = (struct pb_mcp_reply){.status = 400};
    FILE *out = m.text ? open_memstream(&ret->text, &size) : NULL;
    if (!out) {
        free(m.text);
        return -ENOMEM;
    }
    if (pb_json_parse(request->body, request->length, &m.j) < 0) {
        put_error(out, NULL, -32700, "the body is not JSON");
    } else {
        m.params = pb_json_get(&m.j, 1, "params");
        answer(&m, ret, out);
        pb_json_done(&m.j);
    }
    fclose(out);
    free(m.text);
    return 0;
}

void pb_mcp_reply_done(struct pb_mcp_reply *reply)
{
    pb_words_done(&reply->words);
    free(reply->text);
    free(reply->id);
    free(reply->input);
}
