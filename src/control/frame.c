/* frame: see frame.h. */
#include "control/frame.h"

#include <errno.h>
#include <string.h>

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16;
}

static void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void store32(uint8_t *p, uint32_t v)
{
    store16(p, (uint16_t)v);
    store16(p + 2, (uint16_t)(v >> 16));
}

int pb_frame_parse(const uint8_t *buf, size_t len, struct pb_frame *ret)
{
    /* The magic is checked as soon as it is there: a client of another protocol is refused before it has sent
     * a header. */
    if (len >= 4 && load32(buf) != PB_FRAME_MAGIC)
        return -EBADMSG;
    if (len < PB_FRAME_HEADER)
        return 0;

    uint32_t size = load32(buf + 12);
    if (size > PB_FRAME_MAX_PAYLOAD)
        return -EMSGSIZE;
    if (load16(buf + 6) != 0)
        return -EBADMSG;
    if (len - PB_FRAME_HEADER < size)
        return 0;

    *ret = (struct pb_frame){
        .type = load16(buf + 4), .id = load32(buf + 8), .size = size, .payload = buf + PB_FRAME_HEADER};
    return (int)(PB_FRAME_HEADER + size);
}

void pb_frame_header(uint8_t out[PB_FRAME_HEADER], uint16_t type, uint32_t id, uint32_t size)
{
    store32(out, PB_FRAME_MAGIC);
    store16(out + 4, type);
    store16(out + 6, 0);
    store32(out + 8, id);
    store32(out + 12, size);
}

int pb_field_next(const struct pb_frame *frame, size_t *at, struct pb_field *ret)
{
    size_t left = frame->size - *at;
    if (left == 0)
        return 0;
    if (left < PB_FIELD_HEADER)
        return -EBADMSG;

    const uint8_t *p = frame->payload + *at;
    uint32_t size = load32(p + 4);
    if (size > left - PB_FIELD_HEADER)
        return -EBADMSG;

    *ret = (struct pb_field){.tag = load16(p), .size = size, .data = p + PB_FIELD_HEADER};
    *at += PB_FIELD_HEADER + size;
    return 1;
}

int pb_field_find(const struct pb_frame *frame, uint16_t tag, struct pb_field *ret)
{
    struct pb_field field;
    size_t at = 0;
    int r;

    while ((r = pb_field_next(frame, &at, &field)) > 0)
        if (field.tag == tag) {
            *ret = field;
            return 0;
        }
    return r < 0 ? r : -ENOENT;
}

int pb_field_text(const struct pb_frame *frame, uint16_t tag, char *ret, size_t size)
{
    struct pb_field field;

    int r = pb_field_find(frame, tag, &field);
    if (r < 0)
        return r;
    if (field.size >= size)
        return -EMSGSIZE;
    memcpy(ret, field.data, field.size);
    ret[field.size] = '\0';
    return 0;
}

uint64_t pb_field_u64(const struct pb_frame *frame, uint16_t tag, uint64_t fallback)
{
    struct pb_field field;
    uint64_t value = 0;

    if (pb_field_find(frame, tag, &field) < 0 || field.size == 0 || field.size > 8)
        return fallback;
    for (uint32_t i = 0; i < field.size; i++)
        value |= (uint64_t)field.data[i] << (8 * i);
    return value;
}

void pb_frame_begin(struct pb_frame_writer *w, uint8_t *buf, size_t cap)
{
    *w = (struct pb_frame_writer){
        .buf = buf, .cap = cap, .len = PB_FRAME_HEADER, .full = cap < PB_FRAME_HEADER};
}

void pb_frame_put(struct pb_frame_writer *w, uint16_t tag, const void *data, size_t size)
{
    if (w->full || size > PB_FRAME_MAX_PAYLOAD || w->cap - w->len < PB_FIELD_HEADER + size) {
        w->full = 1;
        return;
    }
    uint8_t *p = w->buf + w->len;
    store16(p, tag);
    store16(p + 2, 0);
    store32(p + 4, (uint32_t)size);
    if (size)
        memcpy(p + PB_FIELD_HEADER, data, size);
    w->len += PB_FIELD_HEADER + size;
}

void pb_frame_put_u64(struct pb_frame_writer *w, uint16_t tag, uint64_t value)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    pb_frame_put(w, tag, bytes, sizeof(bytes));
}

void pb_frame_put_str(struct pb_frame_writer *w, uint16_t tag, const char *text)
{
    pb_frame_put(w, tag, text, strlen(text));
}

int pb_frame_end(struct pb_frame_writer *w, uint16_t type, uint32_t id)
{
    if (w->full || w->len - PB_FRAME_HEADER > PB_FRAME_MAX_PAYLOAD)
        return -EMSGSIZE;
    pb_frame_header(w->buf, type, id, (uint32_t)(w->len - PB_FRAME_HEADER));
    return (int)w->len;
}
