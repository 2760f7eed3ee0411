/* x86_64: see arch.h. The kernel's side: arch/x86/kernel/signal_64.c (the frame) and
 * arch/x86/kernel/fpu/signal.c (how it checks the vector state in it). */
#include "inject/arch.h"

#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum {
    RED_ZONE = 128,
    KERNEL_RESTART_FIRST = 512, /* ERESTARTSYS, ...NOINTR, ...NOHAND, (515), ..._RESTARTBLOCK */
    KERNEL_RESTART_BLOCK = 516,
    XSAVE_SW = 464,  /* the kernel's own header in an XSAVE image */
    XSAVE_BV = 512,  /* which parts are not in their initial state */
    XSAVE_MIN = 576, /* legacy area and header */
};

#define FP_MAGIC1 0x46505853u
#define FP_MAGIC2 0x46505845u

#define FLAGS_NOT_OURS 0x500ull /* direction flag and single step are cleared */

struct frame {
    uint64_t restorer;
    uint64_t uc_flags, uc_link;
    uint64_t ss_sp, ss_flags, ss_size;
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, di, si, bp, bx, dx, ax, cx, sp, ip, flags;
    uint16_t cs, gs, fs, ss;
    uint64_t err, trapno, oldmask, cr2, fpstate, reserved[8];
    uint64_t sigmask;
};
_Static_assert(offsetof(struct frame, r8) == 48 && offsetof(struct frame, sigmask) == 304,
               "the kernel's layout");

const unsigned char pb_arch_syscall_code[] = {0x0f, 0x05, 0xc3};
const size_t pb_arch_syscall_len = sizeof(pb_arch_syscall_code);
/* mov $15, %rax; syscall: unwinders know a signal frame by exactly these bytes, so every libc has them. */
const unsigned char pb_arch_restorer_code[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
const size_t pb_arch_restorer_len = sizeof(pb_arch_restorer_code);

static int set_gpr(pid_t tid, const struct user_regs_struct *gpr)
{
    struct iovec io = {(void *)(uintptr_t)gpr, sizeof(*gpr)};
    return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &io) < 0 ? -errno : 0;
}

int pb_arch_save(pid_t tid, struct pb_arch_state *ret)
{
    struct iovec gpr = {&ret->gpr, sizeof(ret->gpr)}, vector = {ret->vector, sizeof(ret->vector)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &gpr) < 0 ||
        ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &vector) < 0 ||
        ptrace(PTRACE_GETSIGMASK, tid, sizeof(ret->sigmask), &ret->sigmask) < 0)
        return -errno;
    if (gpr.iov_len != sizeof(ret->gpr) || vector.iov_len < XSAVE_MIN)
        return -ENOTSUP;
    ret->vector_len = vector.iov_len;
    ret->foreign = false;
    return 0;
}

int pb_arch_restore(pid_t tid, const struct pb_arch_state *s)
{
    struct iovec vector = {(void *)(uintptr_t)s->vector, s->vector_len};
    if (ptrace(PTRACE_SETREGSET, tid, NT_X86_XSTATE, &vector) < 0 ||
        ptrace(PTRACE_SETSIGMASK, tid, sizeof(s->sigmask), &s->sigmask) < 0)
        return -errno;
    return set_gpr(tid, &s->gpr);
}

uint64_t pb_arch_pc(const struct pb_arch_state *s)
{
    return s->gpr.rip;
}

uint64_t pb_arch_sp(const struct pb_arch_state *s)
{
    return s->gpr.rsp;
}

uint64_t pb_arch_tls(pid_t tid, const struct pb_arch_state *s)
{
    (void)tid;
    return s->gpr.fs_base;
}

uint64_t pb_arch_link(const struct pb_arch_state *s)
{
    return 0;
}

uint64_t pb_arch_code_address(uint64_t word)
{
    return word;
}

bool pb_arch_can_be_borrowed(const struct pb_arch_state *s)
{
    return !s->foreign;
}

