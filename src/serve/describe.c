/* describe: /openapi.json and /metrics: see routes.h. */
#include "print/records.h"
#include "serve/routes.h"

#include <stdlib.h>
#include <string.h>

static void put_string(FILE *out, const char *text)
{
    pb_put_json(out, text, strlen(text));
}

/* --- OpenAPI --- */

static void put_param(FILE *out, const struct pb_param *p)
{
    fputs(",{\"name\":", out);
    put_string(out, p->name);
    fprintf(out, ",\"in\":\"query\",\"required\":%s,\"description\":", p->needed ? "true" : "false");
    put_string(out, p->help);
    if (p->kind == PB_PARAM_NUMBER)
        fprintf(out, ",\"schema\":{\"type\":\"number\",\"minimum\":%g,\"maximum\":%g}}", p->least, p->most);
    else if (p->kind == PB_PARAM_FLAG)
        fputs(",\"schema\":{\"type\":\"boolean\"}}", out);
    else
        fprintf(out, ",\"schema\":{\"type\":\"string\",\"maxLength\":%d,\"pattern\":\"^[^\\\\u0000]+$\"}}",
                PB_TEXT_MOST);
}

static void put_params(FILE *out, const struct pb_offer *o, const struct pb_route *r)
{
    fputs("\"parameters\":[{\"name\":\"format\",\"in\":\"query\",\"description\":\"the form of the "
          "answer\",\"schema\":{\"enum\":[",
          out);
    for (const struct pb_form *f = r->forms; f->name; f++)
        fprintf(out, "%s\"%s\"", f == r->forms ? "" : ",", f->name);
    fputs("]}}", out);
    if (strstr(r->path, "{id}"))
        fputs(",{\"name\":\"id\",\"in\":\"path\",\"required\":true,\"description\":\"a pid, or the id of a "
              "run\",\"schema\":{"
              "\"type\":\"string\",\"pattern\":\"^[0-9]{1,10}(@[0-9a-z.]{1,40})?$\"}}",
              out);
    for (const struct pb_param *p = r->params; p && p->name; p++)
        put_param(out, p);
    if (strstr(r->path, "{file}"))
        fputs(",{\"name\":\"file\",\"in\":\"path\",\"required\":true,\"description\":\"its "
              "name\",\"schema\":{\"type\":\"string\",\"pattern\":\"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}$\"}}",
              out);
    if (r->flags & PB_ROUTE_TARGET)
        put_param(out, &(struct pb_param){"target", NULL, PB_PARAM_TEXT, 0, 0,
                                          "a pid, the id of a run, or part of a command line",
                                          r->flags & PB_ROUTE_ONE && !o->target});
    if (r->flags & PB_ROUTE_ALL)
        put_param(out,
                  &(struct pb_param){"all", NULL, PB_PARAM_FLAG, 0, 0,
                                     "every process that target matches, or the workers below it", false});
    fputs("]", out);
}

/* A text that is neither blank nor has a NUL, which arguments and SQL cannot have. */
#define TEXT "{\"type\":\"string\",\"pattern\":\"^[^\\\\u0000]*[^\\\\s;\\\\u0000][^\\\\u0000]*$\"}"

static void put_body(FILE *out, const struct pb_route *r)
{
    const char *type = "application/json", *schema = NULL;

    if (r->flags & PB_ROUTE_MCP)
        schema =
            "{\"type\":\"object\",\"required\":[\"method\"],\"properties\":{\"method\":{\"type\":\"string\","
            "\"pattern\":\"^[A-Za-z_/]{1,60}$\"}}}";
    else if (r->flags & (PB_ROUTE_STDIN | PB_ROUTE_ARGUMENT))
        type = "text/plain", schema = TEXT;
    if (schema)
        fprintf(out, ",\"requestBody\":{\"required\":true,\"content\":{\"%s\":{\"schema\":%s}}}", type,
                schema);
}

static void put_operation(FILE *out, const struct pb_offer *o, const struct pb_route *r)
{
    putc('"', out);
    for (const char *c = r->method; *c; c++)
        putc(*c | 0x20, out);
    fputs("\":{\"summary\":", out);
    put_string(out, r->summary);
    if (r->topic.name)
        fprintf(out, ",\"x-topic\":\"%s\"", r->topic.name);
    fputs(",", out);
    put_params(out, o, r);
    put_body(out, r);
    fputs(",\"responses\":{\"200\":{\"description\":\"what was asked for\",\"content\":{", out);
    for (const struct pb_form *f = r->forms; f->name; f++) {
        bool shown = false; /* two forms may have one type */
        for (const struct pb_form *before = r->forms; before < f; before++)
            shown = shown || strcmp(before->type, f->type) == 0;
        if (!shown)
            fprintf(out, "%s\"%s\":{}", f == r->forms ? "" : ",", f->type);
    }
    if (r->flags & PB_ROUTE_MCP)
        fputs("}},\"default\":{\"description\":\"an error of JSON-RPC, or nothing\"}}}", out);
    else
        fprintf(out, "}},\"default\":{\"$ref\":\"#/components/responses/%s\"}}}",
                strcmp(r->forms->name, "svg") == 0 ? "drawn" : "error");
}

#define ERROR                                                                                                \
    "{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"type\":\"object\","          \
    "\"required\":[\"code\",\"message\",\"retryable\"],\"properties\":{\"code\":{\"type\":\"string\"},"      \
    "\"message\":{\"type\":\"string\"},\"retryable\":{\"type\":\"boolean\"}}}}}"

void pb_openapi_write(FILE *out, const struct pb_offer *o)
{
    const char *before = NULL;

    fputs("{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Probing\",\"description\":\"What is known of the "
          "processes of a node.\",\"version\":\"" PROBING_VERSION "\"},"
          "\"security\":[{\"token\":[]}],\"paths\":{",
          out);
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));) {
        if (!pb_route_is_offered(o, r) || r->flags & PB_ROUTE_HIDDEN)
            continue;
        bool same = before && strcmp(before, r->path) == 0; /* methods of a path stand together */
        fputs(same ? "," : before ? "}," : "", out);
        if (!same) {
            put_string(out, r->path);
            fputs(":{", out);
        }
        put_operation(out, o, r);
        before = r->path;
    }
    fputs("}},\"components\":{\"securitySchemes\":{\"token\":{\"type\":\"http\",\"scheme\":\"bearer\"}},"
          "\"responses\":{\"error\":{\"description\":\"why "
          "not\",\"content\":{\"application/json\":{\"schema\":" ERROR "}}},"
          /* pb_answer_is_picture says when it is drawn. */
          "\"drawn\":{\"description\":\"why not\",\"content\":{\"application/json\":{\"schema\":" ERROR
          "},\"image/svg+xml\":{}}}}}}\n",
          out);
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

void pb_metrics_write(const char *printed, size_t length, const char *form, FILE *out)
{
    put_samples(out, "probing_process_resident_bytes", "gauge", "Memory of the process in RAM.", "memory_mb",
                1024 * 1024, printed, length);
    put_samples(out, "probing_process_uptime_seconds", "gauge", "How long the process runs.", "uptime", 1,
                printed, length);
    fputs(strcmp(form, "openmetrics") == 0 ? "# EOF\n" : "", out);
}
