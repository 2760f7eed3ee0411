/* packet: see packet.h. */
#include "control/packet.h"

#include <errno.h>

void pb_packet_head(unsigned char ret[PB_PACKET_HEAD], unsigned char kind, size_t length)
{
    ret[0] = kind;
    for (int i = 0; i < 4; i++)
        ret[1 + i] = (unsigned char)(length >> (8 * i));
}

int pb_packet_parse(const void *bytes, size_t n, size_t most, size_t *ret_length)
{
    const unsigned char *head = bytes;

    if (n < PB_PACKET_HEAD)
        return 0;
    size_t length = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 | (size_t)head[4] << 24;
    if (length > most || !head[0])
        return -EPROTO;
    *ret_length = length;
    return head[0];
}
