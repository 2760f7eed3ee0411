/* plan_tree: reads and copies parts of a statement's syntax tree: see plan_impl.h. */
#include "engine/worker/plan_impl.h"

#include "base/cleanup.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool plan_is(const struct plan *p, uint32_t node, const char *key, const char *text)
{
    return pb_json_is(p->j, pb_json_get(p->j, node, key), text);
}

bool plan_is_null(const struct plan *p, uint32_t node)
{
    return !node || (p->j->nodes[node].kind == 0 && strncmp(p->j->nodes[node].at, "null", 4) == 0);
}

bool plan_is_empty(const struct plan *p, uint32_t node)
{
    return !node || (p->j->nodes[node].kind == '[' && !p->j->nodes[node].child);
}

uint32_t plan_child(const struct plan *p, uint32_t node, const char *key)
{
    uint32_t list = pb_json_get(p->j, node, key);
    return list ? p->j->nodes[list].child : 0;
}

void plan_text(const struct plan *p, uint32_t node, char ret[PLAN_NAME])
{
    if (!node || p->j->nodes[node].kind != '"' || pb_json_text(p->j, node, ret, PLAN_NAME) < 0)
        ret[0] = '\0';
}

bool plan_column(const struct plan *p, uint32_t node, const struct plan_scope *s, char ret[PLAN_NAME])
{
    char owner[PLAN_NAME];
    uint32_t first = plan_child(p, node, "column_names"), second = first ? p->j->nodes[first].next : 0;

    if (!first || !plan_is(p, node, "class", "COLUMN_REF"))
        return false;
    /* Names without text, or cut by the buffer, match no table. */
    if (p->j->nodes[first].length >= PLAN_NAME || (second && p->j->nodes[second].length >= PLAN_NAME))
        return false;
    if (!second) {
        plan_text(p, first, ret);
        return s->alone && ret[0];
    }
    plan_text(p, first, owner);
    plan_text(p, second, ret);
    return !p->j->nodes[second].next && ret[0] && strcasecmp(owner, s->alias) == 0;
}

bool plan_is_added(const char *column)
{
    return strcasecmp(column, "node") == 0 || strcasecmp(column, "role") == 0;
}

