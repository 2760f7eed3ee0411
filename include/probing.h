/* probing.h: rows from C and C++ into tables that Probing reads with SQL. Header only, nothing to link (but
 * -ldl with a glibc before 2.34).
 *
 *   static const struct probing_column columns[] = {{"batch", PROBING_INT64, NULL, NULL}, {"wait_ms",
 * PROBING_FLOAT64, "ms", NULL},
 *                                                   {"file", PROBING_STRING, NULL, "what was read"}};
 *   static struct probing_table loads = PROBING_TABLE("loader.loads", columns);
 *
 *   probing_append(&loads, (struct probing_value[]){PROBING_INT(7), PROBING_FLOAT(1.5), PROBING_TEXT(name)});
 *
 * Any thread, without locks, in about 50 ns. The first column of the table is `timestamp`, when the row was
 * appended. Where no agent is in the process an append does nothing and returns -ENOENT: the program may be
 * probed later. A table's memory must stay; its names follow the rules of docs/python.md. */
#ifndef PROBING_H
#define PROBING_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum probing_type {
    PROBING_INT8 = 1,
    PROBING_INT16,
    PROBING_INT32,
    PROBING_INT64,
    PROBING_UINT8,
    PROBING_UINT16,
    PROBING_UINT32,
    PROBING_UINT64,
    PROBING_FLOAT32,
    PROBING_FLOAT64,
    PROBING_BOOL,
    PROBING_TIMESTAMP, /* given as CLOCK_MONOTONIC ns (PROBING_INT), shown as UTC */
    PROBING_STRING,
    PROBING_BYTES
};

struct probing_column {
    const char *name;
    enum probing_type type;
    const char *unit, *comment; /* may be NULL */
};

struct probing_table {
    const char *name, *comment;
    const struct probing_column *columns;
    unsigned ncolumns;
    uint64_t agent, handle; /* private */
};
#define PROBING_TABLE(name, columns)                                                                         \
    {                                                                                                        \
        name, NULL, columns, sizeof(columns) / sizeof((columns)[0]), 0, 0                                    \
    }

/* A value as its column has it: integers, booleans and times in i, floats in f, the rest in text. */
enum probing_kind { PROBING_KIND_NULL, PROBING_KIND_INT, PROBING_KIND_FLOAT, PROBING_KIND_TEXT };
struct probing_value {
    enum probing_kind kind;
    int64_t i;
    double f;
    const char *text;
    size_t length;
};
#define PROBING_NULL                                                                                         \
    {                                                                                                        \
        PROBING_KIND_NULL, 0, 0, NULL, 0                                                                     \
    }
#define PROBING_INT(x)                                                                                       \
    {                                                                                                        \
        PROBING_KIND_INT, (int64_t)(x), 0, NULL, 0                                                           \
    }
#define PROBING_FLOAT(x)                                                                                     \
    {                                                                                                        \
        PROBING_KIND_FLOAT, 0, (double)(x), NULL, 0                                                          \
    }
#define PROBING_TEXT(s)                                                                                      \
    {                                                                                                        \
        PROBING_KIND_TEXT, 0, 0, (s), strlen(s)                                                              \
    }
#define PROBING_DATA(p, n)                                                                                   \
    {                                                                                                        \
        PROBING_KIND_TEXT, 0, 0, (const char *)(p), (n)                                                      \
    }

/* Adds a row; values: one for each column. 0; -ENOENT: no agent; -EINVAL: a name or type that is not allowed,
 * or a value of another kind than its column; -EEXIST: a table of that name has other columns; else the row
 * found no room and was counted as dropped. */
static inline int probing_append(struct probing_table *table, const struct probing_value *values)
{
    static int (*append)(struct probing_table *, const struct probing_value *);
    static unsigned tries;
    int (*found)(struct probing_table *, const struct probing_value *) = append;

    if (!found) {
        /* Asking the loader takes a lock: now and then is enough to notice an agent that came later. */
        void *library = tries++ % 1024 ? NULL : dlopen("libprobing.so", RTLD_LAZY | RTLD_NOLOAD);
        void *symbol = library ? dlsym(library, "probing_append_1") : NULL;
        if (!symbol)
            return -ENOENT;
        memcpy(&found, &symbol, sizeof(found));
        append = found;
    }
    return found(table, values);
}

#ifdef __cplusplus
}
#endif
#endif
