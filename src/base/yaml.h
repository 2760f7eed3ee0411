/* yaml: reads the part of YAML that people write by hand, strictly, as JSON (base/json.h).
 *
 * Mappings and sequences in blocks and in brackets; plain and quoted scalars; block scalars (| and >);
 * comments. Every scalar becomes a string, an empty one null. What can make a small document large or run
 * something is refused, and so is what a reader may understand in two ways: anchors, aliases, tags,
 * directives, several documents, keys that are no scalars, a key twice, and tabs that indent. */
#pragma once

#include <stddef.h>

struct pb_err;

enum { PB_YAML_MAX = 256 << 10 };

/* *ret: JSON on the heap. -EBADMSG: err says what is wrong in which line; -EFBIG: longer than PB_YAML_MAX. */
int pb_yaml_to_json(const char *text, size_t length, char **ret, size_t *ret_length, struct pb_err *err);
