/* type_name: see type_name.h. */
#include "engine/shared/type_name.h"

#include <ctype.h>
#include <string.h>

enum { MAX_DEPTH = 80 };

static const char *const cell_names[PB_CELL_TYPES] = {
#define PB_SQL_TYPE(cell, width, duckdb, name, node, arrow) [PB_CELL_##cell] = name,
#include "engine/shared/types.def"
};

const char *pb_stored_type_name(enum pb_type type)
{
    static const char *const names[PB_TYPE_END] = {
#define PB_STORED_TYPE(ours, cell, width, duckdb, name, node, arrow) [PB_##ours] = name,
#include "engine/shared/types.def"
    };
    return type < PB_TYPE_END && names[type] ? names[type] : "?";
}

const char *pb_cell_type_name(enum pb_cell_type type)
{
    return type < PB_CELL_TYPES ? cell_names[type] : NULL;
}

struct type_text {
    const char *at, *end;
};

static bool skip_text(struct type_text *t, const char *what)
{
    size_t n = strlen(what);

    if ((size_t)(t->end - t->at) < n || memcmp(t->at, what, n) != 0)
        return false;
    t->at += n;
    return true;
}

static bool skip_number(struct type_text *t)
{
    const char *start = t->at;

    while (t->at < t->end && isdigit((unsigned char)*t->at))
        t->at++;
    return t->at > start && t->at - start <= 9;
}

/* A name of types.def. It may be the beginning of another: TIMESTAMP, TIMESTAMP_NS. */
static bool skip_word(struct type_text *t)
{
    const char *start = t->at;

    while (t->at < t->end && (isupper((unsigned char)*t->at) || *t->at == '_'))
        t->at++;
    for (unsigned i = 0; i < PB_CELL_TYPES; i++)
        if (cell_names[i] && strlen(cell_names[i]) == (size_t)(t->at - start) &&
            memcmp(cell_names[i], start, (size_t)(t->at - start)) == 0)
            return true;
    return false;
}

/* A quoted name and the blank after it; quotes inside are doubled. */
static bool skip_name(struct type_text *t)
{
    if (!skip_text(t, "\""))
        return false;
    while (t->at < t->end && (*t->at != '"' || (t->at + 1 < t->end && t->at[1] == '"')))
        t->at += *t->at == '"' ? 2 : 1;
    return skip_text(t, "\" ");
}

static bool skip_type(struct type_text *t, unsigned depth);

static bool skip_members(struct type_text *t, bool named, unsigned depth)
{
    do {
        if ((named && !skip_name(t)) || !skip_type(t, depth + 1))
            return false;
    } while (skip_text(t, ", "));
    return skip_text(t, ")");
}

static bool skip_type(struct type_text *t, unsigned depth)
{
    bool good = depth < MAX_DEPTH;

    if (!good)
        return false;
    if (skip_text(t, "DECIMAL("))
        good = skip_number(t) && skip_text(t, ",") && skip_number(t) && skip_text(t, ")");
    else if (skip_text(t, "STRUCT(") || skip_text(t, "UNION("))
        good = skip_members(t, true, depth);
    else if (skip_text(t, "MAP("))
        good = skip_members(t, false, depth);
    else
        good = skip_word(t);
    while (good && skip_text(t, "["))
        good = skip_text(t, "]") || (skip_number(t) && skip_text(t, "]"));
    return good;
}

bool pb_type_name_is_good(const char *text, size_t length)
{
    struct type_text t = {.at = text, .end = text + length};
    return !memchr(text, 0, length) && skip_type(&t, 0) && t.at == t.end;
}
