/* target_registers: keeps known values in every register, in errno and below the stack pointer (the red
 * zone, where there is one), and looks at them again and again. The first one that changed is printed and
 * ends the program with 1.
 *
 * usage: target_registers [BYTES]: of aarch64's scalable vectors, where the processor has them: how long a
 * vector is; 0: do not use them. Prints "ready" and the address of its count of rounds. Built with
 * -mno-red-zone on x86-64: the red zone is ours here. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __aarch64__
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

static uint64_t rounds;
/* Named in the assembly below. */
__attribute__((used)) static uint64_t seen[32];

#ifdef __x86_64__
__attribute__((used)) static _Alignas(32) unsigned char vectors[16][32], want[16][32];

static int prepare(int bytes)
{
    (void)bytes;
    for (int i = 0; i < 16; i++)
        memset(want[i], i + 65, 32);
    return 0;
}

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
    if (!__builtin_cpu_supports("avx"))
        return;
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
#else
enum { LONGEST = 256 };

/* Registers one behind the other, as long as a vector is: 32 Z, 16 P, FFR. */
struct registers {
    _Alignas(16) unsigned char z[32 * LONGEST], p[16 * LONGEST / 8], ffr[LONGEST / 8];
};

static struct registers vectors, want;
static _Alignas(16) unsigned char plain[32][16], plain_want[32][16];
static size_t length; /* of a vector in bytes; 0: only the 128-bit registers are used */

static int prepare(int bytes)
{
    enum { HWCAP_HAS_SVE = 1 << 22, SET_VL = 50, VL_MASK = 0xffff };
    for (int i = 0; i < 32; i++)
        memset(plain_want[i], i + 65, 16);
    if (bytes == 0 || !(getauxval(AT_HWCAP) & HWCAP_HAS_SVE))
        return 0;
    int r = prctl(SET_VL, bytes < 0 ? 64 : bytes, 0, 0, 0);
    if (r < 0)
        return -1;
    length = (size_t)r & VL_MASK;
    for (size_t i = 0; i < sizeof(want.z); i++)
        want.z[i] = (unsigned char)(i / length * 7 + i);
    for (size_t i = 0; i < sizeof(want.p); i++)
        want.p[i] = (unsigned char)(i * 11 + 3);
    /* FFR has ones from the first element on; half of them here. */
    memset(want.ffr, 0xff, length / 16);
    return 0;
}

/* Fills the registers, spins for a while with nothing else in between, and stores them. */
static void spin(void)
{
    __asm__ volatile(".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28\n"
                     "mov x\\n, #0x100 + \\n\n"
                     ".endr\n"
                     "mov x0, #0x30000\n"
                     "1: subs x0, x0, #1\n b.ne 1b\n"
                     "adrp x0, seen\n add x0, x0, :lo12:seen\n"
                     ".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28\n"
                     "str x\\n, [x0, #8 * \\n]\n"
                     ".endr\n"
                     :
                     :
                     : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
                       "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25",
                       "x26", "x27", "x28", "memory", "cc");
}

#define ALL_VECTORS                                                                                          \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",    \
        "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",    \
        "v30", "v31"
#define ALL_32 "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"

static void spin_plain(void)
{
    __asm__ volatile(".irp n," ALL_32 "ldr q\\n, [%0, #16 * \\n]\n.endr\n"
                     "mov x0, #0x30000\n"
                     "1: subs x0, x0, #1\n b.ne 1b\n"
                     ".irp n," ALL_32 "str q\\n, [%1, #16 * \\n]\n.endr\n"
                     :
                     : "r"(plain_want), "r"(plain)
                     : "x0", "memory", "cc", ALL_VECTORS);
}

static void spin_scalable(void)
{
    __asm__ volatile(".arch_extension sve\n"
                     "whilelo p0.b, xzr, %4\n wrffr p0.b\n"
                     ".irp n," ALL_32 "ldr z\\n, [%0, #\\n, mul vl]\n.endr\n"
                     ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nldr p\\n, [%1, #\\n, mul vl]\n.endr\n"
                     "mov x0, #0x30000\n"
                     "1: subs x0, x0, #1\n b.ne 1b\n"
                     ".irp n," ALL_32 "str z\\n, [%2, #\\n, mul vl]\n.endr\n"
                     ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nstr p\\n, [%3, #\\n, mul vl]\n.endr\n"
                     "rdffr p0.b\n str p0, [%5]\n"
                     :
                     : "r"(want.z), "r"(want.p), "r"(vectors.z), "r"(vectors.p), "r"(length / 2),
                       "r"(vectors.ffr)
                     : "x0", "memory", "cc", ALL_VECTORS);
}

static void spin_vectors(void)
{
    if (length)
        spin_scalable();
    else
        spin_plain();
}

static int check(void)
{
    for (int i = 1; i < 29; i++)
        if (seen[i] != 0x100u + (unsigned)i)
            return printf("register %d: %lx\n", i, seen[i]);
    for (size_t i = 0; i < 32; i++)
        if (length ? memcmp(vectors.z + i * length, want.z + i * length, length) != 0
                   : memcmp(plain[i], plain_want[i], 16) != 0)
            return printf("vector register %zu\n", i);
    if (length &&
        (memcmp(vectors.p, want.p, 16 * length / 8) != 0 || memcmp(vectors.ffr, want.ffr, length / 8) != 0))
        return printf("predicate registers\n");
    if (errno != 77)
        return printf("errno: %d\n", errno);
    return 0;
}
#endif

int main(int argc, char **argv)
{
    if (prepare(argc > 1 ? atoi(argv[1]) : -1) < 0)
        return printf("not ready: no such vector length\n");
    printf("ready %p\n", (void *)&rounds);
    fflush(stdout);
    for (;;) {
        errno = 77;
        spin();
        spin_vectors();
        if (check()) {
            fflush(stdout);
            return 1;
        }
        __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
    }
}
