/* arch: what injection knows of a processor. One file a processor in arch/, chosen by the build.
 *
 * A borrowed thread is always given a signal frame first: the bytes the kernel would have pushed for a
 * signal handler, holding the thread's own registers. Whatever we make the thread run ends in rt_sigreturn on
 * that frame. A tracer that is alive stops the thread before that and restores it by ptrace (which also
 * keeps an interrupted sleep running); a tracer that is dead is not missed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#define PB_ARCH_VECTOR_MAX 16384 /* AMX tiles are the largest part: 8 KB of 11 */
#define PB_ARCH_FRAME_MAX  (PB_ARCH_VECTOR_MAX + 4096)

struct pb_arch_state {
    struct user_regs_struct gpr;
    uint64_t sigmask;
    bool foreign; /* in a mode of the processor in which code of the C library cannot run */
    size_t vector_len;
    _Alignas(64) unsigned char vector[PB_ARCH_VECTOR_MAX];
};

/* The memory of ours that the borrowed thread unmaps itself on its way back, where no other thread of ours
 * does. */
struct pb_arch_undo {
    uint64_t memory, size;
    uint64_t syscall_code;
    uint64_t sigmask; /* meanwhile */
};

/* Bytes to look for in libc (or the vdso): `syscall; ret`, and the signal restorer that it or the C library
 * has in every process. */
extern const unsigned char pb_arch_syscall_code[], pb_arch_restorer_code[];
extern const size_t pb_arch_syscall_len, pb_arch_restorer_len;

/* All registers and the signal mask of a thread in a ptrace stop. */
int pb_arch_save(pid_t tid, struct pb_arch_state *ret);

/* Puts them back, general registers last: until then the thread would still restore itself. */
int pb_arch_restore(pid_t tid, const struct pb_arch_state *s);

uint64_t pb_arch_pc(const struct pb_arch_state *s);
uint64_t pb_arch_sp(const struct pb_arch_state *s);

/* Where the thread, which is stopped, has its thread-local variables; 0: not known. C libraries put them at
 * the top of the stack that they give a thread. */
uint64_t pb_arch_tls(pid_t tid, const struct pb_arch_state *s);

/* Where a function that has called nothing returns to, on processors that keep that in a register; 0: it is
 * on the stack. */
uint64_t pb_arch_link(const struct pb_arch_state *s);

/* A word of a stack as the address it would be as a return address: without its authentication code. */
uint64_t pb_arch_code_address(uint64_t word);

/* False: the thread is in a mode in which code of ours cannot run, or has more state than could be kept. */
bool pb_arch_can_be_borrowed(const struct pb_arch_state *s);

/* True when the thread is on its way out of this system call with EINTR. */
bool pb_arch_ended_by_stop(const struct pb_arch_state *s, long nr);

/* True when the thread waits in a system call that a signal would interrupt. */
bool pb_arch_blocked(pid_t pid, const struct pb_arch_state *s, long *ret_nr, uint64_t *ret_second_arg);

/* Builds the frame for s into buf (PB_ARCH_FRAME_MAX bytes), to be placed at *ret_addr, below what the
 * thread's stack uses, and below it another one. Returns the length of both. *ret_sp is the stack pointer
 * that makes what runs next return into the restorer and so into the thread itself; *ret_undo_sp the one that
 * leads there by way of munmap. */
size_t pb_arch_frame(const struct pb_arch_state *s, uint64_t restorer, const struct pb_arch_undo *undo,
                     unsigned char *buf, uint64_t *ret_addr, uint64_t *ret_sp, uint64_t *ret_undo_sp);

/* Sets the thread up to make one system call at `code` and then return into the restorer. */
int pb_arch_set_syscall(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t frame_sp,
                        uint64_t restorer, long nr, const uint64_t args[6]);

/* Sets the thread up to run code of the stub (stub.h) on the stack that ends at `stack`. */
int pb_arch_set_stub(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t stack, uint64_t stub);

/* What the last system call gave: a value or a negative errno; and where the thread stands now. */
int pb_arch_result(pid_t tid, int64_t *ret, uint64_t *ret_pc);

/* True when the bytes that end at a return address (16 of them) end with a call. */
bool pb_arch_is_call(const unsigned char before[16]);

/* words[0] is the address of the restorer: where this is a signal frame on this processor, gives what it
 * interrupted. */
bool pb_arch_interrupted(const uint64_t *words, size_t n, uint64_t *ret_pc, uint64_t *ret_sp);
