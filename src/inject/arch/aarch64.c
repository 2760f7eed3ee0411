/* aarch64: see arch.h. The kernel's side: arch/arm64/kernel/signal.c. Two differences from x86-64: a stopped
 * thread's pc is already back on the system call that it would restart, and the return address is in a
 * register, so the signal frame need not begin with that of the restorer. */
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
#ifndef NT_ARM_SSVE
#define NT_ARM_SSVE 0x40b
#define NT_ARM_ZA   0x40c
#endif
#ifndef NT_ARM_ZT
#define NT_ARM_ZT 0x40d
#endif
#ifndef NT_ARM_GCS
#define NT_ARM_GCS 0x410
#endif

#define SVC_0         0xd4000001u
#define FPSIMD_MAGIC  0x46508001u
#define SVE_MAGIC     0x53564501u
#define ZA_MAGIC      0x54366345u
#define ZT_MAGIC      0x5a544e01u
#define EXTRA_MAGIC   0x45585401u
#define PSTATE_BTYPE  0xc00u              /* the instruction before was an indirect branch */
#define POINTER_MASK  0x0000ffffffffffffu /* of an address without its authentication code */
#define CONTEXT_LIMIT 4096u               /* the kernel reads this much before it needs an extra_context */

/* FP and vector registers: records one behind the other in pb_arch_state.vector, each a ptrace register set
 * that the thread uses. The first is always that of the 128-bit registers, which the kernel requires in every
 * frame; SVE, ZA and ZT follow if kernel and thread use them. A kernel that has such a set also accepts it in
 * a signal frame; an unknown part would end the process. */
struct record {
    uint32_t set, size; /* NT_*; bytes behind this head */
    uint64_t unused;
};

struct fpsimd {
    unsigned char vregs[512];
    uint32_t fpsr, fpcr, pad[2];
};

/* The head of the sets of SVE and ZA. The registers follow it, as in the frame, whose head has the same
 * size. */
struct vector_head {
    uint32_t size, max_size;
    uint16_t vl, max_vl, flags, reserved;
};

struct context {
    uint32_t magic, size;
    uint32_t fpsr, fpcr;
    unsigned char vregs[512];
};

/* The head of a part of the frame. sve_context and za_context have the vector length, zt_context the number
 * of registers. */
struct register_part {
    uint32_t magic, size;
    uint16_t length, reserved[3];
};

/* Points from the kernel's 4096 bytes to the rest, which follows this struct. */
struct extra {
    uint32_t magic, size;
    uint64_t data;
    uint32_t data_size, reserved[3];
    uint32_t end_magic, end_size;
    uint64_t end_reserved;
};

struct frame {
    unsigned char info[128];
    uint64_t uc_flags, uc_link;
    uint64_t ss_sp, ss_flags, ss_size;
    uint64_t sigmask;
    unsigned char unused[120];
    uint64_t align;
    uint64_t fault_address, regs[31], sp, pc, pstate, align_2;
    struct context fpsimd; /* followed by the other parts, and 16 zero bytes as the end */
};
_Static_assert(offsetof(struct frame, fault_address) == 128 + 176 &&
                   offsetof(struct frame, fpsimd) % 16 == 0 && sizeof(struct context) == 528 &&
                   sizeof(struct frame) % 16 == 0 && sizeof(struct extra) == 48 &&
                   sizeof(struct register_part) == 16 &&
                   sizeof(struct vector_head) == sizeof(struct register_part) && sizeof(struct record) == 16,
               "the kernel's layout");

/* svc #0; ret. */
const unsigned char pb_arch_syscall_code[] = {0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6};
const size_t pb_arch_syscall_len = sizeof(pb_arch_syscall_code);
/* mov x8, #139; svc #0: in the vdso, and in musl. */
const unsigned char pb_arch_restorer_code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
const size_t pb_arch_restorer_len = sizeof(pb_arch_restorer_code);

