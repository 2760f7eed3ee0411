/* plan_split: aggregates in two steps: each node sums up its rows by rank, process and group, and the asking
 * side sums up what they found.
 *
 * count, sum, min and max of parts give those of the whole, avg is a sum and a count. Everything else, and
 * DISTINCT always, needs the rows: then the statement is not split. Groups that are made of columns of the
 * asking side (node, role) are made there, since the parts carry the rank. */
#include "engine/worker/plan_impl.h"

#include "base/cleanup.h"
#include "engine/shared/sql_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_PARTS = 64 };

enum merged { MERGE_NONE, MERGE_COUNT, MERGE_SUM, MERGE_MIN, MERGE_MAX, MERGE_AVG };

struct split {
    const struct plan *p;
    const struct plan_scope *scope;
    uint32_t select;
    uint32_t groups[MAX_PARTS]; /* what the nodes group by: pb_g0, ... */
    unsigned ngroups;
    uint32_t aggregates[MAX_PARTS]; /* pb_a0, ...; of an average the sum, and pb_c0, ... its count */
    unsigned naggregates;
    bool ordering; /* what is copied is an ORDER BY, where names of results come first */
    bool failed;
};

static enum merged merged_as(const struct plan *p, uint32_t node)
{
    static const struct {
        const char *name;
        unsigned children;
        enum merged as;
    } known[] = {{"count_star", 0, MERGE_COUNT}, {"count", 0, MERGE_COUNT}, {"count", 1, MERGE_COUNT},
                 {"sum", 1, MERGE_SUM},          {"min", 1, MERGE_MIN},     {"max", 1, MERGE_MAX},
                 {"avg", 1, MERGE_AVG},          {"mean", 1, MERGE_AVG}};
    char name[PLAN_NAME];
    unsigned n = 0;

    if (!plan_is(p, node, "class", "FUNCTION"))
        return MERGE_NONE;
    plan_text(p, pb_json_get(p->j, node, "function_name"), name);
    for (uint32_t c = plan_child(p, node, "children"); c; c = p->j->nodes[c].next)
        n++;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcasecmp(name, known[i].name) == 0 && n == known[i].children)
            return known[i].as;
    return MERGE_NONE;
}

/* Whether parts of it make the whole, and a node can work out each part. */
static bool can_merge(const struct split *s, uint32_t node)
{
    const struct plan *p = s->p;
    uint32_t distinct = pb_json_get(p->j, node, "distinct"), filter = pb_json_get(p->j, node, "filter");

    if (!distinct || strncmp(p->j->nodes[distinct].at, "false", 5) != 0 ||
        plan_child(p, pb_json_get(p->j, node, "order_bys"), "orders"))
        return false;
    for (uint32_t c = plan_child(p, node, "children"); c; c = p->j->nodes[c].next)
        if (!plan_may_push(p, c, s->scope, 0))
            return false;
    return plan_is_null(p, filter) || plan_may_push(p, filter, s->scope, 0);
}

static bool has_aggregate(const struct plan *p, uint32_t node, unsigned depth)
{
    if (depth > PLAN_DEPTH || merged_as(p, node) != MERGE_NONE)
        return true;
    for (uint32_t c = p->j->nodes[node].child; c; c = p->j->nodes[c].next)
        if ((p->j->nodes[c].kind == '{' || p->j->nodes[c].kind == '[') && has_aggregate(p, c, depth + 1))
            return true;
    return false;
}

/* Columns that every part carries under its own name. */
static bool is_carried(const struct split *s, uint32_t node)
{
    char name[PLAN_NAME];

    return plan_column(s->p, node, s->scope, name) &&
           (plan_is_added(name) || strcasecmp(name, "rank") == 0 || strcasecmp(name, "target_pid") == 0);
}

/* Whether an expression needs nothing but those. */
static bool is_of_carried(const struct split *s, uint32_t node, unsigned depth)
{
    const struct plan *p = s->p;

    if (depth > PLAN_DEPTH || plan_is(p, node, "class", "SUBQUERY") || plan_is(p, node, "class", "STAR") ||
        plan_is(p, node, "class", "WINDOW") ||
        (plan_is(p, node, "class", "COLUMN_REF") && !is_carried(s, node)))
        return false;
    for (uint32_t c = p->j->nodes[node].child; c; c = p->j->nodes[c].next)
        if ((p->j->nodes[c].kind == '{' || p->j->nodes[c].kind == '[') && !is_of_carried(s, c, depth + 1))
            return false;
    return true;
}

