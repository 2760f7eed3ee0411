/* stub_x86_64: the edges of the stub (stub.h) on this processor, and its system calls. Included by stub.c. */
#pragma once

#include <stdint.h>

/* rbx: struct pb_stub. The borrowed thread enters with rbx set and rsp at the end of our memory, which is
 * writable only after the mprotect. It leaves by rt_sigprocmask(SIG_UNBLOCK), made by the C library's
 * instruction: the kernel writes `left`, so the thread is out of our code, and then delivers the signal. */
__asm__(".pushsection pb_stub_code,\"ax\",@progbits\n"
        ".balign 16\n"
        ".globl pb_stub_borrowed, pb_stub_caller, pb_stub_loader, pb_stub_caller_end, pb_stub_loader_end\n"
        ".hidden pb_stub_borrowed, pb_stub_caller, pb_stub_loader, pb_stub_caller_end, pb_stub_loader_end\n"
        "pb_stub_borrowed:\n"
        "    mov 16(%rbx), %rdi\n"
        "    mov 24(%rbx), %rsi\n"
        "    mov $3, %edx\n"  /* PROT_READ | PROT_WRITE */
        "    mov $10, %eax\n" /* mprotect */
        "    syscall\n"
        "    mov 56(%rbx), %r14\n"
        "    test %eax, %eax\n"
        "    jnz 1f\n"
        "    mov %rbx, %rdi\n"
        "    call stub_begin\n"
        "    mov %rax, %r14\n"
        "1:  mov $39, %eax\n" /* getpid, gettid, tgkill: the signal is blocked still */
        "    syscall\n"
        "    mov %eax, %r12d\n"
        "    mov $186, %eax\n"
        "    syscall\n"
        "    mov %r12d, %edi\n"
        "    mov %eax, %esi\n"
        "    mov 72(%rbx), %edx\n"
        "    mov $234, %eax\n"
        "    syscall\n"
        "    mov %r14, %rsp\n"
        "    mov $1, %edi\n" /* SIG_UNBLOCK */
        "    lea 64(%rbx), %rsi\n"
        "    mov 16(%rbx), %rdx\n"
        "    mov $8, %r10d\n"
        "    mov $14, %eax\n" /* rt_sigprocmask */
        "    jmp *32(%rbx)\n"
        /* The caller thread ends with munmap, and returns into the C library's start_thread. */
        "pb_stub_caller:\n"
        "    push %rbx\n"
        "    mov %rdi, %rbx\n"
        "    mov 16(%rbx), %rax\n"
        "    mov %rsp, 16(%rax)\n"
        "    call stub_call\n"
        "    test %eax, %eax\n"
        "    jz 2f\n"
        "pb_stub_caller_end:\n"
        "    mov 32(%rbx), %rcx\n"
        "    mov (%rbx), %rdi\n"
        "    mov 8(%rbx), %rsi\n"
        "    mov $11, %eax\n" /* munmap */
        "    pop %rbx\n"
        "    jmp *%rcx\n"
        "2:  pop %rbx\n"
        "    ret\n"
        /* The loader thread ends with rt_sigprocmask(SIG_BLOCK, NULL), which only writes. */
        "pb_stub_loader:\n"
        "    push %rbx\n"
        "    mov %rdi, %rbx\n"
        "    mov 16(%rbx), %rax\n"
        "    mov %rsp, 24(%rax)\n"
        "    call stub_load\n"
        "pb_stub_loader_end:\n"
        "    mov 32(%rbx), %rcx\n"
        "    mov 16(%rbx), %rdx\n"
        "    add $8, %rdx\n"
        "    xor %edi, %edi\n"
        "    xor %esi, %esi\n"
        "    mov $8, %r10d\n"
        "    mov $14, %eax\n"
        "    pop %rbx\n"
        "    jmp *%rcx\n"
        ".popsection\n");

static inline __attribute__((always_inline)) long kernel(long nr, uint64_t a, uint64_t b, uint64_t c,
                                                         uint64_t d)
{
    long r;
    register uint64_t r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return r;
}
