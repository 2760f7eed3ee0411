/* proto: protocol buffers, written field by field into memory that grows.
 *
 * A nested message is opened, filled and closed; its length is then written before it. A failed
 * allocation is remembered: at the end len is 0 and failed is true. Caller-owned. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_proto {
    uint8_t *at;
    size_t len, cap;
    bool failed;
};

void pb_proto_done(struct pb_proto *p);

/* A varint field. The caller leaves out zeros where that means the same. */
void pb_proto_uint(struct pb_proto *p, unsigned field, uint64_t value);
void pb_proto_text(struct pb_proto *p, unsigned field, const char *text);
/* A number without a field, in a packed array. */
void pb_proto_packed(struct pb_proto *p, uint64_t value);

/* Begins a message (or packed array); the result is the argument for pb_proto_end. */
size_t pb_proto_begin(struct pb_proto *p, unsigned field);
void pb_proto_end(struct pb_proto *p, size_t start);
