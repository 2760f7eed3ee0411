/* live_tables: tables whose rows come from a function of the program at the moment of a query: those of C and
 * C++ code (include/probing.h), and the list of all such tables, Python's too (python/probing/_live.py).
 *
 * Each library keeps the list of its own tables, which the agent finds by a symbol when it starts and at each
 * query: library and agent may be loaded in any order, and a library that is unloaded takes its list
 * along. */
#pragma once

#include <stddef.h>

/* Adds a row to probing.registered, by which a query finds the table; the next agent inherits it. For Python
 * tables; any thread. */
void pb_live_tell(const char *name, const char *kind, const char *function, int active);

/* Whether Python has reported a table: else a query need not wait for the GIL. */
int pb_live_python(void);

/* After the tables are open: a thread of ours reports all C tables. */
void pb_live_begin(void);

/* Where the answer to one query goes, and how long the query lasts. */
struct pb_live_answer {
    /* Sends text; 0: the client is gone. */
    int (*put)(struct pb_live_answer *to, const char *text, size_t size);
    /* The function of that table begins; NULL, NULL: it has returned. */
    void (*inside)(struct pb_live_answer *to, const char *table, const char *function);
};

/* Calls the function of the C table of that name, and sends the lines that python/probing/_live.py
 * describes. In a thread that may wait for the loader and for the functions. */
void pb_live_send(struct pb_live_answer *to, const char *name, size_t length);
