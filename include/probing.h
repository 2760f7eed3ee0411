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
 * probed later. A table's memory must stay; its names follow the rules of docs/python.md.
 *
 * A table whose rows come from a function at the moment of a query:
 *
 *   static int open_files(struct probing_rows *to, void *arg)
 *   {
 *       for (...)
 *           if (probing_row(to, (struct probing_value[]){PROBING_INT(f->reads), PROBING_TEXT(f->name)}) < 0)
 *               break;
 *       return 0;
 *   }
 *   static struct probing_live files = PROBING_LIVE("loader.files", columns, open_files, NULL);
 *
 *   probing_register(&files);   once, with or without an agent in the process */
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

/* Integers, booleans and times are in i, floats in f, texts and bytes in text. */
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

/* Adds a row; values: one per column. Returns 0; -ENOENT: no agent; -EINVAL: a name or type that is not
 * allowed, or a value of another kind than its column; -EEXIST: a table of that name has other columns;
 * otherwise there was no room, and the row was counted as dropped. */
static inline int probing_append(struct probing_table *table, const struct probing_value *values)
{
    static int (*append)(struct probing_table *, const struct probing_value *);
    static unsigned tries;
    int (*found)(struct probing_table *, const struct probing_value *) = append;

    if (!found) {
        /* dlopen takes a lock: one call in 1024 is enough to notice an agent that comes later. */
        void *library = tries++ % 1024 ? NULL : dlopen("libprobing.so", RTLD_LAZY | RTLD_NOLOAD);
        void *symbol = library ? dlsym(library, "probing_append_1") : NULL;
        if (!symbol)
            return -ENOENT;
        memcpy(&found, &symbol, sizeof(found));
        append = found;
    }
    return found(table, values);
}

/* --- tables whose rows come from a function -------------------------------------------------------- */

/* Receives the rows of one query. Owned by the agent. */
struct probing_rows {
    int (*add)(struct probing_rows *to, const struct probing_value *values);
    int (*fail)(struct probing_rows *to, const char *text);
};

struct probing_live {
    const char *name, *kind, *comment; /* kind: a word for people; comment may be NULL */
    const struct probing_column *columns;
    unsigned ncolumns;
    /* Called in a thread of the agent, for one query at a time, with the query's deadline (10 s at most).
     * Should return when probing_row fails. Returns 0, or a negative errno: the query then reports that this
     * function failed. */
    int (*rows)(struct probing_rows *to, void *arg);
    const char *function;
    void *arg;
    struct probing_live *next; /* private, as are: */
    int listed, active, busy;
};
#define PROBING_LIVE(name, columns, rows, arg)                                                               \
    {                                                                                                        \
        name, "table", NULL, columns, sizeof(columns) / sizeof((columns)[0]), rows, #rows, arg, NULL, 0, 0,  \
            0                                                                                                \
    }

/* Adds a row to the answer; values: one per column. Strings are copied. Negative: the query has ended
 * (-ECANCELED), has too many rows (-E2BIG), or a value does not fit its column (-EINVAL). */
static inline int probing_row(struct probing_rows *to, const struct probing_value *values)
{
    return to->add(to, values);
}

/* Sets the error of the query; use as: return probing_fail(to, "the queue is closed"). */
static inline int probing_fail(struct probing_rows *to, const char *text)
{
    return to->fail(to, text);
}

/* The tables of this library or program, where an agent finds them, even one that comes later. An executable
 * must be linked with -rdynamic. */
#ifndef PROBING_AGENT /* the agent reads the lists and has none */
extern struct probing_live *probing_lives_1;
__attribute__((weak, visibility("protected"))) struct probing_live *probing_lives_1;

static inline void probing_tell(struct probing_live *table)
{
    void *library = dlopen("libprobing.so", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "probing_register_1") : NULL;
    void (*tell)(struct probing_live *);

    if (symbol) {
        memcpy(&tell, &symbol, sizeof(tell));
        tell(table);
    }
    if (library)
        dlclose(library);
}

/* Makes the table visible to queries, from now on and for every agent. Its memory must stay valid as long as
 * the library or program that calls this. Any thread. */
static inline void probing_register(struct probing_live *table)
{
    __atomic_store_n(&table->active, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_exchange_n(&table->listed, 1, __ATOMIC_SEQ_CST)) {
        table->next = __atomic_load_n(&probing_lives_1, __ATOMIC_SEQ_CST);
        while (!__atomic_compare_exchange_n(&probing_lives_1, &table->next, table, 0, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
            ;
    }
    probing_tell(table);
}

/* From now on no query calls the table's function. -EBUSY: an earlier query is still in it. Not needed before
 * dlclose: a library whose function runs stays loaded until it returns. */
static inline int probing_unregister(struct probing_live *table)
{
    __atomic_store_n(&table->active, 0, __ATOMIC_SEQ_CST);
    probing_tell(table);
    return __atomic_load_n(&table->busy, __ATOMIC_SEQ_CST) ? -EBUSY : 0;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
