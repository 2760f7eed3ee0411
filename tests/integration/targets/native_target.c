/* native_target: a process whose stack is known, for tests of unwinding: it prints "ready" and waits there.
 *
 * usage: native_target KIND [LIBRARY]. Built with many compilers and options; the functions' names are the
 * ground truth, and gdb's opinion is asked as well. */
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif

static volatile int sink;
static volatile int always = 1;

NOINLINE static void wait_here(void)
{
    static const char text[] = "ready\n";
    if (write(1, text, sizeof(text) - 1) < 0)
        _exit(1);
    while (always)
        pause();
    sink++;
}

NOINLINE static int inner(int x)
{
    wait_here();
    return x + sink;
}

NOINLINE static int middle(int x)
{
    return inner(x * 3) + sink;
}

NOINLINE static int outer(int x)
{
    return middle(x + 1) + sink;
}

/* Saved registers, so that their restoration is needed to find the callers. */
NOINLINE static int busy_registers(int a, int b, int c, int d, int e, int f)
{
    int x = outer(a * b), y = outer(c * d), z = outer(e * f);
    return x * a + y * b + z * c + d + e + f;
}

/* A frame of variable size: its CFA hangs on a register that the callees save. */
NOINLINE static int variable_frame(int n)
{
    char *room = alloca((size_t)n);
    memset(room, n, (size_t)n);
    return outer(room[n / 2]) + room[0];
}

NOINLINE static int aligned_frame(int n)
{
    _Alignas(64) volatile char room[256];
    room[n] = (char)n;
    return variable_frame(n) + room[n];
}

__attribute__((always_inline)) static inline int inlined_leaf(int x)
{
    return inner(x * 5) + 1;
}

__attribute__((always_inline)) static inline int inlined_caller(int x)
{
    return inlined_leaf(x + 7) * 2;
}

NOINLINE static int calls_inlined(int x)
{
    return inlined_caller(x) + sink;
}

NOINLINE static int descend(int depth)
{
    if (depth == 0)
        return inner(1) + sink;
    return descend(depth - 1) + sink;
}

NOINLINE static void in_handler(int number)
{
    sink = number;
    wait_here();
    sink++;
}

static void handler(int number)
{
    in_handler(number);
    sink++;
}

static void handle(int number, int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(number, &action, NULL);
}

NOINLINE static int raises(int x)
{
    raise(SIGUSR1);
    return x + sink;
}

NOINLINE static int signal_stack(int x)
{
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, NULL);
    handle(SIGUSR1, SA_ONSTACK);
    return raises(x) + sink;
}

NOINLINE static int calls_nothing(int x)
{
    int (*volatile nothing)(int) = NULL;
    handle(SIGSEGV, 0);
    return nothing(x) + sink;
}

NOINLINE static int reads_clock(int x)
{
    static const char text[] = "ready\n";
    struct timespec t;
    if (write(1, text, sizeof(text) - 1) < 0)
        _exit(1);
    while (always)
        clock_gettime(CLOCK_MONOTONIC, &t);
    return x + sink;
}

NOINLINE static int calls_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    int (*through)(void (*)(void)) =
        library ? (int (*)(void (*)(void)))dlsym(library, "library_entry") : NULL;
    return through ? through(wait_here) + sink : 1;
}

static void *in_thread(void *arg)
{
    return (void *)(long)(middle((int)(long)arg) + sink);
}

NOINLINE static int starts_thread(int x)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, in_thread, (void *)(long)x) != 0)
        return 1;
    return pthread_join(thread, NULL) + sink;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "plain";
    handle(SIGUSR1, 0);
    if (strcmp(kind, "plain") == 0)
        return busy_registers(1, 2, 3, 4, argc, argc + 1) + sink;
    if (strcmp(kind, "variable") == 0)
        return aligned_frame(100 + argc) + sink;
    if (strcmp(kind, "inlined") == 0)
        return calls_inlined(argc) + sink;
    if (strcmp(kind, "deep") == 0)
        return descend(10000) + sink;
    if (strcmp(kind, "signal") == 0)
        return raises(argc) + sink;
    if (strcmp(kind, "signal-stack") == 0)
        return signal_stack(argc) + sink;
    if (strcmp(kind, "null") == 0)
        return calls_nothing(argc) + sink;
    if (strcmp(kind, "clock") == 0)
        return reads_clock(argc) + sink;
    if (strcmp(kind, "thread") == 0)
        return starts_thread(argc) + sink;
    if (strcmp(kind, "library") == 0)
        return calls_library(argv[2]) + sink;
    return 2;
}
