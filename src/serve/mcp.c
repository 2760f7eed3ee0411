/* mcp: see mcp.h. */
#include "serve/mcp.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "print/records.h"
#include "serve/routes.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What a tool takes: params become options; one is the command's last argument (option NULL). */
#define TARGET(needed)                                                                                       \
    {                                                                                                        \
        "target", "--target", PB_PARAM_TEXT, 0, 0, "a pid, or part of one process's command line", needed    \
    }

static const struct tool {
    const char *name, *about;
    const char *const *words;
    const struct pb_param *params;
    const char *file;
    bool changes;
} tools[] = {
    {.name = "list_targets",
     .about = "Python processes of this machine that are probed or could be, and runs that ended",
     .words = PB_WORDS("list", "--format=json")},
    {.name = "now",
     .about = "A line for each process: state, innermost frame of its own code, training step, memory",
     .words = PB_WORDS("now", "--json")},
    {.name = "stacks",
     .about = "What every thread of a process is doing now, and what it waits for",
     .words = PB_WORDS("backtrace"),
     .params = PB_PARAMS(TARGET(true),
                         {"native", "--native", PB_PARAM_FLAG, 0, 0, "frames of C and C++ too", false},
                         {"locals", "--locals", PB_PARAM_FLAG, 0, 0, "local variables too", false})},
    {.name = "compare_ranks",
     .about = "The stacks of all processes of a job, equal ones once, the rarest first: finds the rank that "
              "differs",
     .words = PB_WORDS("backtrace", "--merge", "--all"),
     .params = PB_PARAMS({"target", "--target", PB_PARAM_TEXT, 0, 0,
                          "the launcher's pid, or text that stands in every rank's command line", true})},
    {.name = "hang_report",
     .about = "Why a process makes no progress: who waits for what and who holds it, with locals and native "
              "frames",
     .words = PB_WORDS("backtrace", "--locals", "--native"),
     .params = PB_PARAMS(TARGET(true))},
    {.name = "describe_tables",
     .about = "Every table and column that can be queried, with units and meaning",
     .words = PB_WORDS("query", "--format=csv",
                       "SELECT \"table\", \"column\", unit, comment FROM probing.columns"),
     .params = PB_PARAMS(TARGET(false))},
    {.name = "query",
     .about =
         "SQL (DuckDB) over what is known of a process, live or dead; describe_tables says what there is",
     .words = PB_WORDS("query", "--format=json"),
     .params = PB_PARAMS({"sql", NULL, PB_PARAM_TEXT, 0, 0, "the statement", true}, TARGET(false),
                         {"all", "--all", PB_PARAM_FLAG, 0, 0, "every process that is probed", false})},
    {.name = "profile",
     .about =
         "Samples a process for some seconds: a line for each stack with its count, outermost frame first",
     .words = PB_WORDS("flamegraph", "--output=profile.folded"),
     .params = PB_PARAMS(TARGET(true), {"seconds", "--duration", PB_PARAM_NUMBER, 0.1, 60, "how long", false},
                         {"native", "--native", PB_PARAM_FLAG, 0, 0, "frames of C and C++ too", false}),
     .file = "profile.folded"},
    {.name = "memory",
     .about = "What a process takes of the memory, and whether it grows",
     .words = PB_WORDS("memory"),
     .params = PB_PARAMS(TARGET(true))},
    {.name = "eval",
     .about = "Runs Python code inside of the process and gives its value",
     .words = PB_WORDS("eval"),
     .params = PB_PARAMS({"code", NULL, PB_PARAM_TEXT, 0, 0, "the code", true}, TARGET(true)),
     .changes = true},
    {.name = "config",
     .about = "Changes a setting of the agent in the process: NAME=VALUE",
     .words = PB_WORDS("config"),
     .params = PB_PARAMS({"setting", NULL, PB_PARAM_TEXT, 0, 0, "NAME=VALUE", true}, TARGET(true)),
     .changes = true},
};
enum { TOOLS = sizeof(tools) / sizeof(tools[0]) };

static const char *const versions[] = {"2025-11-25", "2026-07-28", "2025-06-18", "2025-03-26"};
enum { VERSIONS = sizeof(versions) / sizeof(versions[0]) };

