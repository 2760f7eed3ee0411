/* interrupted: see interrupted.h. The kernel's side: arch/x86/kernel/signal.c and arch/arm64/kernel/signal.c
 * (when and whether a call is restarted), fs/eventpoll.c, ipc/sem.c, kernel/signal.c, fs/aio.c,
 * io_uring/io_uring.c and sock_intr_errno() in include/net/sock.h (which calls return EINTR). */
#include "remote/interrupted.h"

#include "base/plain_text.h"
#include "remote/transfer.h"
#include "table/system_calls.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <unistd.h>

enum {
    KERNEL_RESTART_SYS = 512,
    KERNEL_RESTART_NOHAND = 514,
    RING_EXT_ARG = 1u << 3, /* IORING_ENTER_*: the fifth argument is a struct that may have a timeout */
    RING_ABS_TIMER = 1u << 5,
};

/* Calls that a stop ends with EINTR before they have done anything: a second try has the same effect. The
 * kernel itself restarts calls on a socket without a timeout, so those with one may be restarted too. read,
 * write and the like are here for sockets, and for file systems in user space (FUSE), whose servers may
 * answer EINTR: nothing was transferred then.
 * Never here: close (the descriptor is gone even so), ioctl (its effect is not known), and calls that create
 * something (open, mkdir, rename), which a server may have done before it answered EINTR. */
static const struct fact {
    int number;
    enum pb_timeout timeout;
    int argument;
} facts[] = {
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, PB_TIMEOUT_MS, 3},
#endif
    {SYS_epoll_pwait, PB_TIMEOUT_MS, 3},
    {SYS_epoll_pwait2, PB_TIMEOUT_TIMESPEC, 3},
    {SYS_semop, PB_TIMEOUT_NONE, -1},
    {SYS_semtimedop, PB_TIMEOUT_TIMESPEC, 3},
    {SYS_rt_sigtimedwait, PB_TIMEOUT_TIMESPEC, 2},
    {SYS_io_getevents, PB_TIMEOUT_TIMESPEC, 4},
    {SYS_io_pgetevents, PB_TIMEOUT_TIMESPEC, 4}, /* the kernel restarts it: for its timeout */
    {SYS_io_uring_enter, PB_TIMEOUT_RING, 4},
    {SYS_recvfrom, PB_TIMEOUT_RECEIVE, 0},
    {SYS_recvmsg, PB_TIMEOUT_RECEIVE, 0},
    {SYS_recvmmsg, PB_TIMEOUT_RECEIVE, 0}, /* its own timeout is checked between messages only */
    {SYS_accept, PB_TIMEOUT_RECEIVE, 0},
    {SYS_accept4, PB_TIMEOUT_RECEIVE, 0},
    {SYS_read, PB_TIMEOUT_RECEIVE, 0},
    {SYS_readv, PB_TIMEOUT_RECEIVE, 0},
    {SYS_pread64, PB_TIMEOUT_NONE, -1},
    {SYS_preadv, PB_TIMEOUT_NONE, -1},
    {SYS_preadv2, PB_TIMEOUT_RECEIVE, 0},
    {SYS_connect, PB_TIMEOUT_SEND, 0}, /* a second connect waits for the connection that the first began */
    {SYS_sendto, PB_TIMEOUT_SEND, 0},
    {SYS_sendmsg, PB_TIMEOUT_SEND, 0},
    {SYS_sendmmsg, PB_TIMEOUT_SEND, 0},
    {SYS_sendfile, PB_TIMEOUT_SEND, 0},
    {SYS_write, PB_TIMEOUT_SEND, 0},
    {SYS_writev, PB_TIMEOUT_SEND, 0},
    {SYS_pwrite64, PB_TIMEOUT_NONE, -1},
    {SYS_pwritev, PB_TIMEOUT_NONE, -1},
    {SYS_pwritev2, PB_TIMEOUT_SEND, 0},
    {SYS_fallocate, PB_TIMEOUT_NONE, -1}, /* tmpfs frees what an interrupted call had allocated */
};

/* The kernel restarts these with the time left when the stop came: the stop itself is not counted, and a
 * thousand of them make a wait 50 ms longer. */
