/* doctor: see doctor.h. One function per row; each writes what it found and the remedy. */
#include "inject/doctor.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "inject/place.h"
#include "inject/remote_debug.h"
#include "inject/seccomp.h"
#include "remote/procinfo.h"

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#endif

#define CAP_BIT_SYS_PTRACE 19

enum {
    MAPPINGS_OURS = 64, /* 31 after inject, and some for each eval */
    MAPPINGS_LEFT = 256,
};

struct doctor_rows {
    struct pb_check *at;
    size_t n, max;
    struct pb_check spare; /* written where the caller's array is full */
};

__attribute__((format(printf, 5, 6))) static struct pb_check *
row(struct doctor_rows *rows, const char *name, enum pb_check_state state, int error, const char *found, ...)
{
    struct pb_check *c = rows->n < rows->max ? &rows->at[rows->n++] : &rows->spare;
    va_list ap;
    *c = (struct pb_check){.name = name, .state = state, .error = error};
    va_start(ap, found);
    vsnprintf(c->found, sizeof(c->found), found, ap);
    va_end(ap);
    return c;
}

__attribute__((format(printf, 2, 3))) static void remedy(struct pb_check *c, const char *text, ...)
{
    va_list ap;
    va_start(ap, text);
    vsnprintf(c->remedy, sizeof(c->remedy), text, ap);
    va_end(ap);
}

static bool has_cap_ptrace(void)
{
    char text[8192];
    return pb_proc_read(0, "status", text, sizeof(text)) >= 0 &&
           (pb_proc_number(text, "CapEff", 16) >> CAP_BIT_SYS_PTRACE & 1);
}

static int sysctl_number(const char *path, int otherwise)
{
    FILE *f = fopen(path, "re");
    int value = otherwise;
    if (!f)
        return otherwise;
    if (fscanf(f, "%d", &value) != 1)
        value = otherwise;
    fclose(f);
    return value;
}

static void user_name(uid_t uid, char *buf, size_t size)
{
    struct passwd *pw = getpwuid(uid);
    if (pw)
        snprintf(buf, size, "%s (uid %u)", pw->pw_name, uid);
    else
        snprintf(buf, size, "uid %u", uid);
}

/* False: the other checks make no sense. */
static bool check_process(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    struct pb_check *c;
    if (p->kernel_thread) {
        c = row(rows, "process", PB_CHECK_FAIL, -ENOEXEC, "process %d (%s) is a kernel thread", p->pid,
                p->comm);
        remedy(c, "only processes with memory of their own can be probed");
        return false;
    }
    if (p->state == 'Z' || p->state == 'X') {
        c = row(rows, "process", PB_CHECK_FAIL, -ESRCH, "process %d (%s) has ended and is a zombie", p->pid,
                p->comm);
        remedy(c, "its parent, process %d, has not reaped it yet", p->ppid);
        return false;
    }
    if (p->state == 'T') {
        c = row(rows, "process", PB_CHECK_WARN, 0, "process %d (%s) is stopped", p->pid, p->comm);
        remedy(c, "the agent is loaded but runs only after kill -CONT %d", p->pid);
        return true;
    }
    row(rows, "process", PB_CHECK_OK, 0, "process %d (%s), %u thread%s, state %c", p->pid, p->comm,
        p->threads, p->threads == 1 ? "" : "s", p->state);
    return true;
}

static void check_owner(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    char theirs[64], ours[64];
    if (geteuid() == 0 || (geteuid() == p->euid && getuid() == p->uid) || has_cap_ptrace()) {
        row(rows, "owner", PB_CHECK_OK, 0, "it belongs to uid %u", p->euid);
        return;
    }
    user_name(p->euid, theirs, sizeof(theirs));
    user_name(geteuid(), ours, sizeof(ours));
    struct pb_check *c = row(rows, "owner", PB_CHECK_FAIL, -EPERM, "process %d belongs to %s, you are %s",
                             p->pid, theirs, ours);
    remedy(c, "run as its owner or as root");
}