static int find_same(const struct split *s, const uint32_t *list, unsigned n, uint32_t node)
{
    for (unsigned i = 0; i < n; i++)
        if (plan_same(s->p, list[i], node, 0))
            return (int)i;
    return -1;
}

static bool add_group(struct split *s, uint32_t node)
{
    if (is_of_carried(s, node, 0) || find_same(s, s->groups, s->ngroups, node) >= 0)
        return true;
    if (s->ngroups == MAX_PARTS || has_aggregate(s->p, node, 0) || !plan_may_push(s->p, node, s->scope, 0))
        return false;
    s->groups[s->ngroups++] = node;
    return true;
}

/* A name in GROUP BY may be that of a result as well as of a column: only the nodes know. */
static bool is_other_result(const struct split *s, uint32_t node)
{
    const struct plan *p = s->p;
    char name[PLAN_NAME], alias[PLAN_NAME];

    if (!plan_column(p, node, s->scope, name))
        return false;
    for (uint32_t c = plan_child(p, s->select, "select_list"); c; c = p->j->nodes[c].next) {
        plan_text(p, pb_json_get(p->j, c, "alias"), alias);
        if (strcasecmp(alias, name) == 0 && !plan_same(p, c, node, 0))
            return true;
    }
    return false;
}

static uint32_t result_number(const struct split *s, uint32_t constant)
{
    const struct plan *p = s->p;
    uint32_t value = pb_json_get(p->j, pb_json_get(p->j, constant, "value"), "value"),
             c = plan_child(p, s->select, "select_list");
    char text[PLAN_NAME];

    if (pb_json_text(p->j, value, text, sizeof(text)) <= 0)
        return 0;
    for (long i = strtol(text, NULL, 10); c && i > 1; i--)
        c = p->j->nodes[c].next;
    return c;
}

static bool find_groups(struct split *s)
{
    const struct plan *p = s->p;
    uint32_t expressions = plan_child(p, s->select, "group_expressions"),
             sets = plan_child(p, s->select, "group_sets");
    unsigned n = 0, in_set = 0;

    for (uint32_t c = expressions; c; c = p->j->nodes[c].next, n++) {
        bool number = plan_is(p, c, "class", "CONSTANT");
        uint32_t what = number ? result_number(s, c) : c;
        if (!what || (!number && is_other_result(s, c)) || !add_group(s, what))
            return false;
    }
    for (uint32_t c = sets ? p->j->nodes[sets].child : 0; c; c = p->j->nodes[c].next)
        in_set++;
    if (in_set != n || (sets && p->j->nodes[sets].next))
        return false;
    if (expressions)
        return true;
    /* GROUP BY ALL, or columns beside aggregates that are taken as such. */
    for (uint32_t c = plan_child(p, s->select, "select_list"); c; c = p->j->nodes[c].next)
        if (!has_aggregate(p, c, 0) && !add_group(s, c))
            return false;
    return true;
}

/* --- the statement for the nodes --- */

/* An aggregate under another name, with its argument and FILTER. */
static char *print_aggregate(const struct split *s, uint32_t node, const char *name)
{
    const struct pb_json *j = s->p->j;
    _cleanup_free_ char *json = NULL;
    size_t size;
    struct plan_copy c = {.p = s->p, .scope = s->scope, .out = open_memstream(&json, &size)};

    if (!c.out)
        return NULL;
    fputs("{\"class\":\"FUNCTION\",\"type\":\"FUNCTION\",\"alias\":\"\",\"query_location\":0,\"function_"
          "name\":",
          c.out);
    fprintf(c.out, "\"%s\",\"schema\":\"\",\"children\":", name);
    plan_put(&c, pb_json_get(j, node, "children"), 1);
    fputs(",\"filter\":", c.out);
    plan_put(&c, pb_json_get(j, node, "filter"), 1);
    fputs(
        ",\"order_bys\":{\"type\":\"ORDER_MODIFIER\",\"orders\":[]},\"distinct\":false,\"is_operator\":false,"
        "\"export_state\":false,\"catalog\":\"\"}",
        c.out);
    return fclose(c.out) == 0 ? plan_print(s->p, json) : NULL;
}