static bool is_version(const char *text)
{
    for (size_t i = 0; i < VERSIONS; i++)
        if (strcmp(versions[i], text) == 0)
            return true;
    return false;
}

/* --- answers --- */

static void put_text(FILE *out, const char *text)
{
    pb_put_json(out, text, strlen(text));
}

static void put_head(FILE *out, const char *id)
{
    fprintf(out, "{\"jsonrpc\":\"2.0\",\"id\":%s,", id ? id : "null");
}

static void put_error(FILE *out, const char *id, int code, const char *message)
{
    put_head(out, id);
    fprintf(out, "\"error\":{\"code\":%d,\"message\":", code);
    put_text(out, message);
    fputs("}}\n", out);
}

static void put_server(FILE *out)
{
    fputs(
        "\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"probing\",\"version\":\"" PROBING_VERSION
        "\"},"
        "\"instructions\":\"Begin with list_targets or now; a target is a "
        "pid.\",\"resultType\":\"complete\"}}\n",
        out);
}

static void put_tool(FILE *out, const struct tool *t)
{
    static const char *const kinds[] = {
        [PB_PARAM_FLAG] = "boolean", [PB_PARAM_NUMBER] = "number", [PB_PARAM_TEXT] = "string"};
    size_t needed = 0;

    fputs("{\"name\":", out);
    put_text(out, t->name);
    fputs(",\"description\":", out);
    put_text(out, t->about);
    fprintf(out,
            ",\"annotations\":{\"readOnlyHint\":%s},\"inputSchema\":{\"type\":\"object\",\"properties\":{",
            t->changes ? "false" : "true");
    for (const struct pb_param *p = t->params; p && p->name; p++) {
        fputs(p == t->params ? "" : ",", out);
        put_text(out, p->name);
        fprintf(out, ":{\"type\":\"%s\",\"description\":", kinds[p->kind]);
        put_text(out, p->help);
        putc('}', out);
    }
    fputs("},\"required\":[", out);
    for (const struct pb_param *p = t->params; p && p->name; p++)
        if (p->needed) {
            fputs(needed++ ? "," : "", out);
            put_text(out, p->name);
        }
    fputs("]}}", out);
}

static void put_tools(FILE *out, bool changes)
{
    fputs("\"result\":{\"tools\":[", out);
    for (size_t i = 0, n = 0; i < TOOLS; i++)
        if (changes || !tools[i].changes) {
            fputs(n++ ? "," : "", out);
            put_tool(out, &tools[i]);
        }
    fputs("],\"resultType\":\"complete\",\"ttlMs\":3600000,\"cacheScope\":\"public\"}}\n", out);
}

void pb_mcp_put_result(FILE *out, const char *id, bool failed, const char *text, size_t length)
{
    put_head(out, id);
    fputs("\"result\":{\"content\":[{\"type\":\"text\",\"text\":", out);
    pb_put_json(out, text, length);
    fprintf(out, "}],\"isError\":%s,\"resultType\":\"complete\"}}\n", failed ? "true" : "false");
}

/* --- calls --- */

struct message {
    const struct pb_mcp_request *request;
    struct pb_json j;
    char *text; /* room for texts of the message */
    uint32_t params;
};

/* A value as the word that it becomes; NULL: it is nothing that could be one. */
static const char *value_of(struct message *m, uint32_t node)
{
    bool plain = node && (m->j.nodes[node].kind == '"' || m->j.nodes[node].kind == 0);

    return plain && pb_json_text(&m->j, node, m->text, m->request->length + 1) >= 0 ? m->text : NULL;
}

