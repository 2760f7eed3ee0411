/* vector_cells: see vector_cells.h. The text of single values is in cell_text.c. */
#include "engine/worker/vector_cells.h"

#include "engine/shared/type_name.h"
#include "engine/worker/duck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

struct pb_value_type {
    duckdb_type id, inner; /* inner: storage type of a decimal or an ENUM */
    unsigned scale, width;
    idx_t size;                  /* of an array */
    idx_t nchildren;             /* list: 1, map: key and value, struct and union: the members */
    char **names;                /* of members */
    duckdb_logical_type logical; /* of an ENUM, for its dictionary */
    char **members;              /* of an ENUM, each set at first use */
    idx_t nmembers;
    struct pb_value_type **children;
};

/* The cell type of each DuckDB type. */
static const enum pb_cell_type cells_of[] = {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) [DUCKDB_TYPE_##duckdb] = PB_CELL_##cell,
#define PB_SQL_TYPE_AS(duckdb, cell)                        [DUCKDB_TYPE_##duckdb] = PB_CELL_##cell,
#include "engine/shared/types.def"
};

_Static_assert(sizeof(struct pb_cell_interval) == sizeof(duckdb_interval), "as DuckDB has it");

enum pb_cell_type pb_value_cells(const struct pb_value_type *t)
{
    if (t->id == DUCKDB_TYPE_SQLNULL)
        return PB_CELL_NULL;
    enum pb_cell_type cells = t->id < sizeof(cells_of) / sizeof(cells_of[0]) ? cells_of[t->id] : PB_CELL_NULL;
    /* An unknown type is shown as a text that says so. */
    return cells == PB_CELL_NULL ? PB_CELL_TEXT : cells;
}

unsigned pb_value_scale(const struct pb_value_type *t)
{
    return t->scale;
}

void pb_value_type_free(struct pb_value_type *t)
{
    if (!t)
        return;
    for (idx_t i = 0; i < t->nchildren; i++) {
        pb_value_type_free(t->children ? t->children[i] : NULL);
        free(t->names ? t->names[i] : NULL);
    }
    for (idx_t i = 0; t->members && i < t->nmembers; i++)
        duck.free(t->members[i]);
    free(t->members);
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

/* An ENUM's members belong to its type, which is kept. */
static void keep_enums(struct pb_value_type *t, duckdb_logical_type type)
{
    if (t->id == DUCKDB_TYPE_ENUM) {
        t->inner = duck.enum_internal_type(type);
        t->nmembers = duck.enum_dictionary_size(type);
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
        fputs(pb_cell_type_name(pb_value_cells(t)), out);
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

/* A value inside JSON: texts are quoted, so are NaN and infinity, which JSON lacks. */
static void put_json(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t row)
{
    if (!is_valid(vector, row)) {
        pb_wire_put(m, "null", 4);
        return;
    }
    struct pb_wire inner = {0};
    enum pb_sql_kind kind = put_value(&inner, t, vector, row);
    if (kind == PB_SQL_TEXT)
        pb_cell_json(m, (const char *)inner.data, inner.size);
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
        pb_cell_json(m, t->names[i], strlen(t->names[i]));
        pb_wire_put(m, ": ", 2);
        put_json(m, t->children[i], duck.struct_vector_get_child(vector, i), row);
    }
    pb_wire_put(m, "}", 1);
}

/* A map is a list of pairs unless its keys are texts: JSON has no other keys. */
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

/* A member of an ENUM: DuckDB copies it for each request, so each is requested once. */
static const char *enum_member(const struct pb_value_type *t, idx_t index)
{
    struct pb_value_type *keep = (struct pb_value_type *)t;

    if (index >= t->nmembers)
        return "";
    if (!keep->members && !(keep->members = calloc(t->nmembers, sizeof(*keep->members))))
        return "";
    if (!keep->members[index])
        keep->members[index] = duck.enum_dictionary_value(t->logical, index);
    return keep->members[index] ? keep->members[index] : "";
}

static const char *enum_member_at(const struct pb_value_type *t, const void *data, idx_t row)
{
    return enum_member(t, t->inner == DUCKDB_TYPE_UTINYINT    ? ((const uint8_t *)data)[row]
                          : t->inner == DUCKDB_TYPE_USMALLINT ? ((const uint16_t *)data)[row]
                                                              : ((const uint32_t *)data)[row]);
}

/* A decimal as 128 bits. */
static void widen_decimal(const struct pb_value_type *t, const void *data, idx_t row, __int128 *ret)
{
    switch (t->inner) {
    case DUCKDB_TYPE_SMALLINT:
        *ret = ((const int16_t *)data)[row];
        break;
    case DUCKDB_TYPE_INTEGER:
        *ret = ((const int32_t *)data)[row];
        break;
    case DUCKDB_TYPE_BIGINT:
        *ret = ((const int64_t *)data)[row];
        break;
    default:
        memcpy(ret, (const char *)data + row * sizeof(*ret), sizeof(*ret));
    }
}

/* The first byte is the number of unused bits in the second. */
static void put_bits(struct pb_wire *m, const char *data, size_t n)
{
    for (size_t i = n > 1 ? 8 + (size_t)(data[0] & 7) : 8 * n; i < 8 * n; i++)
        pb_wire_put(m, (unsigned char)data[i / 8] >> (7 - i % 8) & 1 ? "1" : "0", 1);
}

static const char *string_at(const void *data, idx_t row, uint32_t *ret_length)
{
    const duckdb_string_t *s = &((const duckdb_string_t *)data)[row];
    uint32_t n = *ret_length = s->value.inlined.length;

    return n <= sizeof(s->value.inlined.inlined) ? s->value.inlined.inlined : s->value.pointer.ptr;
}

/* The text of a value without children. */
static enum pb_sql_kind put_single(struct pb_wire *m, const struct pb_value_type *t, const void *data,
                                   idx_t row)
{
    static const char unknown[] = "(a value of a type that is not shown; cast it to VARCHAR)";
    enum pb_cell_type cells = pb_value_cells(t);
    unsigned width = pb_cell_width(cells);
    uint32_t length = 0;
    __int128 wide;

    if (t->id == DUCKDB_TYPE_DECIMAL) {
        widen_decimal(t, data, row, &wide);
        return pb_cell_text(m, cells, t->scale, &wide, sizeof(wide));
    }
    if (width)
        return pb_cell_text(m, cells, 0, (const char *)data + row * width, width);
    if (t->id == DUCKDB_TYPE_ENUM) {
        const char *text = enum_member_at(t, data, row);
        pb_wire_put(m, text, strlen(text));
        return PB_SQL_TEXT;
    }
    if (t->id != DUCKDB_TYPE_VARCHAR && t->id != DUCKDB_TYPE_BLOB && t->id != DUCKDB_TYPE_BIT) {
        pb_wire_put(m, unknown, sizeof(unknown) - 1);
        return PB_SQL_TEXT;
    }
    const char *text = string_at(data, row, &length);
    if (t->id != DUCKDB_TYPE_BIT)
        return pb_cell_text(m, cells, 0, text, length);
    put_bits(m, text, length);
    return PB_SQL_TEXT;
}

/* The text of a value that is not NULL; returns its kind. */
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
        /* Stored as a struct of the tag and all members. */
        uint8_t tag = ((uint8_t *)duck.vector_get_data(duck.struct_vector_get_child(vector, 0)))[row];
        if (tag >= t->nchildren)
            return PB_SQL_TEXT;
        put_json(m, t->children[tag], duck.struct_vector_get_child(vector, tag + 1), row);
        return PB_SQL_JSON;
    }
    case DUCKDB_TYPE_MAP:
        put_map(m, t, vector, row);
        return PB_SQL_JSON;
    default:
        return put_single(m, t, duck.vector_get_data(vector), row);
    }
}