static bool put_part(const struct split *s, unsigned i, FILE *out)
{
    uint32_t node = s->aggregates[i];
    enum merged as = merged_as(s->p, node);
    static const char *const names[] = {[MERGE_COUNT] = "count",
                                        [MERGE_SUM] = "sum",
                                        [MERGE_MIN] = "min",
                                        [MERGE_MAX] = "max",
                                        [MERGE_AVG] = "sum"};
    bool star = as == MERGE_COUNT && !plan_child(s->p, node, "children");
    _cleanup_free_ char *part = print_aggregate(s, node, star ? "count_star" : names[as]), *count = NULL;

    if (as == MERGE_AVG)
        count = print_aggregate(s, node, "count");
    if (!part || (as == MERGE_AVG && !count))
        return false;
    fprintf(out, ", %s AS pb_a%u", part, i);
    if (count)
        fprintf(out, ", %s AS pb_c%u", count, i);
    return true;
}

static char *node_text(const struct split *s, const char *from, const char *where, uint64_t cap)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    bool good = true;

    if (!out)
        return NULL;
    fputs("SELECT rank, target_pid", out);
    for (unsigned i = 0; i < s->ngroups; i++) {
        _cleanup_free_ char *group = plan_expression(s->p, s->groups[i], s->scope);
        good = good && group;
        fprintf(out, ", %s AS pb_g%u", group ? group : "", i);
    }
    for (unsigned i = 0; good && i < s->naggregates; i++)
        good = put_part(s, i, out);
    fprintf(out, " FROM %s", from);
    if (where)
        fprintf(out, " WHERE %s", where);
    fputs(" GROUP BY ALL", out);
    fprintf(out, " LIMIT %" PRIu64, cap + 1);
    if (fclose(out) == 0 && good)
        return text;
    free(text);
    return NULL;
}

/* --- the statement for the asking side --- */

#define FUNCTION_HEAD(name)                                                                                  \
    "{\"class\":\"FUNCTION\",\"type\":\"FUNCTION\",\"alias\":\"\",\"query_location\":0,\"function_name\":"   \
    "\"" name "\",\"schema\":\"\",\"children\":["
#define FUNCTION_TAIL(operator)                                                                              \
    "],\"filter\":null,\"order_bys\":{\"type\":\"ORDER_MODIFIER\",\"orders\":[]},\"distinct\":false,"        \
    "\"is_operator\":"                                                                                       \
    operator",\"export_state\":false,\"catalog\":\"\"}"
#define COLUMN                                                                                               \
    "{\"class\":\"COLUMN_REF\",\"type\":\"COLUMN_REF\",\"alias\":\"%s\",\"query_location\":0,"               \
    "\"column_names\":[\"pb_%c%u\"]}"
#define CAST_HEAD                                                                                            \
    "{\"class\":\"CAST\",\"type\":\"OPERATOR_CAST\",\"alias\":\"\",\"query_location\":0,\"child\":"
#define CAST_TAIL(type) ",\"cast_type\":{\"id\":\"" type "\",\"type_info\":null},\"try_cast\":false}"
#define ZERO                                                                                                 \
    "{\"class\":\"CONSTANT\",\"type\":\"VALUE_CONSTANT\",\"alias\":\"\",\"query_location\":0,\"value\":"     \
    "{\"type\":{\"id\":\"INTEGER\",\"type_info\":null},\"is_null\":false,\"value\":0}}"

static void put_merged(FILE *out, enum merged as, unsigned i)
{
    switch (as) {
    case MERGE_COUNT:
        /* Without any row the sum is NULL, the count is absent. */
        fprintf(out,
                CAST_HEAD "{\"class\":\"OPERATOR\",\"type\":\"OPERATOR_COALESCE\",\"alias\":\"\","
                          "\"query_location\":0,\"children\":[" FUNCTION_HEAD("sum")
                              COLUMN FUNCTION_TAIL("false") "," ZERO "]}" CAST_TAIL("BIGINT"),
                "", 'a', i);
        break;
    case MERGE_AVG:
        fprintf(out,
                FUNCTION_HEAD("/") CAST_HEAD FUNCTION_HEAD("sum") COLUMN FUNCTION_TAIL("false")
                    CAST_TAIL("DOUBLE") "," CAST_HEAD FUNCTION_HEAD("sum") COLUMN FUNCTION_TAIL("false")
                        CAST_TAIL("DOUBLE") FUNCTION_TAIL("true"),
                "", 'a', i, "", 'c', i);
        break;
    case MERGE_MIN:
        fprintf(out, FUNCTION_HEAD("min") COLUMN FUNCTION_TAIL("false"), "", 'a', i);
        break;
    case MERGE_MAX:
        fprintf(out, FUNCTION_HEAD("max") COLUMN FUNCTION_TAIL("false"), "", 'a', i);
        break;
    default:
        fprintf(out, FUNCTION_HEAD("sum") COLUMN FUNCTION_TAIL("false"), "", 'a', i);
        break;
    }
}

