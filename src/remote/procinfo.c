/* procinfo: see procinfo.h. */
#include "remote/procinfo.h"

#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/openin.h"
#include "remote/source.h"

/* The name is in parentheses and may contain some itself: fields are counted from the last one. */
static int read_stat(struct pb_procinfo *p)
{
    char text[1024];
    int r = pb_proc_read(p->living, "stat", text, sizeof(text));
    if (r < 0)
        return r;
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close < open || close[1] != ' ')
        return -EBADMSG;
    size_t len = (size_t)(close - open - 1);
    if (len >= sizeof(p->comm))
        len = sizeof(p->comm) - 1;
    memcpy(p->comm, open + 1, len);
    p->comm[len] = '\0';

    char *field = close + 2;
    p->state = *field;
    for (int number = 3; field; number++, field = strchr(field, ' ')) {
        if (*field == ' ')
            field++;
        if (number == 4)
            p->ppid = (pid_t)atoi(field);
        if (number == 9)
            p->kernel_thread = strtoul(field, NULL, 10) & 0x00200000u; /* PF_KTHREAD */
        if (number == 22)
            p->start_time = strtoull(field, NULL, 10);
    }
    return 0;
}

/* Each thread has its own start time; the process's is that of its main thread, also when that has ended. */
static void read_start_time(struct pb_procinfo *p)
{
    struct pb_procinfo main_thread = {.pid = p->pid, .living = p->pid};
    if (p->living != p->pid && read_stat(&main_thread) == 0)
        p->start_time = main_thread.start_time;
}

static pid_t last_number(const char *text)
{
    pid_t value = 0;
    for (char *end; text && *text && *text != '\n'; text = end) {
        long number = strtol(text, &end, 10);
        if (end == text)
            break;
        value = (pid_t)number;
        end += strspn(end, " \t");
    }
    return value;
}

static int read_status(struct pb_procinfo *p)
{
    char text[8192];
    int r = pb_proc_read(p->living, "status", text, sizeof(text));
    if (r < 0)
        return r;
    const char *uid = pb_proc_field(text, "Uid"), *features = pb_proc_field(text, "x86_Thread_features");
    if (uid)
        sscanf(uid, "%u %u", &p->uid, &p->euid);
    p->gid = (gid_t)pb_proc_number(text, "Gid", 10);
    p->tracer = (pid_t)pb_proc_number(text, "TracerPid", 10);
    p->seccomp = (unsigned)pb_proc_number(text, "Seccomp", 10);
    p->threads = (unsigned)pb_proc_number(text, "Threads", 10);
    p->caught = pb_proc_number(text, "SigCgt", 16);
    p->ns_pid = last_number(pb_proc_field(text, "NStgid"));
    if (!p->ns_pid)
        p->ns_pid = p->pid;
    p->shadow_stack = features && strncmp(features, "shstk", 5) == 0;
    return 0;
}

static uint64_t namespace_inode(pid_t pid, const char *name)
{
    char link[64];
    int r = pb_proc_link(pid, name, link, sizeof(link));
    const char *open = r < 0 ? NULL : strchr(link, '[');
    return open ? strtoull(open + 1, NULL, 10) : 0;
}

/* The directory of a process that is not dumpable belongs to root, not to its user. */
static bool is_dumpable(const struct pb_procinfo *p)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d/mem", p->living);
    return stat(path, &st) < 0 || st.st_uid == p->euid;
}