static const struct fact paused[] = {
#ifdef SYS_select
    {SYS_select, PB_TIMEOUT_TIMESPEC, 4},
#endif
    {SYS_pselect6, PB_TIMEOUT_TIMESPEC, 4},
    {SYS_ppoll, PB_TIMEOUT_TIMESPEC, 2},
};

static const struct fact *find_fact(long number)
{
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
        if (facts[i].number == number)
            return &facts[i];
    return NULL;
}

/* Whether the arguments give a relative timeout. For a socket they do not tell. */
static bool is_finite(const struct fact *f, const uint64_t args[6])
{
    switch (f->timeout) {
    case PB_TIMEOUT_NONE:
        return false;
    case PB_TIMEOUT_MS:
        return (int32_t)args[f->argument] > 0;
    case PB_TIMEOUT_TIMESPEC:
        return args[f->argument] != 0;
    case PB_TIMEOUT_RING:
        return (args[3] & RING_EXT_ARG) && !(args[3] & RING_ABS_TIMER);
    case PB_TIMEOUT_RECEIVE:
    case PB_TIMEOUT_SEND:
        return true;
    }
    return true;
}

/* "running", or "number args.. sp pc", or "-1 sp pc". */
bool pb_waiting_parse(struct pb_waiting *ret, const char *text)
{
    struct pb_waiting w = {.number = -1};
    uint64_t number[8] = {0};
    bool found;
    int n = 0;

    if (text[0] == '-') {
        text++;
        (void)pb_plain_number(&text, 10, &found);
    } else {
        w.number = (long)pb_plain_number(&text, 10, &found);
    }
    if (!found)
        return false;
    for (; n < 8; n++) {
        number[n] = pb_plain_number(&text, 16, &found);
        if (!found)
            break;
    }
    if (n < 2)
        return false;
    if (n == 8)
        memcpy(w.args, number, sizeof(w.args));
    w.sp = number[n - 2];
    w.pc = number[n - 1];
    *ret = w;
    return true;
}

/* Without printf, which is not signal-safe. */
static int open_syscall(pid_t pid, pid_t tid)
{
    char path[64];

    char *at = pb_plain_put_number(pb_plain_put(path, "/proc/"), pid);
    pb_plain_put(pb_plain_put_number(pb_plain_put(at, "/task/"), tid), "/syscall");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : errno == ENOENT ? -ESRCH : -errno;
}

int pb_waiting_read(pid_t pid, pid_t tid, int fd, struct pb_waiting *ret)
{
    char text[256];
    int ours = -1;

    if (fd < 0)
        fd = ours = open_syscall(pid, tid);
    if (fd < 0)
        return fd;
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    int failed = n < 0 ? -errno : n == 0 ? -ESRCH : 0;
    if (ours >= 0)
        close(ours);
    if (failed)
        return failed;
    text[n] = '\0';
    return pb_waiting_parse(ret, text);
}

/* Our own descriptor of the same socket keeps it open for the microseconds of the check. */
static bool socket_has_timeout(pid_t pid, int number, int option)
{
#ifdef SYS_pidfd_getfd
    struct timeval limit = {0};
    socklen_t len = sizeof(limit);

    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);
    if (process >= 0)
        close(process);
    if (fd < 0)
        return true;
    bool known = getsockopt(fd, SOL_SOCKET, option, &limit, &len) == 0 || errno == ENOTSOCK;
    close(fd);
    return !known || limit.tv_sec || limit.tv_usec;
#else
    return true;
#endif
}

static bool is_socket(pid_t pid, int number)
{
    char path[64], link[32];

    char *at = pb_plain_put_number(pb_plain_put(path, "/proc/"), pid);
    pb_plain_put_number(pb_plain_put(at, "/fd/"), number);
    ssize_t n = number < 0 ? 0 : readlink(path, link, sizeof(link));
    return n < 0 || (n >= 7 && memcmp(link, "socket:", 7) == 0);
}

static const struct fact *find_paused(long number)
{
    for (size_t i = 0; i < sizeof(paused) / sizeof(paused[0]); i++)
        if (paused[i].number == number)
            return &paused[i];
    return NULL;
}

