/* arch: see arch.h. */
#include "remote/native/arch.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

#include "remote/native/unwind.h"

static bool x86_call_before(const unsigned char before[8], uint64_t ra, uint64_t *ret_target)
{
    *ret_target = 0;
    if (before[3] == 0xe8) {
        int32_t by;
        memcpy(&by, before + 4, sizeof(by));
        *ret_target = ra + (uint64_t)(int64_t)by;
        return true;
    }
    /* call r/m64: ff /2, two to seven bytes long, by its addressing mode. */
    static const struct {
        unsigned at;
        unsigned mod;
    } forms[] = {{6, 3}, {6, 0}, {5, 0}, {5, 1}, {4, 1}, {2, 0}, {2, 2}, {1, 2}};
    for (unsigned i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        unsigned at = forms[i].at;
        if (before[at] == 0xff && (before[at + 1] >> 3 & 7) == 2 && before[at + 1] >> 6 == forms[i].mod)
            return true;
    }
    return false;
}

static bool arm_call_before(const unsigned char before[8], uint64_t ra, uint64_t *ret_target)
{
    uint32_t code;
    memcpy(&code, before + 4, sizeof(code));
    *ret_target = 0;
    if (code >> 26 == 0x25) { /* bl */
        int64_t by = (int64_t)((uint64_t)code << 38) >> 36;
        *ret_target = ra - 4 + (uint64_t)by;
        return true;
    }
    return (code & 0xfffffc1f) == 0xd63f0000 || (code & 0xfefff800) == 0xd63f0800; /* blr, blraa and kin */
}

const struct pb_native_arch pb_native_x86_64 = {
    .machine = EM_X86_64,
    .nregs = 17,
    .sp = 7,
    .fp = 6,
    .pc = 16,
    .link = 17,
    .pointer_mask = UINT64_MAX,
    .call_before = x86_call_before,
};

const struct pb_native_arch pb_native_aarch64 = {
    .machine = EM_AARCH64,
    .nregs = 33,
    .sp = 31,
    .fp = 29,
    .pc = 32,
    .link = 30,
    .pointer_mask = (1ull << 48) - 1,
    .call_before = arm_call_before,
};

const struct pb_native_arch *pb_native_arch(void)
{
#if defined(__x86_64__)
    return &pb_native_x86_64;
#elif defined(__aarch64__)
    return &pb_native_aarch64;
#else
#error "no unwinding on this processor yet"
#endif
}

static void take(struct pb_capture *c, const struct user_regs_struct *r)
{
#if defined(__x86_64__)
    const uint64_t reg[] = {r->rax, r->rdx, r->rcx, r->rbx, r->rsi, r->rdi, r->rbp, r->rsp, r->r8,
                            r->r9,  r->r10, r->r11, r->r12, r->r13, r->r14, r->r15, r->rip};
    memcpy(c->reg, reg, sizeof(reg));
#else
    memcpy(c->reg, r->regs, sizeof(r->regs));
    c->reg[31] = r->sp;
    c->reg[32] = r->pc;
#endif
}

int pb_native_registers(pid_t tid, struct pb_capture *ret)
{
    const struct pb_native_arch *arch = pb_native_arch();
    struct user_regs_struct regs;
    struct iovec io = {&regs, sizeof(regs)};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)(long)NT_PRSTATUS, &io) < 0)
        return -errno;
    if (io.iov_len != sizeof(regs))
        return -ENOTSUP;
    take(ret, &regs);
    ret->known = (1ull << arch->nregs) - 1;
    ret->pc = ret->reg[arch->pc];
    ret->sp = ret->reg[arch->sp];
    return 0;
}
