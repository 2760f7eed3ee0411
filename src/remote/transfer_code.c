/* transfer_code: the instructions with which a thread finishes a transfer, and where they lie; see
 * transfer.h. Signal-safe throughout.
 * They lie behind the end of a program's or library's code, in the part of its last page that belongs to no
 * segment: memory that can be executed already, and that nothing else uses. Once there they stay: any thread
 * may run them at any time, with what they need on its own stack. Nothing in them is specific to a thread.
 * The system call restarts, ends with EINTR before a handler or with the count, as at the program's own
 * instruction. Its result, or 0 for an error, is added to the count so far. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#include "base/plain_text.h"
#include "remote/transfer.h"

enum { MAX_PHDRS = 64, CODE_FAR = 100 << 20, PAGE = 4096 };

/* The second way: some containers forbid process_vm_* and allow the file. */
static int open_memory(pid_t tid, int flags)
{
    char path[32];
    pb_plain_put(pb_plain_put_number(pb_plain_put(path, "/proc/"), tid), "/mem");
    return open(path, flags | O_CLOEXEC);
}

bool pb_transfer_read(pid_t tid, uint64_t at, void *buf, size_t len)
{
    struct iovec local = {buf, len}, there = {(void *)(uintptr_t)at, len};
    ssize_t n = process_vm_readv(tid, &local, 1, &there, 1, 0);
    int fd = n < 0 && errno != EFAULT ? open_memory(tid, O_RDONLY) : -1;
    if (fd < 0)
        return n == (ssize_t)len;
    n = pread(fd, buf, len, (off_t)at);
    close(fd);
    return n == (ssize_t)len;
}

bool pb_transfer_write(pid_t tid, uint64_t at, const void *buf, size_t len)
{
    struct iovec local = {(void *)(uintptr_t)buf, len}, there = {(void *)(uintptr_t)at, len};
    ssize_t n = process_vm_writev(tid, &local, 1, &there, 1, 0);
    int fd = n < 0 && errno != EFAULT ? open_memory(tid, O_WRONLY) : -1;
    if (fd < 0)
        return n == (ssize_t)len;
    n = pwrite(fd, buf, len, (off_t)at);
    close(fd);
    return n == (ssize_t)len;
}

/* ---- The processor ---- */

#if defined(__x86_64__)
enum { KERNEL_RESTART_NOHAND = 514 };

/* A system call overwrites rcx with the address behind it, so that register is free for the way back. */
static const unsigned char code_template[PB_TRANSFER_CODE] = {
    0x0f, 0x05,                   /*   syscall           */
    0x48, 0x85, 0xc0,             /*   test %rax, %rax   */
    0x79, 0x02,                   /*   jns 1f            */
    0x31, 0xc0,                   /*   xor %eax, %eax    */
    0x48, 0x03, 0x44, 0x24, 0x20, /* 1: add 32(%rsp), %rax, the count so far */
    0x48, 0x8b, 0x7c, 0x24, 0x28, /*   mov 40(%rsp), %rdi */
    0x48, 0x8b, 0x74, 0x24, 0x30, /*   mov 48(%rsp), %rsi */
    0x48, 0x8b, 0x54, 0x24, 0x38, /*   mov 56(%rsp), %rdx */
    0x4c, 0x8b, 0x54, 0x24, 0x40, /*   mov 64(%rsp), %r10 */
    0x4c, 0x8b, 0x44, 0x24, 0x48, /*   mov 72(%rsp), %r8  */
    0x4c, 0x8b, 0x4c, 0x24, 0x50, /*   mov 80(%rsp), %r9  */
    0x48, 0x8b, 0x4c, 0x24, 0x18, /*   mov 24(%rsp), %rcx, the program's pc */
    0x48, 0x8b, 0x64, 0x24, 0x10, /*   mov 16(%rsp), %rsp, and sp */
    0xff, 0xe1,                   /*   jmp *%rcx         */
};

