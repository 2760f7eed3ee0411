/* line_tables: see line_tables.h. */
#include "remote/python/line_tables.h"

#include "base/bytes.h"

/* Line numbers stop here, so that a hostile table cannot overflow the sum. */
#define LAST_LINE (1 << 30)

static int checked(int64_t line)
{
    return line > 0 && line < LAST_LINE ? (int)line : 0;
}

/* Pairs (bytes of code, lines): the line of a pair begins after its bytes. */
static int by_lnotab(const uint8_t *table, size_t len, int first_line, int at, bool upwards)
{
    int64_t line = first_line, address = 0;

    for (size_t i = 0; i + 1 < len; i += 2) {
        address += table[i];
        if (address > at)
            break;
        line += upwards ? table[i + 1] : (int8_t)table[i + 1];
    }
    return checked(line);
}

/* Pairs (bytes of code, lines): the line holds for those bytes. -128: they have no line, and the line number
 * stays, but their bytes count. */
static int by_linetable(const uint8_t *table, size_t len, int first_line, int at)
{
    int64_t line = first_line, end = 0;

    for (size_t i = 0; i + 1 < len; i += 2) {
        int delta = table[i + 1] < 128 ? table[i + 1] : table[i + 1] - 256;
        end += table[i];
        if (delta != -128)
            line += delta;
        if (at < end)
            return delta == -128 ? 0 : checked(line);
    }
    return 0;
}

/* Six bits a byte, the lowest first; bit 6 says that more follow. */
static uint64_t next_varint(struct pb_cursor *c)
{
    uint64_t value = 0;
    unsigned byte, shift = 0;

    do {
        byte = pb_u8(c);
        if (shift < 60)
            value |= (uint64_t)(byte & 63) << shift;
        shift += 6;
    } while (byte & 64);
    return value;
}

static int64_t next_signed(struct pb_cursor *c)
{
    uint64_t value = next_varint(c);
    return value & 1 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

enum { LOCATION_ONE_LINE = 10, LOCATION_NO_COLUMNS = 13, LOCATION_LONG = 14, LOCATION_NONE = 15 };

/* Entries (kind, units of code), then data by kind: see Objects/locations.md of CPython. */
static int by_locations(const uint8_t *table, size_t len, int first_line, int at)
{
    struct pb_cursor c = {table, table + len, false};
    int64_t line = first_line, end = 0;

    while (c.at < c.end) {
        unsigned head = pb_u8(&c), kind = head >> 3 & 15;
        end += 2 * ((head & 7) + 1);
        if (kind == LOCATION_LONG || kind == LOCATION_NO_COLUMNS)
            line += next_signed(&c);
        else if (kind >= LOCATION_ONE_LINE && kind < LOCATION_NO_COLUMNS)
            line += kind - LOCATION_ONE_LINE;
        if (line > LAST_LINE || line < -LAST_LINE)
            return 0;
        if (at < end)
            return kind == LOCATION_NONE ? 0 : checked(line);
        /* Only the first byte of an entry has the highest bit. */
        while (c.at < c.end && !(*c.at & 0x80))
            c.at++;
    }
    return 0;
}

int pb_py_line_at(enum pb_py_lines kind, const uint8_t *table, size_t len, int first_line, int at)
{
    if (at < 0)
        return checked(first_line);
    switch (kind) {
    case PB_PY_LINES_LNOTAB:
        return by_lnotab(table, len, first_line, at, false);
    case PB_PY_LINES_UNSIGNED:
        return by_lnotab(table, len, first_line, at, true);
    case PB_PY_LINES_LINETABLE:
        return by_linetable(table, len, first_line, at);
    case PB_PY_LINES_LOCATIONS:
        return by_locations(table, len, first_line, at);
    }
    return 0;
}
