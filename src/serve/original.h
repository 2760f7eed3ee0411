/* original: the requests of the tool before, for its clients: the shapes that its routes take and give,
 * over what ours answer (routes.c). Any thread. */
#pragma once

#include <stddef.h>
#include <stdio.h>

struct pb_err;

/* The SQL of a request: {"payload": {"expr", "opts": {"limit"}}}, or {"expr", "opts"} alone. On the heap.
 * -EBADMSG: it is neither. */
int pb_original_sql(const char *body, size_t length, char **ret, struct pb_err *err);

/* chosen: what the request chose by the route's argument for that; NULL: nothing.
 *
 * From the lines of `query --format jsonl --columns`: {"version", "message_id", "timestamp", "payload"},
 * the same for /query/dto, and {"dataframe", "meta"}. */
void pb_original_message(const char *printed, size_t length, const char *chosen, FILE *out);
void pb_original_dto(const char *printed, size_t length, const char *chosen, FILE *out);
void pb_original_cluster(const char *printed, size_t length, const char *chosen, FILE *out);

/* From the rows of `list --format json`: the nodes of a job. */
void pb_original_nodes(const char *printed, size_t length, const char *chosen, FILE *out);
/* From a list of one object: the object. */
void pb_original_first(const char *printed, size_t length, const char *chosen, FILE *out);
/* From `backtrace --json`: the frames of the thread of that number, or of the main thread. */
void pb_original_callstack(const char *printed, size_t length, const char *chosen, FILE *out);
