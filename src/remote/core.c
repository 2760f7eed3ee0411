/* core: see core.h. This file: the core file, its segments, and the operations of a source. */
#include "remote/core.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/core_file.h"
#include "remote/maps.h"
#include "remote/moment.h"
#include "remote/native/unwind_arch.h"
#include "remote/openin.h"
#include "remote/source.h"
#include "remote/threads.h"

enum { SEGMENTS_MAX = 1 << 20 };

void pb_core_note(struct pb_core *c, const char *fmt, ...)
{
    struct pb_core_info *info = &c->info;
    va_list ap;

    if (info->nnotes == PB_CORE_NOTES)
        return;
    va_start(ap, fmt);
    vsnprintf(info->notes[info->nnotes++], sizeof(info->notes[0]), fmt, ap);
    va_end(ap);
}

static void free_core(struct pb_core *c)
{
    if (!c)
        return;
    pb_core_files_close(c);
    if (c->fd >= 0)
        close(c->fd);
    if (c->root_fd >= 0)
        close(c->root_fd);
    free(c->segments);
    free(c->maps);
    free(c->files);
    free(c->names);
    free(c->threads);
    free(c->path);
    free(c);
}

static void free_core_of(struct pb_core **c)
{
    free_core(*c);
}

/* Explains why the file is not an ELF file. */
static int not_elf(const struct pb_core *c, const unsigned char *head, size_t len, struct pb_err *err)
{
    static const struct {
        const char *magic;
        size_t len;
        const char *name, *tool;
    } packed[] = {
        {"\x1f\x8b", 2, "gzip", "gunzip -k"},
        {"\x28\xb5\x2f\xfd", 4, "zstd", "zstd -d"},
        {"\xfd"
         "7zXZ",
         5, "xz", "unxz -k"},
        {"\x04\x22\x4d\x18", 4, "lz4", "lz4 -d"},
        {"BZh", 3, "bzip2", "bunzip2 -k"},
    };

    if (len == 0)
        return pb_fail(err, -ENOEXEC, "%s is empty (was there room on the disk, and a limit on cores?)",
                       c->path);
    for (size_t i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
        if (len >= packed[i].len && memcmp(head, packed[i].magic, packed[i].len) == 0)
            return pb_fail(err, -ENOEXEC, "%s is packed with %s: unpack it first (%s %s)", c->path,
                           packed[i].name, packed[i].tool, c->path);
    return pb_fail(err, -ENOEXEC, "%s is no core file", c->path);
}

static int check_header(struct pb_core *c, Elf64_Ehdr *eh, struct pb_err *err)
{
    ssize_t n = pread(c->fd, eh, sizeof(*eh), 0);

    if (n < 0)
        return pb_fail(err, -errno, "%s cannot be read: %s", c->path, strerror(errno));
    if (n < SELFMAG || memcmp(eh->e_ident, ELFMAG, SELFMAG) != 0)
        return not_elf(c, eh->e_ident, (size_t)n, err);
    if ((size_t)n < sizeof(*eh))
        return pb_fail(err, -ENOEXEC, "%s is cut short: it ends within its header", c->path);
    if (eh->e_ident[EI_CLASS] != ELFCLASS64 || eh->e_ident[EI_DATA] != ELFDATA2LSB)
        return pb_fail(err, -ENOTSUP, "%s is of a 32-bit or big-endian process, which is not read", c->path);
    if (eh->e_type != ET_CORE)
        return pb_fail(err, -ENOEXEC, "%s is a program or library, not a core file", c->path);
    if (eh->e_machine != EM_X86_64 && eh->e_machine != EM_AARCH64)
        return pb_fail(err, -ENOTSUP, "%s is of a machine that is not known (ELF machine %d)", c->path,
                       eh->e_machine);
    if (eh->e_phentsize != sizeof(Elf64_Phdr))
        return pb_fail(err, -ENOEXEC, "%s is damaged: its program headers have no known size", c->path);
    c->machine = eh->e_machine;
    return 0;
}

/* More headers than fit into 16 bits are counted in the first section header. */
static uint64_t count_headers(const struct pb_core *c, const Elf64_Ehdr *eh)
{
    Elf64_Shdr sh;

    if (eh->e_phnum != PN_XNUM)
        return eh->e_phnum;
    if (eh->e_shoff > INT64_MAX || pread(c->fd, &sh, sizeof(sh), (off_t)eh->e_shoff) != sizeof(sh))
        return 0;
    return sh.sh_info;
}

static void add_segment(struct pb_core *c, const Elf64_Phdr *ph, uint64_t *missing)
{
    if (ph->p_memsz == 0 || ph->p_vaddr + ph->p_memsz < ph->p_vaddr || ph->p_offset > INT64_MAX)
        return;
    struct pb_core_segment *s = &c->segments[c->nsegments++];
    *s = (struct pb_core_segment){
        .start = ph->p_vaddr,
        .size = ph->p_memsz,
        .meant = ph->p_filesz < ph->p_memsz ? ph->p_filesz : ph->p_memsz,
        .offset = ph->p_offset,
        .prot = (ph->p_flags & PF_R ? PROT_READ : 0) | (ph->p_flags & PF_W ? PROT_WRITE : 0) |
                (ph->p_flags & PF_X ? PROT_EXEC : 0),
    };
    uint64_t there = s->offset < c->size ? c->size - s->offset : 0;
    s->dumped = s->meant < there ? s->meant : there;
    *missing += s->meant - s->dumped;
}

static int by_start(const void *a, const void *b)
{
    const struct pb_core_segment *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static void order_segments(struct pb_core *c)
{
    size_t n = 0;

    if (c->nsegments)
        qsort(c->segments, c->nsegments, sizeof(*c->segments), by_start);
    for (size_t i = 0; i < c->nsegments; i++) {
        const struct pb_core_segment *last = n ? &c->segments[n - 1] : NULL;
        if (!last || c->segments[i].start >= last->start + last->size)
            c->segments[n++] = c->segments[i];
    }
    c->nsegments = n;
}

static int read_headers(struct pb_core *c, const Elf64_Ehdr *eh, struct pb_err *err)
{
    uint64_t count = count_headers(c, eh), missing = 0;
    Elf64_Phdr ph[64];
    int r = 0;

    if (count == 0 || count > SEGMENTS_MAX || eh->e_phoff > c->size ||
        count * sizeof(ph[0]) > c->size - eh->e_phoff)
        return pb_fail(err, -ENOEXEC, "%s is cut short or damaged: its program headers are not there",
                       c->path);
    c->segments = calloc(count, sizeof(*c->segments));
    if (!c->segments)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        size_t left = count - i < 64 ? (size_t)(count - i) : 64;
        if (i % 64 == 0 && pread(c->fd, ph, left * sizeof(ph[0]), (off_t)(eh->e_phoff + i * sizeof(ph[0]))) !=
                               (ssize_t)(left * sizeof(ph[0])))
            return pb_fail(err, -ENOEXEC, "%s cannot be read: its program headers are not there", c->path);
        if (ph[i % 64].p_type == PT_LOAD)
            add_segment(c, &ph[i % 64], &missing);
        else if (ph[i % 64].p_type == PT_NOTE)
            r = pb_core_read_notes(c, ph[i % 64].p_offset, ph[i % 64].p_filesz);
    }
    if (r == -ENODATA)
        return pb_fail(err, -ENOEXEC, "%s is cut short: it ends within its notes", c->path);
    if (r < 0)
        return pb_fail(err, r, "%s cannot be read: %s", c->path, strerror(-r));
    if (missing)
        pb_core_note(c, "the core is cut short: %llu of its bytes are missing", (unsigned long long)missing);
    order_segments(c);
    return pb_core_order_notes(c) < 0 ? pb_fail(err, -ENOMEM, "out of memory") : 0;
}

static const struct pb_core_segment *segment_at(const struct pb_core *c, uint64_t addr)
{
    size_t low = 0, high = c->nsegments;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct pb_core_segment *s = &c->segments[mid];
        if (addr < s->start)
            high = mid;
        else if (addr - s->start >= s->size)
            low = mid + 1;
        else
            return s;
    }
    return NULL;
}

