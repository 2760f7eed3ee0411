/* sandbox: see sandbox.h. */
#include "engine/worker/sandbox.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "this architecture has no sandbox yet"
#endif

int pb_sandbox_bound_memory(uint64_t bytes, struct pb_err *err)
{
    struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes}, none = {0};

    if (setrlimit(RLIMIT_AS, &limit) < 0 || setrlimit(RLIMIT_CORE, &none) < 0)
        return pb_fail(err, -errno, "memory cannot be bounded: %s", strerror(errno));
    return 0;
}

/* Kernels and C libraries that we build on may lack Landlock's header. */
struct ruleset {
    uint64_t fs, net, scoped;
};
struct __attribute__((packed)) path_rule {
    uint64_t allowed;
    int32_t fd;
};
#define LANDLOCK_CREATE   444
#define LANDLOCK_ADD      445
#define LANDLOCK_RESTRICT 446
#define LANDLOCK_VERSION  1u
#define LANDLOCK_BENEATH  1u
#define LANDLOCK_READ     (1u << 2) /* for files; folders need not be listed */

static int allow_reading(int rules, const char *folder, struct pb_err *err)
{
    struct path_rule rule = {.allowed = LANDLOCK_READ, .fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC)};

    int r = rule.fd < 0 || syscall(LANDLOCK_ADD, rules, LANDLOCK_BENEATH, &rule, 0) < 0 ? -errno : 0;
    if (rule.fd >= 0)
        close(rule.fd);
    return r < 0 ? pb_fail(err, r, "the archive %s cannot be opened: %s", folder, strerror(-r)) : 0;
}

static int enter_landlock(const char *archive, struct pb_err *err)
{
    /* Rights by version of the interface: at first 13 for files, then refer, truncate, TCP, ioctl, scopes. */
    long version = syscall(LANDLOCK_CREATE, NULL, 0, LANDLOCK_VERSION);
    struct ruleset rules = {.fs = (1u << 13) - 1};
    size_t size = 8;

    if (version <= 0 && archive)
        return pb_fail(err, -ENOSYS,
                       "this kernel has no Landlock (5.13 has), so the archive %s cannot be opened safely "
                       "(--archive none leaves it out)",
                       archive);
    if (version <= 0)
        return 0;
    rules.fs |= version >= 2 ? 1u << 13 : 0;
    rules.fs |= version >= 3 ? 1u << 14 : 0;
    rules.fs |= version >= 5 ? 1u << 15 : 0;
    if (version >= 4) {
        rules.net = 3;
        size = 16;
    }
    if (version >= 6) {
        rules.scoped = 3;
        size = 24;
    }
    int fd = (int)syscall(LANDLOCK_CREATE, &rules, size, 0);
    /* Without an archive the seccomp filter allows no open at all: Landlock is a second barrier, and where a
     * container refuses it the first one holds. */
    if (fd < 0)
        return archive ? pb_fail(err, -errno,
                                 "Landlock refused its rules, so the archive cannot be opened safely: %s",
                                 strerror(errno))
                       : 0;
    if (archive && allow_reading(fd, archive, err) < 0) {
        close(fd);
        return -EACCES;
    }
    long r = syscall(LANDLOCK_RESTRICT, fd, 0);
    int saved = errno;
    close(fd);
    return r < 0 && archive ? pb_fail(err, -saved, "Landlock could not be entered: %s", strerror(saved)) : 0;
}

/* System calls of computing threads, and those on existing descriptors. All others fail with EPERM. */
static const int allowed[] = {
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_lseek,
    SYS_close,
    SYS_fstat,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_futex,
    SYS_sched_yield,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getpid,
    SYS_gettid,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_getrandom,
    SYS_recvmsg,
    SYS_sendmsg,
    SYS_recvfrom,
    SYS_sendto,
    SYS_accept4,
    SYS_shutdown,
    SYS_ppoll,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_getcpu,
    SYS_membarrier,
    SYS_sched_getaffinity,
    SYS_set_tid_address,
    SYS_restart_syscall,
    SYS_dup,
    SYS_times,
    SYS_msync,
    SYS_mincore,
    SYS_getsockopt,
    SYS_getcwd,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
#ifdef SYS_poll
    SYS_poll,
#endif
};

/* Additional calls of a process that writes to files it was given. */
static const int allowed_to_writers[] = {SYS_pwrite64, SYS_ftruncate, SYS_fsync, SYS_fdatasync};

#define NR   offsetof(struct seccomp_data, nr)
#define ARG0 offsetof(struct seccomp_data, args[0])
#define ARG1 offsetof(struct seccomp_data, args[1])
#define ARG2 offsetof(struct seccomp_data, args[2])

#define ARG2_HIGH (ARG2 + 4)

#define LOAD(at)             BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (at))
#define RETURN(what)         BPF_STMT(BPF_RET | BPF_K, (what))
#define IF_EQUAL(k, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (k), (yes), (no))
#define IF_BITS(k, yes, no)  BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (k), (yes), (no))
#define DENY(e)              RETURN(SECCOMP_RET_ERRNO | (e))
#define ALLOW                RETURN(SECCOMP_RET_ALLOW)

enum { MAX_FILTER = 256 };

struct program {
    struct sock_filter at[MAX_FILTER];
    unsigned short n;
};