bool pb_waiting_keeps_its_time(const struct pb_waiting *w)
{
    return find_paused(w->number);
}

bool pb_waiting_would_begin_anew(pid_t pid, const struct pb_waiting *w)
{
    const struct fact *f = w->number < 0 ? NULL : find_fact(w->number);

    if (pb_waiting_keeps_its_time(w))
        return is_finite(find_paused(w->number), w->args);
    if (!f || !is_finite(f, w->args))
        return false;
    if (f->timeout != PB_TIMEOUT_RECEIVE && f->timeout != PB_TIMEOUT_SEND)
        return true;
    int fd = (int)w->args[f->argument];
    return is_socket(pid, fd) &&
           socket_has_timeout(pid, fd, f->timeout == PB_TIMEOUT_SEND ? SO_SNDTIMEO : SO_RCVTIMEO);
}

/* Judges the result of a call. No side effects. `result` as the kernel has it in the stop. */
static void judge_call(long number, const uint64_t args[6], int64_t result, struct pb_interrupted *ret)
{
    const struct fact *f = number < 0 ? NULL : find_fact(number);
    bool restarts = result <= -KERNEL_RESTART_SYS && result >= -KERNEL_RESTART_NOHAND;

    *ret = (struct pb_interrupted){.number = number, .argument = -1, .result = result};
    memcpy(ret->args, args, sizeof(ret->args));
    if (!f || (result != -EINTR && !restarts))
        return;
    ret->was = result == -EINTR;
    ret->timeout = f->timeout;
    ret->argument = f->argument;
    bool of_socket = f->timeout == PB_TIMEOUT_RECEIVE || f->timeout == PB_TIMEOUT_SEND;
    /* A socket without a timeout is restarted by the kernel. */
    ret->finite = is_finite(f, args) && (!of_socket || ret->was);
}

#if defined(__x86_64__)
#define USER_REGISTER(name) offsetof(struct user, regs.name)

static int peek_register(pid_t tid, size_t at, uint64_t *ret)
{
    /* The system call, not the library's function, which may set errno for a valid value. */
    return syscall(SYS_ptrace, PTRACE_PEEKUSER, tid, at, ret) < 0 ? -errno : 0;
}

/* In 32-bit code, and for int 0x80, the same numbers mean other calls. */
static bool is_syscall_instruction(pid_t tid)
{
    uint64_t cs, pc, code;

    return peek_register(tid, USER_REGISTER(cs), &cs) == 0 && cs == 0x33 &&
           peek_register(tid, USER_REGISTER(rip), &pc) == 0 &&
           syscall(SYS_ptrace, PTRACE_PEEKTEXT, tid, pc - 2, &code) == 0 && (code & 0xffff) == 0x050f;
}

static int read_call(pid_t tid, long *ret_number, uint64_t args[6], int64_t *ret_result)
{
    static const size_t at[6] = {USER_REGISTER(rdi), USER_REGISTER(rsi), USER_REGISTER(rdx),
                                 USER_REGISTER(r10), USER_REGISTER(r8),  USER_REGISTER(r9)};
    uint64_t number, result;

    int r = peek_register(tid, USER_REGISTER(rax), &result);
    if (r < 0)
        return r;
    *ret_number = -1;
    *ret_result = (int64_t)result;
    bool moved = *ret_result > 0;
    /* Nearly every stop of a sleeping thread ends here. */
    if (!moved && *ret_result != -EINTR &&
        (*ret_result > -KERNEL_RESTART_SYS || *ret_result < -KERNEL_RESTART_NOHAND))
        return 0;
    r = peek_register(tid, USER_REGISTER(orig_rax), &number);
    /* Outside of a system call rax is not a number. */
    if (r < 0 || (int64_t)number < 0 || (moved && !pb_transfer_is_known((long)number)) ||
        !is_syscall_instruction(tid))
        return r;
    for (int i = 0; r == 0 && i < 6; i++)
        r = peek_register(tid, at[i], &args[i]);
    *ret_number = (long)number;
    return r;
}