static bool make_code(uint64_t at, const struct pb_transfer_call *site, unsigned char ret[PB_TRANSFER_CODE])
{
    (void)at;
    (void)site;
    memcpy(ret, code_template, PB_TRANSFER_CODE);
    return true;
}

bool pb_transfer_is_code(const unsigned char code[PB_TRANSFER_CODE])
{
    return memcmp(code, code_template, PB_TRANSFER_CODE) == 0;
}

uint64_t pb_transfer_tls(pid_t tid)
{
    uint64_t base;
    long r = syscall(SYS_ptrace, PTRACE_PEEKUSER, tid, offsetof(struct user, regs.fs_base), &base);
    return r < 0 ? 0 : base;
}

/* As after a call that a stop ended before it had done anything: the kernel restarts it, unless a handler
 * runs. Then the call ends with EINTR in our code, and the program gets the count so far. */
static void set_call(struct user_regs_struct *r, uint64_t code, long number, const uint64_t args[6],
                     uint64_t sp)
{
    r->rdi = args[0];
    r->rsi = args[1];
    r->rdx = args[2];
    r->r10 = args[3];
    r->r8 = args[4];
    r->r9 = args[5];
    r->rax = (uint64_t)-KERNEL_RESTART_NOHAND;
    r->orig_rax = (uint64_t)number;
    r->rip = code + PB_TRANSFER_BEFORE;
    r->rsp = sp;
}
#elif defined(__aarch64__)
#ifndef NT_ARM_TLS
#define NT_ARM_TLS 0x401
#endif

enum { BRANCH = 11 };

static const uint32_t code_template[PB_TRANSFER_CODE / 4] = {
    0xd4000001, /*    svc #0                 */
    0xb6f80040, /*    tbz x0, #63, 1f        */
    0xd2800000, /*    mov x0, #0             */
    0xf94013e1, /* 1: ldr x1, [sp, #32], the count so far */
    0x8b010000, /*    add x0, x0, x1         */
    0xa9430be1, /*    ldp x1, x2, [sp, #48]  */
    0xa94413e3, /*    ldp x3, x4, [sp, #64]  */
    0xf9402be5, /*    ldr x5, [sp, #80]      */
    0xf9400be8, /*    ldr x8, [sp, #16], the program's sp */
    0x9100011f, /*    mov sp, x8             */
    0xd2800008, /*    mov x8, #number        */
    0x14000000, /*    b site                 */
};

/* Each call's site has its own copy: all registers but x0 are the program's, so the way back is a branch to
 * that site. x8 is the number of its call. No flag is changed. */
static bool make_code(uint64_t at, const struct pb_transfer_call *site, unsigned char ret[PB_TRANSFER_CODE])
{
    int64_t by = (int64_t)(site->pc - (at + BRANCH * 4));
    uint32_t code[PB_TRANSFER_CODE / 4];

    memcpy(code, code_template, sizeof(code));
    code[BRANCH - 1] |= (uint32_t)(site->number & 0xffff) << 5;
    code[BRANCH] |= (uint32_t)(by >> 2) & 0x3ffffff;
    memcpy(ret, code, PB_TRANSFER_CODE);
    return by > -CODE_FAR && by < CODE_FAR && site->number >= 0 && site->number <= 0xffff;
}

bool pb_transfer_is_code(const unsigned char code[PB_TRANSFER_CODE])
{
    return memcmp(code, code_template, (BRANCH - 1) * sizeof(code_template[0])) == 0;
}

uint64_t pb_transfer_tls(pid_t tid)
{
    uint64_t base = 0;
    struct iovec io = {&base, sizeof(base)};
    return ptrace(PTRACE_GETREGSET, tid, NT_ARM_TLS, &io) < 0 ? 0 : base;
}

static void set_call(struct user_regs_struct *r, uint64_t code, long number, const uint64_t args[6],
                     uint64_t sp)
{
    memcpy(r->regs, args, 6 * sizeof(args[0]));
    r->regs[8] = (uint64_t)number;
    r->pc = code;
    r->sp = sp;
}
#endif

