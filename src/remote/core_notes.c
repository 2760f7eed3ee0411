/* core_notes: the notes of a core file: threads with their registers, the signal, mapped files. See core.h.
 *
 * Only the needed notes are read: a thousand threads have megabytes of vector registers, which no reader
 * needs. */
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/vector.h"
#include "remote/core_file.h"
#include "remote/native/unwind_arch.h"

#ifndef NT_ARM_SYSTEM_CALL
#define NT_ARM_SYSTEM_CALL 0x404
#endif

enum {
    NOTES_MAX = 1 << 20, /* in all: many headers may point to the same ones */
    THREADS_MAX = 1 << 20,
    FILES_MAX = 1 << 17,
    FILES_SIZE_MAX = 256 << 20,
    PRSTATUS_MAX = 512,
};

/* struct elf_prstatus, the same on both machines up to the registers. */
enum { PR_CURSIG = 12, PR_PID = 32, PR_REG = 112, X86_REGS = 27, ARM_REGS = 34, ARM_X8 = 8 };

/* Places in the kernel's order of registers on x86-64. */
enum {
    X86_R10 = 7,
    X86_R9 = 8,
    X86_R8 = 9,
    X86_RDX = 12,
    X86_RSI = 13,
    X86_RDI = 14,
    X86_ORIG_RAX = 15,
    X86_FS_BASE = 21
};

struct note {
    uint32_t type, size;
    char name[8];
    uint64_t desc; /* where it is in the file */
};

static int read_at(const struct pb_core *c, uint64_t offset, void *buf, size_t len)
{
    ssize_t n = offset > INT64_MAX ? 0 : pread(c->fd, buf, len, (off_t)offset);
    if (n < 0)
        return -errno;
    return (size_t)n == len ? 0 : -ENODATA;
}

static uint64_t padded(uint64_t size)
{
    return (size + 3) & ~3ull;
}

/* 1: *ret is the note at *at, which is moved behind it; 0: no more; -ENODATA: the file ends before. */
static int next_note(const struct pb_core *c, uint64_t *at, uint64_t end, struct note *ret)
{
    Elf64_Nhdr h;

    if (end - *at < sizeof(h))
        return 0;
    int r = read_at(c, *at, &h, sizeof(h));
    if (r < 0)
        return r;
    uint64_t left = end - *at - sizeof(h);
    if (padded(h.n_namesz) > left || padded(h.n_descsz) > left - padded(h.n_namesz))
        return 0;
    *ret = (struct note){.type = h.n_type, .size = h.n_descsz, .desc = *at + sizeof(h) + padded(h.n_namesz)};
    if (h.n_namesz && h.n_namesz <= sizeof(ret->name))
        r = read_at(c, *at + sizeof(h), ret->name, h.n_namesz);
    ret->name[sizeof(ret->name) - 1] = '\0';
    *at = ret->desc + padded(h.n_descsz);
    return r < 0 ? r : 1;
}

static void take_x86(struct pb_core_thread *t, const uint64_t *raw)
{
    const uint64_t args[] = {raw[X86_RDI], raw[X86_RSI], raw[X86_RDX],
                             raw[X86_R10], raw[X86_R8],  raw[X86_R9]};

    t->tls = raw[X86_FS_BASE];
    if (raw[X86_ORIG_RAX] < 4096)
        t->syscall = (int)raw[X86_ORIG_RAX];
    memcpy(t->args, args, sizeof(args));
}

/* The signal that ended the process set a waiting thread back onto its svc, and the kernel has forgotten the
 * call (NT_ARM_SYSTEM_CALL is -1): x8 still has its number. Whether the pc is on svc is checked when all
 * segments are known. */
static void take_arm(struct pb_core_thread *t, const uint64_t *raw)
{
    if (raw[ARM_X8] < 4096)
        t->perhaps = (int)raw[ARM_X8];
    memcpy(t->args, raw, sizeof(t->args));
}

