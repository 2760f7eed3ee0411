/* Tests of inject/seccomp: the interpreter against hand-made programs, instruction by instruction, and
 * against the kernel itself: the same filter is asked here and installed in a child. */
#include <linux/audit.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "inject/seccomp.h"

#include "test.h"

#define LENGTH(code) (sizeof(code) / sizeof((code)[0]))
#define RETURN_A     BPF_STMT(BPF_RET | BPF_A, 0)

static const struct seccomp_data data = {.nr = 7,
                                         .arch = 11,
                                         .instruction_pointer = 0x1122334455667788ull,
                                         .args = {1, 2, 3, 4, 5, 0xffffffff00000006ull}};

static uint32_t answer(const struct sock_filter *code, size_t n)
{
    uint32_t ret = 0xdead;
    assert_int_equal(pb_seccomp_run(code, n, &data, &ret), 0);
    return ret;
}

/* A = first, then one instruction with the constant or with X = second, then its result. */
static uint32_t alu(unsigned op, uint32_t first, uint32_t second, bool by_x)
{
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LDX | BPF_IMM, second),
        BPF_STMT(BPF_LD | BPF_IMM, first),
        BPF_STMT((unsigned short)(BPF_ALU | op | (by_x ? BPF_X : BPF_K)), second),
        RETURN_A,
    };
    return answer(code, LENGTH(code));
}

static void arithmetic_is_that_of_the_kernel(void **state)
{
    static const struct {
        unsigned op;
        uint32_t first, second, result;
    } cases[] = {
        {BPF_ADD, 0xffffffff, 2, 1}, {BPF_SUB, 1, 2, 0xffffffff},       {BPF_MUL, 0x10000, 0x10001, 0x10000},
        {BPF_DIV, 17, 5, 3},         {BPF_AND, 0xf0f0, 0xff00, 0xf000}, {BPF_OR, 0xf0, 0x0f, 0xff},
        {BPF_XOR, 0xff, 0x0f, 0xf0}, {BPF_LSH, 1, 31, 0x80000000},      {BPF_RSH, 0x80000000, 31, 1},
        {BPF_NEG, 5, 0, 0xfffffffb},
    };
    for (size_t i = 0; i < LENGTH(cases); i++)
        for (int by_x = 0; by_x < 2; by_x++)
            assert_int_equal(alu(cases[i].op, cases[i].first, cases[i].second, by_x), cases[i].result);
    assert_int_equal(alu(BPF_DIV, 17, 0, true), 0); /* ends the program, with an answer that kills */
}

static void loads_and_stores_reach_what_they_may(void **state)
{
    const struct sock_filter number[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), RETURN_A};
    const struct sock_filter high[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 60), RETURN_A};
    const struct sock_filter length[] = {BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), RETURN_A};
    const struct sock_filter memory[] = {
        BPF_STMT(BPF_LD | BPF_IMM, 9),           BPF_STMT(BPF_ST, 15),
        BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 15), BPF_STMT(BPF_LD | BPF_IMM, 0),
        BPF_STMT(BPF_MISC | BPF_TXA, 0),         BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, 1),
        BPF_STMT(BPF_MISC | BPF_TAX, 0),         BPF_STMT(BPF_STX, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_MEM, 0),   RETURN_A};
    assert_int_equal(answer(number, LENGTH(number)), 7);
    assert_int_equal(answer(high, LENGTH(high)), 0xffffffff);
    assert_int_equal(answer(length, LENGTH(length)), sizeof(struct seccomp_data));
    assert_int_equal(answer(memory, LENGTH(memory)), 10);
}

static uint32_t jump(unsigned op, uint32_t a, uint32_t operand, bool by_x)
{
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LDX | BPF_IMM, operand),
        BPF_STMT(BPF_LD | BPF_IMM, a),
        BPF_JUMP((unsigned short)(BPF_JMP | op | (by_x ? BPF_X : BPF_K)), operand, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 1),
        BPF_STMT(BPF_RET | BPF_K, 2),
    };
    return answer(code, LENGTH(code));
}

static void jumps_compare_without_sign(void **state)
{
    for (int by_x = 0; by_x < 2; by_x++) {
        assert_int_equal(jump(BPF_JEQ, 5, 5, by_x), 1);
        assert_int_equal(jump(BPF_JEQ, 5, 6, by_x), 2);
        assert_int_equal(jump(BPF_JGT, 0x80000000, 1, by_x), 1);
        assert_int_equal(jump(BPF_JGT, 5, 5, by_x), 2);
        assert_int_equal(jump(BPF_JGE, 5, 5, by_x), 1);
        assert_int_equal(jump(BPF_JGE, 4, 5, by_x), 2);
        assert_int_equal(jump(BPF_JSET, 6, 2, by_x), 1);
        assert_int_equal(jump(BPF_JSET, 6, 1, by_x), 2);
    }
    const struct sock_filter always[] = {BPF_STMT(BPF_JMP | BPF_JA, 1), BPF_STMT(BPF_RET | BPF_K, 1),
                                         BPF_STMT(BPF_RET | BPF_K, 2)};
    assert_int_equal(answer(always, LENGTH(always)), 2);
}