static size_t aligned(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

/* The record behind `last`, or the first; NULL: no more. */
static const struct record *next_record(const struct pb_arch_state *s, const struct record *last)
{
    size_t at =
        last ? (size_t)((const unsigned char *)last - s->vector) + sizeof(*last) + aligned(last->size) : 0;
    return at < s->vector_len ? (const struct record *)(s->vector + at) : NULL;
}

/* Reads a register set into a new record; add_record counts it. Returns how many bytes the kernel gave, or a
 * negative errno. */
static ssize_t read_record(pid_t tid, struct pb_arch_state *ret, uint32_t set)
{
    struct record *new = (struct record *)(ret->vector + ret->vector_len);
    if (sizeof(ret->vector) - ret->vector_len < sizeof(*new) + sizeof(struct vector_head))
        return -E2BIG;
    *new = (struct record){.set = set};
    struct iovec io = {new + 1, sizeof(ret->vector) - ret->vector_len - sizeof(*new)};
    return ptrace(PTRACE_GETREGSET, tid, (unsigned long)set, &io) < 0 ? -errno : (ssize_t)io.iov_len;
}

static void add_record(struct pb_arch_state *ret, size_t size)
{
    ((struct record *)(ret->vector + ret->vector_len))->size = (uint32_t)size;
    ret->vector_len += sizeof(struct record) + aligned(size);
}

/* Saves a set with a vector_head. 1: saved; 0: the thread or the kernel does not use it. SVE has a flag for
 * that; the other sets then have no more than the head. */
static int save_set(pid_t tid, struct pb_arch_state *ret, uint32_t set)
{
    struct vector_head head;
    ssize_t len = read_record(tid, ret, set);
    if (len < (ssize_t)sizeof(head))
        return len == -E2BIG ? -E2BIG : 0;
    memcpy(&head, ret->vector + ret->vector_len + sizeof(struct record), sizeof(head));
    if (head.size <= sizeof(head) || (set == NT_ARM_SVE && !(head.flags & 1)))
        return 0;
    if (head.size > (size_t)len)
        return -E2BIG;
    add_record(ret, head.size);
    return 1;
}

/* The C library's code cannot run in streaming mode, where most vector instructions trap, nor under a guarded
 * control stack, which must have seen the call that a return ends. */
static bool can_run_ours(pid_t tid, struct pb_arch_state *scratch)
{
    struct vector_head head;
    uint64_t guard[3] = {0};
    struct iovec io = {guard, sizeof(guard)};
    if (read_record(tid, scratch, NT_ARM_SSVE) >= (ssize_t)sizeof(head)) {
        memcpy(&head, scratch->vector + scratch->vector_len + sizeof(struct record), sizeof(head));
        if (head.size > sizeof(head))
            return false;
    }
    return ptrace(PTRACE_GETREGSET, tid, NT_ARM_GCS, &io) < 0 || !(guard[0] & 1);
}

static int save_vector(pid_t tid, struct pb_arch_state *ret)
{
    ret->vector_len = 0;
    ssize_t len = read_record(tid, ret, NT_PRFPREG);
    if (len != (ssize_t)sizeof(struct fpsimd))
        return len < 0 ? (int)len : -ENOTSUP;
    add_record(ret, (size_t)len);
    ret->foreign = !can_run_ours(tid, ret);
    if (ret->foreign)
        return 0;
    int sve = save_set(tid, ret, NT_ARM_SVE), za = sve < 0 ? sve : save_set(tid, ret, NT_ARM_ZA);
    if (za > 0) {
        len = read_record(tid, ret, NT_ARM_ZT);
        if (len > 0)
            add_record(ret, (size_t)len);
        za = len == -E2BIG ? -E2BIG : 1;
    }
    /* More state than there is room for: the thread cannot be borrowed now. */
    ret->foreign = za < 0;
    return 0;
}

int pb_arch_save(pid_t tid, struct pb_arch_state *ret)
{
    struct iovec gpr = {&ret->gpr, sizeof(ret->gpr)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &gpr) < 0 ||
        ptrace(PTRACE_GETSIGMASK, tid, sizeof(ret->sigmask), &ret->sigmask) < 0)
        return -errno;
    return gpr.iov_len == sizeof(ret->gpr) ? save_vector(tid, ret) : -ENOTSUP;
}

/* With no system call on record the kernel has none to restart. */
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
    for (const struct record *r = next_record(s, NULL); r; r = next_record(s, r)) {
        struct iovec io = {(void *)(uintptr_t)(r + 1), r->size};
        if (ptrace(PTRACE_SETREGSET, tid, (unsigned long)r->set, &io) < 0)
            return -errno;
    }
    if (ptrace(PTRACE_SETSIGMASK, tid, sizeof(s->sigmask), &s->sigmask) < 0)
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

uint64_t pb_arch_link(const struct pb_arch_state *s)
{
    return s->gpr.regs[30] & POINTER_MASK;
}

uint64_t pb_arch_code_address(uint64_t word)
{
    return word & POINTER_MASK;
}

bool pb_arch_can_be_borrowed(const struct pb_arch_state *s)
{
    return !s->foreign;
}

bool pb_arch_ended_by_stop(const struct pb_arch_state *s, long nr)
{
    return (int64_t)s->gpr.regs[0] == -EINTR && (long)s->gpr.regs[8] == nr;
}

/* Its pc is on the instruction that it will repeat. */
bool pb_arch_blocked(pid_t pid, const struct pb_arch_state *s, long *ret_nr, uint64_t *ret_second_arg)
{
    uint32_t code;
    if (pb_mem_read(pid, s->gpr.pc, &code, sizeof(code)) < 0 || code != SVC_0)
        return false;
    *ret_nr = (long)s->gpr.regs[8];
    *ret_second_arg = s->gpr.regs[1];
    return true;
}

static void put_fpsimd(const struct pb_arch_state *s, struct context *c)
{
    const struct fpsimd *f = (const void *)(next_record(s, NULL) + 1);
    *c = (struct context){.magic = FPSIMD_MAGIC, .size = sizeof(*c), .fpsr = f->fpsr, .fpcr = f->fpcr};
    memcpy(c->vregs, f->vregs, sizeof(c->vregs));
}