/* ---- The place ---- */

struct code_line {
    uint64_t start, end, offset, inode;
    bool readable, executable, private, forbidden; /* forbidden: no access at all */
    bool stack;
};

struct search {
    pid_t tid;
    const struct pb_transfer_call *site;
    uint64_t sp, tls;
    size_t room;
    uint64_t base, base_inode; /* where the last file's header is mapped */
    uint64_t guard_end;        /* of the last mapping without any access */
    uint64_t code;             /* 0: none yet */
    bool near, has_room;
};

/* "start-end rwxp offset dev inode path". */
static bool parse_line(const char *text, struct code_line *ret)
{
    bool found[4];

    *ret = (struct code_line){.start = pb_plain_number(&text, 16, &found[0])};
    if (*text++ != '-')
        return false;
    ret->end = pb_plain_number(&text, 16, &found[1]);
    if (text[0] != ' ' || strnlen(text, 6) < 6)
        return false;
    ret->readable = text[1] == 'r';
    ret->executable = text[3] == 'x' && text[2] != 'w';
    ret->private = text[4] == 'p';
    ret->forbidden = text[1] == '-' && text[2] == '-' && text[3] == '-';
    text += 5;
    ret->offset = pb_plain_number(&text, 16, &found[2]);
    text += strspn(text, " ");
    text += strcspn(text, " ");
    ret->inode = pb_plain_number(&text, 10, &found[3]);
    ret->stack = strstr(text, " [stack]") != NULL;
    return found[0] && found[1] && found[2] && found[3];
}

/* The end of the segment that the mapping begins with; 0: not known. */
static uint64_t end_of_segment(const struct search *s, const struct code_line *l)
{
    Elf64_Ehdr eh;
    Elf64_Phdr ph[MAX_PHDRS];

    if (!s->base || s->base_inode != l->inode || !pb_transfer_read(s->tid, s->base, &eh, sizeof(eh)) ||
        memcmp(eh.e_ident, ELFMAG, SELFMAG) != 0 || eh.e_phentsize != sizeof(ph[0]) ||
        eh.e_phnum > MAX_PHDRS ||
        !pb_transfer_read(s->tid, s->base + eh.e_phoff, ph, eh.e_phnum * sizeof(ph[0])))
        return 0;
    for (int i = 0; i < eh.e_phnum; i++)
        if (ph[i].p_type == PT_LOAD && ph[i].p_flags & PF_X && ph[i].p_offset / PAGE * PAGE == l->offset &&
            ph[i].p_filesz == ph[i].p_memsz)
            return l->start + ph[i].p_offset % PAGE + ph[i].p_filesz;
    return 0;
}

/* Linkers fill the page with zeros or with an instruction that traps. */
static bool is_filling(const unsigned char *bytes)
{
    static const unsigned char fill[][4] = {{0, 0, 0, 0}, {0xcc, 0xcc, 0xcc, 0xcc}, {0x20, 0x00, 0x20, 0xd4}};

    for (size_t i = 4; i < PB_TRANSFER_CODE; i++)
        if (bytes[i] != bytes[i - 4])
            return false;
    for (size_t f = 0; f < sizeof(fill) / sizeof(fill[0]); f++)
        if (memcmp(bytes, fill[f], sizeof(fill[f])) == 0)
            return true;
    return false;
}

/* Our code in the rest of the page, or where it can be. */
static uint64_t find_slot(const struct search *s, uint64_t from, uint64_t end)
{
    unsigned char bytes[PB_TRANSFER_CODE], ours[PB_TRANSFER_CODE];

    for (uint64_t at = (from + 15) & ~15ull; at + PB_TRANSFER_CODE <= end; at += PB_TRANSFER_CODE) {
        if (!make_code(at, s->site, ours) || !pb_transfer_read(s->tid, at, bytes, sizeof(bytes)))
            return 0;
        if (memcmp(bytes, ours, sizeof(ours)) == 0 || is_filling(bytes))
            return at;
    }
    return 0;
}