static bool is_one_of(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

/* Words that DuckDB takes for functions where no column has the name: what they give differs from node to
 * node. */
static bool is_word_of_its_own(const char *column)
{
    static const char *const words[] = {
        "current_date", "current_time", "localtime", "localtimestamp",  "current_user",  "user",
        "session_user", "current_role", "rowid",     "current_catalog", "current_schema"};

    return is_one_of(column, words, sizeof(words) / sizeof(words[0]));
}

static bool is_moment(const struct plan *p, uint32_t node)
{
    uint32_t first = plan_child(p, node, "column_names"), name = pb_json_get(p->j, node, "function_name");
    char text[PLAN_NAME];

    plan_text(p, name ? name : first, text);
    if (name)
        return (strcasecmp(text, "now") == 0 || strcasecmp(text, "get_current_timestamp") == 0) &&
               !plan_child(p, node, "children");
    return first && !p->j->nodes[first].next && strcasecmp(text, "current_timestamp") == 0;
}

/* Functions of single values that give the same everywhere. hash and typeof of a text depend on how the node
 * holds it. */
static bool is_function_of_values(const struct plan *p, uint32_t node)
{
    static const char *const never[] = {"hash",       "typeof",     "enum_code",      "enum_range",
                                        "enum_first", "enum_last",  "getvariable",    "enum_range_boundary",
                                        "pg_typeof",  "md5_number", "current_setting"};
    char name[PLAN_NAME], line[PLAN_NAME + 2];

    plan_text(p, pb_json_get(p->j, node, "function_name"), name);
    if (!name[0] || is_one_of(name, never, sizeof(never) / sizeof(never[0])))
        return false;
    snprintf(line, sizeof(line), "\n%.62s\n", name);
    return p->e->functions && strcasestr(p->e->functions, line);
}

static bool may_push_class(const struct plan *p, uint32_t node, const struct plan_scope *s)
{
    static const char *const classes[] = {"CONSTANT", "COMPARISON", "CONJUNCTION", "CAST",
                                          "OPERATOR", "BETWEEN",    "CASE"};
    char text[PLAN_NAME];

    if (is_moment(p, node))
        return true;
    plan_text(p, pb_json_get(p->j, node, "class"), text);
    if (strcmp(text, "COLUMN_REF") == 0)
        return plan_column(p, node, s, text) && !plan_is_added(text) && !is_word_of_its_own(text);
    if (strcmp(text, "FUNCTION") == 0)
        return is_function_of_values(p, node);
    return is_one_of(text, classes, sizeof(classes) / sizeof(classes[0]));
}

bool plan_may_push(const struct plan *p, uint32_t node, const struct plan_scope *s, unsigned depth)
{
    if (depth > PLAN_DEPTH)
        return false;
    if (pb_json_get(p->j, node, "class") && !may_push_class(p, node, s))
        return false;
    for (uint32_t c = p->j->nodes[node].child; c; c = p->j->nodes[c].next)
        if ((p->j->nodes[c].kind == '{' || p->j->nodes[c].kind == '[') && !plan_may_push(p, c, s, depth + 1))
            return false;
    return true;
}

static bool is_key(const struct pb_json_node *n, const char *key)
{
    return n->key && n->key_length == strlen(key) && memcmp(n->key, key, n->key_length) == 0;
}

static bool is_mere_name(const struct pb_json_node *n)
{
    return is_key(n, "alias") || is_key(n, "query_location");
}

static uint32_t skip_names(const struct plan *p, uint32_t node)
{
    while (node && is_mere_name(&p->j->nodes[node]))
        node = p->j->nodes[node].next;
    return node;
}

bool plan_same(const struct plan *p, uint32_t a, uint32_t b, unsigned depth)
{
    const struct pb_json_node *x = &p->j->nodes[a], *y = &p->j->nodes[b];

    if (depth > PLAN_DEPTH || x->kind != y->kind)
        return false;
    if (x->kind != '{' && x->kind != '[')
        return x->length == y->length && memcmp(x->at, y->at, x->length) == 0;
    uint32_t i = skip_names(p, x->child), k = skip_names(p, y->child);
    for (; i && k; i = skip_names(p, p->j->nodes[i].next), k = skip_names(p, p->j->nodes[k].next)) {
        const struct pb_json_node *one = &p->j->nodes[i], *other = &p->j->nodes[k];
        if (one->key_length != other->key_length ||
            (one->key && memcmp(one->key, other->key, one->key_length) != 0) ||
            !plan_same(p, i, k, depth + 1))
            return false;
    }
    return !i && !k;
}

/* --- copies --- */

static void put_moment(struct plan_copy *c)
{
    fprintf(
        c->out,
        "{\"class\":\"CAST\",\"type\":\"OPERATOR_CAST\",\"alias\":\"\",\"query_location\":0,\"child\":"
        "{\"class\":\"CONSTANT\",\"type\":\"VALUE_CONSTANT\",\"alias\":\"\",\"query_location\":0,\"value\":"
        "{\"type\":{\"id\":\"VARCHAR\",\"type_info\":null},\"is_null\":false,\"value\":\"%s\"}},"
        "\"cast_type\":{\"id\":\"TIMESTAMP\",\"type_info\":null},\"try_cast\":false}",
        c->p->moment);
}

/* What is written otherwise for a node: a moment instead of a clock, a column without its table. */
static bool put_instead(struct plan_copy *c, uint32_t node)
{
    const struct pb_json *j = c->p->j;
    char name[PLAN_NAME];

    if (c->replace && c->replace(c->arg, c->out, node))
        return true;
    if (!c->scope || !pb_json_get(j, node, "class"))
        return false;
    if (is_moment(c->p, node)) {
        put_moment(c);
        return true;
    }
    uint32_t first = plan_child(c->p, node, "column_names");
    if (!first || !j->nodes[first].next || !plan_column(c->p, node, c->scope, name))
        return false;
    size_t length;
    const char *span = pb_json_span(j, j->nodes[first].next, &length);
    fprintf(c->out,
            "{\"class\":\"COLUMN_REF\",\"type\":\"COLUMN_REF\",\"alias\":\"\",\"query_location\":0,"
            "\"column_names\":[%.*s]}",
            (int)length, span);
    return true;
}

void plan_put(struct plan_copy *c, uint32_t node, unsigned depth)
{
    const struct pb_json *j = c->p->j;
    char kind = j->nodes[node].kind;
    size_t length;

    if (kind != '{' && kind != '[') {
        const char *span = pb_json_span(j, node, &length);
        fwrite(span, 1, length, c->out);
        return;
    }
    if (depth > PLAN_DEPTH || (kind == '{' && put_instead(c, node)))
        return;
    fputc(kind, c->out);
    for (uint32_t i = j->nodes[node].child; i; i = j->nodes[i].next) {
        if (kind == '{')
            fprintf(c->out, "\"%.*s\":", (int)j->nodes[i].key_length, j->nodes[i].key);
        /* The name of the whole expression would be printed with it. */
        if (depth == 0 && c->scope && is_key(&j->nodes[i], "alias"))
            fputs("\"\"", c->out);
        else
            plan_put(c, i, depth + 1);
        if (j->nodes[i].next)
            fputc(',', c->out);
    }
    fputc(kind == '{' ? '}' : ']', c->out);
}

char *plan_print(const struct plan *p, const char *json)
{
    static const char select[] = "SELECT ";
    _cleanup_free_ char *text = NULL;

    if (pb_engine_print(p->e, json, strlen(json), &text) < 0 ||
        strncmp(text, select, sizeof(select) - 1) != 0)
        return NULL;
    return strdup(text + sizeof(select) - 1);
}

char *plan_expression(const struct plan *p, uint32_t node, const struct plan_scope *s)
{
    _cleanup_free_ char *json = NULL;
    size_t size;
    struct plan_copy c = {.p = p, .scope = s, .out = open_memstream(&json, &size)};

    if (!c.out)
        return NULL;
    plan_put(&c, node, 0);
    return fclose(c.out) == 0 ? plan_print(p, json) : NULL;
}