/* --- columns --- */

static void put_validity(struct pb_wire *m, const uint64_t *validity, idx_t from, idx_t n)
{
    for (idx_t i = 0; i < n; i += 64) {
        uint64_t bits = validity[(from + i) / 64] >> from % 64;
        if (from % 64 && (from + i) / 64 < (from + n - 1) / 64)
            bits |= validity[(from + i) / 64 + 1] << (64 - from % 64);
        pb_wire_put_u64(m, bits);
    }
}

static void put_decimals(struct pb_wire *m, const struct pb_value_type *t, const void *data, idx_t from,
                         idx_t n)
{
    for (idx_t i = 0; i < n; i++) {
        __int128 wide;
        widen_decimal(t, data, from + i, &wide);
        pb_wire_put(m, &wide, sizeof(wide));
    }
}

/* One cell of variable length, as the caller gets it. */
static void put_bytes(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector,
                      const void *data, idx_t row)
{
    uint32_t length;

    if (t->id == DUCKDB_TYPE_VARCHAR || t->id == DUCKDB_TYPE_BLOB) {
        const char *text = string_at(data, row, &length);
        pb_wire_put(m, text, length);
    } else {
        put_value(m, t, vector, row);
    }
}

static bool put_texts(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t from,
                      idx_t n, size_t most)
{
    const uint64_t *validity = duck.vector_get_validity(vector);
    const void *data = duck.vector_get_data(vector);
    size_t ends = m->size;

    for (idx_t i = 0; i < n; i++)
        pb_wire_put_u32(m, 0);
    pb_batch_align(m);
    size_t start = m->size;
    for (idx_t i = 0; i < n && !m->failed; i++) {
        idx_t row = from + i;
        if (!validity || (validity[row / 64] >> row % 64 & 1))
            put_bytes(m, t, vector, data, row);
        if (m->failed || (m->size > most && n > 1))
            return false;
        uint32_t end = (uint32_t)(m->size - start);
        memcpy(m->data + ends + i * sizeof(end), &end, sizeof(end));
    }
    return !m->failed;
}

bool pb_value_put_column(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t from,
                         idx_t n, size_t most)
{
    enum pb_cell_type cells = pb_value_cells(t);
    const uint64_t *validity = cells == PB_CELL_NULL ? NULL : duck.vector_get_validity(vector);
    unsigned width = pb_cell_width(cells);

    pb_wire_put_u32(m, validity != NULL);
    if (cells == PB_CELL_NULL)
        return !m->failed;
    pb_batch_align(m);
    if (validity)
        put_validity(m, validity, from, n);
    if (!width)
        return put_texts(m, t, vector, from, n, most);
    const char *data = duck.vector_get_data(vector);
    if (cells == PB_CELL_DECIMAL)
        put_decimals(m, t, data, from, n);
    else
        pb_wire_put(m, data + from * width, n * width);
    return !m->failed && (m->size <= most || n == 1);
}
