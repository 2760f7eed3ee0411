/* lines_driver: the line table reader over many codes. Reads "kind first_line length table-hex" lines; prints
 * for each the lines of the instructions at 0, 2, 4 .. below length, as "line*count" runs. */
#include "remote/python/line_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t table[1 << 20];

static size_t parse_hex(const char *hex)
{
    size_t n = 0;
    for (unsigned byte; n < sizeof(table) && sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
        table[n] = (uint8_t)byte;
    return n;
}

int main(void)
{
    static char line[4 << 20];
    int kind, first, used;
    long length;

    while (fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "%d %d %ld %n", &kind, &first, &length, &used) < 3)
            return 2;
        size_t n = parse_hex(line + used);
        int last = -1, count = 0;
        for (long at = 0; at < length; at += 2) {
            int now = pb_py_line_at((enum pb_py_lines)kind, table, n, first, (int)at);
            if (at && now != last) {
                printf("%d*%d ", last, count);
                count = 0;
            }
            last = now;
            count++;
        }
        printf("%d*%d\n", last, count);
    }
    return 0;
}