static void check_machine(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    struct pb_check *c;
    if (p->elf_class == ELFCLASS32) {
        c = row(rows, "machine", PB_CHECK_FAIL, -ENOEXEC, "process %d is a 32-bit process", p->pid);
        remedy(c, "only 64-bit processes can be probed: run its 64-bit build");
    } else if (p->elf_class && p->elf_machine != OUR_MACHINE) {
        c = row(rows, "machine", PB_CHECK_FAIL, -ENOEXEC,
                "process %d is of another machine (ELF machine %d), this probing of %d", p->pid,
                p->elf_machine, OUR_MACHINE);
        remedy(c, "use the probing built for it");
    } else if (p->shadow_stack) {
        c = row(rows, "machine", PB_CHECK_FAIL, -ENOTSUP, "process %d runs with shadow stacks", p->pid);
        remedy(c, "start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off");
    } else {
        row(rows, "machine", PB_CHECK_OK, 0, p->elf_class ? "64-bit, the same as ours" : "unknown");
    }
}

static void check_tracer(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    char name[32] = "?";
    if (!p->tracer) {
        row(rows, "tracer", PB_CHECK_OK, 0, "not traced");
        return;
    }
    if (pb_proc_read(p->tracer, "comm", name, sizeof(name)) > 0)
        name[strcspn(name, "\n")] = '\0';
    struct pb_check *c = row(rows, "tracer", PB_CHECK_FAIL, -EBUSY, "process %d is traced by %s (pid %d)",
                             p->pid, name, p->tracer);
    remedy(c, "end that debugger or tracer, or let it detach");
}

/* Scope 1 lets a process trace its descendants only. */
static bool is_descendant(pid_t pid)
{
    for (int depth = 0; pid > 1 && depth < 64; depth++) {
        char text[1024];
        if (pid == getpid())
            return true;
        if (pb_proc_read(pid, "stat", text, sizeof(text)) < 0)
            return false;
        const char *close = strrchr(text, ')');
        pid = close ? (pid_t)atoi(close + 4) : 0;
    }
    return false;
}

static bool check_yama(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    int scope = sysctl_number("/proc/sys/kernel/yama/ptrace_scope", 0);
    struct pb_check *c;
    if (scope <= 0 || (scope < 3 && has_cap_ptrace()) || (scope == 1 && is_descendant(p->pid)))
        return true;
    c = row(rows, "ptrace", PB_CHECK_FAIL, -EPERM,
            "Yama forbids to trace process %d: kernel.yama.ptrace_scope is %d", p->pid, scope);
    if (scope >= 3)
        remedy(c, "only a reboot lowers scope 3");
    else
        remedy(c, "run as root, or: sysctl kernel.yama.ptrace_scope=0");
    return false;
}

/* Tests ptrace on no process: pid 0 does not exist, so an allowed ptrace returns ESRCH. */
static bool check_our_seccomp(struct doctor_rows *rows)
{
    if (ptrace(PTRACE_SEIZE, 0, 0, 0) == 0 || errno == ESRCH)
        return true;
    struct pb_check *c = row(rows, "ptrace", PB_CHECK_FAIL, -EPERM,
                             "a seccomp filter forbids ptrace to this program: %s", strerror(errno));
    remedy(c, "in Docker: --cap-add=SYS_PTRACE or --security-opt seccomp=unconfined; in Kubernetes: add "
              "SYS_PTRACE to the container's capabilities");
    return false;
}

/* Opening the memory needs the same right as tracing. (Newer kernels show the mappings for less.) */
static int may_trace(pid_t pid)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : 0;
}

static void check_ptrace(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    if (!check_our_seccomp(rows) || !check_yama(rows, p))
        return;
    struct pb_check *c;
    int r = may_trace(p->pid);
    if (r == 0) {
        row(rows, "ptrace", PB_CHECK_OK, 0, "allowed");
        return;
    }
    if (!p->dumpable && !has_cap_ptrace()) {
        c = row(rows, "ptrace", PB_CHECK_FAIL, -EPERM, "process %d is marked as not dumpable", p->pid);
        remedy(c, "it changed its user or has capabilities: run as root, or with CAP_SYS_PTRACE");
        return;
    }
    c = row(rows, "ptrace", PB_CHECK_FAIL, r, "the memory of process %d may not be read: %s", p->pid,
            strerror(-r));
    remedy(c, has_cap_ptrace() ? "it is in a user namespace above ours, or a security module forbids it"
                               : "run as root, or with CAP_SYS_PTRACE");
}

