/* unwind_arch: the processor-specific part of unwinding: its DWARF registers, and its call instructions.
 *
 * The tables of both processors are always there, so that tests run them anywhere; a live thread's registers
 * are of the processor we run on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_capture;

struct pb_native_arch {
    uint16_t machine; /* EM_* */
    unsigned nregs, sp, fp;
    unsigned pc;   /* the register that stands for the program counter in expressions */
    unsigned link; /* the register that holds the return address on entry; nregs: it is on the stack */
    uint64_t pointer_mask; /* the bits of a return address without its authentication code */
    /* True where the bytes before a return address end with a call. *ret_target is its destination, 0 where
     * that is not in the instruction. */
    bool (*call_before)(const unsigned char before[8], uint64_t ra, uint64_t *ret_target);
    /* Whether the first bytes of a function (len of them, up to the pc) set up a frame pointer. */
    bool (*sets_frame_pointer)(const unsigned char *code, size_t len);
    /* True for code that a signal handler returns to, in a C library without an unwind table for it. context:
     * the offsets of the interrupted registers from the stack pointer, by DWARF number; NULL: not known. */
    bool (*returns_from_signal)(const unsigned char code[16]);
    const uint16_t *context;
    /* True for code at addr that only jumps through a word in memory, as in the PLT; *ret_slot is that word's
     * address. */
    bool (*jump_slot)(const unsigned char code[16], uint64_t addr, uint64_t *ret_slot);
};

extern const struct pb_native_arch pb_native_x86_64, pb_native_aarch64;

/* For a machine (EM_*); 0 or unknown: the one we run on. */
const struct pb_native_arch *pb_native_arch(uint16_t machine);

/* From the kernel's order (struct user_regs_struct of that machine) to DWARF numbers. */
void pb_native_place_registers(uint16_t machine, const uint64_t *raw, uint64_t *reg);

/* The registers of a thread in a ptrace stop. -ENOTSUP: it runs 32-bit code. */
int pb_native_registers(pid_t tid, struct pb_capture *ret);