static void what_the_kernel_would_not_take_is_refused(void **state)
{
    static const struct sock_filter bad[][2] = {
        {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 2), RETURN_A},
        {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 64), RETURN_A},
        {BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), RETURN_A},
        {BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0), RETURN_A},
        {BPF_STMT(BPF_LDX | BPF_W | BPF_ABS, 0), RETURN_A},
        {BPF_STMT(BPF_LD | BPF_W | BPF_MEM, 16), RETURN_A},
        {BPF_STMT(BPF_ST, 16), RETURN_A},
        {BPF_STMT(BPF_ALU | 0xf0, 0), RETURN_A},
        {BPF_STMT(BPF_JMP | BPF_JA, 1), RETURN_A},
        {BPF_STMT(BPF_JMP | BPF_JA, 0xffffffff), RETURN_A},
        {BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 200, 200), RETURN_A},
        {BPF_STMT(BPF_MISC | 0x40, 0), RETURN_A},
        {BPF_STMT(BPF_LD | BPF_IMM, 0), BPF_STMT(BPF_LD | BPF_IMM, 0)}, /* no end */
    };
    uint32_t ret;
    for (size_t i = 0; i < LENGTH(bad); i++)
        assert_int_equal(pb_seccomp_run(bad[i], 2, &data, &ret), -EINVAL);
    assert_int_equal(pb_seccomp_run(bad[0], 0, &data, &ret), -EINVAL);
}

static void the_strictest_answer_counts(void **state)
{
    const uint32_t harmless[] = {SECCOMP_RET_ALLOW, SECCOMP_RET_LOG},
                   error[] = {SECCOMP_RET_ERRNO | 1, SECCOMP_RET_ALLOW};
    const uint32_t fatal[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP,
                              SECCOMP_RET_USER_NOTIF,   SECCOMP_RET_TRACE,       0x12340000};
    assert_int_equal(pb_seccomp_judge(harmless, 2), PB_SECCOMP_ALLOWED);
    assert_int_equal(pb_seccomp_judge(error, 2), PB_SECCOMP_ERROR);
    for (size_t i = 0; i < LENGTH(fatal); i++) {
        const uint32_t both[] = {fatal[i], SECCOMP_RET_ALLOW};
        assert_int_equal(pb_seccomp_judge(both, 2), PB_SECCOMP_FATAL);
    }
    const uint32_t kill_and_error[] = {SECCOMP_RET_ERRNO | 1, SECCOMP_RET_KILL_PROCESS};
    assert_int_equal(pb_seccomp_judge(kill_and_error, 2), PB_SECCOMP_FATAL);
}

#ifdef __x86_64__
#define OUR_ARCH AUDIT_ARCH_X86_64
#else
#define OUR_ARCH AUDIT_ARCH_AARCH64
#endif

/* getppid and two others behind a filter with arithmetic, memory and jumps: errors as the interpreter says.
 */
static void the_kernel_agrees(void **state)
{
    static const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_STMT(BPF_ST, 3),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x3f),
        BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO),
        RETURN_A,
    };
    static const struct {
        long nr, arg;
    } calls[] = {{SYS_getppid, 1}, {SYS_getppid, 40}, {SYS_getpgid, 7}};
    for (size_t i = 0; i < LENGTH(calls); i++) {
        struct seccomp_data d = {.nr = (int)calls[i].nr, .arch = OUR_ARCH, .args = {(uint64_t)calls[i].arg}};
        uint32_t ours;
        int status;
        assert_int_equal(pb_seccomp_run(code, LENGTH(code), &d, &ours), 0);
        pid_t child = fork();
        if (child == 0) {
            struct sock_fprog program = {LENGTH(code), (struct sock_filter *)(uintptr_t)code};
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
            errno = 0;
            syscall(calls[i].nr, calls[i].arg);
            _exit(errno);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), ours & SECCOMP_RET_DATA);
    }
}

static void the_table_has_each_call_with_its_arguments_once(void **state)
{
    assert_true(pb_seccomp_ncalls > 40);
    for (size_t i = 0; i < pb_seccomp_ncalls; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(pb_seccomp_calls[i].number == pb_seccomp_calls[k].number &&
                         memcmp(pb_seccomp_calls[i].args, pb_seccomp_calls[k].args,
                                sizeof(pb_seccomp_calls[i].args)) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_that_of_the_kernel),
        cmocka_unit_test(loads_and_stores_reach_what_they_may),
        cmocka_unit_test(jumps_compare_without_sign),
        cmocka_unit_test(what_the_kernel_would_not_take_is_refused),
        cmocka_unit_test(the_strictest_answer_counts),
        cmocka_unit_test(the_kernel_agrees),
        cmocka_unit_test(the_table_has_each_call_with_its_arguments_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
