/* skill_text: see skill_text.h. */
#include "diagnose/skills/skill_text.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static const char *find_value(const struct pb_skill_values *values, const char *name, size_t length)
{
    for (size_t i = 0; i < values->n; i++)
        if (strlen(values->at[i].name) == length && memcmp(values->at[i].name, name, length) == 0)
            return values->at[i].value;
    return NULL;
}

/* The length of a name in braces at text, with dots where it may have them; 0: something else. */
static size_t placeholder_length(const char *at, bool dots)
{
    size_t n = 0;

    while (is_word(at[1 + n]) || (dots && n && at[1 + n] == '.'))
        n++;
    return n && at[1 + n] == '}' && !isdigit((unsigned char)at[1]) ? n : 0;
}

/* --- values --- */

static int set_value(struct pb_skill_values *values, const char *name, const char *value)
{
    size_t i = 0;

    while (i < values->n && strcmp(values->at[i].name, name) != 0)
        i++;
    if (i == PB_SKILL_VALUES)
        return -E2BIG;
    if (i == values->n)
        values->n++;
    snprintf(values->at[i].name, sizeof(values->at[i].name), "%s", name);
    snprintf(values->at[i].value, sizeof(values->at[i].value), "%s", value);
    return 0;
}

static bool is_number(const char *text, bool whole)
{
    char *end = NULL;

    if (whole)
        return strspn(text + (*text == '-'), "0123456789") == strlen(text + (*text == '-')) &&
               isdigit((unsigned char)text[*text == '-']);
    strtod(text, &end);
    return *text && !*end && strspn(text, "+-.0123456789eE") == strlen(text);
}

/* What is wrong with the value of a parameter of this type; NULL: nothing. Values become a part of SQL. */
static const char *fault_of(const char *type, const char *value)
{
    if (strcmp(type, "integer") == 0)
        return is_number(value, true) ? NULL : "is no whole number";
    if (strcmp(type, "number") == 0)
        return is_number(value, false) ? NULL : "is no number";
    if (strcmp(type, "boolean") == 0)
        return strcmp(value, "true") == 0 || strcmp(value, "false") == 0 ? NULL : "is neither true nor false";
    return strchr(value, '\'') ? "has a quote in it" : NULL;
}

static const char *given_value(const struct pb_skill_given *given, const char *name)
{
    size_t n = strlen(name);
    const char *value = NULL;

    for (size_t i = 0; i < given->n; i++)
        if (strncmp(given->at[i], name, n) == 0 && given->at[i][n] == '=')
            value = given->at[i] + n + 1;
    return value;
}

static int read_parameter(const struct pb_skill_request *q, uint32_t p, struct pb_skill_values *ret,
                          struct pb_err *err)
{
    char name[PB_SKILL_NAME], type[32], value[PB_SKILL_TEXT];

    pb_skill_get(q->skill, p, "name", name, sizeof(name));
    pb_skill_get(q->skill, p, "type", type, sizeof(type));
    pb_skill_get(q->skill, p, "default", value, sizeof(value));
    const char *given = given_value(&q->given, name);
    if (given)
        snprintf(value, sizeof(value), "%s", given);
    if (strcasecmp(value, "true") == 0 || strcasecmp(value, "false") == 0)
        for (char *c = value; *c; c++)
            *c = (char)tolower((unsigned char)*c);
    if (!given && !value[0])
        return pb_fail(err, -EINVAL, "the parameter %s has no default: -p %s=VALUE", name, name);
    const char *fault = strlen(given ? given : "") < sizeof(value) ? fault_of(type, value) : "is too long";
    if (fault)
        return pb_fail(err, -EINVAL, "the parameter %s: '%.60s' %s", name, value, fault);
    return set_value(ret, name, value) < 0 ? pb_fail(err, -EINVAL, "it has too many parameters") : 0;
}

static int check_given(const struct pb_skill_request *q, const struct pb_skill_values *values,
                       struct pb_err *err)
{
    for (size_t i = 0; i < q->given.n; i++) {
        const char *text = q->given.at[i], *equals = strchr(text, '=');
        if (!equals)
            return pb_fail(err, -EINVAL, "'%.60s' is no NAME=VALUE", text);
        if (!find_value(values, text, (size_t)(equals - text)))
            return pb_fail(err, -EINVAL, "the playbook has no parameter '%.*s'", (int)(equals - text), text);
    }
    return 0;
}