/* Writes a record as a part of the frame; out NULL: only its length. */
static size_t put_part(const struct record *r, unsigned char *out)
{
    struct register_part p = {0};
    const unsigned char *from = (const unsigned char *)(r + 1);
    size_t size = r->size;
    if (r->set == NT_ARM_ZT) {
        p = (struct register_part){.magic = ZT_MAGIC, .length = 1};
    } else {
        struct vector_head head;
        memcpy(&head, from, sizeof(head));
        from += sizeof(head);
        p = (struct register_part){.magic = r->set == NT_ARM_SVE ? SVE_MAGIC : ZA_MAGIC, .length = head.vl};
        /* SVE has 32 Z and 16 P registers and FFR; the two status words behind them are stored in the frame
         * with the 128-bit registers. */
        size = r->set == NT_ARM_SVE ? 32u * head.vl + 17u * (head.vl / 8) : r->size - sizeof(head);
        if (size > r->size - sizeof(head))
            size = r->size - sizeof(head);
    }
    p.size = (uint32_t)aligned(sizeof(p) + size);
    if (out) {
        memcpy(out, &p, sizeof(p));
        memcpy(out + sizeof(p), from, size);
    }
    return p.size;
}

/* Writes all parts but the first, and the end; `at` is their address in the target. out NULL: only their
 * length. */
static size_t put_parts(const struct pb_arch_state *s, unsigned char *out, uint64_t at)
{
    size_t len = 0, lead = 0;
    for (const struct record *r = next_record(s, next_record(s, NULL)); r; r = next_record(s, r))
        len += put_part(r, NULL);
    len += 16; /* the end */
    if (sizeof(struct context) + len > CONTEXT_LIMIT)
        lead = sizeof(struct extra);
    if (!out)
        return lead + len;
    if (lead) {
        struct extra e = {.magic = EXTRA_MAGIC,
                          .size = offsetof(struct extra, end_magic),
                          .data = at + lead,
                          .data_size = (uint32_t)len};
        memcpy(out, &e, sizeof(e));
        out += lead;
    }
    for (const struct record *r = next_record(s, next_record(s, NULL)); r; r = next_record(s, r))
        out += put_part(r, out);
    return lead + len;
}

/* The first frame only leads to munmap and has the least that the kernel accepts; the second has
 * everything. */
size_t pb_arch_frame(const struct pb_arch_state *s, uint64_t restorer, const struct pb_arch_undo *undo,
                     unsigned char *buf, uint64_t *ret_addr, uint64_t *ret_sp, uint64_t *ret_undo_sp)
{
    size_t parts = put_parts(s, NULL, 0);
    uint64_t at = (s->gpr.sp - 128 - sizeof(struct frame) - parts) & ~15ull;
    uint64_t below = at - sizeof(struct frame) - 16;
    struct frame f = {.ss_flags = ~0u >> 1, /* no such flags: the alternate stack stays as it is */
                      .sigmask = s->sigmask,
                      .sp = s->gpr.sp,
                      .pc = s->gpr.pc,
                      .pstate = s->gpr.pstate};
    memcpy(f.regs, s->gpr.regs, sizeof(f.regs));
    put_fpsimd(s, &f.fpsimd);
    struct frame first = {.ss_flags = ~0u >> 1,
                          .sigmask = undo->sigmask,
                          .sp = at,
                          .pc = undo->syscall_code,
                          .pstate = s->gpr.pstate & ~(uint64_t)PSTATE_BTYPE,
                          .fpsimd = f.fpsimd};
    first.regs[0] = undo->memory;
    first.regs[1] = undo->size;
    first.regs[8] = SYS_munmap;
    first.regs[30] = restorer;
    size_t len = (size_t)(at - below) + sizeof(f) + parts;
    memset(buf, 0, len);
    memcpy(buf, &first, sizeof(first));
    memcpy(buf + (at - below), &f, sizeof(f));
    put_parts(s, buf + (at - below) + sizeof(f), at + sizeof(f));
    *ret_addr = *ret_undo_sp = below;
    *ret_sp = at;
    return len;
}

int pb_arch_set_syscall(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t frame_sp,
                        uint64_t restorer, long nr, const uint64_t args[6])
{
    struct user_regs_struct r = s->gpr;
    r.pc = code;
    r.pstate &= ~(uint64_t)PSTATE_BTYPE; /* the pc is not reached by a branch: guarded code would trap */
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
    r.pstate &= ~(uint64_t)PSTATE_BTYPE; /* the pc is not reached by a branch: guarded code would trap */
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

/* The restorer is in a register on aarch64, so its word on the stack does not mark a signal frame. */
bool pb_arch_interrupted(const uint64_t *words, size_t n, uint64_t *ret_pc, uint64_t *ret_sp)
{
    return false;
}
