/* arch: the processor-specific part of injection. One file per processor in arch/, chosen by the build.
 *
 * A borrowed thread is always given a signal frame first: the bytes the kernel would have pushed for a signal
 * handler, holding the thread's own registers. Whatever the thread is made to run ends in rt_sigreturn on
 * that frame. A tracer that is alive stops the thread before that and restores it by ptrace (which also keeps
 * an interrupted sleep running). If the tracer has died, the frame restores the thread. */
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
    bool foreign; /* the processor is in a mode in which the C library's code cannot run */
    size_t vector_len;
    _Alignas(64) unsigned char vector[PB_ARCH_VECTOR_MAX];
};

/* Our memory, which the borrowed thread itself unmaps on its way back when no thread of ours does. */
struct pb_arch_undo {
    uint64_t memory, size;
    uint64_t syscall_code;
    uint64_t sigmask; /* the signal mask during munmap */
};

/* Code to look for in libc or the vdso: `syscall; ret`, and the signal restorer, which every process has in
 * one of them. */
extern const unsigned char pb_arch_syscall_code[], pb_arch_restorer_code[];
extern const size_t pb_arch_syscall_len, pb_arch_restorer_len;

/* All registers and the signal mask of a thread in a ptrace stop. */
int pb_arch_save(pid_t tid, struct pb_arch_state *ret);

/* Restores them, general registers last: until then the frame would still restore the thread. */
int pb_arch_restore(pid_t tid, const struct pb_arch_state *s);

uint64_t pb_arch_pc(const struct pb_arch_state *s);
uint64_t pb_arch_sp(const struct pb_arch_state *s);

/* The address of the stopped thread's thread-local variables; 0: not known. C libraries put them at the top
 * of the stack that they give a thread. */
uint64_t pb_arch_tls(pid_t tid, const struct pb_arch_state *s);

/* The return address of a leaf function, on processors that keep it in a register; 0: it is on the stack. */
uint64_t pb_arch_link(const struct pb_arch_state *s);

/* A word of a stack as a return address, without its pointer authentication code. */
uint64_t pb_arch_code_address(uint64_t word);

/* False: the thread is in a mode in which our code cannot run, or has more state than could be saved. */
bool pb_arch_can_be_borrowed(const struct pb_arch_state *s);

/* True when the thread is on its way out of this system call with EINTR. */
bool pb_arch_ended_by_stop(const struct pb_arch_state *s, long nr);

/* True when the thread waits in a system call that a signal would interrupt. */
bool pb_arch_blocked(pid_t pid, const struct pb_arch_state *s, long *ret_nr, uint64_t *ret_second_arg);

/* Builds two frames into buf (PB_ARCH_FRAME_MAX bytes): the frame for s, to be placed at *ret_addr below the
 * used part of the thread's stack, and below it the one that unmaps. Returns the length of both. With the
 * stack pointer *ret_sp the next code returns into the restorer and so into the thread itself; with
 * *ret_undo_sp it goes through munmap first. */
size_t pb_arch_frame(const struct pb_arch_state *s, uint64_t restorer, const struct pb_arch_undo *undo,
                     unsigned char *buf, uint64_t *ret_addr, uint64_t *ret_sp, uint64_t *ret_undo_sp);

/* Sets the thread up to make one system call at `code` and then return into the restorer. */
int pb_arch_set_syscall(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t frame_sp,
                        uint64_t restorer, long nr, const uint64_t args[6]);

/* Sets the thread up to run code of the stub (stub.h) on the stack that ends at `stack`. */
int pb_arch_set_stub(pid_t tid, const struct pb_arch_state *s, uint64_t code, uint64_t stack, uint64_t stub);

/* The result of the last system call, a value or a negative errno, and the thread's program counter. */
int pb_arch_result(pid_t tid, int64_t *ret, uint64_t *ret_pc);

/* True when the bytes that end at a return address (16 of them) end with a call. */
bool pb_arch_is_call(const unsigned char before[16]);

/* words[0] is the address of the restorer. If this is a signal frame of this processor, returns the
 * interrupted pc and sp. */
bool pb_arch_interrupted(const uint64_t *words, size_t n, uint64_t *ret_pc, uint64_t *ret_sp);
