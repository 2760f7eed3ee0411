/* escape: a deliberate security hole, in the test build of the worker only.
 *
 * pb_escape('open') makes the system calls that an attacker inside this process would make, and returns the
 * kernel's answer: the errno by name, or "done". The product does not contain it. */
#ifdef PROBING_TEST_ESCAPE
#include "engine/worker/escape.h"

#include "base/program.h"
#include "engine/worker/duck.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char page[4096] __attribute__((aligned(4096)));

static long raise_limit(void)
{
    struct rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
    return syscall(SYS_prlimit64, 0, RLIMIT_AS, &more, NULL);
}

/* Sets a limit to its present value, which needs no privilege; the address has zero in its lower 32 bits, so
 * that a filter that checks only those would see NULL. */
static long set_limit_unseen(void)
{
    struct rlimit *more = mmap((void *)(3ul << 32), 4096, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (more == MAP_FAILED)
        return -1;
    long r = syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, more);
    if (r == 0)
        r = syscall(SYS_prlimit64, 0, RLIMIT_AS, more, NULL);
    int saved = errno;
    munmap(more, 4096);
    errno = saved;
    return r;
}

static long read_other(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {page, 1};
    return syscall(SYS_process_vm_readv, getppid(), &here, 1, &there, 1, 0);
}

static long attempt_call(const char *what)
{
    static char *const arguments[] = {"true", NULL};
    struct stat st;
    char text[64];

#define TRY(name, call)                                                                                      \
    if (strcmp(what, name) == 0)                                                                             \
        return (long)(call);
    TRY("open", syscall(SYS_openat, AT_FDCWD, "/etc/passwd", O_RDONLY))
    TRY("openat2", syscall(437, AT_FDCWD, "/etc/passwd", text, 24))
    TRY("proc", syscall(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDWR))
    TRY("create", syscall(SYS_openat, AT_FDCWD, "/tmp/probing-escape", O_RDWR | O_CREAT, 0600))
    TRY("unlink", syscall(SYS_unlinkat, AT_FDCWD, "/tmp/probing-escape", 0))
    TRY("mkdir", syscall(SYS_mkdirat, AT_FDCWD, "/tmp/probing-escape", 0700))
    TRY("rename", syscall(SYS_renameat2, AT_FDCWD, "/tmp/a", AT_FDCWD, "/tmp/b", 0))
    TRY("stat", syscall(SYS_newfstatat, AT_FDCWD, "/etc/passwd", &st, 0))
    TRY("readlink", syscall(SYS_readlinkat, AT_FDCWD, PB_PROGRAM_SELF, text, sizeof(text)))
    TRY("chdir", syscall(SYS_chdir, "/tmp"))
    TRY("chmod", syscall(SYS_fchmodat, AT_FDCWD, "/tmp", 0777))
    TRY("socket", syscall(SYS_socket, AF_INET, SOCK_STREAM, 0))
    TRY("unix", syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0))
    TRY("connect", syscall(SYS_connect, 3, text, 16))
    TRY("exec", syscall(SYS_execve, "/bin/true", arguments, NULL))
    TRY("execveat", syscall(SYS_execveat, AT_FDCWD, "/bin/true", arguments, NULL, 0))
    TRY("fork", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
    TRY("clone3", syscall(SYS_clone3, text, 64))
    TRY("ptrace", syscall(SYS_ptrace, 16 /* PTRACE_ATTACH */, getppid(), 0, 0))
    TRY("vm_readv", read_other())
    TRY("vm_writev", syscall(SYS_process_vm_writev, getppid(), NULL, 0, NULL, 0, 0))
    TRY("kill", syscall(SYS_kill, getppid(), 0))
    TRY("tgkill", syscall(SYS_tgkill, 1, 1, 0))
    TRY("pidfd_open", syscall(SYS_pidfd_open, 1, 0))
    TRY("pidfd_getfd", syscall(438, 3, 0, 0))
    TRY("mmap_exec", mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))
    TRY("mprotect_exec", mprotect(page, sizeof(page), PROT_READ | PROT_EXEC))
    TRY("memfd", syscall(SYS_memfd_create, "x", 0))
    TRY("io_uring", syscall(425, 8, text))
    TRY("bpf", syscall(SYS_bpf, 0, text, 16))
    TRY("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, NULL))
    TRY("unshare", syscall(SYS_unshare, CLONE_NEWUSER))
    TRY("setns", syscall(SYS_setns, 3, 0))
    TRY("setuid", syscall(SYS_setuid, 0))
    TRY("prctl", syscall(SYS_prctl, PR_SET_DUMPABLE, 1))
    TRY("limit", raise_limit())
    TRY("limit_unseen", set_limit_unseen())
    TRY("sched", syscall(SYS_sched_setaffinity, 0, 8, text))
    TRY("keyctl", syscall(SYS_keyctl, 0, 0, 0))
    TRY("userfaultfd", syscall(SYS_userfaultfd, 0))
    TRY("perf", syscall(SYS_perf_event_open, text, 0, -1, -1, 0))
    TRY("shm", syscall(SYS_shmget, 0, 4096, 01600))
    TRY("name_to_handle", syscall(SYS_name_to_handle_at, AT_FDCWD, "/", text, text, 0))
    TRY("ioctl", syscall(SYS_ioctl, 3, 0x5401, text))
    TRY("fcntl", syscall(SYS_fcntl, 3, F_SETOWN, 1))
    if (strcmp(what, "crash") == 0)
        raise(SIGSEGV);
    if (strcmp(what, "hang") == 0)
        for (;;)
            usleep(1000);
    errno = ENOTSUP;
    return -1;
}

static void escape(duckdb_function_info info, duckdb_data_chunk input, duckdb_vector output)
{
    duckdb_string_t *s = duck.vector_get_data(duck.data_chunk_get_vector(input, 0));
    idx_t n = duck.data_chunk_get_size(input);

    for (idx_t i = 0; i < n; i++) {
        char what[64];
        uint32_t length = s[i].value.inlined.length;
        const char *text = length <= 12 ? s[i].value.inlined.inlined : s[i].value.pointer.ptr;
        memset(what, 0, sizeof(what));
        memcpy(what, text, length < sizeof(what) ? length : sizeof(what) - 1);
        errno = 0;
        const char *result = attempt_call(what) == -1 ? strerrorname_np(errno) : "done";
        duck.vector_assign_string_element_len(output, i, result ? result : "?",
                                              strlen(result ? result : "?"));
    }
}

void pb_escape_register(duckdb_connection connection)
{
    duckdb_scalar_function f = duck.create_scalar_function();
    duckdb_logical_type text = duck.create_logical_type(DUCKDB_TYPE_VARCHAR);

    duck.scalar_function_set_name(f, "pb_escape");
    duck.scalar_function_add_parameter(f, text);
    duck.scalar_function_set_return_type(f, text);
    duck.scalar_function_set_function(f, escape);
    duck.register_scalar_function(connection, f);
    duck.destroy_logical_type(&text);
    duck.destroy_scalar_function(&f);
}
#else
typedef int pb_no_escape; /* C does not allow an empty file */
#endif
