/* Arbitrary bytes as call frame information and as a DWARF expression: rules refer to registers that exist, a
 * program ends, and nothing is read outside of what was given (the sanitizer sees that). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/native/cfi.h"
#include "remote/native/expr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static int read_memory(void *arg, uint64_t addr, void *ret, size_t len)
{
    must(len >= 1 && len <= 8, "an expression read more than a word");
    memset(ret, (int)addr & 0xff, len);
    return addr % 7 == 0 ? -EFAULT : 0;
}

static void run_expression(const uint8_t *data, size_t size)
{
    uint64_t reg[PB_NATIVE_REGS], first = size, result;
    for (unsigned i = 0; i < PB_NATIVE_REGS; i++)
        reg[i] = i * 0x1234567890ull;
    struct pb_expr_env env = {.reg = reg, .known = 0x1ffff, .read = read_memory};
    pb_expr_run(data, size, &env, size % 2 ? &first : NULL, &result);
}

static void check_row(const struct pb_cfi_row *row)
{
    must(row->cfa_reg < PB_NATIVE_REGS || row->cfa_reg == PB_CFA_EXPR, "a CFA of no register");
    must(row->ra < PB_NATIVE_REGS, "a return address in no register");
    for (unsigned i = 0; i < PB_NATIVE_REGS; i++)
        must(row->rule[i] <= PB_RULE_IS_EXPR, "a rule that is none");
}

static void run_entry(const struct pb_cfi_bytes *b, const struct pb_cfi_head *h, const struct pb_cie *cie)
{
    struct pb_fde fde;
    struct pb_cfi_row row;
    if (pb_fde_parse(b, h, cie, &fde) < 0)
        return;
    must(fde.program.data >= b->data && fde.program.data + fde.program.len <= b->data + b->len,
         "a program outside of its entry");
    const uint64_t at[] = {fde.start, fde.start + (fde.end - fde.start) / 2, fde.end - 1, fde.end};
    for (unsigned i = 0; i < 4; i++)
        if (pb_cfi_run(cie, &fde, at[i], &row) == 0)
            check_row(&row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    bool debug_frame = data[0] & 1;
    const uint64_t section = 0x10000;
    struct pb_cie cie = {0};
    bool have = false;
    run_expression(data + 1, size - 1);
    data++, size--;
    for (size_t at = 0; at < size;) {
        struct pb_cfi_bytes b = {data + at, size - at, section + at};
        struct pb_cfi_head h;
        if (pb_cfi_head(&b, debug_frame, section, &h) < 0)
            break;
        must(h.end > 0, "an entry without end");
        if (h.is_cie)
            have = pb_cie_parse(&b, &h, &cie) == 0;
        else if (!h.is_end && have)
            run_entry(&b, &h, &cie);
        at += h.end;
    }
    return 0;
}