/* The kernel checks the result after the stop, when it knows whether a handler will run. */
static int restart_call(pid_t pid, pid_t tid, const struct pb_interrupted *i, int signal)
{
    return ptrace(PTRACE_POKEUSER, tid, USER_REGISTER(rax), (void *)(intptr_t)-KERNEL_RESTART_NOHAND) < 0
               ? -errno
               : 0;
}

static int read_interrupted(pid_t pid, pid_t tid, const struct pb_waiting *before, struct pb_interrupted *ret)
{
    uint64_t args[6] = {0};
    int64_t result;
    long number;

    int r = read_call(tid, &number, args, &result);
    if (r == 0)
        judge_call(number, args, result, ret);
    return r;
}

/* A handler that is about to run ends the rest of the transfer, see transfer_code.c. */
static int finish_transfer(pid_t pid, pid_t tid, const struct pb_interrupted *i, int signal)
{
    struct pb_transfer_call call = {.number = i->number, .result = i->result};

    memcpy(call.args, i->args, sizeof(call.args));
    int r = peek_register(tid, USER_REGISTER(rip), &call.pc);
    if (r == 0)
        r = peek_register(tid, USER_REGISTER(rsp), &call.sp);
    return r == 0 ? pb_transfer_finish(pid, tid, &call) : r;
}
#elif defined(__aarch64__)
#define SVC_0 0xd4000001u

static int get_registers(pid_t tid, struct user_regs_struct *ret)
{
    struct iovec io = {ret, sizeof(*ret)};
    return ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io) < 0 ? -errno : 0;
}

static uint64_t parse_mask(const char *status, const char *key)
{
    bool found;
    const char *p = strstr(status, key);
    if (!p)
        return 0;
    p += strlen(key);
    p += strspn(p, "\t");
    return pb_plain_number(&p, 16, &found);
}

/* Whether a handler of the program is about to run in this thread: then EINTR is correct. */
static bool has_handler_pending(pid_t pid, pid_t tid, int signal)
{
    char path[64], text[4096];

    char *at = pb_plain_put_number(pb_plain_put(path, "/proc/"), pid);
    pb_plain_put(pb_plain_put_number(pb_plain_put(at, "/task/"), tid), "/status");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return true;
    text[n] = '\0';
    uint64_t pending = parse_mask(text, "\nSigPnd:") | parse_mask(text, "\nShdPnd:");
    pending &= ~parse_mask(text, "\nSigBlk:");
    if (signal > 0)
        pending |= 1ull << (signal - 1);
    return pending & parse_mask(text, "\nSigCgt:");
}

/* The number is all that a tracer may tell the kernel of a call; -1: the thread is in none. */
static int tell_call(pid_t tid, int number)
{
    struct iovec io = {&number, sizeof(number)};
    return ptrace(PTRACE_SETREGSET, tid, NT_ARM_SYSTEM_CALL, &io) < 0 ? -errno : 0;
}

/* At a stop the aarch64 kernel has already decided about a restart, by a result that is no longer in the
 * registers, and forgotten the call. The number is still in x8. The first argument was in x0, and no register
 * set shows it. The kernel shows it in /proc/PID/task/TID/syscall while a thread is in a call, so we set the
 * number again for the time of that look. If we die in between, the thread continues unharmed: the kernel
 * restarts no call whose result is EINTR. */
static int read_first_argument(pid_t pid, pid_t tid, long number, uint64_t *ret)
{
    struct pb_waiting now;

    int r = tell_call(tid, (int)number);
    if (r < 0)
        return r;
    int looked = pb_waiting_read(pid, tid, -1, &now);
    r = tell_call(tid, -1);
    if (r < 0 || looked != 1 || now.number != number)
        return r < 0 ? r : -EACCES;
    *ret = now.args[0];
    return 0;
}

static bool is_after_svc(pid_t pid, const struct user_regs_struct *gpr)
{
    uint32_t code = 0;
    struct iovec local = {&code, sizeof(code)},
                 remote = {(void *)(uintptr_t)(gpr->pc - sizeof(code)), sizeof(code)};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof(code) && code == SVC_0;
}

/* Whether a handler may just have returned to this place: then its signal ended the call, and EINTR is the
 * program's. The kernel's frame is still below the stack pointer, with these registers in it. A frame on an
 * alternate stack is not found: there the return and our stop must fall into the same microsecond. */
