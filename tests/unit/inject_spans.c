/* Tests of inject/spans and procinfo: that a thread inside the allocator or the loader is seen to be there.
 * tsan: no, its runtime's own allocator is on the stacks that are judged. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "base/cleanup.h"
#include "inject/arch.h"
#include "inject/judge.h"
#include "inject/spans.h"
#include "inject/target.h"
#include "remote/maps.h"
#include "remote/procinfo.h"

#include "test.h"

static bool covers(const struct pb_spans *s, uint64_t addr)
{
    for (size_t i = 0; i < s->n; i++)
        if (addr >= s->at[i].start && addr < s->at[i].end)
            return true;
    return false;
}

static uint64_t symbol(const char *name)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    uint64_t addr = (uint64_t)(uintptr_t)dlsym(libc, name);
    dlclose(libc);
    assert_true(addr);
    return addr;
}

static void spans_hold_the_allocator_and_the_loader_and_not_the_rest(void **state)
{
    static const char *const inside[] = {"malloc",  "free",   "calloc", "realloc",        "posix_memalign",
                                         "mallopt", "dlopen", "fork",   "pthread_create", "exit"};
    static const char *const outside[] = {"read",   "nanosleep", "poll",  "select",
                                          "memcpy", "strlen",    "printf"};
    _cleanup_(pb_maps_done) struct pb_maps m = {0};
    _cleanup_(pb_spans_done) struct pb_spans s = {0};
    assert_int_equal(pb_maps_read(getpid(), &m, NULL), 0);
    assert_int_equal(pb_spans_find(getpid(), &m, &s), 0);
    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++)
        assert_true(covers(&s, symbol(inside[i])));
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
        assert_false(covers(&s, symbol(outside[i])));
    /* _r_debug's breakpoint is a function of the loader. */
    void *loader = dlsym(RTLD_DEFAULT, "__tls_get_addr");
    assert_non_null(loader);
    assert_true(covers(&s, (uint64_t)(uintptr_t)loader));
}

/* A child that stops itself (SIGSTOP) where `where` says, judged from here, with another link register where
 * one is given. */
static enum pb_safety judge_child_with(void (*where)(void), uint64_t link)
{
    _cleanup_(pb_image_done) struct pb_image image = {.mem = -1};
    _cleanup_(pb_inject_target_done) struct pb_inject_target t = {.syscall_code = 0};
    _cleanup_(pb_judge_done) struct pb_judge judge = {.native = NULL};
    static struct pb_arch_state regs;
    struct pb_procinfo info;
    int status;
    raise(0); /* bound now: the loader's words must not be left where the child stops */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        where();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    while (WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP) {
        ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status));
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    assert_true(WIFSTOPPED(status));
    assert_int_equal(pb_procinfo_read(pid, &info, NULL), 0);
    assert_int_equal(pb_image_open(pid, &image), 0);
    assert_int_equal(pb_inject_target_open(&info, &image, &t, NULL), 0);
    assert_int_equal(pb_arch_save(pid, &regs), 0);
#ifdef __aarch64__
    if (link)
        regs.gpr.regs[30] = link;
#endif
    assert_int_equal(pb_judge_open(&judge, pid), 0);
    pb_native_free(judge.native);
    judge.native = NULL; /* by the words of the stack alone */
    enum pb_safety safety = pb_judge_thread(&judge, &t.spans, pid, pid, &regs);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return safety;
}

static enum pb_safety judge_child(void (*where)(void))
{
    return judge_child_with(where, 0);
}

static void stop_outside(void)
{
    /* Nothing stale near us; by hand, since a sanitizer's memset leaves words of its own. */
    volatile char room[32768];
    for (size_t i = 0; i < sizeof(room); i++)
        room[i] = 0;
    raise(SIGSTOP);
    room[0] = 1; /* the frame stays until here */
}

static int stop_in_callback(struct dl_phdr_info *info, size_t size, void *arg)
{
    raise(SIGSTOP);
    return 1;
}

/* dl_iterate_phdr holds the loader's lock while it calls back. */
static void stop_under_the_loaders_lock(void)
{
    dl_iterate_phdr(stop_in_callback, NULL);
}

static void a_thread_under_the_loaders_lock_is_unsafe(void **state)
{
    assert_int_equal(judge_child(stop_under_the_loaders_lock), PB_UNSAFE);
}

static void a_thread_in_its_own_code_is_not_unsafe(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its run time has the allocator, stands in for raise() too, and is on every stack */
#endif
    assert_int_not_equal(judge_child(stop_outside), PB_UNSAFE);
}

/* The auxiliary vector has where the loader begins, near the stack pointer of a shallow program: executable
 * on some machines, with nothing mapped before it. */
static void stop_with_the_loaders_address(void)
{
    volatile char room[32768];
    volatile uint64_t word[64];
    for (size_t i = 0; i < sizeof(room); i++)
        room[i] = 0;
    for (size_t i = 0; i < 64; i++)
        word[i] = getauxval(AT_BASE);
    raise(SIGSTOP);
    room[0] = (char)word[0];
}

static void where_the_loader_begins_is_no_return_address(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip(); /* as above */
#endif
    assert_int_not_equal(judge_child(stop_with_the_loaders_address), PB_UNSAFE);
}

