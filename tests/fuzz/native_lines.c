/* Arbitrary bytes as an ELF file with debug information: every lookup ends, and its texts are ended. The
 * seeds, written to the corpus folder that is given, are what the compiler of this machine makes of a
 * function with inlined calls, in each version of DWARF. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "remote/native/lines.h"
#include "remote/native/object.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char source[] =
    "static inline __attribute__((always_inline)) int a(int x) { return x * volatile_one; }\n"
    "static inline __attribute__((always_inline)) int b(int x) { return a(x) + 2; }\n"
    "int c(int x); int c(int x) { return b(x) - 3; }\n"
    "int d(int x); __attribute__((cold)) int d(int x) { return x ? b(c(x)) : 1; }\n";

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct stat st;
    char command[8192];
    const char *folder = (*argv)[*argc - 1];
    if (*argc < 2 || stat(folder, &st) < 0 || !S_ISDIR(st.st_mode))
        return 0;
    for (unsigned version = 2; version <= 5; version++) {
        snprintf(command, sizeof(command),
                 "cc -x c -O2 -gdwarf-%u -nostdlib -shared -fPIC -Wl,--build-id=none -o '%s/dwarf-%u' - "
                 "2>/dev/null",
                 version, folder, version);
        FILE *compiler = popen(command, "w");
        if (compiler) {
            fprintf(compiler, "extern volatile int volatile_one;\n%s", source);
            pclose(compiler);
        }
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_source_frame frame[16];
    struct pb_object o;
    struct pb_lines *lines;
    int fd = memfd_create("object", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    if (pb_object_open(fd, &o) < 0)
        return 0;
    if (pb_lines_open(&o, &lines) == 0) {
        for (uint64_t addr = 0x1000; addr < 0x1080; addr += 7) {
            int n = pb_lines_find(lines, addr, frame, 16);
            must(n >= 0 && n <= 16, "more frames than there is room for");
            for (int i = 0; i < n; i++)
                must(memchr(frame[i].function, 0, sizeof(frame[i].function)) &&
                         memchr(frame[i].file, 0, sizeof(frame[i].file)),
                     "a text without end");
        }
        pb_lines_free(lines);
    }
    pb_object_done(&o);
    return 0;
}
