/* values: see values.h. The text of single values is in format.c. */
#include "engine/worker/values.h"

#include "engine/worker/duck.h"
#include "engine/worker/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

struct pb_value_type {
    duckdb_type id, inner; /* inner: what a decimal or an ENUM is stored as */
    unsigned scale, width;
    idx_t size;                  /* of an array */
    idx_t nchildren;             /* list: 1, map: key and value, struct and union: the members */
    char **names;                /* of members */
    duckdb_logical_type logical; /* of an ENUM, for its dictionary */
    struct pb_value_type **children;
};

void pb_value_type_free(struct pb_value_type *t)
{
    if (!t)
        return;
    for (idx_t i = 0; i < t->nchildren; i++) {
        pb_value_type_free(t->children ? t->children[i] : NULL);
        free(t->names ? t->names[i] : NULL);
    }
    free(t->children);
    free(t->names);
    if (t->logical)
        duck.destroy_logical_type(&t->logical);
    free(t);
}

static struct pb_value_type *new_type(duckdb_logical_type type, unsigned depth);

static bool add_child(struct pb_value_type *t, idx_t i, duckdb_logical_type child, char *name, unsigned depth)
{
    t->children[i] = new_type(child, depth + 1);
    t->names[i] = name ? strdup(name) : NULL;
    duck.destroy_logical_type(&child);
    bool good = t->children[i] && (!name || t->names[i]);
    duck.free(name);
    return good;
}

static bool add_children(struct pb_value_type *t, duckdb_logical_type type, unsigned depth)
{
    bool good = true;

    t->nchildren = t->id == DUCKDB_TYPE_STRUCT  ? duck.struct_type_child_count(type)
                   : t->id == DUCKDB_TYPE_UNION ? duck.union_type_member_count(type)
                   : t->id == DUCKDB_TYPE_MAP   ? 2
                   : t->id == DUCKDB_TYPE_LIST || t->id == DUCKDB_TYPE_ARRAY ? 1
                                                                             : 0;
    if (t->nchildren == 0)
        return true;
    t->children = calloc(t->nchildren, sizeof(void *));
    t->names = calloc(t->nchildren, sizeof(*t->names));
    if (!t->children || !t->names || depth > MAX_DEPTH)
        return false;
    for (idx_t i = 0; good && i < t->nchildren; i++)
        switch (t->id) {
        case DUCKDB_TYPE_STRUCT:
            good = add_child(t, i, duck.struct_type_child_type(type, i), duck.struct_type_child_name(type, i),
                             depth);
            break;
        case DUCKDB_TYPE_UNION:
            good = add_child(t, i, duck.union_type_member_type(type, i), duck.union_type_member_name(type, i),
                             depth);
            break;
        case DUCKDB_TYPE_MAP:
            good = add_child(t, i, i ? duck.map_type_value_type(type) : duck.map_type_key_type(type), NULL,
                             depth);
            break;
        case DUCKDB_TYPE_ARRAY:
            good = add_child(t, i, duck.array_type_child_type(type), NULL, depth);
            break;
        default:
            good = add_child(t, i, duck.list_type_child_type(type), NULL, depth);
        }
    return good;
}

static struct pb_value_type *new_type(duckdb_logical_type type, unsigned depth)
{
    struct pb_value_type *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->id = duck.get_type_id(type);
    if (t->id == DUCKDB_TYPE_DECIMAL) {
        t->scale = duck.decimal_scale(type);
        t->width = duck.decimal_width(type);
        t->inner = duck.decimal_internal_type(type);
    } else if (t->id == DUCKDB_TYPE_ARRAY) {
        t->size = duck.array_type_array_size(type);
    }
    if (!add_children(t, type, depth)) {
        pb_value_type_free(t);
        return NULL;
    }
    return t;
}

