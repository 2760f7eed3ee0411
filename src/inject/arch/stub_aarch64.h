/* stub_aarch64: the edges of the stub (stub.h) on this processor, and its system calls. Included by stub.c.
 */
#pragma once

#include <stdint.h>

/* x19: struct pb_stub; otherwise as on x86-64 (stub_x86_64.h). A return address is a register here: x30. */
__asm__(".pushsection pb_stub_code,\"ax\",@progbits\n"
        ".balign 16\n"
        ".globl pb_stub_borrowed, pb_stub_caller, pb_stub_loader, pb_stub_caller_end, pb_stub_loader_end\n"
        ".hidden pb_stub_borrowed, pb_stub_caller, pb_stub_loader, pb_stub_caller_end, pb_stub_loader_end\n"
        "pb_stub_borrowed:\n"
        "    ldr x0, [x19, #16]\n"
        "    ldr x1, [x19, #24]\n"
        "    mov x2, #3\n"
        "    mov x8, #226\n" /* mprotect */
        "    svc #0\n"
        "    ldr x20, [x19, #56]\n"
        "    cbnz x0, 1f\n"
        "    mov x0, x19\n"
        "    bl stub_begin\n"
        "    mov x20, x0\n"
        "1:  mov x8, #172\n" /* getpid, gettid, tgkill */
        "    svc #0\n"
        "    mov x21, x0\n"
        "    mov x8, #178\n"
        "    svc #0\n"
        "    mov x1, x0\n"
        "    mov x0, x21\n"
        "    ldr x2, [x19, #72]\n"
        "    mov x8, #131\n"
        "    svc #0\n"
        "    mov sp, x20\n"
        "    ldr x30, [x19, #40]\n"
        "    ldr x9, [x19, #32]\n"
        "    ldr x2, [x19, #16]\n"
        "    add x1, x19, #64\n"
        "    mov x0, #1\n" /* SIG_UNBLOCK */
        "    mov x3, #8\n"
        "    mov x8, #135\n" /* rt_sigprocmask */
        "    br x9\n"
        "pb_stub_caller:\n"
        "    stp x19, x30, [sp, #-16]!\n"
        "    mov x19, x0\n"
        "    ldr x9, [x19, #16]\n"
        "    mov x10, sp\n"
        "    str x10, [x9, #16]\n"
        "    bl stub_call\n"
        "    cbz w0, 2f\n"
        "pb_stub_caller_end:\n"
        "    ldr x9, [x19, #32]\n"
        "    ldr x0, [x19]\n"
        "    ldr x1, [x19, #8]\n"
        "    mov x8, #215\n" /* munmap */
        "    ldp x19, x30, [sp], #16\n"
        "    br x9\n"
        "2:  ldp x19, x30, [sp], #16\n"
        "    ret\n"
        "pb_stub_loader:\n"
        "    stp x19, x30, [sp, #-16]!\n"
        "    mov x19, x0\n"
        "    ldr x9, [x19, #16]\n"
        "    mov x10, sp\n"
        "    str x10, [x9, #24]\n"
        "    bl stub_load\n"
        "pb_stub_loader_end:\n"
        "    ldr x9, [x19, #32]\n"
        "    ldr x2, [x19, #16]\n"
        "    add x2, x2, #8\n"
        "    mov x0, #0\n"
        "    mov x1, #0\n"
        "    mov x3, #8\n"
        "    mov x8, #135\n"
        "    ldp x19, x30, [sp], #16\n"
        "    br x9\n"
        ".popsection\n");

static inline __attribute__((always_inline)) long kernel(long nr, uint64_t a, uint64_t b, uint64_t c,
                                                         uint64_t d)
{
    register long x8 __asm__("x8") = nr;
    register uint64_t x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return (long)x0;
}
