/* aarch64: see arch.h. The kernel's side: arch/arm64/kernel/signal.c. Two things differ from x86-64 in kind:
 * a stopped thread is already set back onto the call that it would restart, and a return address is in a
 * register, so the signal frame need not begin with the restorer's. */
#include "inject/arch.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "remote/mem.h"

#ifndef NT_ARM_TLS
#define NT_ARM_TLS 0x401
#endif
#ifndef NT_ARM_SYSTEM_CALL
#define NT_ARM_SYSTEM_CALL 0x404
#endif
#ifndef NT_ARM_SVE
#define NT_ARM_SVE 0x405
#endif

#define SVC_0        0xd4000001u
#define FPSIMD_MAGIC 0x46508001u

/* FP and vector registers as the regset and the frame have them; where the thread uses SVE its regset, which
 * is larger and goes by another number, is kept instead. */
struct fpsimd {
    unsigned char vregs[512];
    uint32_t fpsr, fpcr, pad[2];
};

struct context {
    uint32_t magic, size;
    uint32_t fpsr, fpcr;
    unsigned char vregs[512];
};

struct frame {
    unsigned char info[128];
    uint64_t uc_flags, uc_link;
    uint64_t ss_sp, ss_flags, ss_size;
    uint64_t sigmask;
    unsigned char unused[120];
    uint64_t align;
    uint64_t fault_address, regs[31], sp, pc, pstate, align_2;
    struct context fpsimd;
    uint32_t end_magic, end_size;
    unsigned char reserved[64];
};
_Static_assert(offsetof(struct frame, fault_address) == 128 + 176 &&
                   offsetof(struct frame, fpsimd) % 16 == 0 && sizeof(struct context) == 528,
               "the kernel's layout");

/* svc #0; ret. */
const unsigned char pb_arch_syscall_code[] = {0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6};
const size_t pb_arch_syscall_len = sizeof(pb_arch_syscall_code);
/* mov x8, #139; svc #0: in the vdso, and in musl. */
const unsigned char pb_arch_restorer_code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
const size_t pb_arch_restorer_len = sizeof(pb_arch_restorer_code);

static bool has_sve(const struct pb_arch_state *s)
{
    return s->vector_len != sizeof(struct fpsimd);
}

/* The SVE regset is there on processors that have it; its header says whether the thread uses more than the
 * common part of the registers. */
static int save_vector(pid_t tid, struct pb_arch_state *ret)
{
    struct {
        uint32_t size, max_size;
        uint16_t vl, max_vl, flags, reserved;
    } head;
    struct iovec sve = {ret->vector, sizeof(ret->vector)}, plain = {ret->vector, sizeof(struct fpsimd)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_ARM_SVE, &sve) == 0 && sve.iov_len >= sizeof(head)) {
        memcpy(&head, ret->vector, sizeof(head));
        if (head.flags & 1 && head.size <= sve.iov_len) {
            ret->vector_len = head.size;
            return 0;
        }
    }
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRFPREG, &plain) < 0)
        return -errno;
    ret->vector_len = sizeof(struct fpsimd);
    return plain.iov_len == sizeof(struct fpsimd) ? 0 : -ENOTSUP;
}

int pb_arch_save(pid_t tid, struct pb_arch_state *ret)
{
    struct iovec gpr = {&ret->gpr, sizeof(ret->gpr)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &gpr) < 0 ||
        ptrace(PTRACE_GETSIGMASK, tid, sizeof(ret->sigmask), &ret->sigmask) < 0)
        return -errno;
    return gpr.iov_len == sizeof(ret->gpr) ? save_vector(tid, ret) : -ENOTSUP;
}

/* With no system call on record the kernel has nothing to restart behind our back. */
static int set_gpr(pid_t tid, const struct user_regs_struct *gpr)
{
    int none = -1;
    struct iovec io = {(void *)(uintptr_t)gpr, sizeof(*gpr)}, call = {&none, sizeof(none)};
    if (ptrace(PTRACE_SETREGSET, tid, NT_ARM_SYSTEM_CALL, &call) < 0)
        return -errno;
    return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &io) < 0 ? -errno : 0;
}

int pb_arch_restore(pid_t tid, const struct pb_arch_state *s)
{
    struct iovec vector = {(void *)(uintptr_t)s->vector, s->vector_len};
    if (ptrace(PTRACE_SETREGSET, tid, has_sve(s) ? NT_ARM_SVE : NT_PRFPREG, &vector) < 0 ||
        ptrace(PTRACE_SETSIGMASK, tid, sizeof(s->sigmask), &s->sigmask) < 0)
        return -errno;
    return set_gpr(tid, &s->gpr);
}

uint64_t pb_arch_pc(const struct pb_arch_state *s)
{
    return s->gpr.pc;
}

uint64_t pb_arch_sp(const struct pb_arch_state *s)
{
    return s->gpr.sp;
}

uint64_t pb_arch_tls(pid_t tid, const struct pb_arch_state *s)
{
    uint64_t tls = 0;
    struct iovec io = {&tls, sizeof(tls)};
    (void)s;
    return ptrace(PTRACE_GETREGSET, tid, NT_ARM_TLS, &io) < 0 ? 0 : tls;
}