/* An ENUM's members live in its type, which is kept: asking for one is asking the type. */
static void keep_enums(struct pb_value_type *t, duckdb_logical_type type)
{
    if (t->id == DUCKDB_TYPE_ENUM) {
        t->inner = duck.enum_internal_type(type);
        t->logical = type;
        return;
    }
    for (idx_t i = 0; i < t->nchildren; i++) {
        duckdb_logical_type child = t->id == DUCKDB_TYPE_STRUCT  ? duck.struct_type_child_type(type, i)
                                    : t->id == DUCKDB_TYPE_UNION ? duck.union_type_member_type(type, i)
                                    : t->id == DUCKDB_TYPE_MAP
                                        ? (i ? duck.map_type_value_type(type) : duck.map_type_key_type(type))
                                    : t->id == DUCKDB_TYPE_ARRAY ? duck.array_type_child_type(type)
                                                                 : duck.list_type_child_type(type);
        keep_enums(t->children[i], child);
    }
    duck.destroy_logical_type(&type);
}

struct pb_value_type *pb_value_type_new(duckdb_logical_type type)
{
    struct pb_value_type *t = new_type(type, 0);

    if (t)
        keep_enums(t, type);
    else
        duck.destroy_logical_type(&type);
    return t;
}

/* --- names --- */

static void put_name(FILE *out, const struct pb_value_type *t);

static void put_members(FILE *out, const struct pb_value_type *t)
{
    for (idx_t i = 0; i < t->nchildren; i++) {
        fputs(i ? ", " : "(", out);
        if (t->names[i]) {
            putc('"', out);
            for (const char *p = t->names[i]; *p; p++)
                fputs(*p == '"' ? "\"\"" : (char[]){*p, 0}, out);
            fputs("\" ", out);
        }
        put_name(out, t->children[i]);
    }
    putc(')', out);
}

static void put_name(FILE *out, const struct pb_value_type *t)
{
    switch (t->id) {
    case DUCKDB_TYPE_DECIMAL:
        fprintf(out, "DECIMAL(%u,%u)", t->width, t->scale);
        break;
    case DUCKDB_TYPE_LIST:
        put_name(out, t->children[0]);
        fputs("[]", out);
        break;
    case DUCKDB_TYPE_ARRAY:
        put_name(out, t->children[0]);
        fprintf(out, "[%llu]", (unsigned long long)t->size);
        break;
    case DUCKDB_TYPE_STRUCT:
        fputs("STRUCT", out);
        put_members(out, t);
        break;
    case DUCKDB_TYPE_UNION:
        fputs("UNION", out);
        put_members(out, t);
        break;
    case DUCKDB_TYPE_MAP:
        fputs("MAP", out);
        put_members(out, t);
        break;
    default:
        fputs(pb_format_type(t->id), out);
    }
}

char *pb_value_type_name(const struct pb_value_type *t)
{
    char *name = NULL;
    size_t size;
    FILE *out = open_memstream(&name, &size);

    if (!out)
        return NULL;
    put_name(out, t);
    if (fclose(out) != 0) {
        free(name);
        return NULL;
    }
    return name;
}

/* --- cells --- */

static bool is_valid(duckdb_vector vector, idx_t row)
{
    const uint64_t *validity = duck.vector_get_validity(vector);
    return !validity || (validity[row / 64] >> row % 64 & 1);
}

static enum pb_sql_kind put_value(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector,
                                  idx_t row);

/* A value inside JSON: text is quoted, what JSON has no number for (NaN, infinity) too. */
static void put_json(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t row)
{
    if (!is_valid(vector, row)) {
        pb_wire_put(m, "null", 4);
        return;
    }
    struct pb_wire inner = {0};
    enum pb_sql_kind kind = put_value(&inner, t, vector, row);
    if (kind == PB_SQL_TEXT)
        pb_format_json(m, (const char *)inner.data, inner.size);
    else
        pb_wire_put(m, inner.data, inner.size);
    m->failed = m->failed || inner.failed;
    pb_wire_done(&inner);
}

static void put_list(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector child, idx_t from,
                     idx_t n)
{
    pb_wire_put(m, "[", 1);
    for (idx_t i = 0; i < n && !m->failed; i++) {
        pb_wire_put(m, ", ", i ? 2 : 0);
        put_json(m, t->children[0], child, from + i);
    }
    pb_wire_put(m, "]", 1);
}

static void put_struct(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t row)
{
    pb_wire_put(m, "{", 1);
    for (idx_t i = 0; i < t->nchildren && !m->failed; i++) {
        pb_wire_put(m, ", ", i ? 2 : 0);
        pb_format_json(m, t->names[i], strlen(t->names[i]));
        pb_wire_put(m, ": ", 2);
        put_json(m, t->children[i], duck.struct_vector_get_child(vector, i), row);
    }
    pb_wire_put(m, "}", 1);
}