bool pb_arch_ended_by_stop(const struct pb_arch_state *s, long nr)
{
    return (int64_t)s->gpr.rax == -EINTR && (long)s->gpr.orig_rax == nr;
}

static bool restarts(const struct user_regs_struct *gpr)
{
    int64_t result = (int64_t)gpr->rax;
    return (int64_t)gpr->orig_rax >= 0 && result <= -KERNEL_RESTART_FIRST && result >= -KERNEL_RESTART_BLOCK;
}

bool pb_arch_blocked(pid_t pid, const struct pb_arch_state *s, long *ret_nr, uint64_t *ret_second_arg)
{
    if (!restarts(&s->gpr))
        return false;
    *ret_nr = (long)s->gpr.orig_rax;
    *ret_second_arg = s->gpr.rsi;
    return true;
}

/* The used size of the image: the kernel accepts a frame only when it is no larger than this thread may use,
 * and ptrace also shows parts (AMX) that the thread may not have asked for. */
static size_t vector_used(const struct pb_arch_state *s, uint64_t *ret_features)
{
    uint64_t known, used;
    size_t len = XSAVE_MIN;
    memcpy(&known, s->vector + XSAVE_SW, sizeof(known));
    memcpy(&used, s->vector + XSAVE_BV, sizeof(used));
    for (unsigned i = 2; i < 63; i++) {
        unsigned size, offset, c, d;
        if (!(used >> i & 1))
            continue;
        if (__get_cpuid_count(0xd, i, &size, &offset, &c, &d) && offset + size > len)
            len = offset + size;
    }
    *ret_features = (known & ~(3ull << 17)) | used;
    return len < s->vector_len ? len : s->vector_len;
}

static void put_vector(const struct pb_arch_state *s, unsigned char *out, size_t len, uint64_t features)
{
    struct {
        uint32_t magic1, extended_size;
        uint64_t features;
        uint32_t size;
    } note = {FP_MAGIC1, (uint32_t)len + 4, features, (uint32_t)len};
    uint32_t magic2 = FP_MAGIC2;
    memcpy(out, s->vector, len);
    memset(out + XSAVE_SW, 0, XSAVE_BV - XSAVE_SW);
    memcpy(out + XSAVE_SW, &note, 20);
    memcpy(out + len, &magic2, sizeof(magic2));
}

/* As the kernel does for a handler: a call that restarts is set back onto its instruction; a call with kernel
 * state (a sleep) ends with EINTR, as after any signal. */
static void settle_syscall(struct user_regs_struct *gpr)
{
    if (!restarts(gpr))
        return;
    if ((int64_t)gpr->rax == -KERNEL_RESTART_BLOCK) {
        gpr->rax = (uint64_t)-EINTR;
        return;
    }
    gpr->rax = gpr->orig_rax;
    gpr->rip -= 2;
}

/* A frame that leads to munmap, and from there to the frame at stack pointer `next`, which has the vector
 * state. */
static struct frame undo_frame(const struct pb_arch_state *s, uint64_t restorer,
                               const struct pb_arch_undo *undo, uint64_t next)
{
    return (struct frame){
        .restorer = restorer,
        .uc_flags = 6,
        .ss_flags = ~0u >> 1,
        .di = undo->memory,
        .si = undo->size,
        .ax = SYS_munmap,
        .sp = next,
        .ip = undo->syscall_code,
        .flags = s->gpr.eflags & ~FLAGS_NOT_OURS,
        .cs = (uint16_t)s->gpr.cs,
        .ss = (uint16_t)s->gpr.ss,
        .sigmask = undo->sigmask,
    };
}

