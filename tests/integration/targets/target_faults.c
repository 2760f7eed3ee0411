/* A program that faults: target_faults HOW. It prints "ready", waits for SIGUSR1, does HOW, prints what came
 * of it where it is still there, waits for another SIGUSR1 and ends with status 0. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FAULTS 20000

static volatile sig_atomic_t told;
static char *page;
static volatile int handled;
static sigjmp_buf back;
static struct sigaction before;

static void on_told(int number)
{
    (void)number;
    told++;
}

static void wait_until_told(int times)
{
    while (told < times)
        usleep(2000);
}

static void set_handler(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};

    sigaction(number, &action, &before);
}

/* --- handlers that mend */

static void mend(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_code <= 0 || (char *)info->si_addr < page || (char *)info->si_addr >= page + 4096)
        _exit(99);
    handled++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void jump(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    handled++;
    siglongjmp(back, 1);
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fault_and_mend(int n)
{
    for (int i = 0; i < n; i++) {
        mprotect(page, 4096, PROT_NONE);
        page[i % 4096] = (char)i;
    }
}

static void fault_and_jump(int n)
{
    for (volatile int i = 0; i < n; i++)
        if (sigsetjmp(back, 1) == 0)
            *(volatile char *)(uintptr_t)(16 + i % 16) = 1;
}

static void fault_often(void (*how)(int))
{
    how(1); /* the one whose scene is kept */
    double began = seconds();
    how(FAULTS);
    printf("handled %d within %.2f s\n", handled, seconds() - began);
}

/* --- deaths */

static __attribute__((noinline)) void crash_here(volatile int *where)
{
    *where = 1;
}

static __attribute__((noinline)) int overflow(volatile int depth)
{
    volatile char room[4096];

    room[depth % 4096] = (char)depth;
    return overflow(depth + 1) + room[0];
}

static void signal_stack(void)
{
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};

    sigaltstack(&stack, NULL);
}

/* abort() is called in the middle of malloc, whose lock is held. */
static void die_in_malloc(void)
{
    volatile char *chunk = malloc(24), *end = sbrk(0);

    for (volatile char *at = chunk + 24; at < end; at++)
        *at = -1;
    for (int i = 0; i < 100; i++)
        *(volatile char *)malloc(100000) = 1;
}

static void give_on(int number, siginfo_t *info, void *context)
{
    handled++;
    printf("later handler\n");
    fflush(stdout);
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        _exit(98);
}

static void vfork_and_fault(void)
{
    pid_t child = vfork();
    int status;

    if (child == 0) {
        crash_here(NULL);
        _exit(97);
    }
    waitpid(child, &status, 0);
    printf("the child died of %d\n", WTERMSIG(status));
}

static void prepare(const char *how)
{
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (strcmp(how, "mend") == 0)
        set_handler(SIGSEGV, mend, 0);
    else if (strcmp(how, "jump") == 0)
        set_handler(SIGSEGV, jump, SA_ONSTACK);
    else if (strcmp(how, "overflow-stack") == 0)
        signal_stack();
}

static void go(const char *how, char **argv)
{
    if (strcmp(how, "mend") == 0)
        fault_often(fault_and_mend);
    else if (strcmp(how, "jump") == 0)
        fault_often(fault_and_jump);
    else if (strcmp(how, "crash") == 0)
        crash_here(NULL);
    else if (strncmp(how, "overflow", 8) == 0)
        printf("%d\n", overflow(0));
    else if (strcmp(how, "malloc") == 0)
        die_in_malloc();
    else if (strcmp(how, "vfork") == 0)
        vfork_and_fault();
    else if (strcmp(how, "later") == 0) {
        set_handler(SIGSEGV, give_on, SA_RESETHAND);
        crash_here(NULL);
    } else if (strcmp(how, "later-jump") == 0) {
        set_handler(SIGSEGV, jump, 0);
        fault_often(fault_and_jump);
    } else if (strcmp(how, "exec") == 0) {
        execl(argv[0], argv[0], "crash", NULL);
    }
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    struct sigaction on = {.sa_handler = on_told};

    sigaction(SIGUSR1, &on, NULL);
    prepare(how);
    printf("ready\n");
    fflush(stdout);
    wait_until_told(1);
    go(how, argv);
    printf("done\n");
    fflush(stdout);
    wait_until_told(2);
    return 0;
}
