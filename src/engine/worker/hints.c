/* hints: see hints.h. */
#include "engine/worker/hints.h"

#include "engine/shared/sql_text.h"

#include <stdio.h>
#include <string.h>

enum { NAMES = 3 };

struct near {
    const struct pb_cat_table *table;
    int distance;
};

static void full_name(const struct pb_cat_table *t, char *ret, size_t size)
{
    bool plain = strcmp(t->schema, "main") == 0;
    snprintf(ret, size, "%s%s%s", plain ? "" : t->schema, plain ? "" : ".", t->name);
}

/* The smaller distance of the full name and the name without its schema. */
static int distance_to(const struct pb_cat_table *t, const char *name)
{
    char full[2 * PB_CAT_NAME];
    const char *dot = strchr(name, '.');

    full_name(t, full, sizeof(full));
    int whole = pb_name_distance(name, full),
        part = pb_name_distance(dot ? dot + 1 : name, t->name) + (dot ? 1 : 0);
    return whole < part ? whole : part;
}

static void find_nearest(const struct pb_catalog *c, const char *name, struct near best[NAMES])
{
    for (unsigned i = 0; i < c->ntables; i++) {
        struct near one = {c->tables[i], distance_to(c->tables[i], name)};
        for (unsigned k = 0; k < NAMES; k++)
            if (!best[k].table || one.distance < best[k].distance) {
                struct near pushed = best[k];
                best[k] = one;
                one = pushed;
                if (!one.table)
                    break;
            }
    }
}

static void hint_table(const struct pb_catalog *c, const char *name, char *ret, size_t size)
{
    struct near best[NAMES] = {0};
    size_t n = (size_t)snprintf(ret, size, "there is no table %s", name);

    find_nearest(c, name, best);
    for (unsigned k = 0; k < NAMES && best[k].table && n < size; k++) {
        char full[2 * PB_CAT_NAME];
        full_name(best[k].table, full, sizeof(full));
        n += (size_t)snprintf(ret + n, size - n, "%s%s", k ? ", " : "; the nearest are ", full);
    }
    if (n < size)
        snprintf(ret + n, size - n, " (SELECT name FROM probing.tables lists all)");
}

/* Extracts the name from "Table with name X does not exist". */
static bool missing_table(const char *error, char *ret, size_t size)
{
    static const char head[] = "Table with name ";
    const char *at = strstr(error, head), *end = at ? strstr(at, " does not exist") : NULL;

    if (!end)
        return false;
    at += sizeof(head) - 1;
    if (*at == '"' && end[-1] == '"') {
        at++;
        end--;
    }
    snprintf(ret, size, "%.*s", (int)(end - at), at);
    return true;
}

/* Whether DuckDB's error is about a damaged file, and which: the quoted text that ends in .parquet; "" where
 * it names none, or only the beginning of its path. */
static bool damaged_file(const char *error, char *ret, size_t size)
{
    static const char *const signs[] = {"No magic bytes found",   "too small to be a Parquet file",
                                        "Footer length error",    "TProtocolException",
                                        "file is likely corrupt", "Corrupted file",
                                        "Decompression failure",  "Failed to read file",
                                        "don't know what type",   "invalid TType"};
    static const char ending[] = ".parquet";
    bool damaged = false;

    ret[0] = '\0';
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        damaged = damaged || strstr(error, signs[i]);
    for (const char *at = error; damaged && (at = strstr(at, ending)); at++) {
        const char *from = at;
        if (at[sizeof(ending) - 1] != '\'' && at[sizeof(ending) - 1] != '"')
            continue;
        while (from > error && from[-1] != at[sizeof(ending) - 1])
            from--;
        snprintf(ret, size, "%.*s", (int)(at - from) + (int)sizeof(ending) - 1, from);
        break;
    }
    return damaged;
}

/* An exception that is none of DuckDB's own, from a query that reads archived rows: the Parquet reader's, of
 * which there are too many to list. */
static bool is_of_archive_reader(const struct pb_catalog *c, const char *error)
{
    if (strncmp(error, "Invalid Error", strlen("Invalid Error")) != 0)
        return false;
    for (unsigned i = 0; i < c->ntables; i++)
        if (c->tables[i]->named && c->tables[i]->narchived)
            return true;
    return false;
}

void pb_hint(const struct pb_catalog *c, const char *error, unsigned timeout_ms, char *ret, size_t size)
{
    char name[2 * PB_CAT_NAME], path[1024];

    if (missing_table(error, name, sizeof(name)))
        hint_table(c, name, ret, size);
    else if (damaged_file(error, path, sizeof(path)) || is_of_archive_reader(c, error))
        snprintf(
            ret, size,
            path[0]
                ? "the archived file %s is damaged (remove it, or --archive none leaves archived rows out)"
                : "an archived file is damaged%s (--archive none leaves archived rows out)",
            path);
    else if (strstr(error, "INTERRUPT") && !timeout_ms)
        /* When a thread fails while rows are sent, DuckDB stops the others, and sometimes reports only
         * that. */
        snprintf(ret, size, "it failed while rows were read, and DuckDB lost the reason: run it again");
    else if (strstr(error, "INTERRUPT"))
        snprintf(ret, size, "timed out: it took longer than %g s and was stopped (--timeout gives it more)",
                 timeout_ms / 1e3);
    else if (strstr(error, "Out of Memory") || strstr(error, "bad_alloc") ||
             strstr(error, "could not allocate"))
        snprintf(
            ret, size,
            "out of memory: it needs more than a query may take (select fewer rows, or narrow the time): %s",
            error);
    else
        snprintf(ret, size, "%s", error);
    size_t n = strlen(ret);
    while (n > 0 && ret[n - 1] == '\n')
        ret[--n] = '\0';
}
