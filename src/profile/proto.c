/* proto: see proto.h. */
#include "profile/proto.h"

#include <stdlib.h>
#include <string.h>

enum { VARINT = 0, LENGTH = 2, LENGTH_BYTES = 5 /* room kept for the length of a message: 32 bits of it */ };

void pb_proto_done(struct pb_proto *p)
{
    free(p->at);
    *p = (struct pb_proto){0};
}

static uint8_t *room(struct pb_proto *p, size_t more)
{
    if (p->failed)
        return NULL;
    if (p->cap - p->len < more) {
        size_t cap = 2 * p->cap + more + 4096;
        uint8_t *grown = realloc(p->at, cap);
        if (!grown) {
            p->failed = true;
            p->len = 0;
            return NULL;
        }
        p->at = grown;
        p->cap = cap;
    }
    return p->at + p->len;
}

void pb_proto_packed(struct pb_proto *p, uint64_t value)
{
    uint8_t *out = room(p, 10);

    if (!out)
        return;
    for (; value >= 0x80; value >>= 7)
        p->at[p->len++] = (uint8_t)(value | 0x80);
    p->at[p->len++] = (uint8_t)value;
}

void pb_proto_uint(struct pb_proto *p, unsigned field, uint64_t value)
{
    pb_proto_packed(p, (uint64_t)field << 3 | VARINT);
    pb_proto_packed(p, value);
}

static void put_bytes(struct pb_proto *p, unsigned field, const void *data, size_t len)
{
    pb_proto_packed(p, (uint64_t)field << 3 | LENGTH);
    pb_proto_packed(p, len);
    uint8_t *out = room(p, len);
    if (out && len) {
        memcpy(out, data, len);
        p->len += len;
    }
}

void pb_proto_text(struct pb_proto *p, unsigned field, const char *text)
{
    put_bytes(p, field, text, strlen(text));
}

size_t pb_proto_begin(struct pb_proto *p, unsigned field)
{
    pb_proto_packed(p, (uint64_t)field << 3 | LENGTH);
    if (room(p, LENGTH_BYTES))
        p->len += LENGTH_BYTES;
    return p->len;
}

/* The length always takes all of its room, padded with empty groups, which readers accept: nothing has to be
 * moved. */
void pb_proto_end(struct pb_proto *p, size_t start)
{
    if (p->failed)
        return;
    size_t len = p->len - start;
    for (int i = 0; i < LENGTH_BYTES; i++)
        p->at[start - LENGTH_BYTES + (size_t)i] =
            (uint8_t)((len >> 7 * i & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}