bool pb_arch_ended_by_stop(const struct pb_arch_state *s, long nr)
{
    return (int64_t)s->gpr.regs[0] == -EINTR && (long)s->gpr.regs[8] == nr;
}

/* It stands on the instruction that it will repeat. */
bool pb_arch_blocked(pid_t pid, const struct pb_arch_state *s, long *ret_nr, uint64_t *ret_second_arg)
{
    uint32_t code;
    if (pb_mem_read(pid, s->gpr.pc, &code, sizeof(code)) < 0 || code != SVC_0)
        return false;
    *ret_nr = (long)s->gpr.regs[8];
    *ret_second_arg = s->gpr.regs[1];
    return true;
}

/* Of SVE registers the frame keeps the common part only: all that code of the C library may rely on across a
 * call. It is used only when the tool has died. */
static void put_vector(const struct pb_arch_state *s, struct context *c)
{
    const struct fpsimd *f = (const void *)s->vector;
    *c = (struct context){.magic = FPSIMD_MAGIC, .size = sizeof(*c)};
    if (!has_sve(s)) {
        memcpy(c->vregs, f->vregs, sizeof(c->vregs));
        c->fpsr = f->fpsr;
        c->fpcr = f->fpcr;
        return;
    }
    uint16_t vl;
    memcpy(&vl, s->vector + 8, sizeof(vl));
    for (size_t i = 0; i < 32 && 16 + i * vl + 16 <= s->vector_len; i++)
        memcpy(c->vregs + i * 16, s->vector + 16 + i * vl, 16);
    /* Behind the 32 Z, 16 P registers and FFR, rounded up to 16. */
    size_t tail = (16 + 32u * vl + 17u * (vl / 8) + 15) & ~15ull;
    if (tail + 8 <= s->vector_len) {
        memcpy(&c->fpsr, s->vector + tail, 4);
        memcpy(&c->fpcr, s->vector + tail + 4, 4);
    }
}

size_t pb_arch_frame(const struct pb_arch_state *s, uint64_t restorer, const struct pb_arch_undo *undo,
                     unsigned char *buf, uint64_t *ret_addr, uint64_t *ret_sp, uint64_t *ret_undo_sp)
{
    uint64_t at = (s->gpr.sp - 128 - sizeof(struct frame)) & ~15ull;
    uint64_t below = (at - sizeof(struct frame)) & ~15ull;
    struct frame f = {.ss_flags = ~0u >> 1, /* no such flags: the alternate stack stays as it is */
                      .sigmask = s->sigmask,
                      .sp = s->gpr.sp,
                      .pc = s->gpr.pc,
                      .pstate = s->gpr.pstate};
    memcpy(f.regs, s->gpr.regs, sizeof(f.regs));
    put_vector(s, &f.fpsimd);
    struct frame first = {.ss_flags = ~0u >> 1,
                          .sigmask = undo->sigmask,
                          .sp = at,
                          .pc = undo->syscall_code,
                          .pstate = s->gpr.pstate,
                          .fpsimd = f.fpsimd};
    first.regs[0] = undo->memory;
    first.regs[1] = undo->size;
    first.regs[8] = SYS_munmap;
    first.regs[30] = restorer;
    memset(buf, 0, at - below);
    memcpy(buf, &first, sizeof(first));
    memcpy(buf + (at - below), &f, sizeof(f));
    *ret_addr = *ret_undo_sp = below;
    *ret_sp = at;
    return (size_t)(at - below) + sizeof(f);
}

int pb_arch_set_syscall(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t frame_sp,
                        uint64_t restorer, long nr, const uint64_t args[6])
{
    struct user_regs_struct r = s->gpr;
    r.pc = code;
    r.sp = frame_sp;
    r.regs[30] = restorer;
    r.regs[8] = (uint64_t)nr;
    memcpy(r.regs, args, 6 * sizeof(args[0]));
    return set_gpr(tid, &r);
}

int pb_arch_set_stub(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t stack, uint64_t stub)
{
    struct user_regs_struct r = s->gpr;
    r.pc = code;
    r.sp = stack & ~15ull;
    r.regs[29] = 0; /* a walk along frame pointers ends here */
    r.regs[19] = stub;
    return set_gpr(tid, &r);
}

int pb_arch_result(pid_t tid, int64_t *ret, uint64_t *ret_pc)
{
    struct user_regs_struct r;
    struct iovec io = {&r, sizeof(r)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io) < 0)
        return -errno;
    *ret = (int64_t)r.regs[0];
    *ret_pc = r.pc;
    return 0;
}

/* bl, or blr and its authenticating forms. */
bool pb_arch_is_call(const unsigned char before[16])
{
    uint32_t code;
    memcpy(&code, before + 12, sizeof(code));
    return code >> 26 == 0x25 || (code & 0xfefff000u) == 0xd63f0000u;
}

/* The restorer is in a register there; what was interrupted cannot be told from its word on the stack. */
bool pb_arch_interrupted(const uint64_t *words, size_t n, uint64_t *ret_pc, uint64_t *ret_sp)
{
    return false;
}
