/* native_lines: the source of addresses of one file, for tests: native_lines FILE < ADDRESSES
 *
 * For each address (hexadecimal, one a line) a line "ADDRESS", then "FUNCTION<tab>FILE:LINE" for each frame,
 * the innermost inlined call first. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "remote/native/lines.h"
#include "remote/native/object.h"

int main(int argc, char **argv)
{
    struct pb_source_frame frame[16];
    struct pb_object o;
    struct pb_lines *lines;
    char text[64];
    int fd = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 || pb_object_open(fd, &o) < 0 || pb_lines_open(&o, &lines) < 0)
        return 1;
    while (fgets(text, sizeof(text), stdin)) {
        uint64_t addr = strtoull(text, NULL, 16);
        int n = pb_lines_find(lines, addr, frame, 16);
        printf("%#" PRIx64 "\n", addr);
        for (int i = 0; i < n; i++)
            printf("%s\t%s:%u\n", frame[i].function, frame[i].file, frame[i].line);
    }
    pb_lines_free(lines);
    pb_object_done(&o);
    return 0;
}
