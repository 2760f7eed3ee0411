/* unwind_arch: see unwind_arch.h. */
#include "remote/native/unwind_arch.h"

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

static bool x86_sets_frame_pointer(const unsigned char *code, size_t len)
{
    static const unsigned char mov_rbp_rsp[] = {0x48, 0x89, 0xe5};
    return memmem(code, len, mov_rbp_rsp, sizeof(mov_rbp_rsp)) != NULL;
}

/* The calling convention asks for it. */
static bool arm_sets_frame_pointer(const unsigned char *code, size_t len)
{
    return true;
}

static bool x86_returns_from_signal(const unsigned char code[16])
{
    static const unsigned char sigreturn[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
    return memcmp(code, sigreturn, sizeof(sigreturn)) == 0;
}

/* struct ucontext of the kernel, whose registers have an order of their own. */
static const uint16_t x86_context[] = {144, 136, 152, 128, 112, 104, 120, 160, 40,
                                       48,  56,  64,  72,  80,  88,  96,  168};

static bool x86_jump_slot(const unsigned char code[16], uint64_t addr, uint64_t *ret_slot)
{
    static const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
    unsigned at = memcmp(code, endbr64, sizeof(endbr64)) == 0 ? 4 : 0;
    int32_t by;
    at += code[at] == 0xf2; /* bnd */
    if (code[at] != 0xff || code[at + 1] != 0x25)
        return false;
    memcpy(&by, code + at + 2, sizeof(by));
    *ret_slot = addr + at + 6 + (uint64_t)(int64_t)by;
    return true;
}

/* adrp x16, page; ldr x17, [x16, offset] */
static bool arm_jump_slot(const unsigned char code[16], uint64_t addr, uint64_t *ret_slot)
{
    uint32_t adrp, ldr;
    memcpy(&adrp, code, sizeof(adrp));
    memcpy(&ldr, code + 4, sizeof(ldr));
    if ((adrp & 0x9f00001f) != 0x90000010 || (ldr & 0xffc003ff) != 0xf9400211)
        return false;
    uint64_t pages = (uint64_t)(adrp >> 5 & 0x7ffff) << 2 | (adrp >> 29 & 3);
    int64_t by = (int64_t)(pages << 43) >> 31;
    *ret_slot = (addr & ~4095ull) + (uint64_t)by + (ldr >> 10 & 0xfff) * 8;
    return true;
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
    .jump_slot = x86_jump_slot,
    .sets_frame_pointer = x86_sets_frame_pointer,
    .returns_from_signal = x86_returns_from_signal,
    .context = x86_context,
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
    .jump_slot = arm_jump_slot,
    .sets_frame_pointer = arm_sets_frame_pointer,
};

const struct pb_native_arch *pb_native_arch(uint16_t machine)
{
    if (machine == EM_X86_64 || machine == EM_AARCH64)
        return machine == EM_X86_64 ? &pb_native_x86_64 : &pb_native_aarch64;
#if defined(__x86_64__)
    return &pb_native_x86_64;
#elif defined(__aarch64__)
    return &pb_native_aarch64;
#else
#error "no unwinding on this processor yet"
#endif
}

void pb_native_place_registers(uint16_t machine, const uint64_t *raw, uint64_t *reg)
{
    /* Where struct user_regs_struct has rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip. */
    static const unsigned char x86[] = {10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16};

    if (machine == EM_AARCH64) {
        memcpy(reg, raw, 33 * sizeof(*reg));
        return;
    }
    for (size_t i = 0; i < sizeof(x86); i++)
        reg[i] = raw[x86[i]];
}

int pb_native_registers(pid_t tid, struct pb_capture *ret)
{
    const struct pb_native_arch *arch = pb_native_arch(0);
    uint64_t raw[sizeof(struct user_regs_struct) / sizeof(uint64_t)];
    struct iovec io = {raw, sizeof(raw)};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)(long)NT_PRSTATUS, &io) < 0)
        return -errno;
    if (io.iov_len != sizeof(raw))
        return -ENOTSUP;
    pb_native_place_registers(arch->machine, raw, ret->reg);
    ret->known = (1ull << arch->nregs) - 1;
    ret->pc = ret->reg[arch->pc];
    ret->sp = ret->reg[arch->sp];
    return 0;
}