static void check_libc(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    if (p->libc == PB_LIBC_NONE) {
        struct pb_check *c =
            row(rows, "libc", PB_CHECK_FAIL, -ENOEXEC,
                "process %d is a static executable: it has no loader to load the agent with", p->pid);
        remedy(c, "link it dynamically");
        return;
    }
    row(rows, "libc", p->libc == PB_LIBC_UNKNOWN ? PB_CHECK_WARN : PB_CHECK_OK, 0, "%s",
        pb_libc_name(p->libc));
}

static void check_filters(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    char names[100];
    struct pb_check *c;
    int n = pb_seccomp_check(p, PB_SECCOMP_AGENT, names, sizeof(names));
    if (n == 0) {
        row(rows, "seccomp", PB_CHECK_OK, 0, "a filter that kills for none of our system calls");
    } else if (n > 0) {
        c = row(rows, "seccomp", PB_CHECK_FAIL, -EPERM, "the seccomp filter of process %d kills for %s",
                p->pid, names);
        remedy(c, "allow %s in the filter, or let it return an error", n == 1 ? "it" : "these calls");
    } else if (n == -EAGAIN) {
        row(rows, "seccomp", PB_CHECK_WARN, 0,
            "a filter that is read when a thread can be stopped: all are in waits that a stop would change");
    } else if (getenv(PB_ASSUME_SECCOMP_OK)) {
        row(rows, "seccomp", PB_CHECK_WARN, 0,
            "a filter that was not read: assumed to kill for nothing of ours");
    } else {
        c = row(rows, "seccomp", PB_CHECK_FAIL, -EPERM,
                "process %d runs behind a seccomp filter that may kill it for a system call of ours, and "
                "that only "
                "root can read",
                p->pid);
        remedy(c, "run as root; or with --assume-seccomp-ok if the filter kills for nothing");
    }
}

int pb_inject_check_use(pid_t pid, enum pb_seccomp_use use, struct pb_err *err)
{
    static const struct {
        const char *needs, *may_kill, *instead;
    } texts[PB_SECCOMP_USES] = {
        [PB_SECCOMP_AGENT] = {"an agent", "what an agent does", ""},
        [PB_SECCOMP_LISTEN] = {"listening", "listening at a port", ", or use repl: it takes no port"},
        [PB_SECCOMP_CATCH] = {"catch", "what catch does when it fails", ""},
    };
    struct pb_procinfo p;
    char names[100];
    int r = pb_procinfo_read(pid, &p, err);
    if (r < 0 || p.seccomp != 2)
        return r;
    int n = pb_seccomp_check(&p, use, names, sizeof(names));
    if (n > 0)
        return pb_fail(
            err, -EPERM,
            "the seccomp filter of process %d kills for %s, which only %s needs (allow %s in the filter%s)",
            pid, names, texts[use].needs, n == 1 ? "it" : "these calls", texts[use].instead);
    if (n == 0 || getenv(PB_ASSUME_SECCOMP_OK))
        return 0;
    if (n == -EAGAIN)
        return pb_fail(err, n, "the seccomp filter of process %d could not be read just now: try again", pid);
    return pb_fail(err, -EPERM,
                   "process %d runs behind a seccomp filter that may kill it for %s, and that only root can "
                   "read (run as root%s; with " PB_ASSUME_SECCOMP_OK "=1 the filter is taken for harmless)",
                   pid, texts[use].may_kill, texts[use].instead);
}

static void check_seccomp(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    struct pb_check *c;
    if (p->seccomp == 1) {
        c = row(rows, "seccomp", PB_CHECK_FAIL, -EPERM, "process %d runs in strict seccomp mode", p->pid);
        remedy(c, "it may only read, write and exit: nothing lifts that");
    } else if (p->seccomp == 2) {
        check_filters(rows, p);
    } else {
        row(rows, "seccomp", PB_CHECK_OK, 0, "no filter");
    }
}