static void add_code(struct program *p, const struct sock_filter *code, size_t n)
{
    for (size_t i = 0; i < n && p->n < MAX_FILTER; i++)
        p->at[p->n++] = code[i];
}

static void allow_calls(struct program *p, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct sock_filter one[] = {IF_EQUAL((uint32_t)calls[i], 0, 1), ALLOW};
        add_code(p, one, 2);
    }
}

/* The filter: another architecture is killed (its call numbers differ), memory cannot become executable,
 * threads can be created but no processes. */
static void write_filter(struct program *p, bool archive, bool writes)
{
    const struct sock_filter head[] = {
        LOAD(offsetof(struct seccomp_data, arch)),
        IF_EQUAL(ARCH, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(NR),
#ifdef __x86_64__
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
        RETURN(SECCOMP_RET_KILL_PROCESS),
#endif
    };
    const struct sock_filter checked[] = {
        IF_EQUAL(SYS_mmap, 0, 4),
        LOAD(ARG2),
        IF_BITS(PROT_EXEC, 0, 1),
        DENY(EPERM),
        ALLOW,
        IF_EQUAL(SYS_mprotect, 0, 4),
        LOAD(ARG2),
        IF_BITS(PROT_EXEC, 0, 1),
        DENY(EPERM),
        ALLOW,
        IF_EQUAL(SYS_clone, 0, 4),
        LOAD(ARG0),
        IF_BITS(CLONE_THREAD, 1, 0),
        DENY(EPERM),
        ALLOW,
        /* glibc falls back to clone, whose flags can be checked. */
        IF_EQUAL(SYS_clone3, 0, 1),
        DENY(ENOSYS),
        /* Signals to ourselves only: tgkill with our own pid. */
        IF_EQUAL(SYS_tgkill, 0, 4),
        LOAD(ARG0),
        IF_EQUAL((uint32_t)getpid(), 1, 0),
        DENY(EPERM),
        ALLOW,
        /* Our own limits may be read, those of others may not. */
        IF_EQUAL(SYS_prlimit64, 0, 10),
        LOAD(ARG0),
        IF_EQUAL(0, 1, 0),
        DENY(EPERM),
        LOAD(ARG2),
        IF_EQUAL(0, 1, 0),
        DENY(EPERM),
        LOAD(ARG2_HIGH), /* an address has 64 bits */
        IF_EQUAL(0, 1, 0),
        DENY(EPERM),
        ALLOW,
    };
    /* Read-only; which files is decided by Landlock. */
    const struct sock_filter reading[] = {
        IF_EQUAL(SYS_openat, 0, 4),
        LOAD(ARG2),
        IF_BITS(O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_PATH, 0, 1),
        DENY(EPERM),
        ALLOW,
    };
    /* DuckDB locks the files it writes. */
    const struct sock_filter locking[] = {
        IF_EQUAL(SYS_fcntl, 0, 4), LOAD(ARG1), IF_EQUAL(F_SETLK, 1, 0), DENY(EPERM), ALLOW,
    };

    add_code(p, head, sizeof(head) / sizeof(head[0]));
    add_code(p, checked, sizeof(checked) / sizeof(checked[0]));
    if (archive)
        add_code(p, reading, sizeof(reading) / sizeof(reading[0]));
    if (writes) {
        add_code(p, locking, sizeof(locking) / sizeof(locking[0]));
        allow_calls(p, allowed_to_writers, sizeof(allowed_to_writers) / sizeof(allowed_to_writers[0]));
    }
    allow_calls(p, allowed, sizeof(allowed) / sizeof(allowed[0]));
    const struct sock_filter tail[] = {DENY(EPERM)};
    add_code(p, tail, 1);
}

/* glibc's stat uses newfstatat, whose path no filter can check: it is not allowed. In this program, and so in
 * the arena's reader, stat is this one. */
struct stat;
int fstat(int fd, struct stat *st);
int fstat(int fd, struct stat *st)
{
    return (int)syscall(SYS_fstat, fd, st);
}

static int enter_sandbox(const char *archive, bool writes, struct pb_err *err)
{
    struct program p = {0};

    write_filter(&p, archive, writes);
    if (p.n == MAX_FILTER)
        return pb_fail(err, -E2BIG, "the sandbox's filter is too long");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return pb_fail(err, -errno, "no_new_privs: %s", strerror(errno));
    int r = enter_landlock(archive, err);
    if (r < 0)
        return r;
    struct sock_fprog filter = {.len = p.n, .filter = p.at};
    /* TSYNC: applies to the threads that DuckDB has started already. */
    long thread = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
    if (thread < 0)
        return pb_fail(err, -errno, "the seccomp filter was refused: %s", strerror(errno));
    /* A positive number is an error: the thread that could not be synchronized; then none was. */
    return thread > 0 ? pb_fail(err, -EBUSY, "the seccomp filter was refused by thread %ld", thread) : 0;
}

int pb_sandbox_enter(const char *archive, struct pb_err *err)
{
    return enter_sandbox(archive, false, err);
}

int pb_sandbox_enter_writer(struct pb_err *err)
{
    int r = enter_sandbox(NULL, true, err);
    if (r == 0)
        pb_sandbox_lend_files();
    return r;
}
