/* target: see target.h. */
#include "inject/target.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "control/message.h"
#include "control/status.h"
#include "inject/arch.h"
#include "remote/elf.h"
#include "remote/mem.h"
#include "remote/source.h"

#define GLIBC_PRIVATE_MODE 0x80000000u /* __RTLD_DLOPEN, which __libc_dlopen_mode requires */

static const struct pb_map *object(const struct pb_maps *maps, const char *prefix)
{
    for (size_t i = 0; i < maps->n; i++) {
        const struct pb_map *map = &maps->at[i];
        if (map->offset == 0 && map->inode && strncmp(pb_maps_base(map), prefix, strlen(prefix)) == 0)
            return map;
    }
    return NULL;
}

static const struct pb_map *find_libc(const struct pb_maps *maps)
{
    for (size_t i = 0; i < maps->n; i++) {
        const struct pb_map *map = &maps->at[i];
        if (map->offset == 0 && map->inode && pb_libc_named(pb_maps_base(map)) != PB_LIBC_NONE)
            return map;
    }
    return NULL;
}

static int find_code(pid_t pid, uint64_t start, uint64_t end, const unsigned char *code, size_t len,
                     uint64_t *ret)
{
    enum { CHUNK = 65536 };
    _cleanup_free_ unsigned char *buf = malloc(CHUNK);
    if (!buf)
        return -ENOMEM;
    /* Chunks overlap by the code's length, for matches across their border. */
    for (uint64_t at = start; at + len <= end; at += CHUNK - len) {
        size_t want = end - at < CHUNK ? (size_t)(end - at) : CHUNK;
        int r = pb_mem_read(pid, at, buf, want);
        if (r < 0)
            return r;
        unsigned char *hit = memmem(buf, want, code, len);
        if (hit) {
            *ret = at + (uint64_t)(hit - buf);
            return 0;
        }
        if (want < CHUNK)
            break;
    }
    return -ENOENT;
}

/* First near the function that contains it or lies beside it, then anywhere in the object. */
static int find_code_near(pid_t pid, const struct pb_elf *e, const char *hint, const unsigned char *code,
                          size_t len, uint64_t *ret)
{
    struct pb_symbol s;
    if (pb_elf_find(e, hint, &s) == 0) {
        uint64_t start = s.addr - 512 > e->text ? s.addr - 512 : e->text;
        uint64_t end = s.addr + 1024 < e->text_end ? s.addr + 1024 : e->text_end;
        if (find_code(pid, start, end, code, len, ret) == 0)
            return 0;
    }
    return find_code(pid, e->text, e->text_end, code, len, ret);
}

static int find_syscalls(struct pb_inject_target *t, const struct pb_elf *libc, struct pb_err *err)
{
    pid_t pid = t->info.pid;
    int r = find_code_near(pid, libc, "getppid", pb_arch_syscall_code, pb_arch_syscall_len, &t->syscall_code);
    if (r < 0)
        return pb_fail(err, r, "process %d: no system call instruction in its C library", pid);
    r = find_code_near(pid, libc, "sigaction", pb_arch_restorer_code, pb_arch_restorer_len, &t->restorer);
    if (r == 0)
        return 0;
    for (size_t i = 0; i < t->maps.n && r < 0; i++)
        if (strcmp(t->maps.at[i].path, "[vdso]") == 0)
            r = find_code(pid, t->maps.at[i].start, t->maps.at[i].end, pb_arch_restorer_code,
                          pb_arch_restorer_len, &t->restorer);
    if (r < 0)
        return pb_fail(err, r, "process %d: no signal restorer in its C library", pid);
    return 0;
}

static bool take_dl(struct pb_inject_target *t, const struct pb_elf *e, const char *open, const char *sym,
                    const char *close)
{
    struct pb_symbol o, s, c, error;
    if (pb_elf_find(e, open, &o) < 0 || pb_elf_find(e, sym, &s) < 0 || pb_elf_find(e, close, &c) < 0)
        return false;
    t->dlopen = o.addr;
    t->dlsym = s.addr;
    t->dlclose = c.addr;
    t->dlerror = pb_elf_find(e, "dlerror", &error) == 0 ? error.addr : 0;
    t->flags = RTLD_NOW;
    return true;
}

/* glibc has it in libc.so.6 from 2.34 on, before that in libdl; without libdl there is the private one that
 * NSS uses. */
static int find_dlopen(struct pb_inject_target *t, const struct pb_elf *libc, struct pb_err *err)
{
    pid_t pid = t->info.pid;
    struct pb_source memory = pb_source_of(pid);
    if (take_dl(t, libc, "dlopen", "dlsym", "dlclose"))
        return 0;
    const struct pb_map *map = object(&t->maps, "libdl.so.2");
    if (!map)
        map = object(&t->maps, "libdl-2.");
    if (map) {
        _cleanup_(pb_elf_done) struct pb_elf e = {0};
        if (pb_elf_open(&memory, map->start, &e) == 0 && take_dl(t, &e, "dlopen", "dlsym", "dlclose"))
            return 0;
    }
    if (take_dl(t, libc, "__libc_dlopen_mode", "__libc_dlsym", "__libc_dlclose")) {
        t->dlerror = 0;
        t->flags = RTLD_NOW | GLIBC_PRIVATE_MODE;
        return 0;
    }
    return pb_fail(err, -ENOEXEC, "process %d: its C library has no dlopen", pid);
}