/* vm.memfd_noexec belongs to a pid namespace: ours is the target's only if both share one. */
static void check_place(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    char why[sizeof(((struct pb_check *)0)->found)];
    const char *folder = pb_place_where(p->pid, p->euid, why, sizeof(why) - 32);
    bool proc = pb_place_has_proc(p->pid), memfd = sysctl_number("/proc/sys/vm/memfd_noexec", 0) < 2;
    if (proc && memfd && p->seccomp != 2) {
        row(rows, "place", PB_CHECK_OK, 0, "memory only (memfd)%s%s", *folder ? ", or " : "", folder);
    } else if (*folder) {
        row(rows, "place", PB_CHECK_OK, 0, "a file in %s, removed once loaded", folder);
    } else {
        bool last_hope = proc && memfd;
        struct pb_check *c =
            row(rows, "place", last_hope ? PB_CHECK_WARN : PB_CHECK_FAIL, last_hope ? 0 : -EROFS,
                "no place for the agent in process %d: %.120s", (int)p->pid, why);
        remedy(c, "mount a writable directory without noexec (a tmpfs on /tmp), or allow memfd_create "
                  "(vm.memfd_noexec below 2, /proc mounted)");
    }
}

/* A process without free mappings cannot allocate any more: ours must not use up the last ones. */
static void check_mappings(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    unsigned most = (unsigned)sysctl_number("/proc/sys/vm/max_map_count", 65530);
    if (p->mappings + MAPPINGS_OURS + MAPPINGS_LEFT <= most) {
        row(rows, "mappings", PB_CHECK_OK, 0, "%u of at most %u", p->mappings, most);
        return;
    }
    struct pb_check *c =
        row(rows, "mappings", PB_CHECK_FAIL, -ENOMEM,
            "process %d has %u mappings of at most %u; the agent takes up to %d, and %d must be left", p->pid,
            p->mappings, most, MAPPINGS_OURS, MAPPINGS_LEFT);
    remedy(c, "raise vm.max_map_count with sysctl");
}

static void check_python(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    if (!p->python)
        row(rows, "python", PB_CHECK_OK, 0, "not a Python process: native probes only");
    else if (!p->python_version)
        row(rows, "python", PB_CHECK_OK, 0, "Python, version unknown");
    else
        row(rows, "python", PB_CHECK_OK, 0, "Python %d.%d%s", p->python_version >> 8,
            p->python_version & 0xff,
            p->python_version >= 0x030e && pb_remote_debug_offered(p->pid) ? ", remote debugging on" : "");
}

static bool differs(pid_t pid, const char *name)
{
    char theirs[64], ours[64];
    return pb_proc_link(pid, name, theirs, sizeof(theirs)) > 0 &&
           pb_proc_link(0, name, ours, sizeof(ours)) > 0 && strcmp(theirs, ours) != 0;
}

static void check_namespaces(struct doctor_rows *rows, const struct pb_procinfo *p)
{
    bool pid = differs(p->pid, "ns/pid"), mnt = differs(p->pid, "ns/mnt");
    if (pid || mnt)
        row(rows, "namespaces", PB_CHECK_OK, 0, "another %s; it is process %d there",
            pid && mnt ? "pid and mount namespace"
            : pid      ? "pid namespace"
                       : "mount namespace",
            p->ns_pid);
    else
        row(rows, "namespaces", PB_CHECK_OK, 0, "the same as ours");
}

int pb_inject_check_info(const struct pb_procinfo *p, struct pb_check *ret, size_t max)
{
    struct doctor_rows rows = {.at = ret, .max = max};
    if (!check_process(&rows, p))
        return (int)rows.n;
    check_owner(&rows, p);
    check_machine(&rows, p);
    check_tracer(&rows, p);
    check_ptrace(&rows, p);
    check_libc(&rows, p);
    check_seccomp(&rows, p);
    check_place(&rows, p);
    check_mappings(&rows, p);
    check_python(&rows, p);
    check_namespaces(&rows, p);
    return (int)rows.n;
}

int pb_inject_check(pid_t pid, struct pb_check *ret, size_t max)
{
    struct doctor_rows rows = {.at = ret, .max = max};
    struct pb_procinfo p;
    struct pb_err err = {""};
    int r = pb_procinfo_read(pid, &p, &err);
    if (r == 0)
        return pb_inject_check_info(&p, ret, max);
    row(&rows, "process", PB_CHECK_FAIL, r, "%.150s", pb_err_text(&err, r));
    return (int)rows.n;
}
