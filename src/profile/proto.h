/* proto: protocol buffers, written field by field into memory that grows.
 *
 * A message within a message is begun, filled and ended; its length is then put in before it. An allocation
 * that fails is remembered and seen at the end: len is 0 then and failed true. Caller-owned. */
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

/* A varint field; fields that are 0 are left out by the caller where that means the same. */
void pb_proto_uint(struct pb_proto *p, unsigned field, uint64_t value);
void pb_proto_bytes(struct pb_proto *p, unsigned field, const void *data, size_t len);
void pb_proto_text(struct pb_proto *p, unsigned field, const char *text);
/* A number without its field, in a message that is a packed array. */
void pb_proto_packed(struct pb_proto *p, uint64_t value);

/* Begins a message (or packed array); what is returned is given to end. */
size_t pb_proto_begin(struct pb_proto *p, unsigned field);
void pb_proto_end(struct pb_proto *p, size_t begun);
