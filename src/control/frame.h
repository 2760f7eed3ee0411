/* frame: how bytes on the control socket are cut into messages, and messages into fields.
 *
 * A frame is a 16-byte header and a payload; the payload is a row of fields, each a tag, a length and bytes.
 * An unknown field is skipped, so either side may be newer; an unknown type is answered with an error.
 * Everything is little-endian and unaligned. Nothing here allocates or does I/O: shared by agent and tools.
 * The parser takes any bytes at all (tests/fuzz/control_frame.c). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PB_FRAME_MAGIC       0x31434250u /* "PBC1": the digit is the version of the framing */
#define PB_FRAME_HEADER      16u
#define PB_FRAME_MAX_PAYLOAD (1u << 20)
#define PB_FIELD_HEADER      8u

struct pb_frame {
    uint16_t type; /* enum pb_msg */
    uint32_t id;   /* chosen by the client; replies carry it back */
    uint32_t size; /* of the payload */
    const uint8_t *payload;
};

/* Parses the frame at the front of buf. Returns its whole size in bytes, 0 when more bytes are needed,
 * -EBADMSG for bytes that are no frame, -EMSGSIZE for a frame that is too large. *ret points into buf;
 * written when > 0. */
int pb_frame_parse(const uint8_t *buf, size_t len, struct pb_frame *ret);

/* Writes the header of a frame with that many bytes of payload. */
void pb_frame_header(uint8_t out[PB_FRAME_HEADER], uint16_t type, uint32_t id, uint32_t size);

struct pb_field {
    uint16_t tag; /* enum pb_tag */
    uint32_t size;
    const uint8_t *data;
};

/* Steps through the fields of a payload: *at starts at 0. 1: *ret is the next field; 0: no more; -EBADMSG. */
int pb_field_next(const struct pb_frame *frame, size_t *at, struct pb_field *ret);

/* The first field with that tag: 0, -ENOENT, or -EBADMSG. */
int pb_field_find(const struct pb_frame *frame, uint16_t tag, struct pb_field *ret);

/* The same as a C string in ret, which NULs in it end early; also -EMSGSIZE. */
int pb_field_text(const struct pb_frame *frame, uint16_t tag, char *ret, size_t size);

/* The same as a number of up to 8 bytes; fallback when the field is missing or malformed. */
uint64_t pb_field_u64(const struct pb_frame *frame, uint16_t tag, uint64_t fallback);

/* A frame under construction in the caller's memory. Once something did not fit, full is set and the rest is
 * dropped: check once, at the end. */
struct pb_frame_writer {
    uint8_t *buf;
    size_t cap, len;
    int full;
};

void pb_frame_begin(struct pb_frame_writer *w, uint8_t *buf, size_t cap);
void pb_frame_put(struct pb_frame_writer *w, uint16_t tag, const void *data, size_t size);
void pb_frame_put_u64(struct pb_frame_writer *w, uint16_t tag, uint64_t value);
void pb_frame_put_str(struct pb_frame_writer *w, uint16_t tag, const char *text);

/* Writes the header. Returns the size of the whole frame, or -EMSGSIZE. */
int pb_frame_end(struct pb_frame_writer *w, uint16_t type, uint32_t id);