static uint64_t address_of(const struct pb_elf *e, const char *name)
{
    struct pb_symbol s;
    return pb_elf_find(e, name, &s) == 0 ? s.addr : 0;
}

static bool take_pthread(struct pb_inject_target *t, const struct pb_elf *e, bool musl)
{
    uint64_t create = address_of(e, "pthread_create"), init = address_of(e, "pthread_attr_init"),
             detach = address_of(e, "pthread_attr_setdetachstate");
    if (!create || !init || !detach)
        return false;
    t->pthread_create = create;
    t->attr_init = init;
    t->attr_setdetachstate = detach;
    /* musl adds the program's static TLS to a stack's size; glibc subtracts it, and tells its size. */
    t->get_minstack = address_of(e, "__pthread_get_minstack");
    if (musl || t->get_minstack)
        t->attr_setstacksize = address_of(e, "pthread_attr_setstacksize");
    return true;
}

/* ThreadSanitizer crashes in a thread that was not started by its own pthread_create. It is a library or part
 * of the program. */
static void prefer_sanitizer(struct pb_inject_target *t)
{
    struct pb_source memory = pb_source_of(t->info.pid);
    uint64_t address;
    for (size_t i = 0; i < t->maps.n && t->pthread_create; i++) {
        const struct pb_map *map = &t->maps.at[i];
        bool candidate = map->offset == 0 && map->inode &&
                         (strstr(map->path, "tsan") || strcmp(map->path, t->info.exe) == 0);
        if (candidate && pb_elf_lookup(&memory, map->start, "__tsan_init", &address) == 0 &&
            pb_elf_lookup(&memory, map->start, "pthread_create", &address) == 0) {
            t->pthread_create = address;
            return;
        }
    }
}

/* glibc has them in libc.so.6 from 2.34 on, before that in libpthread. A program without libpthread has one
 * thread, which then loads the library (stub.h). */
static void find_pthread(struct pb_inject_target *t, const struct pb_elf *libc, bool musl)
{
    struct pb_source memory = pb_source_of(t->info.pid);
    const struct pb_map *map = object(&t->maps, "libpthread.so.0");
    if (!map)
        map = object(&t->maps, "libpthread-2.");
    if (map && !musl) {
        _cleanup_(pb_elf_done) struct pb_elf e = {0};
        if (pb_elf_open(&memory, map->start, &e) == 0 && take_pthread(t, &e, false))
            return;
    }
    /* The stand-ins in an older libc.so.6 forward to libpthread once it is loaded; pthread_create is not
     * among them. */
    take_pthread(t, libc, musl);
}

/* A signal that has no effect when the thread is not traced. If the program handles all of them, the
 * first. */
static int ignored_signal(const struct pb_procinfo *info)
{
    static const int harmless[] = {SIGURG, SIGWINCH, SIGCHLD};
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
        if (!(info->caught >> (harmless[i] - 1) & 1))
            return harmless[i];
    return harmless[0];
}

static bool is_executable(const struct pb_maps *maps, uint64_t addr)
{
    const struct pb_map *map = pb_maps_find(maps, addr);
    return map && map->prot & PROT_EXEC;
}

/* Whether the loader has finished mapping the object: it maps the file as a whole, then each part, the data
 * last. */
static bool has_data(const struct pb_maps *maps, const struct pb_map *object)
{
    for (size_t i = 0; i < maps->n; i++)
        if (maps->at[i].inode == object->inode && maps->at[i].prot & PROT_WRITE)
            return true;
    return false;
}

static int find_in_libc(struct pb_inject_target *t, const struct pb_map *map, struct pb_err *err)
{
    _cleanup_(pb_elf_done) struct pb_elf libc = {0};
    struct pb_symbol s;
    pid_t pid = t->info.pid;
    struct pb_source memory = pb_source_of(pid);

    int r = pb_elf_open(&memory, map->start, &libc);
    if (r < 0)
        return pb_fail(err, r, "process %d: cannot read the symbols of %s: %s", pid, map->path, strerror(-r));
    if (pb_elf_find(&libc, "__errno_location", &s) < 0)
        return pb_fail(err, -ENOEXEC, "process %d: %s does not look like a C library", pid, map->path);
    t->errno_location = s.addr;
    r = find_dlopen(t, &libc, err);
    if (r < 0)
        return r;
    find_pthread(t, &libc, pb_libc_named(pb_maps_base(map)) == PB_LIBC_MUSL);
    prefer_sanitizer(t);
    r = find_syscalls(t, &libc, err);
    if (r < 0)
        return r;
    if (!is_executable(&t->maps, t->syscall_code) || !is_executable(&t->maps, t->restorer))
        return pb_fail(err, -ENOEXEC, "process %d: the code of %s is not executable", pid, map->path);
    return 0;
}