static int add_thread(struct pb_core *c, const struct note *note)
{
    unsigned char desc[PRSTATUS_MAX];
    uint64_t raw[ARM_REGS];
    size_t nregs = c->machine == EM_X86_64 ? X86_REGS : ARM_REGS;
    int32_t tid;
    int16_t signal;

    if (note->size < PR_REG + nregs * 8 || note->size > sizeof(desc))
        return 0;
    int r = read_at(c, note->desc, desc, note->size);
    if (r < 0)
        return r;
    if (c->nthreads == THREADS_MAX)
        return 0;
    if (pb_grow_full((void **)&c->threads, c->nthreads, sizeof(*c->threads)) < 0)
        return -ENOMEM;
    struct pb_core_thread *t = &c->threads[c->nthreads++];
    *t = (struct pb_core_thread){.syscall = -1, .perhaps = -1};
    memcpy(&tid, desc + PR_PID, sizeof(tid));
    memcpy(&signal, desc + PR_CURSIG, sizeof(signal));
    memcpy(raw, desc + PR_REG, nregs * 8);
    t->tid = tid;
    pb_native_place_registers(c->machine, raw, t->reg);
    if (c->machine == EM_X86_64)
        take_x86(t, raw);
    else
        take_arm(t, raw);
    /* The kernel writes the signal into all of them; the thread that received it comes first. */
    if (c->nthreads == 1) {
        c->info.signal = signal;
        c->info.died_in = tid;
    }
    return 0;
}

static int read_command(struct pb_core *c, const struct note *note)
{
    unsigned char desc[136]; /* struct elf_prpsinfo: pid, name and arguments */
    int32_t pid;

    if (note->size < sizeof(desc))
        return 0;
    int r = read_at(c, note->desc, desc, sizeof(desc));
    if (r < 0)
        return r;
    memcpy(&c->info.uid, desc + 16, sizeof(c->info.uid));
    memcpy(&c->info.gid, desc + 20, sizeof(c->info.gid));
    memcpy(&pid, desc + 24, sizeof(pid));
    c->info.pid = pid;
    memcpy(c->info.name, desc + 40, 16);
    memcpy(c->info.command, desc + 56, 80);
    for (size_t n = strlen(c->info.command); n && c->info.command[n - 1] == ' ';)
        c->info.command[--n] = '\0';
    return 0;
}

static int read_signal(struct pb_core *c, const struct note *note)
{
    unsigned char desc[32]; /* siginfo_t: signal, errno, code; then by the signal */
    int32_t number, sender;

    if (note->size < sizeof(desc))
        return 0;
    int r = read_at(c, note->desc, desc, sizeof(desc));
    if (r < 0)
        return r;
    memcpy(&number, desc, sizeof(number));
    memcpy(&c->info.code, desc + 8, sizeof(c->info.code));
    memcpy(&sender, desc + 16, sizeof(sender));
    if (number)
        c->info.signal = number;
    if (c->info.code <= 0)
        c->info.sender = sender;
    else
        memcpy(&c->info.address, desc + 16, sizeof(c->info.address));
    return 0;
}

static int read_auxv(struct pb_core *c, const struct note *note)
{
    Elf64_auxv_t v[64];
    size_t n = note->size / sizeof(v[0]) < 64 ? note->size / sizeof(v[0]) : 64;

    int r = read_at(c, note->desc, v, n * sizeof(v[0]));
    for (size_t i = 0; r == 0 && i < n && v[i].a_type != AT_NULL; i++) {
        if (v[i].a_type == AT_PHDR)
            c->phdr = v[i].a_un.a_val;
        if (v[i].a_type == AT_SYSINFO_EHDR)
            c->vdso = v[i].a_un.a_val;
    }
    return r;
}

/* count, page size; start, end, page offset of each; then the paths, in the same order. */
static int read_files(struct pb_core *c, const struct note *note)
{
    if (c->names || note->size < 16 || note->size > FILES_SIZE_MAX || note->size > c->size)
        return 0;
    _cleanup_free_ unsigned char *desc = malloc(note->size);
    if (!desc)
        return -ENOMEM;
    int r = read_at(c, note->desc, desc, note->size);
    if (r < 0)
        return r;
    struct pb_cursor at = {desc, desc + note->size, false};
    uint64_t count = pb_u64(&at), page = pb_u64(&at);
    if (count > FILES_MAX || count > pb_left(&at) / 25)
        return 0;
    c->names_len = pb_left(&at) - count * 24;
    c->names = malloc(c->names_len + 1);
    c->maps = calloc(count + 1, sizeof(*c->maps));
    c->files = calloc(count + 1, sizeof(*c->files));
    if (!c->names || !c->maps || !c->files)
        return -ENOMEM;
    memcpy(c->names, at.at + count * 24, c->names_len);
    c->names[c->names_len] = '\0';
    const char *name = c->names;
    for (; c->nmaps < count && name < c->names + c->names_len; name += strlen(name) + 1) {
        struct pb_core_map *m = &c->maps[c->nmaps];
        m->start = pb_u64(&at);
        m->end = pb_u64(&at);
        m->offset = pb_u64(&at) * page;
        m->file = (uint32_t)c->nmaps;
        c->files[c->nmaps++] = (struct pb_core_file){.path = name, .fd = -1};
    }
    c->nfiles = c->nmaps;
    return 0;
}