/* A stack of its own: the first thread's, one with a forbidden page below it, or one that the C library's
 * data of the thread lies on. A coroutine's may be in the middle of other memory. */
static void look_at_stack(struct search *s, const struct code_line *l)
{
    bool own = l->stack || s->guard_end == l->start || (s->tls > s->sp && s->tls < l->end);
    s->has_room = own && s->sp - l->start >= s->room;
}

static void look_at_line(struct search *s, const struct code_line *l)
{
    if (s->sp >= l->start && s->sp < l->end)
        look_at_stack(s, l);
    if (l->forbidden)
        s->guard_end = l->end;
    if (l->inode && l->offset == 0 && l->readable) {
        s->base = l->start;
        s->base_inode = l->inode;
    }
    bool near = s->site->pc >= l->start && s->site->pc < l->end;
    if (!l->inode || !l->executable || !l->private || (s->code && !near))
        return;
    uint64_t from = end_of_segment(s, l);
    uint64_t at = from > l->start && from <= l->end && l->end - from < PAGE ? find_slot(s, from, l->end) : 0;
    if (at) {
        s->code = at;
        s->near = near;
    }
}

/* Line by line, with the memory of one. Of a longer path the end is left out. */
static int read_lines(struct search *s)
{
    char path[32], text[1024];
    size_t have = 0;
    bool skip = false;
    ssize_t n;

    pb_plain_put(pb_plain_put_number(pb_plain_put(path, "/proc/"), s->tid), "/maps");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while ((n = read(fd, text + have, sizeof(text) - 1 - have)) > 0) {
        have += (size_t)n;
        text[have] = '\0';
        char *line = text, *end;
        while ((end = strchr(line, '\n')) || (line == text && have == sizeof(text) - 1)) {
            struct code_line l;
            if (end)
                *end = '\0';
            if (!skip && parse_line(line, &l))
                look_at_line(s, &l);
            skip = !end;
            line = end ? end + 1 : text + have;
            if (!end)
                break;
        }
        have = strlen(line);
        memmove(text, line, have + 1);
    }
    close(fd);
    return n < 0 ? -EIO : 0;
}

int pb_transfer_find_code(pid_t tid, uint64_t sp, size_t room, uint64_t tls,
                          const struct pb_transfer_call *site, uint64_t *ret_code)
{
    struct search s = {.tid = tid, .site = site, .sp = sp, .tls = tls, .room = room};

    int r = read_lines(&s);
    if (r < 0)
        return r;
    if (!s.code || !s.has_room)
        return s.code ? -EFAULT : -ENOSPC;
    *ret_code = s.code;
    return 0;
}

/* Through the tracer's right, which includes memory that may not be written. */
static int put_code(pid_t tid, uint64_t at, const struct pb_transfer_call *site)
{
    unsigned char code[PB_TRANSFER_CODE];

    if (!make_code(at, site, code))
        return -ENOSPC;
    for (size_t i = 0; i < PB_TRANSFER_CODE; i += sizeof(uint64_t)) {
        uint64_t word, there;
        memcpy(&word, code + i, sizeof(word));
        if (syscall(SYS_ptrace, PTRACE_PEEKTEXT, tid, at + i, &there) < 0)
            return -errno;
        if (there != word && ptrace(PTRACE_POKETEXT, tid, at + i, word) < 0)
            return -errno;
    }
    return 0;
}

int pb_transfer_run_code(pid_t tid, uint64_t code, const struct pb_transfer_call *site, long number,
                         const uint64_t args[6], uint64_t sp)
{
    struct user_regs_struct regs;
    struct iovec io = {&regs, sizeof(regs)};

    int r = put_code(tid, code, site);
    if (r < 0)
        return r;
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io) < 0)
        return -errno;
    set_call(&regs, code, number, args, sp);
    return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &io) < 0 ? -errno : 0;
}