ssize_t pb_core_dumped(struct pb_core *c, uint64_t addr, void *buf, size_t len)
{
    const struct pb_core_segment *s = segment_at(c, addr);
    uint64_t in = s ? addr - s->start : 0;

    if (!s || in >= s->dumped)
        return -EFAULT;
    if (len > s->dumped - in)
        len = (size_t)(s->dumped - in);
    ssize_t n = pread(c->fd, buf, len, (off_t)(s->offset + in));
    return n < 0 ? -errno : n == 0 && len ? -EFAULT : n;
}

/* Reads memory that was not dumped, up to the next dumped byte. Dumped memory that was cut off is in no
 * file. */
static ssize_t read_undumped(struct pb_core *c, uint64_t addr, void *buf, size_t len)
{
    const struct pb_core_segment *s = segment_at(c, addr);

    if (s && addr - s->start < s->meant)
        return -EFAULT;
    if (s && len > s->size - (addr - s->start))
        len = (size_t)(s->size - (addr - s->start));
    return pb_core_files_read(c, addr, buf, len);
}

static ssize_t read_core(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    struct pb_core *c = s->extra;
    size_t done = 0;

    while (done < len) {
        ssize_t n = pb_core_dumped(c, addr + done, (char *)buf + done, len - done);
        if (n == -EFAULT)
            n = read_undumped(c, addr + done, (char *)buf + done, len - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done || !len ? (ssize_t)done : -EFAULT;
}

static const char *name_of(const struct pb_core *c, uint64_t start, uint64_t end)
{
    if (c->vdso >= start && c->vdso < end)
        return "[vdso]";
    return c->main_sp >= start && c->main_sp < end ? "[stack]" : "";
}

static void take_file(const struct pb_core *c, const struct pb_core_map *m, const char *names,
                      struct pb_map *map)
{
    map->offset = m->offset + (map->start - m->start);
    map->inode = m->file + 1u; /* a core has no inodes; equal ones are the same file */
    map->path = names + (c->files[m->file].path - c->names);
}

static int by_address(const void *a, const void *b)
{
    const struct pb_map *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* The segments with their files, and files without a segment, in cores that leave those out. */
static int maps_core(struct pb_source *s, struct pb_maps *ret, struct pb_err *err)
{
    const struct pb_core *c = s->extra;
    _cleanup_(pb_maps_done) struct pb_maps m = {0};

    m.at = calloc(c->nsegments + c->nmaps + 1, sizeof(*m.at));
    m.text = calloc(1, c->names_len + 1);
    if (!m.at || !m.text)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (c->names)
        memcpy(m.text, c->names, c->names_len);
    for (size_t i = 0; i < c->nsegments; i++) {
        const struct pb_core_segment *g = &c->segments[i];
        const struct pb_core_map *file = pb_core_map_at(c, g->start);
        struct pb_map *map = &m.at[m.n++];
        *map = (struct pb_map){.start = g->start, .end = g->start + g->size, .prot = g->prot};
        map->path = name_of(c, map->start, map->end);
        if (file)
            take_file(c, file, m.text, map);
    }
    for (size_t i = 0; i < c->nmaps; i++) {
        if (segment_at(c, c->maps[i].start))
            continue;
        struct pb_map *map = &m.at[m.n++];
        *map =
            (struct pb_map){.start = c->maps[i].start, .end = c->maps[i].end, .prot = PROT_READ | PROT_EXEC};
        take_file(c, &c->maps[i], m.text, map);
    }
    if (m.n)
        qsort(m.at, m.n, sizeof(*m.at), by_address);
    for (size_t i = 1; i < m.n; i++)
        if (m.at[i - 1].end > m.at[i].start)
            m.at[i - 1].end = m.at[i].start;
    *ret = m;
    m = (struct pb_maps){0};
    return 0;
}

/* The system call that a thread of an aarch64 core waits in: its pc is on svc, to make the call again, or
 * behind it with EINTR. For other cores, the number in their notes. */
static int call_of(struct pb_source *s, const struct pb_core_thread *t)
{
    enum { SVC_0 = (int)0xd4000001 };
    const struct pb_core *c = s->extra;
    uint64_t pc = t->reg[pb_native_arch(c->machine)->pc];
    int32_t code[2];

    if (t->syscall >= 0 || t->perhaps < 0 || read_core(s, pc - 4, code, sizeof(code)) != sizeof(code))
        return t->syscall;
    return code[1] == SVC_0 || (code[0] == SVC_0 && (int64_t)t->args[0] == -EINTR) ? t->perhaps : -1;
}

static int threads_core(struct pb_source *s, struct pb_native_threads *ret, struct pb_err *err)
{
    const struct pb_core *c = s->extra;
    struct pb_native_threads all = {calloc(c->nthreads, sizeof(*all.at)), c->nthreads};

    if (!all.at)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < c->nthreads; i++) {
        struct pb_native_thread *t = &all.at[i];
        *t = (struct pb_native_thread){.tid = c->threads[i].tid, .ns_tid = c->threads[i].tid, .cpu = -1};
        t->tls = c->threads[i].tls;
        t->state = call_of(s, &c->threads[i]) < 0 ? 'R' : 'S';
        t->signal = t->tid == c->info.died_in ? c->info.signal : 0;
        if (t->tid == c->info.pid)
            memcpy(t->name, c->info.name, sizeof(t->name) - 1);
    }
    *ret = all;
    return 0;
}

static const struct pb_core_thread *thread_of(const struct pb_core *c, pid_t tid)
{
    size_t low = 0, high = c->nthreads;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (c->threads[mid].tid < tid)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->nthreads && c->threads[low].tid == tid ? &c->threads[low] : NULL;
}

static int moment_core(struct pb_source *s, pid_t tid, struct pb_moment *ret)
{
    const struct pb_core *c = s->extra;
    const struct pb_core_thread *t = thread_of(c, tid);
    const struct pb_native_arch *arch = pb_native_arch(c->machine);

    if (!t)
        return -ESRCH;
    *ret = (struct pb_moment){.tid = tid,
                              .dead = true,
                              .no_schedstat = true,
                              .no_syscall = true,
                              .tasks = -1,
                              .schedstat_fd = -1,
                              .syscall_fd = -1,
                              .stat_fd = -1,
                              .status_fd = -1,
                              .pinned_cpu = -1,
                              .syscall = c->machine == pb_native_arch(0)->machine ? call_of(s, t) : -1,
                              .pc = t->reg[arch->pc],
                              .sp = t->reg[arch->sp]};
    memcpy(ret->syscall_args, t->args, sizeof(t->args));
    return 0;
}

static int registers_core(struct pb_source *s, pid_t tid, struct pb_capture *ret)
{
    const struct pb_core *c = s->extra;
    const struct pb_core_thread *t = thread_of(c, tid);
    const struct pb_native_arch *arch = pb_native_arch(c->machine);

    if (!t)
        return -ESRCH;
    memcpy(ret->reg, t->reg, sizeof(t->reg));
    ret->known = (1ull << arch->nregs) - 1;
    ret->pc = ret->reg[arch->pc];
    ret->sp = ret->reg[arch->sp];
    return 0;
}

static int open_file_core(struct pb_source *s, const char *path, uint64_t inode, uint64_t base)
{
    (void)path;
    (void)inode;
    return pb_core_files_open(s->extra, base);
}

/* The file of the mapping with the program's headers. */
static int exe_core(struct pb_source *s, char *ret, size_t size)
{
    const struct pb_core *c = s->extra;
    const struct pb_core_map *m = pb_core_map_at(c, c->phdr);

    if (!m)
        return -ENOENT;
    return snprintf(ret, size, "%s", c->files[m->file].path);
}

static void close_core(struct pb_source *s)
{
    free_core(s->extra);
}

static const struct pb_source_ops ops = {
    .name = "core file",
    .read = read_core,
    .maps = maps_core,
    .threads = threads_core,
    .moment = moment_core,
    .registers = registers_core,
    .open_file = open_file_core,
    .exe = exe_core,
    .close = close_core,
};

const struct pb_core_info *pb_core_info(const struct pb_source *s)
{
    return s->ops == &ops ? &((const struct pb_core *)s->extra)->info : NULL;
}

/* gdb writes the signal with which it stopped a live process: then the process did not die of it. */
static void judge_signal(struct pb_core_info *info)
{
    if (info->signal <= 0 || info->signal > 64 || info->signal == SIGSTOP ||
        (info->signal == SIGTRAP && info->code <= 0))
        info->signal = 0;
    if (!info->signal)
        info->died_in = 0;
}

int pb_core_open_fd(int fd, const char *name, const char *root, struct pb_source *ret, struct pb_err *err)
{
    _cleanup_(free_core_of) struct pb_core *c = calloc(1, sizeof(*c));
    Elf64_Ehdr eh;
    struct stat st;

    if (!c) {
        close(fd);
        return pb_fail(err, -ENOMEM, "out of memory");
    }
    c->fd = fd;
    c->root_fd = -1;
    c->path = strdup(name);
    if (!c->path)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (fstat(fd, &st) < 0)
        return pb_fail(err, -errno, "%s cannot be read: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return pb_fail(err, -ENOEXEC, "%s is no file", name);
    c->size = (uint64_t)st.st_size;
    c->taken = st.st_mtime;
    c->root_fd = open(root ? root : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (c->root_fd < 0)
        return pb_fail(err, -errno, "the folder %s cannot be opened: %s", root, strerror(errno));
    int r = check_header(c, &eh, err);
    if (r == 0)
        r = read_headers(c, &eh, err);
    if (r < 0)
        return r;
    if (c->nthreads == 0)
        return pb_fail(err, -ENOEXEC, "%s has no threads in it: is it the core of a process?", name);
    judge_signal(&c->info);
    if (st.st_uid != 0) {
        c->info.uid = st.st_uid;
        c->info.gid = st.st_gid;
    }
    const struct pb_core_thread *main = thread_of(c, c->info.pid);
    c->main_sp = main ? main->reg[pb_native_arch(c->machine)->sp] : 0;
    *ret = (struct pb_source){.ops = &ops, .main = c->info.pid, .fd = -1, .machine = c->machine, .extra = c};
    c = NULL;
    return 0;
}

int pb_core_open(const char *path, const char *root, struct pb_source *ret, struct pb_err *err)
{
    _cleanup_close_ int there = open(path, O_PATH | O_CLOEXEC);
    int fd = there < 0 ? -errno : pb_reopen_regular(there, 0);
    if (fd == -ENXIO)
        return pb_fail(err, -ENOEXEC, "%s is no file", path);
    if (fd < 0)
        return pb_fail(err, fd, "%s cannot be opened: %s", path, strerror(-fd));
    return pb_core_open_fd(fd, path, root, ret, err);
}
