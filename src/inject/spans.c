/* spans: see spans.h. This file finds the spans; judge.c judges a thread by them. */
#include "inject/spans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/procfs.h"
#include "base/vector.h"
#include "inject/stub.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/procinfo.h"
#include "remote/source.h"

/* The exported functions of malloc.o: the static ones lie between and beside them. */
static const char *const allocator[] = {
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "cfree",
    "posix_memalign",
    "malloc_usable_size",
    "malloc_trim",
    "malloc_stats",
    "malloc_info",
    "mallopt",
    "mallinfo",
    "mallinfo2",
    "reallocarray",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__default_morecore",
};

/* Single functions: the functions that they call return into them. */
static const char *const lonely[] = {
    "dlopen",
    "dlmopen",
    "dlsym",
    "dlvsym",
    "dlclose",
    "dladdr",
    "dladdr1",
    "dlinfo",
    "dlerror",
    "dl_iterate_phdr",
    "_dl_find_object",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlclose",
    "__libc_freeres",
    "__tls_get_addr",
    "__dls2b",
    "__dls3",
    "fork",
    "vfork",
    "_Fork",
    "__libc_fork",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "popen",
    "pthread_create",
    "pthread_exit",
    "exit",
    "quick_exit",
    "__cxa_atexit",
    "__cxa_finalize",
    "setuid",
    "setgid",
    "seteuid",
    "setegid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
};

/* The loader's lock is held while these call other code: constructors, destructors, callbacks. */
static const char *const loading[] = {
    "dlopen", "dlmopen", "dlclose", "dl_iterate_phdr", "__libc_dlopen_mode", "__libc_dlclose"};

