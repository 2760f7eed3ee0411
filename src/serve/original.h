/* original: the requests of the tool before, for its clients: the shapes that its routes take and give,
 * over what ours answer (routes.c). Any thread. */
#pragma once

#include <stdbool.h>
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
bool pb_original_message(const char *printed, size_t length, const char *chosen, FILE *out);
bool pb_original_dto(const char *printed, size_t length, const char *chosen, FILE *out);
bool pb_original_cluster(const char *printed, size_t length, const char *chosen, FILE *out);

/* What stands in place of that where the query failed. */
void pb_original_failure(const char *code, const char *message, FILE *out);

/* --- original_nodes.c --- */
/* Takes what a process elsewhere says of itself: a node, or {"nodes"}. -EBADMSG: it is neither. */
int pb_original_report(const char *body, size_t length, struct pb_err *err);
/* From the rows of `list --format json`: the nodes of a job, and what a report is answered with. */
bool pb_original_nodes(const char *printed, size_t length, const char *chosen, FILE *out);
bool pb_original_reported(const char *printed, size_t length, const char *chosen, FILE *out);

/* --- original.c --- */
/* From rows that are events of a Chrome trace: the trace. */
bool pb_original_events(const char *printed, size_t length, const char *chosen, FILE *out);
/* What there is instead of a resource of the tool before that this one has not; NULL: it had none there. */
const char *pb_original_instead(const char *path);
/* From a list of one object: the object. */
bool pb_original_first(const char *printed, size_t length, const char *chosen, FILE *out);
/* From `backtrace --json`: the frames of the thread of that number, or of the main thread. */
bool pb_original_callstack(const char *printed, size_t length, const char *chosen, FILE *out);
/* From the rows of steps: {"samples", "rank_count", "step_count", ..}. */
bool pb_original_steps(const char *printed, size_t length, const char *chosen, FILE *out);
