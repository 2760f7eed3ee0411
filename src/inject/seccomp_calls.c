/* seccomp_calls: the system calls that we make in a target: stub, the threads that load, and the agent. A
 * test compares it with what a traced agent does (tests/integration/test_harm_inject.py). Arguments are given
 * where filters look at them. Not here: process_vm_readv, which the agent leaves alone where there is a
 * filter (agent/core/own_memory.c). */
#include "inject/seccomp.h"
#include "table/system_calls.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define THREAD_FLAGS                                                                                         \
    (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |       \
     CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

#define CALL_FOR(use, name, ...)                                                                             \
    {                                                                                                        \
#name, SYS_##name, {__VA_ARGS__ }, use                                                               \
    }
#define CALL(name, ...)   CALL_FOR(PB_SECCOMP_AGENT, name, __VA_ARGS__)
#define LISTEN(name, ...) CALL_FOR(PB_SECCOMP_LISTEN, name, __VA_ARGS__)
#define CATCH(name, ...)  CALL_FOR(PB_SECCOMP_CATCH, name, __VA_ARGS__)

const struct pb_seccomp_call pb_seccomp_calls[] = {
    CALL(mmap, 0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS),
    CALL(mprotect, 0, 4096, PROT_READ | PROT_WRITE),
    CALL(munmap, 0, 4096),
    CALL(madvise, 0, 4096, MADV_DONTFORK),
    CALL(munlock, 0, 4096),
    CALL(mlock2, 0, 4096, 1), /* where the process locks its memory (table/pages.c) */
    CALL(rt_sigprocmask, 0, 0, 0, 8),
    CALL(rt_sigreturn, 0),
    CALL(rt_sigaction, 33, 0, 0, 8), /* glibc's first thread */
    CALL(brk, 0),
    CALL(sched_getaffinity, 0), /* glibc's second heap */
    CALL(sched_yield, 0),
    CALL(clock_gettime, 1),
    CALL(getpid, 0),
    CALL(gettid, 0),
    CALL(tgkill, 0, 0, 23),
    CALL(clone, THREAD_FLAGS),
    CALL(clone3, 0, 88),
    CALL(set_robust_list, 0, 24),
    CALL(rseq, 0, 32),
    CALL(nanosleep, 0),
    CALL(clock_nanosleep, 1),
    CALL(futex, 0, 128),
    CALL(exit, 0),
    CALL(close_range, 0, ~0u, 2),
    CALL(unshare, CLONE_FILES),
    CALL(memfd_create, 0, 1),
    CALL(openat, 3),
    CALL(read, 3),
    CALL(pread64, 3),
    CALL(write, 3),
    CALL(lseek, 3),
    CALL(fstat, 3),
    CALL(newfstatat, 3),
    CALL(close, 3),
    CALL(fcntl, 3),
    CALL(ftruncate, 3),
    CALL(fallocate, 3),
    CALL(flock, 3),
    CALL(fchmod, 3),
    CALL(statfs, 0),
    CALL(fstatfs, 3),
    CALL(faccessat, 3),
    CALL(getdents64, 3),
    CALL(mkdirat, 3),
    CALL(unlinkat, 3),
    CALL(readlinkat, 3),
    CALL(renameat, 3),
    CALL(getrusage, 0),
    CALL(prlimit64, 0, 7),
    CALL(geteuid, 0),
    CALL(getuid, 0),
    CALL(getrandom, 0),
    CALL(prctl, 15),
    CALL(sched_getscheduler, 0),
    CALL(sched_setscheduler, 0, 0),
    CALL(uname, 0),
    CALL(sysinfo, 0),
    CALL(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK),
    CALL(socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC),
    CALL(bind, 3),
    CALL(listen, 3),
    CALL(accept4, 3),
    CALL(recvmsg, 3),
    CALL(recvfrom, 3),
    CALL(sendmsg, 3),
    CALL(sendto, 3),
    CALL(getsockopt, 3),
    LISTEN(socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK),
    LISTEN(socket, AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK),
    LISTEN(setsockopt, 3),
    LISTEN(getsockname, 3),
    CATCH(rt_sigaction, SIGSEGV, 0, 0, 8),
    CATCH(rt_tgsigqueueinfo, 1, 1, SIGABRT, 0),
    CATCH(tgkill, 1, 1, SIGABRT),
    CALL(pipe2, 0),
    CALL(ppoll, 0),
    CALL(pwrite64, 3),
    CALL(mremap, 0),
    CALL(pidfd_open, 1),
#ifdef SYS_readlink /* calls that newer processors lack */
    CALL(access, 0),
    CALL(readlink, 0),
    CALL(mkdir, 0),
    CALL(rmdir, 0),
    CALL(stat, 0),
#endif
};
const size_t pb_seccomp_ncalls = sizeof(pb_seccomp_calls) / sizeof(pb_seccomp_calls[0]);
