/* Call frame information, instruction by instruction: what a frame's rules are at each place of a function.
 */
#include "remote/native/cfi.h"
#include "remote/native/expr.h"
#include "remote/native/unwind_arch.h"

#include "test.h"

enum { RBX = 3, RBP = 6, RSP = 7, RA = 16 };

/* A CIE and one FDE for [0x1000, 0x1100) with the given programs, as .eh_frame has them. */
struct frame {
    unsigned char cie[64], fde[128];
    struct pb_cfi_bytes cie_bytes, fde_bytes;
    struct pb_cie parsed;
    struct pb_fde function;
};

static void put32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof(value));
}

static void make(struct frame *f, const char *letters, const unsigned char *initial, size_t ninitial,
                 const unsigned char *program, size_t n)
{
    struct pb_cfi_head h;
    size_t at = 9, nletters = strlen(letters) + 1;
    memset(f, 0, sizeof(*f));
    f->cie[8] = 1; /* version */
    memcpy(f->cie + at, letters, nletters);
    at += nletters;
    f->cie[at++] = 1;    /* code alignment */
    f->cie[at++] = 0x78; /* data alignment -8 */
    f->cie[at++] = RA;
    f->cie[at++] = 1;    /* augmentation: the encoding */
    f->cie[at++] = 0x03; /* udata4, absolute */
    memcpy(f->cie + at, initial, ninitial);
    put32(f->cie, (uint32_t)(at + ninitial - 4));
    f->cie_bytes = (struct pb_cfi_bytes){f->cie, at + ninitial, 0x5000};

    put32(f->fde, (uint32_t)(17 - 4 + n));
    put32(f->fde + 4, 0x1004); /* its CIE: so far back from here, at 0x6004 */
    put32(f->fde + 8, 0x1000);
    put32(f->fde + 12, 0x100);
    f->fde[16] = 0;
    memcpy(f->fde + 17, program, n);
    f->fde_bytes = (struct pb_cfi_bytes){f->fde, 17 + n, 0x6000};

    assert_int_equal(pb_cfi_head(&f->cie_bytes, false, 0x5000, &h), 0);
    assert_true(h.is_cie);
    assert_int_equal(pb_cie_parse(&f->cie_bytes, &h, &f->parsed), 0);
    assert_int_equal(pb_cfi_head(&f->fde_bytes, false, 0x5000, &h), 0);
    assert_false(h.is_cie);
    assert_int_equal(h.cie, 0x5000);
    assert_int_equal(pb_fde_parse(&f->fde_bytes, &h, &f->parsed, &f->function), 0);
}

static const unsigned char usual[] = {0x0c, RSP, 8, 0x80 | RA,
                                      1}; /* CFA is rsp + 8, the return address at CFA - 8 */

static void rules_change_where_the_prologue_ends(void **state)
{
    /* push rbp; mov rbp, rsp; ...; leave; ret; and the code after it */
    static const unsigned char program[] = {0x41, 0x0e, 16,   0x80 | RBP, 2, 0x43,       0x0d, RBP, 0x02,
                                            0x80, 0x0a, 0x0c, RSP,        8, 0xc0 | RBP, 0x41, 0x0b};
    struct frame f;
    struct pb_cfi_row row;
    make(&f, "zR", usual, sizeof(usual), program, sizeof(program));
    assert_int_equal(f.function.start, 0x1000);
    assert_int_equal(f.function.end, 0x1100);

    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1000, &row), 0);
    assert_true(row.cfa_reg == RSP && row.cfa == 8 && row.rule[RBP] == PB_RULE_SAME);
    assert_true(row.rule[RA] == PB_RULE_AT && row.value[RA] == -8);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1001, &row), 0);
    assert_true(row.cfa_reg == RSP && row.cfa == 16 && row.rule[RBP] == PB_RULE_AT && row.value[RBP] == -16);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1004, &row), 0);
    assert_true(row.cfa_reg == RBP && row.cfa == 16);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1083, &row), 0);
    assert_true(row.cfa_reg == RBP);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1084, &row), 0);
    assert_true(row.cfa_reg == RSP && row.cfa == 8 && row.rule[RBP] == PB_RULE_SAME);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1085, &row), 0);
    assert_true(row.cfa_reg == RBP && row.rule[RBP] == PB_RULE_AT);

    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1100, &row), -ENOENT);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0xfff, &row), -ENOENT);
}

static void nonsense_is_refused(void **state)
{
    static const unsigned char unknown[] = {0x3f}, recall[] = {0x0b}, cut[] = {0x0e};
    static const unsigned char no_cfa[] = {0x00};
    struct frame f;
    struct pb_cfi_row row;
    make(&f, "zR", usual, sizeof(usual), unknown, sizeof(unknown));
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1010, &row), -EBADMSG);
    make(&f, "zR", usual, sizeof(usual), recall, sizeof(recall));
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1010, &row), -EBADMSG);
    make(&f, "zR", usual, sizeof(usual), cut, sizeof(cut));
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1010, &row), -EBADMSG);
    make(&f, "zR", no_cfa, sizeof(no_cfa), no_cfa, sizeof(no_cfa));
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1010, &row), -EBADMSG);
}

