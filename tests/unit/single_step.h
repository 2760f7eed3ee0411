/* single_step: a traced process goes on by one instruction. On aarch64 a load-exclusive and all up to its
 * store-exclusive are one step: a stop in between makes the store fail, the program tries again, and one
 * that is stopped after every instruction would do so for ever. Memory does not change before the store. */
#pragma once

#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

/* Tracer and traced process never run at once: on one CPU a step needs no other one to be woken, which
 * takes an emulated machine milliseconds. Before the fork. */
static inline void step_on_one_cpu(void)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
}

/* Waits for it to stop or end. False: it did not go on, or is not the process that was waited for. */
static inline bool step_plainly(pid_t pid, int *status)
{
    return ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0 && waitpid(pid, status, 0) == pid;
}

#ifdef __aarch64__
#define STEP_BREAK UINT32_C(0xd4200000) /* brk #0 */
enum { STEP_LONGEST = 16 };

static inline uint32_t step_read(pid_t pid, uint64_t at)
{
    errno = 0;
    uint32_t word = (uint32_t)ptrace(PTRACE_PEEKTEXT, pid, (void *)at, NULL);
    return errno ? 0 : word;
}

static inline bool step_write(pid_t pid, uint64_t at, uint32_t word)
{
    errno = 0;
    uint64_t both = (uint64_t)ptrace(PTRACE_PEEKTEXT, pid, (void *)at, NULL);
    if (errno)
        return false;
    both = (both & ~UINT64_C(0xffffffff)) | word;
    return ptrace(PTRACE_POKETEXT, pid, (void *)at, (void *)both) == 0;
}

/* ldxr, ldaxr and the pairs, of every size; a compare and swap of pairs differs from them in two bits. */
static inline bool step_is_exclusive(uint32_t word, bool load)
{
    bool casp = (word & 0x80200000) == 0x00200000;
    return (word & 0x3f800000) == 0x08000000 && !casp && ((word & 0x00400000) != 0) == load;
}

/* Where a conditional branch goes: b.cond, cbz, cbnz, tbz, tbnz; 0: it is none. */
static inline uint64_t step_target(uint32_t word, uint64_t at)
{
    if ((word & 0xff000010) == 0x54000000 || (word & 0x7e000000) == 0x34000000)
        return at + (uint64_t)(int64_t)((int32_t)(word << 8) >> 13) * 4;
    if ((word & 0x7e000000) == 0x36000000)
        return at + (uint64_t)(int64_t)((int32_t)(word << 13) >> 18) * 4;
    return 0;
}

/* The places where the sequence that begins at `at` can be left: after the store, and where a branch before
 * it goes. Returns how many there are; 0: it is no such sequence. */
static inline int step_find_exits(pid_t pid, uint64_t at, uint64_t exits[2])
{
    uint64_t target = 0;

    if (!step_is_exclusive(step_read(pid, at), true))
        return 0;
    for (int i = 1; i < STEP_LONGEST; i++) {
        uint64_t here = at + (uint64_t)i * 4, there;
        uint32_t word = step_read(pid, here);
        if (step_is_exclusive(word, false)) {
            exits[0] = here + 4;
            exits[1] = target;
            return target && target != here + 4 ? 2 : 1;
        }
        there = step_target(word, here);
        if (there && target && there != target)
            return 0;
        target = there ? there : target;
    }
    return 0;
}

static inline bool step_once(pid_t pid, int *status)
{
    struct user_regs_struct regs;
    uint64_t exits[2];
    uint32_t words[2];
    bool ok = true;

    if (ptrace(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &(struct iovec){&regs, sizeof(regs)}) < 0)
        return false;
    int n = step_find_exits(pid, regs.pc, exits);
    if (n == 0)
        return step_plainly(pid, status);
    for (int i = 0; i < n; i++) {
        words[i] = step_read(pid, exits[i]);
        ok = ok && step_write(pid, exits[i], STEP_BREAK);
    }
    ok = ok && ptrace(PTRACE_CONT, pid, NULL, NULL) == 0 && waitpid(pid, status, 0) == pid;
    for (int i = n - 1; ok && i >= 0; i--)
        ok = step_write(pid, exits[i], words[i]);
    return ok;
}
#else
static inline bool step_once(pid_t pid, int *status)
{
    return step_plainly(pid, status);
}
#endif
