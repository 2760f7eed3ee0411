/* describe: /openapi.json and /metrics: see routes.h. */
#include "base/json_write.h"
#include "serve/routes.h"

#include <stdlib.h>
#include <string.h>

/* --- OpenAPI --- */

/* The head of a parameter; its schema follows, then two brackets. */
static void begin_param(struct pb_json_writer *w, const char *name, const char *in, bool required,
                        const char *help)
{
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "name", name);
    pb_json_put_text(w, "in", in);
    pb_json_put_bool(w, "required", required);
    pb_json_put_text(w, "description", help);
    pb_json_open(w, "schema", '{');
}

static void end_param(struct pb_json_writer *w)
{
    pb_json_close(w);
    pb_json_close(w);
}

static void put_param(struct pb_json_writer *w, const struct pb_param *p)
{
    begin_param(w, p->name, "query", p->needed, p->help);
    if (p->kind == PB_PARAM_NUMBER) {
        pb_json_put_text(w, "type", "number");
        pb_json_put_number(w, "minimum", "%g", p->least);
        pb_json_put_number(w, "maximum", "%g", p->most);
    } else if (p->kind == PB_PARAM_FLAG) {
        pb_json_put_text(w, "type", "boolean");
    } else {
        pb_json_put_text(w, "type", "string");
        pb_json_put_number(w, "maxLength", "%d", PB_TEXT_MOST);
        pb_json_put_text(w, "pattern", "^[^\\u0000]+$");
    }
    end_param(w);
}

static void put_path_param(struct pb_json_writer *w, const char *name, const char *help, const char *pattern)
{
    begin_param(w, name, "path", true, help);
    pb_json_put_text(w, "type", "string");
    pb_json_put_text(w, "pattern", pattern);
    end_param(w);
}

static void put_params(struct pb_json_writer *w, const struct pb_offer *o, const struct pb_route *r)
{
    pb_json_open(w, "parameters", '[');
    begin_param(w, "format", "query", false, "the form of the answer");
    pb_json_open(w, "enum", '[');
    for (const struct pb_form *f = r->forms; f->name; f++)
        pb_json_put_text(w, NULL, f->name);
    pb_json_close(w);
    end_param(w);
    if (strstr(r->path, "{id}"))
        put_path_param(w, "id", "a pid, or the id of a run", "^[0-9]{1,10}(@[0-9a-z.]{1,40})?$");
    for (const struct pb_param *p = r->params; p && p->name; p++)
        put_param(w, p);
    if (strstr(r->path, "{file}"))
        put_path_param(w, "file", "its name", "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}$");
    if (r->flags & PB_ROUTE_TARGET)
        put_param(w, &(struct pb_param){"target", NULL, PB_PARAM_TEXT, 0, 0,
                                        "a pid, the id of a run, or part of a command line",
                                        r->flags & PB_ROUTE_ONE && !o->target});
    if (r->flags & PB_ROUTE_ALL)
        put_param(w, &(struct pb_param){"all", NULL, PB_PARAM_FLAG, 0, 0,
                                        "every process that target matches, or the workers below it", false});
    pb_json_close(w);
}

static void put_string_schema(struct pb_json_writer *w, const char *key, const char *pattern)
{
    pb_json_open(w, key, '{');
    pb_json_put_text(w, "type", "string");
    if (pattern)
        pb_json_put_text(w, "pattern", pattern);
    pb_json_close(w);
}

static void put_body(struct pb_json_writer *w, const struct pb_route *r)
{
    bool mcp = r->flags & PB_ROUTE_MCP;

    if (!mcp && !(r->flags & (PB_ROUTE_STDIN | PB_ROUTE_ARGUMENT)))
        return;
    pb_json_open(w, "requestBody", '{');
    pb_json_put_bool(w, "required", true);
    pb_json_open(w, "content", '{');
    pb_json_open(w, mcp ? "application/json" : "text/plain", '{');
    if (mcp) {
        pb_json_open(w, "schema", '{');
        pb_json_put_text(w, "type", "object");
        pb_json_open(w, "required", '[');
        pb_json_put_text(w, NULL, "method");
        pb_json_close(w);
        pb_json_open(w, "properties", '{');
        put_string_schema(w, "method", "^[A-Za-z_/]{1,60}$");
        pb_json_close(w);
        pb_json_close(w);
    } else {
        /* Neither blank nor with a NUL, which arguments and SQL cannot have. */
        put_string_schema(w, "schema", "^[^\\u0000]*[^\\s;\\u0000][^\\u0000]*$");
    }
    pb_json_close(w);
    pb_json_close(w);
    pb_json_close(w);
}