size_t pb_arch_frame(const struct pb_arch_state *s, uint64_t restorer, const struct pb_arch_undo *undo,
                     unsigned char *buf, uint64_t *ret_addr, uint64_t *ret_sp, uint64_t *ret_undo_sp)
{
    struct user_regs_struct r = s->gpr;
    uint64_t features;
    size_t len = vector_used(s, &features);
    uint64_t fp = (r.rsp - RED_ZONE - len - 4) & ~63ull;
    uint64_t at = ((fp - sizeof(struct frame)) & ~15ull) - 8;
    uint64_t below = ((at - sizeof(struct frame)) & ~15ull) - 8;
    struct frame first = undo_frame(s, restorer, undo, at);

    settle_syscall(&r);
    struct frame f = {
        .restorer = restorer,
        .uc_flags = 7,        /* XSAVE image; SS is valid */
        .ss_flags = ~0u >> 1, /* no such flags: the kernel leaves the alternate stack as it is */
        .r8 = r.r8,
        .r9 = r.r9,
        .r10 = r.r10,
        .r11 = r.r11,
        .r12 = r.r12,
        .r13 = r.r13,
        .r14 = r.r14,
        .r15 = r.r15,
        .di = r.rdi,
        .si = r.rsi,
        .bp = r.rbp,
        .bx = r.rbx,
        .dx = r.rdx,
        .ax = r.rax,
        .cx = r.rcx,
        .sp = r.rsp,
        .ip = r.rip,
        .flags = r.eflags,
        .cs = (uint16_t)r.cs,
        .ss = (uint16_t)r.ss,
        .fpstate = fp,
        .sigmask = s->sigmask,
    };
    memset(buf, 0, fp - below);
    memcpy(buf, &first, sizeof(first));
    memcpy(buf + (at - below), &f, sizeof(f));
    put_vector(s, buf + (fp - below), len, features);
    *ret_addr = *ret_undo_sp = below;
    *ret_sp = at;
    return (size_t)(fp - below) + len + 4;
}

int pb_arch_set_syscall(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t frame_sp,
                        uint64_t restorer, long nr, const uint64_t args[6])
{
    struct user_regs_struct r = s->gpr;
    r.rip = code;
    r.rsp = frame_sp;
    r.rax = (uint64_t)nr;
    r.orig_rax = ~0ull; /* otherwise the kernel takes rip back by 2 for an interrupted call */
    r.rdi = args[0];
    r.rsi = args[1];
    r.rdx = args[2];
    r.r10 = args[3];
    r.r8 = args[4];
    r.r9 = args[5];
    r.eflags &= ~FLAGS_NOT_OURS;
    return set_gpr(tid, &r);
}

int pb_arch_set_stub(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t stack, uint64_t stub)
{
    struct user_regs_struct r = s->gpr;
    r.rip = code;
    r.rsp = stack & ~15ull;
    r.rbp = 0; /* a walk along frame pointers ends here */
    r.rbx = stub;
    r.orig_rax = ~0ull;
    r.eflags &= ~FLAGS_NOT_OURS;
    return set_gpr(tid, &r);
}

int pb_arch_result(pid_t tid, int64_t *ret, uint64_t *ret_pc)
{
    struct user_regs_struct r;
    struct iovec io = {&r, sizeof(r)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io) < 0)
        return -errno;
    *ret = (int64_t)r.rax;
    *ret_pc = r.rip;
    return 0;
}

/* call rel32, and call r/m in its lengths: without and with a REX prefix, displacement of 0, 1 or 4, SIB. */
bool pb_arch_is_call(const unsigned char before[16])
{
    const unsigned char *end = before + 16;
    if (end[-5] == 0xe8)
        return true;
    for (int len = 2; len <= 7; len++)
        if (end[-len] == 0xff && (end[-len + 1] & 0x38) == 0x10)
            return true;
    return false;
}

bool pb_arch_interrupted(const uint64_t *words, size_t n, uint64_t *ret_pc, uint64_t *ret_sp)
{
    enum { SP = offsetof(struct frame, sp) / 8, PC = offsetof(struct frame, ip) / 8 };
    if (n <= PC)
        return false;
    *ret_pc = words[PC];
    *ret_sp = words[SP];
    return true;
}
