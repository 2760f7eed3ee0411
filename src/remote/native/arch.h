/* arch: what unwinding knows of a processor: its DWARF registers, and what a call looks like.
 *
 * The tables of both are always there, so that tests run them anywhere; a live thread's registers are of the
 * processor we run on. */
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
    uint64_t pointer_mask; /* what is left of a return address that carries an authentication code */
    /* The bytes that end at a return address: true where they end with a call. *ret_target is its
     * destination, 0 where that is not in the instruction. */
    bool (*call_before)(const unsigned char before[8], uint64_t ra, uint64_t *ret_target);
    /* Whether the first bytes of a function (len of them, up to where it stands) set a frame pointer up. */
    bool (*sets_frame_pointer)(const unsigned char *code, size_t len);
    /* Code that a signal handler returns to, of a C library that has no unwind table for it: true for it.
     * context: where the interrupted registers are, by DWARF number, from the stack pointer; NULL: not known.
     */
    bool (*returns_from_signal)(const unsigned char code[16]);
    const uint16_t *context;
    /* Code at addr that only jumps by a word in memory, as the PLT does: true, and where that word is. */
    bool (*jump_slot)(const unsigned char code[16], uint64_t addr, uint64_t *ret_slot);
};

extern const struct pb_native_arch pb_native_x86_64, pb_native_aarch64;

/* Of a machine (EM_*); 0 and what is not known: the one we run on. */
const struct pb_native_arch *pb_native_arch(uint16_t machine);

/* From the kernel's order (struct user_regs_struct of that machine) to DWARF numbers. */
void pb_native_place_registers(uint16_t machine, const uint64_t *raw, uint64_t *reg);

/* The registers of a thread in a ptrace stop. -ENOTSUP: it runs code of another width. */
int pb_native_registers(pid_t tid, struct pb_capture *ret);