/* A group is a column of the parts, an aggregate is made of them; any other column is not there. */
static bool put_of_parts(void *arg, FILE *out, uint32_t node)
{
    struct split *s = arg;
    const struct plan *p = s->p;
    char name[PLAN_NAME];

    if (!pb_json_get(p->j, node, "class"))
        return false;
    bool column = plan_is(p, node, "class", "COLUMN_REF");
    if (s->ordering && column && plan_column(p, node, s->scope, name)) {
        for (uint32_t c = plan_child(p, s->select, "select_list"); c; c = p->j->nodes[c].next) {
            char alias[PLAN_NAME];
            plan_text(p, pb_json_get(p->j, c, "alias"), alias);
            if (strcasecmp(alias, name) == 0)
                return false;
        }
    }
    int group = find_same(s, s->groups, s->ngroups, node);
    enum merged as = merged_as(p, node);
    if (group >= 0) {
        fprintf(out, COLUMN, "", 'g', (unsigned)group);
        return true;
    }
    if (as != MERGE_NONE && can_merge(s, node)) {
        int i = find_same(s, s->aggregates, s->naggregates, node);
        if (i < 0 && s->naggregates < MAX_PARTS) {
            i = (int)s->naggregates;
            s->aggregates[s->naggregates++] = node;
        }
        s->failed = s->failed || i < 0;
        put_merged(out, as, i < 0 ? 0 : (unsigned)i);
        return true;
    }
    if (plan_is(p, node, "class", "CONSTANT") || (column && is_carried(s, node)))
        return false;
    bool plain = plan_is(p, node, "class", "FUNCTION") && p->e->functions;
    if (plain) {
        char line[PLAN_NAME + 2];
        plan_text(p, pb_json_get(p->j, node, "function_name"), name);
        snprintf(line, sizeof(line), "\n%.62s\n", name);
        plain = strcasestr(p->e->functions, line);
    }
    if (!plain && !plan_is(p, node, "class", "OPERATOR") && !plan_is(p, node, "class", "CAST") &&
        !plan_is(p, node, "class", "COMPARISON") && !plan_is(p, node, "class", "CONJUNCTION") &&
        !plan_is(p, node, "class", "CASE") && !plan_is(p, node, "class", "BETWEEN"))
        s->failed = true;
    return false;
}

/* A JSON string of a text. */
static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    fputc('"', out);
}

/* What the column of a result is called where the statement gives it no name. */
static char *result_name(const struct plan *p, uint32_t node)
{
    _cleanup_free_ char *json = NULL;
    uint32_t first = plan_child(p, node, "column_names"), last = first;
    size_t length;

    while (last && p->j->nodes[last].next)
        last = p->j->nodes[last].next;
    if (last && plan_is(p, node, "class", "COLUMN_REF")) {
        char name[PLAN_NAME];
        plan_text(p, last, name);
        return strdup(name);
    }
    const char *span = pb_json_span(p->j, node, &length);
    json = strndup(span, length);
    return json ? plan_print(p, json) : NULL;
}

static void put_results(struct split *s, struct plan_copy *c)
{
    const struct pb_json *j = s->p->j;

    fputc('[', c->out);
    for (uint32_t i = plan_child(s->p, s->select, "select_list"); i; i = j->nodes[i].next) {
        _cleanup_free_ char *name = NULL, *json = NULL;
        char alias[PLAN_NAME];
        size_t size;
        uint32_t given = pb_json_get(j, i, "alias");
        plan_text(s->p, given, alias);
        if (given && j->nodes[given].length >= PLAN_NAME)
            s->failed = true;
        name = alias[0] ? strdup(alias) : result_name(s->p, i);
        struct plan_copy one = *c;
        one.out = open_memstream(&json, &size);
        if (!one.out || !name) {
            s->failed = true;
            if (one.out)
                fclose(one.out);
            break;
        }
        plan_put(&one, i, 0);
        fclose(one.out);
        /* The first "alias" of an expression is its own: the classes put it before what they hold. */
        char *at = json ? strstr(json, "\"alias\":\"") : NULL, *end = at ? at + 9 : NULL;
        while (end && *end && *end != '"')
            end += *end == '\\' && end[1] ? 2 : 1;
        if (!end || !*end) {
            s->failed = true;
            break;
        }
        fprintf(c->out, "%.*s", (int)(at + 8 - json), json);
        put_string(c->out, name);
        fprintf(c->out, "%s%s", end + 1, j->nodes[i].next ? "," : "");
    }
    fputc(']', c->out);
}