static int take_note(struct pb_core *c, const struct note *note)
{
    if (strcmp(note->name, "LINUX") == 0 && note->type == NT_ARM_SYSTEM_CALL && note->size >= 4 &&
        c->machine == EM_AARCH64 && c->nthreads) {
        struct pb_core_thread *t = &c->threads[c->nthreads - 1];
        return read_at(c, note->desc, &t->syscall, sizeof(int32_t));
    }
    if (strcmp(note->name, "CORE") != 0)
        return 0;
    switch (note->type) {
    case NT_PRSTATUS:
        return add_thread(c, note);
    case NT_PRPSINFO:
        return read_command(c, note);
    case NT_SIGINFO:
        /* gdb writes one per thread: the first is that of the thread that died. */
        return c->nthreads == 1 ? read_signal(c, note) : 0;
    case NT_AUXV:
        return read_auxv(c, note);
    case NT_FILE:
        return read_files(c, note);
    default:
        return 0;
    }
}

int pb_core_read_notes(struct pb_core *c, uint64_t offset, uint64_t size)
{
    uint64_t at = offset, end = offset + size;
    struct note note;
    int r = end < offset ? -ENODATA : 1;

    while (r > 0 && c->seen < NOTES_MAX) {
        c->seen++;
        r = next_note(c, &at, end, &note);
        if (r <= 0)
            break;
        r = take_note(c, &note);
        r = r < 0 ? r : 1;
    }
    return r < 0 ? r : 0;
}

static int by_start(const void *a, const void *b)
{
    const struct pb_core_map *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

struct named_file {
    const char *path;
    uint32_t file;
};

static int by_path(const void *a, const void *b)
{
    const struct named_file *x = a, *y = b;
    int d = strcmp(x->path, y->path);
    return d ? d : (x->file > y->file) - (x->file < y->file);
}

/* Gives each map the first file of its path, and that file the facts of its maps. */
static int join_files(struct pb_core *c)
{
    _cleanup_free_ struct named_file *order = calloc(c->nfiles + 1, sizeof(*order));
    _cleanup_free_ uint32_t *first = calloc(c->nfiles + 1, sizeof(*first));
    if (!order || !first)
        return -ENOMEM;
    for (size_t i = 0; i < c->nfiles; i++)
        order[i] = (struct named_file){c->files[i].path, (uint32_t)i};
    if (c->nfiles)
        qsort(order, c->nfiles, sizeof(*order), by_path);
    for (size_t i = 0; i < c->nfiles; i++) {
        bool same = i && strcmp(order[i].path, order[i - 1].path) == 0;
        first[order[i].file] = same ? first[order[i - 1].file] : order[i].file;
    }
    for (size_t i = 0; i < c->nmaps; i++) {
        struct pb_core_map *m = &c->maps[i];
        struct pb_core_file *f = &c->files[m->file = first[m->file]];
        uint64_t end = m->offset + (m->end - m->start);
        if (m->offset == 0 && !f->base)
            f->base = m->start;
        if (end > f->mapped)
            f->mapped = end;
    }
    return 0;
}

static int by_tid(const void *a, const void *b)
{
    const struct pb_core_thread *x = a, *y = b;
    return (x->tid > y->tid) - (x->tid < y->tid);
}

int pb_core_order_notes(struct pb_core *c)
{
    size_t n = 0;

    int r = join_files(c);
    if (r < 0)
        return r;
    if (c->nmaps)
        qsort(c->maps, c->nmaps, sizeof(*c->maps), by_start);
    for (size_t i = 0; i < c->nmaps; i++)
        if (c->maps[i].start < c->maps[i].end && (!n || c->maps[i].start >= c->maps[n - 1].end))
            c->maps[n++] = c->maps[i];
    c->nmaps = n;
    if (!c->info.pid && c->nthreads)
        c->info.pid = c->threads[0].tid;
    if (c->nthreads)
        qsort(c->threads, c->nthreads, sizeof(*c->threads), by_tid);
    return 0;
}