static void put_empty(struct pb_json_writer *w, const char *key)
{
    pb_json_open(w, key, '{');
    pb_json_close(w);
}

static void put_responses(struct pb_json_writer *w, const struct pb_route *r)
{
    pb_json_open(w, "responses", '{');
    pb_json_open(w, "200", '{');
    pb_json_put_text(w, "description", "the requested data");
    pb_json_open(w, "content", '{');
    for (const struct pb_form *f = r->forms; f->name; f++) {
        bool shown = false; /* two forms may have one type */
        for (const struct pb_form *before = r->forms; before < f; before++)
            shown = shown || strcmp(before->type, f->type) == 0;
        if (!shown)
            put_empty(w, f->type);
    }
    pb_json_close(w);
    pb_json_close(w);
    pb_json_open(w, "default", '{');
    if (r->flags & PB_ROUTE_MCP)
        pb_json_put_text(w, "description", "an error of JSON-RPC, or nothing");
    else
        pb_json_put_format(w, "$ref", "#/components/responses/%s",
                           strcmp(r->forms->name, "svg") == 0 ? "drawn" : "error");
    pb_json_close(w);
    pb_json_close(w);
}

static void put_operation(struct pb_json_writer *w, const struct pb_offer *o, const struct pb_route *r)
{
    char method[16] = "";

    for (size_t i = 0; r->method[i] && i + 1 < sizeof(method); i++)
        method[i] = (char)(r->method[i] | 0x20);
    pb_json_open(w, method, '{');
    pb_json_put_text(w, "summary", r->summary);
    if (r->topic.name)
        pb_json_put_text(w, "x-topic", r->topic.name);
    put_params(w, o, r);
    put_body(w, r);
    put_responses(w, r);
    pb_json_close(w);
}

static void put_error_schema(struct pb_json_writer *w)
{
    static const char *const members[] = {"code", "message"};

    pb_json_open(w, "schema", '{');
    pb_json_put_text(w, "type", "object");
    pb_json_open(w, "required", '[');
    pb_json_put_text(w, NULL, "error");
    pb_json_close(w);
    pb_json_open(w, "properties", '{');
    pb_json_open(w, "error", '{');
    pb_json_put_text(w, "type", "object");
    pb_json_open(w, "required", '[');
    for (size_t i = 0; i < 2; i++)
        pb_json_put_text(w, NULL, members[i]);
    pb_json_put_text(w, NULL, "retryable");
    pb_json_close(w);
    pb_json_open(w, "properties", '{');
    for (size_t i = 0; i < 2; i++)
        put_string_schema(w, members[i], NULL);
    pb_json_open(w, "retryable", '{');
    pb_json_put_text(w, "type", "boolean");
    for (int i = 0; i < 5; i++)
        pb_json_close(w);
}

/* drawn: the error may also be a picture; pb_answer_is_picture says when. */
static void put_error_response(struct pb_json_writer *w, const char *name, bool drawn)
{
    pb_json_open(w, name, '{');
    pb_json_put_text(w, "description", "why not");
    pb_json_open(w, "content", '{');
    pb_json_open(w, "application/json", '{');
    put_error_schema(w);
    pb_json_close(w);
    if (drawn)
        put_empty(w, "image/svg+xml");
    pb_json_close(w);
    pb_json_close(w);
}

static void put_components(struct pb_json_writer *w)
{
    pb_json_open(w, "components", '{');
    pb_json_open(w, "securitySchemes", '{');
    pb_json_open(w, "token", '{');
    pb_json_put_text(w, "type", "http");
    pb_json_put_text(w, "scheme", "bearer");
    pb_json_close(w);
    pb_json_close(w);
    pb_json_open(w, "responses", '{');
    put_error_response(w, "error", false);
    put_error_response(w, "drawn", true);
    pb_json_close(w);
    pb_json_close(w);
}

