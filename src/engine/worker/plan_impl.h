/* plan_impl: what the files of the planner share; nobody else includes it.
 *
 * A statement is DuckDB's own syntax tree (json_serialize_sql), read as JSON. Parts of it are copied into new
 * trees with single nodes replaced, and DuckDB prints those as SQL again: no SQL is parsed here. */
#pragma once

#include "base/json.h"
#include "engine/worker/engine_impl.h"

#include <stdio.h>

struct plan {
    struct pb_engine *e;
    const struct pb_json *j;
    char moment[40]; /* what now() is, as SQL has it */
};

/* A table in a FROM, where conditions on it stand in the WHERE beside. */
struct plan_scope {
    const char *alias; /* by which its columns are qualified */
    bool alone;        /* the only one in its FROM: names without a table are its columns */
};

enum { PLAN_NAME = 64, PLAN_DEPTH = 400 };

/* --- plan_tree.c --- */

bool plan_is(const struct plan *p, uint32_t node, const char *key, const char *text);
bool plan_is_null(const struct plan *p, uint32_t node);
bool plan_is_empty(const struct plan *p, uint32_t node);
uint32_t plan_child(const struct plan *p, uint32_t node, const char *key);
void plan_text(const struct plan *p, uint32_t node, char ret[PLAN_NAME]);

/* The name of a column where the node is one by a plain name, or qualified by the scope's table. */
bool plan_column(const struct plan *p, uint32_t node, const struct plan_scope *s, char ret[PLAN_NAME]);

/* A column that the asking side adds: no node has it. */
bool plan_is_added(const char *column);

/* Whether a node can evaluate the expression over rows of the scope's table, with the same result. */
bool plan_may_push(const struct plan *p, uint32_t node, const struct plan_scope *s, unsigned depth);

/* Whether two expressions are the same, their names and places in the text aside. */
bool plan_same(const struct plan *p, uint32_t a, uint32_t b, unsigned depth);

/* Copies a part of the tree. Columns lose the scope's qualification, and now() becomes the moment, where a
 * scope is given. replace (may be NULL) writes something else in a node's place and returns true. */
struct plan_copy {
    const struct plan *p;
    const struct plan_scope *scope;
    bool (*replace)(void *arg, FILE *out, uint32_t node);
    void *arg;
    FILE *out;
};
void plan_put(struct plan_copy *c, uint32_t node, unsigned depth);

/* The expression as SQL, of malloc; json: its tree. NULL: DuckDB does not print it. */
char *plan_print(const struct plan *p, const char *json);
char *plan_expression(const struct plan *p, uint32_t node, const struct plan_scope *s);

/* --- plan_split.c --- */

/* Splits aggregates of the only SELECT into a statement for the nodes and one over their answers. where: the
 * conditions that go to the nodes (NULL: none), kept: what stays, as a tree (NULL: nothing). Both strings
 * are of malloc. false: it cannot be split exactly. */
bool plan_split(const struct plan *p, uint32_t select, const struct plan_scope *s, const char *from,
                const char *where, const char *kept, uint64_t cap, char **ret_node, char **ret_root);