/* Where a function without a frame was called by the allocator, with an authentication code and without. */
static void the_allocator_in_the_link_register_is_unsafe(void **state)
{
#ifdef __aarch64__
    assert_int_equal(judge_child_with(stop_outside, symbol("malloc") + 16), PB_UNSAFE);
    assert_int_equal(judge_child_with(stop_outside, (symbol("malloc") + 16) | 0x2a55000000000000), PB_UNSAFE);
    assert_int_not_equal(judge_child_with(stop_outside, symbol("strlen") + 4), PB_UNSAFE);
#else
    skip();
#endif
}

/* A handler that came in the middle of malloc: the allocator shows only in what the handler interrupted. */
static struct pb_spans our_spans;

static void stop_if_in_malloc(int signal, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
#ifdef __x86_64__
    uint64_t pc = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
#else
    uint64_t pc = uc->uc_mcontext.pc;
#endif
    if (covers(&our_spans, pc))
        raise(SIGSTOP);
}

static void allocate_under_a_timer(int flags)
{
    static _Alignas(16) char other[65536];
    struct sigaction act = {.sa_sigaction = stop_if_in_malloc, .sa_flags = SA_SIGINFO | SA_RESTART | flags};
    struct itimerval often = {{0, 500}, {0, 500}};
    stack_t stack = {.ss_sp = other, .ss_size = sizeof(other)};
    sigaltstack(&stack, NULL);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (;;) {
        void *volatile memory = malloc(100);
        free(memory);
    }
}

static void allocate_with_handlers_on_the_same_stack(void)
{
    allocate_under_a_timer(0);
}

static void allocate_with_handlers_on_another_stack(void)
{
    allocate_under_a_timer(SA_ONSTACK);
}

static void a_handler_that_interrupted_the_allocator_is_unsafe(void **state)
{
    _cleanup_(pb_maps_done) struct pb_maps m = {0};
    assert_int_equal(pb_maps_read(getpid(), &m, NULL), 0);
    assert_int_equal(pb_spans_find(getpid(), &m, &our_spans), 0);
    assert_int_equal(judge_child(allocate_with_handlers_on_the_same_stack), PB_UNSAFE);
    assert_int_equal(judge_child(allocate_with_handlers_on_another_stack), PB_UNSAFE);
    pb_spans_done(&our_spans);
}

static void calls_are_told_from_other_words(void **state)
{
#ifdef __x86_64__
    unsigned char direct[16] = {[11] = 0xe8}, indirect[16] = {[14] = 0xff, [15] = 0xd0},
                  through_memory[16] = {[10] = 0xff, [11] = 0x15}, none[16] = {[15] = 0x90};
    assert_true(pb_arch_is_call(direct));
    assert_true(pb_arch_is_call(indirect));
    assert_true(pb_arch_is_call(through_memory));
    assert_false(pb_arch_is_call(none));
#else
    unsigned char direct[16] = {[15] = 0x97}, indirect[16] = {[13] = 0, [14] = 0x3f, [15] = 0xd6},
                  ret[16] = {[12] = 0xc0, [13] = 0x03, [14] = 0x5f, [15] = 0xd6};
    assert_true(pb_arch_is_call(direct));
    assert_true(pb_arch_is_call(indirect));
    assert_false(pb_arch_is_call(ret));
#endif
}

static void procinfo_knows_ourselves(void **state)
{
    struct pb_procinfo p;
    assert_int_equal(pb_procinfo_read(getpid(), &p, NULL), 0);
    assert_int_equal(p.pid, getpid());
    assert_int_equal(p.ppid, getppid());
    assert_int_equal(p.euid, geteuid());
    assert_int_equal(p.state, 'R');
    assert_int_equal(p.elf_class, 2);
    assert_int_equal(p.libc, PB_LIBC_GLIBC);
    assert_true(p.dumpable && p.start_time > 0 && p.pid_ns > 0 && p.threads >= 1);
    assert_false(p.python || p.kernel_thread || p.tracer);
    assert_int_equal(pb_procinfo_read(0, &p, NULL), -ESRCH);
}

static void procinfo_reads_names_with_parentheses(void **state)
{
    struct pb_procinfo p;
    char before[16];
    prctl(PR_GET_NAME, before);
    prctl(PR_SET_NAME, "a) S 1 (b");
    assert_int_equal(pb_procinfo_read(getpid(), &p, NULL), 0);
    prctl(PR_SET_NAME, before);
    assert_string_equal(p.comm, "a) S 1 (b");
    assert_int_equal(p.ppid, getppid());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_hold_the_allocator_and_the_loader_and_not_the_rest),
        cmocka_unit_test(a_thread_under_the_loaders_lock_is_unsafe),
        cmocka_unit_test(a_thread_in_its_own_code_is_not_unsafe),
        cmocka_unit_test(where_the_loader_begins_is_no_return_address),
        cmocka_unit_test(the_allocator_in_the_link_register_is_unsafe),
        cmocka_unit_test(a_handler_that_interrupted_the_allocator_is_unsafe),
        cmocka_unit_test(calls_are_told_from_other_words),
        cmocka_unit_test(procinfo_knows_ourselves),
        cmocka_unit_test(procinfo_reads_names_with_parentheses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