/* A map as a list of pairs unless its keys are texts: JSON knows no other keys. */
static void put_map(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t row)
{
    duckdb_list_entry e = ((duckdb_list_entry *)duck.vector_get_data(vector))[row];
    duckdb_vector pairs = duck.list_vector_get_child(vector);
    duckdb_vector keys = duck.struct_vector_get_child(pairs, 0),
                  values = duck.struct_vector_get_child(pairs, 1);
    bool text = t->children[0]->id == DUCKDB_TYPE_VARCHAR || t->children[0]->id == DUCKDB_TYPE_ENUM;

    pb_wire_put(m, text ? "{" : "[", 1);
    for (idx_t i = 0; i < e.length && !m->failed; i++) {
        pb_wire_put(m, ", ", i ? 2 : 0);
        pb_wire_put(m, "[", text ? 0 : 1);
        put_json(m, t->children[0], keys, e.offset + i);
        pb_wire_put(m, text ? ": " : ", ", 2);
        put_json(m, t->children[1], values, e.offset + i);
        pb_wire_put(m, "]", text ? 0 : 1);
    }
    pb_wire_put(m, text ? "}" : "]", 1);
}

static enum pb_sql_kind put_enum(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector,
                                 idx_t row)
{
    const void *data = duck.vector_get_data(vector);
    idx_t index = t->inner == DUCKDB_TYPE_UTINYINT    ? ((const uint8_t *)data)[row]
                  : t->inner == DUCKDB_TYPE_USMALLINT ? ((const uint16_t *)data)[row]
                                                      : ((const uint32_t *)data)[row];
    char *text = duck.enum_dictionary_value(t->logical, index);

    pb_wire_put(m, text, text ? strlen(text) : 0);
    duck.free(text);
    return PB_SQL_TEXT;
}

/* The text of a value that is not NULL; returns what it is. */
static enum pb_sql_kind put_value(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector,
                                  idx_t row)
{
    switch (t->id) {
    case DUCKDB_TYPE_LIST: {
        duckdb_list_entry e = ((duckdb_list_entry *)duck.vector_get_data(vector))[row];
        put_list(m, t, duck.list_vector_get_child(vector), e.offset, e.length);
        return PB_SQL_JSON;
    }
    case DUCKDB_TYPE_ARRAY:
        put_list(m, t, duck.array_vector_get_child(vector), row * t->size, t->size);
        return PB_SQL_JSON;
    case DUCKDB_TYPE_STRUCT:
        put_struct(m, t, vector, row);
        return PB_SQL_JSON;
    case DUCKDB_TYPE_UNION: {
        /* Stored as a struct of the tag and every member. */
        uint8_t tag = ((uint8_t *)duck.vector_get_data(duck.struct_vector_get_child(vector, 0)))[row];
        if (tag >= t->nchildren)
            return PB_SQL_TEXT;
        put_json(m, t->children[tag], duck.struct_vector_get_child(vector, tag + 1), row);
        return PB_SQL_JSON;
    }
    case DUCKDB_TYPE_MAP:
        put_map(m, t, vector, row);
        return PB_SQL_JSON;
    case DUCKDB_TYPE_ENUM:
        return put_enum(m, t, vector, row);
    case DUCKDB_TYPE_DECIMAL:
        return pb_format_decimal(m, t->inner, t->scale, duck.vector_get_data(vector), row);
    default:
        return pb_format_plain(m, t->id, duck.vector_get_data(vector), row);
    }
}

void pb_value_put(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t row)
{
    size_t start = m->size;
    uint8_t kind = PB_SQL_NULL;

    pb_wire_put(m, &kind, 1);
    pb_wire_put_u32(m, 0);
    if (t->id == DUCKDB_TYPE_SQLNULL || !is_valid(vector, row))
        return;
    kind = (uint8_t)put_value(m, t, vector, row);
    if (m->failed)
        return;
    uint32_t length = (uint32_t)(m->size - start - 5);
    m->data[start] = kind;
    memcpy(m->data + start + 1, &length, sizeof(length));
}