static void a_signal_frame_says_so(void **state)
{
    static const unsigned char undefined[] = {0x07, RA};
    struct frame f;
    struct pb_cfi_row row;
    make(&f, "zRS", usual, sizeof(usual), undefined, sizeof(undefined));
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1000, &row), 0);
    assert_true(row.signal);
    assert_int_equal(row.rule[RA], PB_RULE_UNDEFINED);
}

static void a_signed_return_address_is_noticed(void **state)
{
    static const unsigned char program[] = {0x41, 0x2d, 0x41, 0x2d};
    struct frame f;
    struct pb_cfi_row row;
    make(&f, "zR", usual, sizeof(usual), program, sizeof(program));
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1000, &row), 0);
    assert_false(row.negated);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1001, &row), 0);
    assert_true(row.negated);
    assert_int_equal(pb_cfi_run(&f.parsed, &f.function, 0x1002, &row), 0);
    assert_false(row.negated);
}

static int read_memory(void *arg, uint64_t addr, void *ret, size_t len)
{
    uint64_t value = addr + 1;
    memcpy(ret, &value, len);
    return addr == 0xbad ? -EFAULT : 0;
}

/* The one every PLT has: rsp + 8, and 8 more past the push. */
static void the_expression_of_the_plt(void **state)
{
    static const unsigned char plt[] = {0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22};
    uint64_t reg[PB_NATIVE_REGS] = {[RSP] = 0x7000, [RA] = 0x1026}, value;
    struct pb_expr_env env = {.reg = reg, .known = 1u << RSP | 1u << RA, .read = read_memory};
    assert_int_equal(pb_expr_run(plt, sizeof(plt), &env, NULL, &value), 0);
    assert_int_equal(value, 0x7008);
    reg[RA] = 0x102b;
    assert_int_equal(pb_expr_run(plt, sizeof(plt), &env, NULL, &value), 0);
    assert_int_equal(value, 0x7010);
    env.known = 1u << RSP;
    assert_int_equal(pb_expr_run(plt, sizeof(plt), &env, NULL, &value), -ENODATA);
}

static void expressions_end_and_stay_within_bounds(void **state)
{
    static const unsigned char loop[] = {0x30, 0x2f, 0xfc, 0xff}, jump[] = {0x2f, 0x7f, 0x7f};
    static const unsigned char zero[] = {0x31, 0x30, 0x1b}, empty[] = {0x22};
    static const unsigned char deref[] = {0x0a, 0xad, 0x0b, 0x06}, good[] = {0x0a, 0x10, 0x20, 0x06};
    uint64_t reg[PB_NATIVE_REGS] = {0}, value;
    struct pb_expr_env env = {.reg = reg, .read = read_memory};
    assert_int_equal(pb_expr_run(loop, sizeof(loop), &env, NULL, &value), -EBADMSG);
    assert_int_equal(pb_expr_run(jump, sizeof(jump), &env, NULL, &value), -EBADMSG);
    assert_int_equal(pb_expr_run(zero, sizeof(zero), &env, NULL, &value), -EBADMSG);
    assert_int_equal(pb_expr_run(empty, sizeof(empty), &env, NULL, &value), -EBADMSG);
    assert_int_equal(pb_expr_run(deref, sizeof(deref), &env, NULL, &value), -EFAULT);
    assert_int_equal(pb_expr_run(good, sizeof(good), &env, NULL, &value), 0);
    assert_int_equal(value, 0x2011);
}

static void calls_are_told_from_other_code(void **state)
{
    uint64_t target;
    static const unsigned char direct[8] = {0, 0, 0, 0xe8, 0xfb, 0xff, 0xff, 0xff}, nops[8] = {0x90};
    static const unsigned char indirect[8] = {0, 0, 0xff, 0x15, 1, 2, 3, 4},
                               reg[8] = {0, 0, 0, 0, 0, 0, 0xff, 0xd0};
    static const unsigned char bl[8] = {0, 0, 0, 0, 0xff, 0xff, 0xff, 0x97},
                               blr[8] = {0, 0, 0, 0, 0, 0, 0x3f, 0xd6};
    assert_true(pb_native_x86_64.call_before(direct, 0x1000, &target));
    assert_int_equal(target, 0xffb);
    assert_true(pb_native_x86_64.call_before(indirect, 0x1000, &target));
    assert_true(pb_native_x86_64.call_before(reg, 0x1000, &target));
    assert_int_equal(target, 0);
    assert_false(pb_native_x86_64.call_before(nops, 0x1000, &target));
    assert_true(pb_native_aarch64.call_before(bl, 0x1000, &target));
    assert_int_equal(target, 0xff8);
    assert_true(pb_native_aarch64.call_before(blr, 0x1000, &target));
    assert_false(pb_native_aarch64.call_before(nops, 0x1000, &target));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_change_where_the_prologue_ends),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(a_signal_frame_says_so),
        cmocka_unit_test(a_signed_return_address_is_noticed),
        cmocka_unit_test(the_expression_of_the_plt),
        cmocka_unit_test(expressions_end_and_stay_within_bounds),
        cmocka_unit_test(calls_are_told_from_other_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