static int add_arguments(struct message *m, const struct tool *t, struct pb_words *w, struct pb_err *err)
{
    uint32_t given = pb_json_get(&m->j, m->params, "arguments");
    const struct pb_param *last = NULL;

    for (uint32_t c = given ? m->j.nodes[given].child : 0; c; c = m->j.nodes[c].next) {
        const struct pb_param *p = t->params;
        while (p && p->name &&
               (strlen(p->name) != m->j.nodes[c].key_length ||
                memcmp(p->name, m->j.nodes[c].key, strlen(p->name)) != 0))
            p++;
        if (!p || !p->name)
            return pb_fail(err, -EINVAL, "the tool has no argument '%.*s'",
                           (int)(m->j.nodes[c].key_length < 60 ? m->j.nodes[c].key_length : 60),
                           m->j.nodes[c].key);
    }
    for (const struct pb_param *p = t->params; p && p->name; p++) {
        const char *value = value_of(m, pb_json_get(&m->j, given, p->name));
        if (!value && strcmp(p->name, "target") == 0)
            value = m->request->target;
        if (!value && p->needed)
            return pb_fail(err, -EINVAL, "the tool needs '%s': %s", p->name, p->help);
        int r = value && p->option ? pb_words_add_param(w, p, value, err) : 0;
        if (r < 0)
            return r;
        last = p->option ? last : p;
    }
    if (last) {
        pb_words_add(w, "--");
        pb_words_add(w, value_of(m, pb_json_get(&m->j, given, last->name)));
    }
    return 0;
}

static void call_tool(struct message *m, struct pb_mcp_reply *ret, FILE *out)
{
    const char *name = value_of(m, pb_json_get(&m->j, m->params, "name"));
    const struct tool *t = NULL;
    struct pb_err err = {0};

    for (size_t i = 0; name && i < TOOLS; i++)
        if (strcmp(tools[i].name, name) == 0 && (m->request->changes || !tools[i].changes))
            t = &tools[i];
    if (!t) {
        put_error(out, ret->id, -32602, "there is no such tool (tools/list names them)");
        return;
    }
    pb_words_add(&ret->words, m->request->program);
    for (const char *const *word = t->words; *word; word++)
        pb_words_add(&ret->words, *word);
    int r = add_arguments(m, t, &ret->words, &err);
    if (r < 0) {
        const char *why = pb_err_text(&err, r);
        pb_mcp_put_result(out, ret->id, true, why, strlen(why));
        return;
    }
    ret->status = 0;
    ret->file = t->file;
    ret->changes = t->changes;
}

static bool is_header_right(const char *header, struct message *m, uint32_t node)
{
    const char *value = header ? value_of(m, node) : NULL;

    return !header || (value && strcmp(header, value) == 0);
}

static void answer_method(struct message *m, const char *method, struct pb_mcp_reply *ret, FILE *out)
{
    if (strcmp(method, "tools/call") == 0) {
        call_tool(m, ret, out);
    } else if (strcmp(method, "tools/list") == 0) {
        put_head(out, ret->id);
        put_tools(out, m->request->changes);
    } else if (strcmp(method, "initialize") == 0) {
        const char *wanted = value_of(m, pb_json_get(&m->j, m->params, "protocolVersion"));
        put_head(out, ret->id);
        fprintf(out, "\"result\":{\"protocolVersion\":\"%s\",",
                wanted && is_version(wanted) ? wanted : versions[0]);
        put_server(out);
    } else if (strcmp(method, "server/discover") == 0) {
        put_head(out, ret->id);
        fputs("\"result\":{\"supportedVersions\":[", out);
        for (size_t i = 0; i < VERSIONS; i++)
            fprintf(out, "%s\"%s\"", i ? "," : "", versions[i]);
        fputs("],", out);
        put_server(out);
    } else if (strcmp(method, "ping") == 0) {
        put_head(out, ret->id);
        fputs("\"result\":{}}\n", out);
    } else {
        ret->status = 404;
        put_error(out, ret->id, -32601, "there is no such method");
    }
}

/* Of the names of methods, as /openapi.json has them. */
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
        put_error(out, ret->id, -32600, "this is no message of JSON-RPC");
    } else if (m->request->version && !is_version(m->request->version)) {
        put_error(out, ret->id, -32022, "this version of the protocol is not known (server/discover)");
    } else if (!is_header_right(m->request->method, m, method) ||
               !is_header_right(m->request->name, m, pb_json_get(&m->j, m->params, "name"))) {
        put_error(out, ret->id, -32020, "a header says something else than the message");
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
        put_error(out, NULL, -32700, "the body is no JSON");
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
}
