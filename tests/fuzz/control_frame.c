/* Any bytes at all as a stream of control frames: cut into frames, and each frame into fields, as agent and
 * tools do. */
#include "control/frame.h"
#include "control/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink; /* reading a byte is the test: out of bounds is ASan's to say */

static void take_apart(const struct pb_frame *frame)
{
    struct pb_field field;
    size_t at = 0, seen = 0;

    while (pb_field_next(frame, &at, &field) > 0) {
        for (uint32_t i = 0; i < field.size; i++)
            sink ^= field.data[i];
        if (++seen > frame->size / PB_FIELD_HEADER)
            abort(); /* more fields than can be there */
    }
    for (uint16_t tag = 0; tag < 16; tag++) {
        pb_field_u64(frame, tag, 7);
        pb_field_find(frame, tag, &field);
    }
}

/* What we write we read back, whatever the bytes are. */
static void round_trip(const uint8_t *data, size_t size)
{
    static uint8_t buf[4096];
    struct pb_frame_writer w;
    struct pb_frame frame;
    struct pb_field field;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put(&w, PB_TAG_CODE, data, size);
    int n = pb_frame_end(&w, PB_MSG_RUN, 5);
    if (n < 0)
        return;
    if (pb_frame_parse(buf, (size_t)n, &frame) != n || frame.type != PB_MSG_RUN || frame.id != 5)
        abort();
    if (pb_field_find(&frame, PB_TAG_CODE, &field) != 0 || field.size != size ||
        (size && memcmp(field.data, data, size) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_frame frame;
    size_t at = 0;
    int n;

    while ((n = pb_frame_parse(data + at, size - at, &frame)) > 0) {
        take_apart(&frame);
        at += (size_t)n;
    }
    round_trip(data, size);
    return 0;
}
