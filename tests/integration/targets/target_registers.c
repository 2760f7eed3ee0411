/* target_registers: keeps known values in every register, in errno and below the stack pointer (the red
 * zone), and looks at them again and again. The first one that changed is printed and ends the program
 * with 1.
 *
 * Prints "ready" and the address of its count of rounds. Built with -mno-red-zone: the red zone is ours here.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint64_t rounds;
/* Named in the assembly below. */
__attribute__((used)) static uint64_t seen[16];
__attribute__((used)) static _Alignas(32) unsigned char vectors[16][32], want[16][32];

#ifdef __x86_64__
/* Fills the registers, spins for a while with nothing else in between, and stores them. */
static void spin(void)
{
    __asm__ volatile("movq $0x1111, -8(%%rsp)\n movq $0x2222, -120(%%rsp)\n"
                     "mov $0x103, %%rbx\n mov $0x104, %%rcx\n mov $0x105, %%rdx\n mov $0x106, %%rsi\n"
                     "mov $0x108, %%r8\n mov $0x109, %%r9\n mov $0x10a, %%r10\n mov $0x10b, %%r11\n"
                     "mov $0x10c, %%r12\n mov $0x10d, %%r13\n mov $0x10e, %%r14\n mov $0x10f, %%r15\n"
                     "mov $200000, %%edi\n"
                     "1: dec %%edi\n jnz 1b\n"
                     "mov -8(%%rsp), %%rax\n mov %%rax, seen(%%rip)\n"
                     "mov -120(%%rsp), %%rax\n mov %%rax, 8+seen(%%rip)\n"
                     "mov %%rbx, 24+seen(%%rip)\n mov %%rcx, 32+seen(%%rip)\n mov %%rdx, 40+seen(%%rip)\n"
                     "mov %%rsi, 48+seen(%%rip)\n mov %%r8, 64+seen(%%rip)\n mov %%r9, 72+seen(%%rip)\n"
                     "mov %%r10, 80+seen(%%rip)\n mov %%r11, 88+seen(%%rip)\n mov %%r12, 96+seen(%%rip)\n"
                     "mov %%r13, 104+seen(%%rip)\n mov %%r14, 112+seen(%%rip)\n mov %%r15, 120+seen(%%rip)\n"
                     :
                     :
                     : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
                       "r14", "r15", "memory", "cc");
}

__attribute__((target("avx"))) static void spin_vectors(void)
{
    __asm__ volatile("lea want(%%rip), %%rax\n"
                     "vmovdqa (%%rax), %%ymm0\n vmovdqa 32(%%rax), %%ymm1\n vmovdqa 224(%%rax), %%ymm7\n"
                     "vmovdqa 480(%%rax), %%ymm15\n"
                     "mov $200000, %%edi\n"
                     "1: dec %%edi\n jnz 1b\n"
                     "lea vectors(%%rip), %%rax\n"
                     "vmovdqa %%ymm0, (%%rax)\n vmovdqa %%ymm1, 32(%%rax)\n vmovdqa %%ymm7, 224(%%rax)\n"
                     "vmovdqa %%ymm15, 480(%%rax)\n"
                     :
                     :
                     : "rax", "rdi", "xmm0", "xmm1", "xmm7", "xmm15", "memory", "cc");
}

static int check(void)
{
    static const int tried[] = {0, 1, 7, 15};
    if (seen[0] != 0x1111 || seen[1] != 0x2222)
        return printf("red zone: %lx %lx\n", seen[0], seen[1]);
    for (int i = 3; i < 16; i++)
        if (i != 7 && seen[i] != 0x100u + (unsigned)i)
            return printf("register %d: %lx\n", i, seen[i]);
    for (int i = 0; i < 4; i++)
        if (__builtin_cpu_supports("avx") && memcmp(vectors[tried[i]], want[tried[i]], 32) != 0)
            return printf("vector register %d\n", tried[i]);
    if (errno != 77)
        return printf("errno: %d\n", errno);
    return 0;
}
#endif

int main(void)
{
    for (int i = 0; i < 16; i++)
        memset(want[i], i + 65, 32);
    printf("ready %p\n", (void *)&rounds);
    fflush(stdout);
    for (;;) {
        errno = 77;
        spin();
        if (__builtin_cpu_supports("avx"))
            spin_vectors();
        if (check()) {
            fflush(stdout);
            return 1;
        }
        __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
    }
}
