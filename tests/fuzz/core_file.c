/* Any bytes at all as a core file: headers, notes, segments, and the readers that work on what it says. The
 * first byte says whether a right header is put in front of them, since few inputs get past a wrong one. The
 * files that a core names are looked for in a folder that has none. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "remote/core.h"
#include "remote/maps.h"
#include "remote/moment.h"
#include "remote/native/unwind.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"
#include "remote/threads.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void look_at_maps(struct pb_source *s)
{
    struct pb_maps maps;
    char buf[512];

    if (pb_source_maps(s, &maps, NULL) < 0)
        return;
    for (size_t i = 0; i < maps.n; i++) {
        must(i == 0 || maps.at[i].start >= maps.at[i - 1].end, "mappings that overlap");
        must(maps.at[i].path && strlen(maps.at[i].path) < SIZE_MAX, "a mapping without a path");
        ssize_t n = pb_source_read_some(s, maps.at[i].start, buf, sizeof(buf));
        must(n <= (ssize_t)sizeof(buf), "more bytes than were asked for");
    }
    pb_maps_done(&maps);
}

static void look_at_threads(struct pb_source *s, struct pb_native *n)
{
    struct pb_native_pc pcs[64];
    struct pb_native_frame frames[PB_NATIVE_INLINE_MAX];
    struct pb_native_threads threads;
    struct pb_capture capture = {0};
    unsigned flags;

    if (pb_source_threads(s, &threads, NULL) < 0)
        return;
    for (size_t i = 0; i < threads.n && i < 8; i++) {
        struct pb_moment m;
        must(pb_source_moment(s, threads.at[i].tid, &m) == 0, "a thread without a moment");
        must(pb_moment_begin(&m, PB_WAY_STOPPED) == PB_WAY_DEAD && pb_moment_end(&m) == 0, "a core moved");
        pb_moment_close(&m);
        if (!n || pb_native_copy(n, threads.at[i].tid, &capture) < 0)
            continue;
        size_t count = pb_native_unwind(n, &capture, pcs, 64, &flags);
        for (size_t k = 0; k < count; k++)
            pb_native_describe(n, &pcs[k], frames, PB_NATIVE_INLINE_MAX);
    }
    pb_capture_done(&capture);
    pb_native_threads_done(&threads);
}

#define HEADERS 4

/* A header and a thread, then notes that are all of the input, and segments as its first bytes say. */
static size_t put_header(int fd, const uint8_t *data, size_t size)
{
    struct {
        Elf64_Ehdr eh;
        Elf64_Phdr ph[HEADERS];
        Elf64_Nhdr note;
        char name[8];
        uint8_t status[392];
    } head = {.eh = {.e_type = ET_CORE,
                     .e_machine = data[0] & 2 ? EM_AARCH64 : EM_X86_64,
                     .e_phoff = sizeof(Elf64_Ehdr),
                     .e_phentsize = sizeof(Elf64_Phdr),
                     .e_phnum = HEADERS},
              .note = {5, sizeof(head.status), NT_PRSTATUS},
              .name = "CORE"};

    memcpy(head.eh.e_ident, ELFMAG, SELFMAG);
    head.eh.e_ident[EI_CLASS] = ELFCLASS64;
    head.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    for (size_t i = 0; i < sizeof(head.status); i++)
        head.status[i] = data[i % size];
    size_t notes = offsetof(__typeof__(head), note);
    head.ph[0] = (Elf64_Phdr){.p_type = PT_NOTE, .p_offset = notes, .p_filesz = sizeof(head) - notes + size};
    for (unsigned i = 1; i < HEADERS; i++)
        head.ph[i] = (Elf64_Phdr){.p_type = PT_LOAD,
                                  .p_flags = data[4 * i] & 7,
                                  .p_offset = data[4 * i + 1] * 8u,
                                  .p_vaddr = 0x10000u + data[4 * i + 2] * 64u,
                                  .p_filesz = data[4 * i + 3] * 16u,
                                  .p_memsz = 4096};
    if (pwrite(fd, &head, sizeof(head), 0) != sizeof(head))
        abort();
    return sizeof(head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    const struct pb_native_options options = {.no_lines = true, .stack_max = 1 << 16, .memory_max = 16 << 20};
    struct pb_native *n = NULL;
    struct pb_py *py = NULL;
    struct pb_source s;

    if (fd < 0)
        fd = memfd_create("core", 0);
    if (fd < 0 || ftruncate(fd, 0) < 0)
        abort();
    size_t at = size >= 32 && data[0] & 1 ? put_header(fd, data, size) : 0;
    if (pwrite(fd, data, size, (off_t)at) != (ssize_t)size)
        abort();
    if (pb_core_open_fd(dup(fd), "core", "/proc/self/fdinfo", &s, NULL) < 0)
        return 0;
    const struct pb_core_info *info = pb_core_info(&s);
    must(info->nnotes <= PB_CORE_NOTES && info->command[80] == '\0' && info->name[16] == '\0',
         "text too long");
    look_at_maps(&s);
    if (pb_native_new(&s, &options, &n, NULL) < 0)
        n = NULL;
    look_at_threads(&s, n);
    pb_native_free(n);
    if (pb_py_open(&s, false, &py, NULL) == 0)
        pb_py_close(py);
    pb_source_close(&s);
    return 0;
}