static void read_exe(struct pb_procinfo *p)
{
    unsigned char head[20];
    if (pb_proc_link(p->living, "exe", p->exe, sizeof(p->exe)) < 0)
        p->exe[0] = '\0';
    _cleanup_close_ int fd = pb_open_program(p->living);
    if (fd < 0 || read(fd, head, sizeof(head)) != sizeof(head) || memcmp(head, ELFMAG, SELFMAG) != 0)
        return;
    p->elf_class = head[EI_CLASS];
    p->elf_machine = head[18] | head[19] << 8;
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Names may be followed by " (deleted)". musl's file is just libc.so where the loader's name is a link to
 * it. */
enum pb_libc pb_libc_named(const char *base)
{
    if (starts(base, "ld-musl-") || (starts(base, "libc.musl-") && strstr(base, ".so")) ||
        strcmp(base, "libc.so") == 0 || starts(base, "libc.so "))
        return PB_LIBC_MUSL;
    if (starts(base, "libc.so.6") || (starts(base, "libc-2.") && strstr(base, ".so")))
        return PB_LIBC_GLIBC;
    return PB_LIBC_NONE;
}

static enum pb_libc libc_of(const struct pb_maps *maps)
{
    for (size_t i = 0; i < maps->n; i++) {
        enum pb_libc libc = pb_libc_named(pb_maps_base(&maps->at[i]));
        if (libc != PB_LIBC_NONE)
            return libc;
    }
    return PB_LIBC_NONE;
}

/* "python3.11", "libpython3.7m.so.1.0": 0x0307. 0: no such name. */
static int version_in(const char *name)
{
    const char *at = strstr(name, "python");
    char *end;
    if (!at || !isdigit((unsigned char)at[6]))
        return 0;
    long major = strtol(at + 6, &end, 10);
    if (*end != '.' || !isdigit((unsigned char)end[1]))
        return 0;
    long minor = strtol(end + 1, NULL, 10);
    return major > 0 && major < 128 && minor < 256 ? (int)(major << 8 | minor) : 0;
}

/* Uses the symbols, which are more reliable than a file name. True: this object is an interpreter. */
static bool read_python_symbols(struct pb_procinfo *p, const struct pb_map *map)
{
    struct pb_source memory = pb_source_of(p->living);
    uint64_t addr, version;
    if (pb_elf_lookup(&memory, map->start, "Py_IsInitialized", &addr) < 0)
        return false;
    if (pb_elf_lookup(&memory, map->start, "Py_Version", &addr) == 0 &&
        pb_source_read(&memory, addr, &version, sizeof(version)) == 0 && version >> 24 == 3)
        p->python_version = (int)(version >> 16 & 0xffff);
    return true;
}

static void find_python(struct pb_procinfo *p, const struct pb_maps *maps)
{
    const struct pb_map *program = NULL;
    for (size_t i = 0; i < maps->n; i++) {
        const struct pb_map *map = &maps->at[i];
        const char *base = pb_maps_base(map);
        if (map->offset != 0 || !map->inode)
            continue;
        if (!program && strcmp(map->path, p->exe) == 0)
            program = map;
        if (!starts(base, "libpython3") && !starts(base, "libpython2"))
            continue;
        p->python_version = version_in(base);
        p->python = read_python_symbols(p, map);
        if (p->python)
            return;
    }
    if (!program)
        return;
    p->python_version = version_in(pb_maps_base(program));
    p->python = read_python_symbols(p, program);
    if (!p->python)
        p->python_version = 0;
}

int pb_procinfo_read(pid_t pid, struct pb_procinfo *ret, struct pb_err *err)
{
    struct pb_procinfo p = {.pid = pid};
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};

    p.living = pid > 0 ? pb_proc_living(pid) : pid;
    if (pid <= 0)
        return pb_fail(err, -ESRCH, "%d is not a process id", pid);
    int r = read_stat(&p);
    if (r == 0)
        r = read_status(&p);
    if (r < 0)
        return pb_fail(err, r, r == -ESRCH ? "there is no process %d" : "cannot read /proc/%d/stat", pid);
    read_start_time(&p);
    p.pid_ns = namespace_inode(p.living, "ns/pid");
    p.mnt_ns = namespace_inode(p.living, "ns/mnt");
    p.dumpable = is_dumpable(&p);
    if (!p.kernel_thread && p.state != 'Z' && p.state != 'X') {
        read_exe(&p);
        if (pb_maps_read(pid, &maps, NULL) == 0) {
            p.mappings = (unsigned)maps.n;
            p.libc = libc_of(&maps);
            find_python(&p, &maps);
        }
    }
    *ret = p;
    return 0;
}

const char *pb_libc_name(enum pb_libc libc)
{
    switch (libc) {
    case PB_LIBC_NONE:
        return "static";
    case PB_LIBC_GLIBC:
        return "glibc";
    case PB_LIBC_MUSL:
        return "musl";
    case PB_LIBC_UNKNOWN:
        break;
    }
    return "unknown";
}

int pb_procinfo_identify(pid_t pid, struct pb_procinfo *ret)
{
    char stat_text[1024], status[4096], path[64];
    struct pb_procinfo p = {.pid = pid};
    struct stat st;

    int r = pb_proc_read(pid, "stat", stat_text, sizeof(stat_text));
    if (r >= 0)
        r = pb_proc_read(pid, "status", status, sizeof(status));
    if (r < 0)
        return r;
    const char *at = strrchr(stat_text, ')'), *pids = pb_proc_field(status, "NSpid"),
               *uids = pb_proc_field(status, "Uid");
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return -EBADMSG;
    p.start_time = strtoull(at, NULL, 10);
    p.ns_pid = pid;
    for (char *end; pids && *pids && *pids != '\n'; pids = end) {
        long number = strtol(pids, &end, 10);
        if (end == pids)
            break;
        p.ns_pid = (pid_t)number;
        end += strspn(end, " \t");
    }
    if (!uids || sscanf(uids, "%*u %u", &p.euid) != 1)
        return -EBADMSG;
    p.living = pb_proc_living(pid);
    snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)p.living);
    if (stat(path, &st) < 0)
        return -errno;
    p.pid_ns = st.st_ino;
    *ret = p;
    return 0;
}