static const char *const waiting[] = {"pthread_join", "pthread_timedjoin_np", "pthread_clockjoin_np",
                                      "pthread_tryjoin_np", "thrd_join"};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool is_one_of(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (name[0] == list[i][0] && strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static int add_span(struct pb_spans *s, uint64_t start, uint64_t end, struct pb_span kind)
{
    if (start >= end)
        return 0;
    if (pb_grow_full((void **)&s->at, s->n, sizeof(*s->at)) < 0)
        return -ENOMEM;
    kind.start = start;
    kind.end = end;
    s->at[s->n++] = kind;
    return 0;
}

/* Widens a span to the exported functions before and after it: the code between is static, of the same source
 * file or its neighbours. Functions in assembly have no size, but bound it too. */
static void widen_span(const struct pb_elf *e, uint64_t *start, uint64_t *end)
{
    uint64_t low = e->text, high = e->text_end;
    for (size_t i = 0; i < e->n; i++) {
        struct pb_symbol s;
        if (!pb_elf_at(e, i, &s) || s.type != STT_FUNC)
            continue;
        if (s.addr < *start && s.addr + s.size > low && s.addr + s.size <= *start)
            low = s.addr + s.size;
        if (s.addr >= *end && s.addr < high)
            high = s.addr;
    }
    *start = low;
    *end = high;
}

static int add_allocator(struct pb_spans *spans, const struct pb_elf *e, bool foreign)
{
    uint64_t start = UINT64_MAX, end = 0;
    for (size_t i = 0; i < e->n; i++) {
        struct pb_symbol s;
        if (!pb_elf_at(e, i, &s) || s.type != STT_FUNC || !is_one_of(s.name, allocator, COUNT(allocator)))
            continue;
        if (s.addr < start)
            start = s.addr;
        if (s.addr + s.size > end)
            end = s.addr + s.size;
    }
    if (!end)
        return 0;
    widen_span(e, &start, &end);
    /* In a program with an allocator linked in, that range may hold more than the allocator. */
    return add_span(spans, start, end, (struct pb_span){.foreign = foreign, .locks = !foreign});
}

static int add_functions(struct pb_spans *spans, const struct pb_elf *e, bool wide)
{
    for (size_t i = 0; i < e->n; i++) {
        struct pb_symbol s;
        if (!pb_elf_at(e, i, &s) || s.type != STT_FUNC)
            continue;
        bool waits = is_one_of(s.name, waiting, COUNT(waiting));
        if (!waits && !is_one_of(s.name, lonely, COUNT(lonely)))
            continue;
        uint64_t start = s.addr, end = s.addr + s.size;
        /* pthread_join only jumps to a static function, which frees stacks under their lock. */
        if (waits || (wide && strncmp(s.name, "dl", 2) == 0))
            widen_span(e, &start, &end);
        bool locks = is_one_of(s.name, loading, COUNT(loading));
        int r = add_span(spans, start, end, (struct pb_span){.waits = waits, .locks = locks});
        if (r < 0)
            return r;
    }
    return 0;
}

static bool is_any(const char *base, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(base, *prefixes, strlen(*prefixes)) == 0)
            return true;
    return false;
}

/* The C library: its allocator and single functions, by symbol. In musl loader and library are one object:
 * there the static functions around dlopen count too. */
static int add_libc(struct pb_spans *spans, struct pb_source *from, const struct pb_map *map, bool musl,
                    bool foreign)
{
    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    int r = pb_elf_open(from, map->start, &e);
    if (r < 0)
        return r;
    r = add_allocator(spans, &e, foreign);
    if (r < 0)
        return r;
    if (!foreign) {
        int i = spans->libc[0].end ? 1 : 0;
        spans->libc[i].start = e.text;
        spans->libc[i].end = e.text_end;
    }
    return add_functions(spans, &e, musl);
}

static int add_whole(struct pb_spans *spans, struct pb_source *from, const struct pb_map *map,
                     struct pb_span kind)
{
    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    int r = pb_elf_open(from, map->start, &e);
    if (r < 0)
        return r;
    return add_span(spans, e.text, e.text_end, kind);
}

static int add_object(struct pb_spans *spans, struct pb_source *from, const struct pb_map *map, bool program)
{
    static const char *const loader[] = {"ld-linux", "ld-2.", "ld.so", NULL};
    static const char *const dl[] = {"libdl.so.2", "libdl-2.", NULL};
    /* Sanitizers intercept every call that waits, not malloc alone. */
    static const char *const sanitizer[] = {"libasan", "libtsan", "liblsan", "libhwasan", NULL};
    static const char *const pthread[] = {"libpthread.so.0", "libpthread-2.", NULL};
    const char *base = pb_maps_base(map);
    enum pb_libc libc = pb_libc_named(base);
    uint64_t addr;

    if (is_any(base, loader) || is_any(base, dl))
        return add_whole(spans, from, map,
                         (struct pb_span){.loader = !is_any(base, dl), .locks = is_any(base, dl)});
    if (libc != PB_LIBC_NONE || is_any(base, pthread))
        return add_libc(spans, from, map, libc == PB_LIBC_MUSL, false);
    if (pb_elf_lookup(from, map->start, "malloc", &addr) < 0)
        return 0;
    /* A program with an allocator linked in is not all allocator: only the range around malloc counts. */
    if (program)
        return add_libc(spans, from, map, false, true);
    return add_whole(spans, from, map, (struct pb_span){.foreign = true, .locks = !is_any(base, sanitizer)});
}

/* Our own code, left by a tool that died: threads that it started wait there for that tool, and unmap it when
 * they end. They are not the program's threads; a thread of the program in it is on its way back. */
static int add_stub(struct pb_spans *spans, struct pb_source *from, const struct pb_map *map)
{
    unsigned char code[PB_STUB_CODE];
    /* From its first entry point on: that symbol makes the linker include the code. */
    size_t at = (size_t)(pb_stub_borrowed - pb_stub_begin), len = (size_t)(pb_stub_end - pb_stub_borrowed);

    if (map->inode || !(map->prot & PROT_EXEC) || len > sizeof(code) ||
        (map->end - map->start != PB_STUB_CODE + PB_STUB_ARGUMENTS &&
         map->end - map->start != PB_STUB_MEMORY) ||
        pb_source_read(from, map->start + at, code, len) < 0 || memcmp(code, pb_stub_borrowed, len) != 0)
        return 0;
    return add_span(spans, map->start, map->start + PB_STUB_CODE, (struct pb_span){.foreign = true});
}

int pb_spans_find(pid_t pid, const struct pb_maps *maps, struct pb_spans *ret)
{
    _cleanup_(pb_spans_done) struct pb_spans spans = {0};
    struct pb_source memory = pb_source_of(pid);
    const char *last = "";
    char exe[512];

    int r = pb_proc_link(pid, "exe", exe, sizeof(exe));
    if (r < 0)
        return r;
    for (size_t i = 0; i < maps->n; i++) {
        const struct pb_map *map = &maps->at[i];
        r = add_stub(&spans, &memory, map);
        if (r < 0)
            return r;
        if (map->offset != 0 || !map->inode || !(map->prot & PROT_READ) || strcmp(map->path, last) == 0)
            continue;
        last = map->path;
        r = add_object(&spans, &memory, map, strcmp(map->path, exe) == 0);
        if (r < 0 && r != -ENOEXEC && r != -EFAULT)
            return r;
    }
    *ret = spans;
    spans = (struct pb_spans){0};
    return 0;
}

void pb_spans_done(struct pb_spans *s)
{
    free(s->at);
}