static void put_paths(struct pb_json_writer *w, const struct pb_offer *o)
{
    const char *before = NULL;

    pb_json_open(w, "paths", '{');
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));) {
        if (!pb_route_is_offered(o, r) || r->flags & PB_ROUTE_HIDDEN)
            continue;
        bool same = before && strcmp(before, r->path) == 0; /* methods of a path stand together */
        if (before && !same)
            pb_json_close(w);
        if (!same)
            pb_json_open(w, r->path, '{');
        put_operation(w, o, r);
        before = r->path;
    }
    if (before)
        pb_json_close(w);
    pb_json_close(w);
}

void pb_openapi_write(FILE *out, const struct pb_offer *o)
{
    struct pb_json_writer w = {.out = out, .tight = true};

    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "openapi", "3.1.0");
    pb_json_open(&w, "info", '{');
    pb_json_put_text(&w, "title", "Probing");
    pb_json_put_text(&w, "description", "What is known of the processes of a node.");
    pb_json_put_text(&w, "version", PROBING_VERSION);
    pb_json_close(&w);
    pb_json_open(&w, "security", '[');
    pb_json_open(&w, NULL, '{');
    pb_json_open(&w, "token", '[');
    for (int i = 0; i < 3; i++)
        pb_json_close(&w);
    put_paths(&w, o);
    put_components(&w);
    pb_json_close(&w);
    putc('\n', out);
}

/* --- Prometheus --- */

enum { FIELDS = 16 };

/* Splits a row of TSV in place. */
static size_t split(char *line, char *ret[FIELDS])
{
    size_t n = 0;

    for (char *next; line && n < FIELDS; line = next) {
        next = strchr(line, '\t');
        if (next)
            *next++ = '\0';
        ret[n++] = line;
    }
    return n;
}

static const char *field(char *const names[FIELDS], char *const values[FIELDS], size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return strcmp(values[i], "\\N") == 0 ? "" : values[i];
    return "";
}

/* A label's value. TSV has escaped newlines, tabs and backslashes already, as Prometheus wants the first and
 * last. */
static void put_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\\' && value[1] == 't') {
            putc(' ', out);
            value++;
        } else if (*value == '"') {
            fputs("\\\"", out);
        } else if (*value == '\\' && value[1] == 'r') {
            value++;
        } else if (*value == '\\') {
            fprintf(out, "\\%c", value[1]);
            value++;
        } else {
            putc(*value, out);
        }
        if (!*value)
            break;
    }
    putc('"', out);
}

static void put_samples(FILE *out, const char *metric, const char *kind, const char *help, const char *column,
                        double scale, const char *printed, size_t length)
{
    char *copy = strndup(printed, length), *names[FIELDS], *values[FIELDS], *rest = copy;
    size_t n = 0;

    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", metric, help, metric, kind);
    for (char *line; copy && (line = strsep(&rest, "\n")) && *line;) {
        if (!n) {
            n = split(line, names);
            continue;
        }
        if (split(line, values) != n)
            continue;
        const char *state = field(names, values, n, "state"), *value = field(names, values, n, column);
        if (!*value || (strcmp(state, "probed") != 0 && strcmp(state, "python") != 0))
            continue;
        fprintf(out, "%s{", metric);
        put_label(out, "pid", field(names, values, n, "pid"));
        fputs(",", out);
        put_label(out, "rank", field(names, values, n, "rank"));
        fputs(",", out);
        put_label(out, "state", state);
        fputs(",", out);
        put_label(out, "command", field(names, values, n, "command"));
        fprintf(out, "} %.17g\n", strtod(value, NULL) * scale);
    }
    free(copy);
}

void pb_metrics_write(const char *printed, size_t length, const char *form, void (*more)(FILE *to), FILE *out)
{
    put_samples(out, "probing_process_resident_bytes", "gauge", "Memory of the process in RAM.", "memory_mb",
                1024 * 1024, printed, length);
    put_samples(out, "probing_process_uptime_seconds", "gauge", "How long the process runs.", "uptime", 1,
                printed, length);
    if (more)
        more(out);
    fputs(strcmp(form, "openmetrics") == 0 ? "# EOF\n" : "", out);
}
