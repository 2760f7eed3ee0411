/* crc32: see crc32.h. By a table of the 256 values of a byte, made anew for each call: calls are few and
 * long. */
#include "base/crc32.h"

uint32_t pb_crc32(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *data = bytes;
    uint32_t table[256];

    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int k = 0; k < 8; k++)
            value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
        table[i] = value;
    }
    crc = ~crc;
    for (size_t i = 0; i < n; i++)
        crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    return ~crc;
}