static bool has_handler_returned(pid_t pid, const struct user_regs_struct *gpr)
{
    enum { SP = 31, PC, KEPT, WORDS = 512, FRAME_MAX = 96 << 10 }; /* most of it for the registers of SME */
    uint64_t words[WORDS];

    for (uint64_t below = sizeof(words); below <= FRAME_MAX; below += (WORDS - KEPT) * sizeof(words[0])) {
        struct iovec local = {words, sizeof(words)},
                     remote = {(void *)(uintptr_t)(gpr->sp - below), sizeof(words)};
        if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != sizeof(words))
            return false;
        for (const uint64_t *kept = words; kept + KEPT <= words + WORDS; kept++)
            if (kept[SP] == gpr->sp && kept[PC] == gpr->pc && kept[0] == gpr->regs[0] &&
                kept[8] == gpr->regs[8])
                return true;
    }
    return false;
}

/* A thread that waited in the same call before the stop was ended by the stop. One that did not has entered
 * the call since. */
static int read_interrupted(pid_t pid, pid_t tid, const struct pb_waiting *before, struct pb_interrupted *ret)
{
    struct user_regs_struct gpr;
    uint64_t args[6];
    long number = -1;

    int r = get_registers(tid, &gpr);
    if (r < 0)
        return r;
    memcpy(args, gpr.regs, sizeof(args));
    int64_t result = (int64_t)gpr.regs[0];
    bool cut = result > 0 && pb_transfer_is_known((long)gpr.regs[8]);
    if ((cut || (result == -EINTR && find_fact((long)gpr.regs[8]))) && is_after_svc(pid, &gpr)) {
        bool seen = before && before->number == (long)gpr.regs[8] && before->pc == gpr.pc &&
                    before->sp == gpr.sp && memcmp(before->args + 1, gpr.regs + 1, 5 * sizeof(uint64_t)) == 0;
        if (seen)
            args[0] = before->args[0];
        if (seen || (read_first_argument(pid, tid, (long)gpr.regs[8], &args[0]) == 0 &&
                     !has_handler_returned(pid, &gpr)))
            number = (long)gpr.regs[8];
    }
    judge_call(number, args, (int64_t)gpr.regs[0], ret);
    return 0;
}

static int restart_call(pid_t pid, pid_t tid, const struct pb_interrupted *i, int signal)
{
    struct user_regs_struct gpr;
    struct iovec io = {&gpr, sizeof(gpr)};

    int r = get_registers(tid, &gpr);
    if (r < 0 || has_handler_pending(pid, tid, signal))
        return r;
    gpr.pc -= sizeof(uint32_t);
    gpr.regs[0] = i->args[0];
    return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &io) < 0 ? -errno : 0;
}

/* A handler that is about to run has ended the transfer, too: then the count so far is correct. */
static int finish_transfer(pid_t pid, pid_t tid, const struct pb_interrupted *i, int signal)
{
    struct pb_transfer_call call = {.number = i->number, .result = i->result};
    struct user_regs_struct gpr;

    memcpy(call.args, i->args, sizeof(call.args));
    int r = get_registers(tid, &gpr);
    call.pc = gpr.pc;
    call.sp = gpr.sp;
    return r < 0 || has_handler_pending(pid, tid, signal) ? r : pb_transfer_finish(pid, tid, &call);
}
#endif

int pb_interrupted_mend(pid_t pid, pid_t tid, const struct pb_waiting *before, int signal,
                        struct pb_interrupted *ret)
{
    struct pb_interrupted unused;

    if (!ret)
        ret = &unused;
    *ret = (struct pb_interrupted){.number = -1, .argument = -1};
    int r = read_interrupted(pid, tid, before, ret);
    if (r < 0 || ret->was)
        return r < 0 ? r : restart_call(pid, tid, ret, signal);
    int finishes = ret->number >= 0 && ret->result > 0 ? finish_transfer(pid, tid, ret, signal) : 0;
    ret->finishes = finishes == 1; /* if it cannot, the program gets a short count */
    return finishes == -ESRCH ? finishes : 0;
}
