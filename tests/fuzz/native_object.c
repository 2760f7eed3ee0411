/* Arbitrary bytes as an ELF file: its tables are searched, its symbols scanned and indexed, and whatever is
 * found holds the address that was asked for. The seed, written to the corpus folder that is given, is the
 * vdso of this process: a whole object of two pages, with everything in it. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "remote/native/cfi.h"
#include "remote/native/object.h"
#include "remote/native/symbols.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const void *vdso = (const void *)getauxval(AT_SYSINFO_EHDR);
    struct stat st;
    char path[4096];
    const char *folder = (*argv)[*argc - 1];
    if (*argc < 2 || !vdso || stat(folder, &st) < 0 || !S_ISDIR(st.st_mode))
        return 0;
    snprintf(path, sizeof(path), "%s/vdso", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0) {
        sink += (uint64_t)write(fd, vdso, 8192);
        close(fd);
    }
    return 0;
}

static void ask_rows(struct pb_object *o, const uint64_t *addrs, size_t n)
{
    struct pb_cfi_row row;
    uint64_t start;
    for (size_t i = 0; i < n; i++)
        if (pb_object_row(o, addrs[i], &row, &start) == 0)
            must(start <= addrs[i] && row.ra < PB_NATIVE_REGS, "rules of another function");
}

static void ask_symbols(struct pb_object *o, uint64_t *addrs, size_t n)
{
    struct pb_symbols s = {0};
    const struct pb_function *f;
    char name[256];
    if (pb_symbols_open(o, NULL, 0, &s) < 0)
        return;
    if (n > 2)
        pb_symbols_scan(&s, addrs, n / 2);
    /* More than the passes that are made before an index is. */
    for (size_t i = 0; i < n; i++) {
        if (pb_symbols_find(&s, addrs[i], &f) < 0)
            continue;
        must(addrs[i] >= f->addr && addrs[i] - f->addr < f->size,
             "a function that does not hold the address");
        if (pb_symbols_name(&s, f, name, sizeof(name)) == 0)
            must(name[0] && memchr(name, 0, sizeof(name)), "a name without end");
    }
    pb_symbols_done(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_object o;
    struct pb_section section;
    uint64_t addrs[24], at;
    size_t n = 0;
    int fd = memfd_create("object", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    if (pb_object_open(fd, &o) < 0)
        return 0;
    must(o.nsegments <= PB_OBJECT_SEGMENTS && strlen(o.build_id) <= 64, "more than there is room for");
    for (unsigned i = 0; i < o.nsegments && n + 2 <= 16; i++) {
        addrs[n++] = o.segment[i].addr + o.segment[i].filesz / 2;
        addrs[n++] = o.segment[i].addr + 1;
    }
    while (n < 24)
        addrs[n] = size > 8 * n + 8 ? data[8 * n] * 16ull : n, n++;
    sink += (uint64_t)pb_object_section(&o, ".debug_info", &section);
    sink += (uint64_t)pb_object_address_of(&o, size, &at);
    ask_rows(&o, addrs, n);
    ask_symbols(&o, addrs, n);
    pb_object_done(&o);
    return 0;
}