static int find_all(struct pb_inject_target *t, struct pb_err *err)
{
    pid_t pid = t->info.pid;

    const struct pb_map *map = find_libc(&t->maps);
    if (!map)
        return pb_fail(err, -ENOEXEC, "process %d is a static executable: it has no loader to load with",
                       pid);
    int r = find_in_libc(t, map, err);
    if (r < 0 && !has_data(&t->maps, map))
        r = pb_fail(err, -ESTALE, "process %d is still being started", pid);
    if (r < 0)
        return r;
    r = pb_spans_find(pid, &t->maps, &t->spans);
    if (r < 0)
        return pb_fail(err, r, "process %d: cannot find its allocator: %s", pid, strerror(-r));
    t->spans.restorer = t->restorer;
    return 0;
}

int pb_inject_target_open(const struct pb_procinfo *info, const struct pb_image *image,
                          struct pb_inject_target *ret, struct pb_err *err)
{
    _cleanup_(pb_inject_target_done) struct pb_inject_target t = {.info = *info, .image = image};
    int r = pb_maps_read(info->pid, &t.maps, err);
    if (r < 0)
        return r;
    t.signal = ignored_signal(info);
    r = find_all(&t, err);
    if (r < 0)
        return r;
    *ret = t;
    t.maps = (struct pb_maps){0};
    t.spans = (struct pb_spans){0};
    return 0;
}

void pb_inject_target_done(struct pb_inject_target *t)
{
    pb_maps_done(&t->maps);
    pb_spans_done(&t->spans);
}

/* Not next to an existing mapping: the kernel puts the program's next mapping there. */
int pb_inject_target_free_place(const struct pb_inject_target *t, size_t size, uint64_t *ret)
{
    uint64_t best = 0, room = 0, random = 0;
    for (size_t i = 1; i < t->maps.n; i++) {
        uint64_t low = t->maps.at[i - 1].end, high = t->maps.at[i].start;
        if (high > low && high >> 63 == 0 && high - low > room) {
            best = low;
            room = high - low;
        }
    }
    if (room < size * 16)
        return -ENOMEM;
    if (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random))
        random = (uint64_t)getpid() << 13;
    *ret = (best + room / 4 + random % (room / 2)) & ~0xffffull; /* 64 KB aligned: the largest page */
    return 0;
}

bool pb_inject_target_has_loader(pid_t pid)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    return pb_maps_read(pid, &maps, NULL) == 0 && object(&maps, "ld-");
}

static bool is_agent(const struct pb_map *map, const char *name)
{
    const char *base = pb_maps_base(map);
    if (map->offset != 0 || !map->inode)
        return false;
    if (strncmp(base, "memfd:", 6) == 0)
        base += 6;
    return strncmp(base, name, strlen(name)) == 0;
}

/* An agent that the program loaded itself, as the extension module of the Python package. With this protocol
 * it serves as well as ours, and Python code is bound to it. */
static bool is_extension(const struct pb_map *map, pid_t pid, struct pb_source *memory)
{
    static const char name[] = "libprobing-";
    struct pb_agent_status status;
    uint64_t address;

    return map->offset == 0 && map->inode && strncmp(pb_maps_base(map), name, strlen(name)) == 0 &&
           pb_elf_lookup(memory, map->start, "pb_agent_status", &address) == 0 &&
           pb_mem_read(pid, address, &status, sizeof(status)) == 0 && status.magic == PB_STATUS_MAGIC &&
           status.version == PB_CONTROL_VERSION;
}

/* The loader makes a part read-only after relocating it: before that nothing in it can be called. */
static bool is_relocated(const struct pb_maps *maps, size_t first)
{
    bool code = false;
    for (size_t i = first; i < maps->n && maps->at[i].inode == maps->at[first].inode; i++) {
        if (maps->at[i].prot & PROT_EXEC)
            code = true;
        else if (code && maps->at[i].prot == PROT_READ)
            return true;
    }
    return false;
}

static bool is_running(pid_t pid, struct pb_source *memory, uint64_t at)
{
    struct pb_agent_status status;
    uint64_t address;
    return pb_elf_lookup(memory, at, "pb_agent_status", &address) == 0 &&
           pb_mem_read(pid, address, &status, sizeof(status)) == 0 && status.magic == PB_STATUS_MAGIC &&
           (status.state == PB_AGENT_READY || status.state == PB_AGENT_STARTING);
}

int pb_inject_target_find_agent(const struct pb_inject_target *t, const char *name, uint64_t *ret_entry)
{
    struct pb_source memory = pb_source_of(t->info.pid);
    uint64_t entry;
    int r = -ENOENT;
    for (size_t i = 0; i < t->maps.n; i++) {
        if ((!is_agent(&t->maps.at[i], name) && !is_extension(&t->maps.at[i], t->info.pid, &memory)) ||
            !is_relocated(&t->maps, i) ||
            pb_elf_lookup(&memory, t->maps.at[i].start, "pb_agent_start", &entry) < 0)
            continue;
        bool runs = is_running(t->info.pid, &memory, t->maps.at[i].start);
        if (r < 0 || runs)
            *ret_entry = entry;
        r = 0;
        if (runs)
            break;
    }
    return r;
}
