/* live: tables whose rows come from a function of the program's at the moment of a query: those of C and C++
 * code (include/probing.h), and the list of all such tables, Python's too (python/probing/_live.py).
 *
 * A library keeps the list of its own tables, which the agent finds by a symbol when it starts and when a
 * query comes: the order in which library and agent arrive does not matter, and a library that is closed
 * takes its list along. */
#pragma once

#include <stddef.h>

/* A row of probing.registered, by which a query knows that there is something to ask for; kept for the next
 * agent. For tables of Python's; any thread. */
void pb_live_tell(const char *name, const char *kind, const char *function, int active);

/* Whether Python has told of a table: else a query does not have to wait for the GIL. */
int pb_live_python(void);

/* After the tables are open: a thread of ours tells of all that there are. */
void pb_live_begin(void);

/* Where the answer to one query goes, and how long the query lasts. */
struct pb_live_answer {
    /* Takes text; 0: nobody listens any more. */
    int (*put)(struct pb_live_answer *to, const char *text, size_t size);
    /* The function of that table begins; NULL, NULL: it has returned. */
    void (*inside)(struct pb_live_answer *to, const char *table, const char *function);
};

/* Calls the functions of C's tables that the SQL may name, and puts the lines that python/probing/_live.py
 * describes. In a thread that may wait for the loader and for the functions. */
void pb_live_send(struct pb_live_answer *to, const char *sql, size_t length);