static void put_select(struct split *s, struct plan_copy *c, const char *kept)
{
    const struct pb_json *j = s->p->j;

    fputc('{', c->out);
    for (uint32_t i = j->nodes[s->select].child; i; i = j->nodes[i].next) {
        char key[PLAN_NAME];
        snprintf(key, sizeof(key), "%.*s", (int)j->nodes[i].key_length, j->nodes[i].key);
        fprintf(c->out, "\"%s\":", key);
        s->ordering = strcmp(key, "modifiers") == 0;
        struct plan_copy as_is = {.p = s->p, .out = c->out};
        if (strcmp(key, "where_clause") == 0 && !kept)
            fputs("null", c->out);
        else if (strcmp(key, "where_clause") == 0)
            fprintf(
                c->out,
                "{\"class\":\"CONJUNCTION\",\"type\":\"CONJUNCTION_AND\",\"alias\":\"\",\"query_location\":0,"
                "\"children\":[%s]}",
                kept);
        else if (strcmp(key, "select_list") == 0)
            put_results(s, c);
        else if (strcmp(key, "from_table") == 0 || strcmp(key, "cte_map") == 0 ||
                 strcmp(key, "group_sets") == 0)
            plan_put(&as_is, i, 1);
        else
            plan_put(c, i, 1);
        if (j->nodes[i].next)
            fputc(',', c->out);
    }
    fputc('}', c->out);
}

static char *root_text(struct split *s, const char *kept)
{
    _cleanup_free_ char *json = NULL, *text = NULL;
    size_t size;
    struct plan_copy c = {.p = s->p, .replace = put_of_parts, .arg = s, .out = open_memstream(&json, &size)};

    if (!c.out)
        return NULL;
    fputs("{\"error\":false,\"statements\":[{\"node\":", c.out);
    put_select(s, &c, kept);
    fputs(",\"named_param_map\":[]}]}", c.out);
    if (fclose(c.out) != 0 || s->failed ||
        pb_engine_ask(s->p->e, "SELECT json_deserialize_sql($1::JSON)", json, strlen(json), &text, NULL) <
            0 ||
        !text)
        return NULL;
    return strdup(text);
}

/* Conditions that stay must be about what the parts carry. */
static bool may_keep_conditions(const struct split *s)
{
    const struct plan *p = s->p;
    uint32_t where = pb_json_get(p->j, s->select, "where_clause");
    bool several = plan_is(p, where, "type", "CONJUNCTION_AND");

    if (plan_is_null(p, where))
        return true;
    for (uint32_t c = several ? plan_child(p, where, "children") : where; c;
         c = several ? p->j->nodes[c].next : 0)
        if (!plan_may_push(p, c, s->scope, 0) && !is_of_carried(s, c, 0))
            return false;
    return true;
}

bool plan_split(const struct plan *p, uint32_t select, const struct plan_scope *scope, const char *from,
                const char *where, const char *kept, uint64_t cap, char **ret_node, char **ret_root)
{
    struct split *s = calloc(1, sizeof(*s));
    char *root = NULL, *node = NULL;

    if (!s)
        return false;
    *s = (struct split){.p = p, .scope = scope, .select = select};
    if (has_aggregate(p, pb_json_get(p->j, select, "select_list"), 0) &&
        plan_is_null(p, pb_json_get(p->j, select, "qualify")) &&
        plan_is_null(p, pb_json_get(p->j, select, "sample")) && may_keep_conditions(s) && find_groups(s))
        root = root_text(s, kept);
    if (root)
        node = node_text(s, from, where, cap);
    free(s);
    if (!node) {
        free(root);
        return false;
    }
    *ret_node = node;
    *ret_root = root;
    return true;
}
