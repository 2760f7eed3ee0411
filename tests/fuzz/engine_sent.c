/* The answer of a node that somebody took over, or that lies: whatever is in it, reading it stays within its
 * bytes, and what is passed on are whole frames. */
#include "base/err.h"
#include "control/packet.h"
#include "engine/shared/sent.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int32_t ranks[] = {0, 1, 7};
    struct pb_sent_part parts[3];
    struct pb_err err;
    struct pb_wire hello = {0};
    struct pb_sent_frame frame;

    if (size < 1)
        return 0;
    struct pb_sent_check check = {.version = "1", .nparts = data[0] % 4u, .ranks = ranks, .most = 100000};
    check.nranks = data[0] & 4 ? 3 : 0;
    /* With and without a good beginning. */
    pb_sent_hello(&hello, "1");
    size_t head = data[0] & 8 ? 8 + ((hello.size + 7) & ~(size_t)7) : 0, n = head + size - 1;
    uint8_t *copy = calloc(1, n + 1);
    if (copy) {
        if (head) {
            pb_packet_head(copy + 8 - PB_PACKET_HEAD, (unsigned char)hello.type, hello.size);
            memcpy(copy + 8, hello.data, hello.size);
        }
        memcpy(copy + head, data + 1, size - 1);
        if (pb_sent_read(copy, n, &check, parts, &err) == 0)
            for (unsigned i = 0; i < check.nparts; i++) {
                size_t at = 0;
                while (parts[i].frames && pb_sent_next(parts[i].frames, parts[i].size, &at, &frame) > 0)
                    if (frame.size && frame.data[frame.size - 1] == 0xff)
                        err.text[0] = 'x';
            }
    }
    free(copy);
    pb_wire_done(&hello);
    return 0;
}