/* Tables of the original that are looked for in all ranks where use_global is on. */
static int add_tables(struct pb_skill_values *values)
{
    static const char *const tables[][2] = {
        {"comm_table", "python.comm_collective"},
        {"table_comm", "python.comm_collective"},
        {"nccl_proxy_table", "nccl.proxy_ops"},
        {"nccl_coll_table", "nccl.coll_perf"},
        {"nccl_inflight_table", "nccl.inflight_ops"},
        {"net_qp_table", "nccl.net_qp"},
        {"nccl_counters_table", "nccl.profiler_counters"},
        {"fr_table", "python.torch_nccl_flight_record"},
        {"fr_status_table", "python.torch_nccl_pg_status"},
        {"global_prefix", ""},
    };
    const char *use = find_value(values, "use_global", strlen("use_global"));
    const char *prefix = use && strcmp(use, "true") == 0 ? "global." : "";
    char name[PB_SKILL_TEXT];
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(tables) / sizeof(tables[0]); i++) {
        snprintf(name, sizeof(name), "%s%s", prefix, tables[i][1]);
        r = set_value(values, tables[i][0], name);
    }
    return r;
}

/* spec.variables: templates over the values so far. */
static int add_variables(const struct pb_skill *s, struct pb_skill_values *values)
{
    uint32_t all = pb_skill_part(s, "variables");
    char name[PB_SKILL_NAME], template[PB_SKILL_TEXT];
    int r = 0;

    for (uint32_t v = pb_skill_first(s, all); r == 0 && v; v = s->doc.nodes[v].next) {
        snprintf(name, sizeof(name), "%.*s", (int)s->doc.nodes[v].key_length, s->doc.nodes[v].key);
        pb_skill_get(s, all, name, template, sizeof(template));
        _cleanup_free_ char *value = pb_skill_words(values, NULL, NULL, template);
        r = value ? set_value(values, name, value) : -ENOMEM;
    }
    return r;
}

int pb_skill_values_read(const struct pb_skill_request *request, struct pb_skill_values *ret,
                         struct pb_err *err)
{
    const struct pb_skill *s = request->skill;
    int r = 0;

    ret->n = 0;
    for (uint32_t p = pb_skill_first(s, pb_skill_part(s, "parameters")); r == 0 && p;
         p = s->doc.nodes[p].next)
        r = read_parameter(request, p, ret, err);
    if (r == 0)
        r = check_given(request, ret, err);
    if (r == 0 && (add_tables(ret) < 0 || add_variables(s, ret) < 0))
        r = pb_fail(err, -EINVAL, "it has too many parameters and variables");
    return r;
}

/* --- statements --- */

/* What at text is no code: a text in quotes or a comment. Its length; 0: it is code. */
static size_t skip_quoted(const char *at)
{
    const char *end = NULL;

    if (*at == '\'' || *at == '"')
        end = strchr(at + 1, *at);
    else if (strncmp(at, "--", 2) == 0)
        return strcspn(at, "\n");
    else if (strncmp(at, "/*", 2) == 0 && (end = strstr(at + 2, "*/")))
        end++;
    else
        return 0;
    return end ? (size_t)(end - at) + 1 : strlen(at);
}

/* The length of global.SCHEMA.TABLE; 0: something else. */
static size_t global_length(const char *sql, const char *at)
{
    size_t n = strlen("global.");

    if ((at > sql && (is_word(at[-1]) || at[-1] == '.')) || strncasecmp(at, "global.", n) != 0 ||
        !is_word(at[n]))
        return 0;
    while (is_word(at[n]) || (at[n] == '.' && is_word(at[n + 1])))
        n++;
    return n;
}

static void put_table_of_all(FILE *out, const char *name, size_t n)
{
    char host[65] = "";

    gethostname(host, sizeof(host) - 1);
    if (strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != strlen(host))
        host[0] = '\0';
    fprintf(out,
            "(SELECT *, rank AS _rank, '%s' AS _host, NULL::VARCHAR AS _addr, 0 AS _node_rank,"
            " NULL::INTEGER AS _local_rank, NULL::VARCHAR AS _role FROM %.*s)",
            host, (int)n, name);
}

static char *put_tables(const char *sql)
{
    char *ret = NULL;
    size_t size, n;
    FILE *out = open_memstream(&ret, &size);

    for (const char *at = sql; out && *at; at += n) {
        if ((n = skip_quoted(at))) {
            fwrite(at, 1, n, out);
        } else if ((n = global_length(sql, at))) {
            put_table_of_all(out, at + strlen("global."), n - strlen("global."));
        } else {
            n = 1;
            putc(*at, out);
        }
    }
    if (out && fclose(out) != 0) {
        free(ret);
        ret = NULL;
    }
    return ret;
}

