/* plan: how a statement over many nodes is asked: what each node must send of which table, and what runs over
 * the rows that came.
 *
 * Each table that the statement reads is a statement for the nodes: the columns it names, the conditions that
 * a node can judge, the newest or first rows where the statement has a LIMIT. The statement then runs as
 * written over what came, so that the plan may send too much but never too little. Aggregates of one table
 * are split where the parts give exactly the whole: then only groups travel. */
#pragma once

#include "engine/worker/engine_impl.h"

/* Sends the plan as a result of (schema, name, sql, fallback): in the first row sql is the statement for the
 * asking side, where it differs from the one given. fallback is for a node that cannot run sql. */
int pb_plan_send(struct pb_engine *e, char *const *statements, size_t n, struct pb_err *err);

/* A moment (microseconds after 1970) as a TIMESTAMP is written. */
void pb_plan_moment(int64_t us, char ret[40]);
