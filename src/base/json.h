/* json: a document as a tree over its text: syntax trees that DuckDB prints, requests to the service.
 *
 * Nodes are numbers; 0 is none, 1 the root. Nothing is copied: texts are spans of the document, escapes left
 * as they are, and the caller keeps it alive. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_json_node {
    const char *at; /* the inside of a string, else the value as written */
    uint32_t length;
    uint32_t child, next; /* of an object or array */
    const char *key;      /* in an object */
    uint32_t key_length;
    char kind; /* { [ " and 0 for the rest */
};

struct pb_json {
    struct pb_json_node *nodes;
    uint32_t n, room;
    const char *text, *end;
};

/* -EBADMSG: not JSON, or nested too deeply; -ENOMEM. */
int pb_json_parse(const char *text, size_t length, struct pb_json *ret);
void pb_json_done(struct pb_json *j);

/* The member of that name of an object; 0: none. */
uint32_t pb_json_get(const struct pb_json *j, uint32_t node, const char *key);

/* Whether the node is that string. */
bool pb_json_is(const struct pb_json *j, uint32_t node, const char *text);

/* The whole value as it stands in the document, quotes included. */
const char *pb_json_span(const struct pb_json *j, uint32_t node, size_t *ret_length);

/* A string without its escapes, or another value as it stands, with a NUL behind it; cut where it is
 * longer. Its length. -ENOENT: there is no such node; -EBADMSG: an escape that means nothing, or a NUL in
 * it. */
int pb_json_text(const struct pb_json *j, uint32_t node, char *ret, size_t size);