/* In quotes and comments a name in braces that is no parameter stays as it is. */
char *pb_skill_sql(const struct pb_skill_values *values, const char *template, struct pb_err *err)
{
    _cleanup_free_ char *filled = NULL;
    const char *quoted_until = template;
    size_t size;
    FILE *out = open_memstream(&filled, &size);

    for (const char *at = template; out && *at; at++) {
        if (at >= quoted_until)
            quoted_until = at + skip_quoted(at);
        size_t n = *at == '{' ? placeholder_length(at, false) : 0;
        const char *value = n ? find_value(values, at + 1, n) : NULL;
        if (n && !value && at >= quoted_until) {
            fclose(out);
            pb_fail(err, -EINVAL, "its statement names {%.*s}, which is no parameter", (int)n, at + 1);
            return NULL;
        }
        if (value) {
            fputs(value, out);
            at += n + 1;
        } else {
            putc(*at, out);
        }
    }
    char *sql = out && fclose(out) == 0 ? put_tables(filled) : NULL;
    if (!sql)
        pb_fail(err, -ENOMEM, "out of memory");
    return sql;
}

/* --- words --- */

const struct pb_skill_step *pb_skill_step_named(const struct pb_skill_result *result, const char *id,
                                                size_t length)
{
    for (size_t i = 0; result && i < result->nsteps; i++)
        if (strlen(result->steps[i].id) == length && memcmp(result->steps[i].id, id, length) == 0)
            return &result->steps[i];
    return NULL;
}

static int find_column(const struct pb_skill_step *s, const char *name)
{
    for (unsigned i = 0; s && i < s->ncolumns; i++)
        if (strcmp(s->columns[i], name) == 0)
            return (int)i;
    return -1;
}

const char *pb_skill_cell(const struct pb_skill_step *s, const char *column)
{
    int c = find_column(s, column);

    return c >= 0 && s->nrows ? s->cells[c] : NULL;
}

/* What `shown` has in the row in which `by` is largest: the fixed words of the original. */
static const char *cell_of_largest(const struct pb_skill_result *result, const char *step, const char *by,
                                   const char *shown)
{
    const struct pb_skill_step *s = pb_skill_step_named(result, step, strlen(step));
    int b = find_column(s, by), c = find_column(s, shown);
    const char *most = NULL;
    double largest = 0;

    for (size_t i = 0; b >= 0 && c >= 0 && i < s->nrows; i++) {
        const char *value = s->cells[i * s->ncolumns + (size_t)b];
        if (!value || (most && strtod(value, NULL) <= largest))
            continue;
        largest = strtod(value, NULL);
        most = s->cells[i * s->ncolumns + (size_t)c];
    }
    return most;
}

static const char *find_word(const struct pb_skill_values *values, const struct pb_skill_result *result,
                             const struct pb_skill_step *of, const char *name, char number[32])
{
    const char *dot = strchr(name, '.'), *word = find_value(values, name, strlen(name));
    const struct pb_skill_step *s = dot ? pb_skill_step_named(result, name, (size_t)(dot - name)) : of;

    if (s && dot && strcmp(dot + 1, "row_count") == 0) {
        snprintf(number, 32, "%zu", s->nrows);
        return number;
    }
    if (!word)
        word = pb_skill_cell(s, dot ? dot + 1 : name);
    char *end = NULL;
    double value = word && strchr(word, '.') ? strtod(word, &end) : 0;
    if (end && end != word && !*end) {
        snprintf(number, 32, "%.6g", value);
        return number;
    }
    if (!word && strcmp(name, "worst_rank") == 0)
        word = cell_of_largest(result, "rank_latency", "avg_ms", "rank");
    if (!word && strcmp(name, "top_module") == 0) {
        word = cell_of_largest(result, "module_totals", "pct_time", "module");
        word = word ? word : pb_skill_cell(of, "module");
    }
    if (!word && strcmp(name, "latest_step") == 0)
        word = pb_skill_cell(pb_skill_step_named(result, "latest_torch_step", strlen("latest_torch_step")),
                             name);
    return word;
}

char *pb_skill_words(const struct pb_skill_values *values, const struct pb_skill_result *result,
                     const struct pb_skill_step *of, const char *template)
{
    char *ret = NULL, name[2 * PB_SKILL_NAME], number[32];
    size_t size, n;
    FILE *out = open_memstream(&ret, &size);

    for (const char *at = template; out && *at; at++) {
        n = *at == '{' ? placeholder_length(at, true) : 0;
        if (!n || n >= sizeof(name)) {
            putc(*at, out);
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)n, at + 1);
        const char *word = find_word(values, result, of, name, number);
        fputs(word ? word : "?", out);
        at += n + 1;
    }
    if (out && fclose(out) != 0) {
        free(ret);
        ret = NULL;
    }
    return ret;
}
