/* cfi: see cfi.h. */
#include "remote/native/cfi.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"

enum {
    STATES = 8, /* depth of remember_state; compilers nest one */
};

enum encoding {
    PE_UDATA2 = 0x02,
    PE_UDATA4 = 0x03,
    PE_UDATA8 = 0x04,
    PE_ULEB = 0x01,
    PE_SLEB = 0x09,
    PE_SDATA2 = 0x0a,
    PE_SDATA4 = 0x0b,
    PE_SDATA8 = 0x0c,
    PE_PCREL = 0x10,
    PE_DATAREL = 0x30,
    PE_OMIT = 0xff,
};

/* The value, without its base. */
static uint64_t encoded_value(struct pb_cursor *c, uint8_t encoding)
{
    switch (encoding & 0x0f) {
    case 0:
    case PE_UDATA8:
    case PE_SDATA8:
        return pb_u64(c);
    case PE_ULEB:
        return pb_uleb(c);
    case PE_SLEB:
        return (uint64_t)pb_sleb(c);
    case PE_UDATA2:
        return pb_u16(c);
    case PE_SDATA2:
        return (uint64_t)(int16_t)pb_u16(c);
    case PE_UDATA4:
        return pb_u32(c);
    case PE_SDATA4:
        return (uint64_t)(int32_t)pb_u32(c);
    default:
        c->bad = true;
        return 0;
    }
}

uint64_t pb_cfi_pointer(struct pb_cursor *c, uint8_t encoding, uint64_t addr, uint64_t data_base)
{
    if (encoding == PE_OMIT)
        return 0;
    uint64_t value = encoded_value(c, encoding);
    switch (encoding & 0xf0) {
    case 0:
        return value;
    case PE_PCREL:
        return value + addr;
    case PE_DATAREL:
        return value + data_base;
    default:
        c->bad = true;
        return 0;
    }
}

int pb_cfi_head(const struct pb_cfi_bytes *b, bool debug_frame, uint64_t section, struct pb_cfi_head *ret)
{
    struct pb_cursor c = {b->data, b->data + b->len, false};
    struct pb_cfi_head h = {0};
    uint64_t len = pb_u32(&c);
    bool wide = len == 0xffffffff;
    if (wide)
        len = pb_u64(&c);
    h.body = (uint64_t)(c.at - b->data);
    if (c.bad || len > INT32_MAX)
        return -EBADMSG;
    h.end = h.body + len;
    h.is_end = len == 0;
    if (h.is_end) {
        *ret = h;
        return 0;
    }
    uint64_t id = wide ? pb_u64(&c) : pb_u32(&c);
    if (c.bad || len < (wide ? 8 : 4))
        return -EBADMSG;
    if (debug_frame) {
        h.is_cie = id == (wide ? UINT64_MAX : UINT32_MAX);
        h.cie = section + id;
    } else {
        h.is_cie = id == 0;
        h.cie = b->addr + h.body - id;
    }
    *ret = h;
    return 0;
}

/* A cursor over the body of an entry, after the field that distinguishes CIE and FDE. */
static int open_body(const struct pb_cfi_bytes *b, const struct pb_cfi_head *h, struct pb_cursor *ret)
{
    uint64_t skip = h->body > 4 ? 8 : 4;
    if (h->end > b->len || h->body + skip > h->end)
        return -EBADMSG;
    *ret = (struct pb_cursor){b->data + h->body + skip, b->data + h->end, false};
    return 0;
}

static uint64_t address_of(const struct pb_cfi_bytes *b, const struct pb_cursor *c)
{
    return b->addr + (uint64_t)(c->at - b->data);
}

static struct pb_cfi_bytes rest_of(const struct pb_cfi_bytes *b, const struct pb_cursor *c)
{
    return (struct pb_cfi_bytes){.data = c->at, .len = pb_left(c), .addr = address_of(b, c)};
}

/* The letters after 'z' tell what the data holds, in their order. Stops at an unknown letter: the length lets
 * the rest be skipped, except that an address encoding after it is missed. */
static void read_augmentation(const struct pb_cfi_bytes *b, const char *letters, struct pb_cursor *c,
                              struct pb_cie *cie)
{
    for (; *letters; letters++) {
        switch (*letters) {
        case 'R':
            cie->encoding = pb_u8(c);
            break;
        case 'L':
            pb_u8(c);
            break;
        case 'P': {
            uint8_t encoding = pb_u8(c);
            /* The personality is often reached through the GOT: only its size matters. */
            pb_cfi_pointer(c, encoding & 0x7f, address_of(b, c), 0);
            break;
        }
        case 'S':
            cie->signal = true;
            break;
        case 'B': /* aarch64: signed with the B key */
        case 'G': /* aarch64: memory tagging */
            break;
        default:
            return;
        }
    }
}

int pb_cie_parse(const struct pb_cfi_bytes *b, const struct pb_cfi_head *h, struct pb_cie *ret)
{
    struct pb_cursor c;
    struct pb_cie cie = {0};
    int r = open_body(b, h, &c);
    if (r < 0)
        return r;
    uint8_t version = pb_u8(&c);
    const char *letters = (const char *)c.at;
    size_t len = strnlen(letters, pb_left(&c));
    pb_skip(&c, len + 1);
    if (c.bad || (version != 1 && version != 3 && version != 4))
        return -EBADMSG;
    if (version == 4) {
        uint8_t address_size = pb_u8(&c), segment_size = pb_u8(&c);
        if (address_size != 8 || segment_size != 0)
            return -EBADMSG;
    }
    cie.code_align = pb_uleb(&c);
    cie.data_align = pb_sleb(&c);
    cie.ra = version == 1 ? pb_u8(&c) : (unsigned)pb_uleb(&c);
    cie.augmented = letters[0] == 'z';
    if (letters[0] && !cie.augmented)
        return -EBADMSG;
    if (cie.augmented) {
        uint64_t size = pb_uleb(&c);
        struct pb_cursor data = c;
        pb_skip(&c, size);
        data.end = c.at;
        read_augmentation(b, letters + 1, &data, &cie);
        if (data.bad)
            return -EBADMSG;
    }
    if (c.bad || cie.ra >= PB_NATIVE_REGS)
        return -EBADMSG;
    cie.program = rest_of(b, &c);
    *ret = cie;
    return 0;
}

int pb_fde_parse(const struct pb_cfi_bytes *b, const struct pb_cfi_head *h, const struct pb_cie *cie,
                 struct pb_fde *ret)
{
    struct pb_cursor c;
    int r = open_body(b, h, &c);
    if (r < 0)
        return r;
    struct pb_fde fde;
    fde.start = pb_cfi_pointer(&c, cie->encoding, address_of(b, &c), 0);
    /* The length has the size of a pointer, but is unsigned and relative to nothing. */
    fde.end = fde.start + encoded_value(&c, cie->encoding & 0x07);
    if (cie->augmented)
        pb_skip(&c, pb_uleb(&c));
    if (c.bad || fde.end < fde.start)
        return -EBADMSG;
    fde.program = rest_of(b, &c);
    *ret = fde;
    return 0;
}

struct cfi_machine {
    const struct pb_cie *cie;
    struct pb_cfi_row row, initial, saved[STATES];
    unsigned nsaved;
    uint64_t loc;
    bool bad;
};

static void set_rule(struct cfi_machine *m, uint64_t reg, enum pb_rule rule, int64_t value)
{
    /* Vector and other registers, not needed for unwinding, occur too. */
    if (reg >= PB_NATIVE_REGS)
        return;
    if (value < INT32_MIN || value > INT32_MAX) {
        m->bad = true;
        return;
    }
    m->row.rule[reg] = (uint8_t)rule;
    m->row.value[reg] = (int32_t)value;
}

/* A rule with an expression: the offset of its length. The expression is skipped. */
static int64_t expression(struct cfi_machine *m, const struct pb_cfi_bytes *program, struct pb_cursor *c)
{
    uint64_t at = program->addr + (uint64_t)(c->at - program->data);
    pb_skip(c, pb_uleb(c));
    return (int64_t)(at - m->row.addr);
}

static void set_cfa(struct cfi_machine *m, uint64_t reg, int64_t offset)
{
    if (reg >= PB_NATIVE_REGS || offset < INT32_MIN || offset > INT32_MAX) {
        m->bad = true;
        return;
    }
    m->row.cfa_reg = (uint8_t)reg;
    m->row.cfa = (int32_t)offset;
}

static void set_cfa_expression(struct cfi_machine *m, int64_t place)
{
    set_cfa(m, 0, place);
    m->row.cfa_reg = PB_CFA_EXPR;
}

static void restore(struct cfi_machine *m, uint64_t reg)
{
    if (reg >= PB_NATIVE_REGS)
        return;
    m->row.rule[reg] = m->initial.rule[reg];
    m->row.value[reg] = m->initial.value[reg];
}

static void remember(struct cfi_machine *m)
{
    if (m->nsaved == STATES)
        m->bad = true;
    else
        m->saved[m->nsaved++] = m->row;
}

static void recall(struct cfi_machine *m)
{
    if (m->nsaved == 0)
        m->bad = true;
    else
        m->row = m->saved[--m->nsaved];
}

enum {
    CFA_SET_LOC = 0x01,
    CFA_ADVANCE1 = 0x02,
    CFA_ADVANCE2 = 0x03,
    CFA_ADVANCE4 = 0x04,
    CFA_OFFSET_EXTENDED = 0x05,
    CFA_RESTORE_EXTENDED = 0x06,
    CFA_UNDEFINED = 0x07,
    CFA_SAME = 0x08,
    CFA_REGISTER = 0x09,
    CFA_REMEMBER = 0x0a,
    CFA_RECALL = 0x0b,
    CFA_DEF = 0x0c,
    CFA_DEF_REGISTER = 0x0d,
    CFA_DEF_OFFSET = 0x0e,
    CFA_DEF_EXPRESSION = 0x0f,
    CFA_EXPRESSION = 0x10,
    CFA_OFFSET_SF = 0x11,
    CFA_DEF_SF = 0x12,
    CFA_DEF_OFFSET_SF = 0x13,
    CFA_VAL_OFFSET = 0x14,
    CFA_VAL_OFFSET_SF = 0x15,
    CFA_VAL_EXPRESSION = 0x16,
    CFA_NEGATE_RA = 0x2d, /* aarch64; sparc's register windows otherwise */
    CFA_ARGS_SIZE = 0x2e,
    CFA_NEGATIVE_OFFSET = 0x2f,
};

/* Offsets are products of numbers in the file: they may wrap around, which harms nothing here. */
static int64_t scaled(const struct cfi_machine *m, uint64_t factor)
{
    return (int64_t)((uint64_t)m->cie->data_align * factor);
}

/* Instructions that set the CFA; false: another instruction. */
static bool run_cfa(struct cfi_machine *m, uint8_t op, const struct pb_cfi_bytes *program,
                    struct pb_cursor *c)
{
    uint64_t reg;
    switch (op) {
    case CFA_DEF:
        reg = pb_uleb(c);
        set_cfa(m, reg, (int64_t)pb_uleb(c));
        return true;
    case CFA_DEF_SF:
        reg = pb_uleb(c);
        set_cfa(m, reg, scaled(m, (uint64_t)pb_sleb(c)));
        return true;
    case CFA_DEF_REGISTER:
        set_cfa(m, pb_uleb(c), m->row.cfa);
        return true;
    case CFA_DEF_OFFSET:
        set_cfa(m, m->row.cfa_reg, (int64_t)pb_uleb(c));
        return true;
    case CFA_DEF_OFFSET_SF:
        set_cfa(m, m->row.cfa_reg, scaled(m, (uint64_t)pb_sleb(c)));
        return true;
    case CFA_DEF_EXPRESSION:
        set_cfa_expression(m, expression(m, program, c));
        return true;
    default:
        return false;
    }
}

/* Instructions that set the rule of a register; false: another instruction. */
static bool run_rule(struct cfi_machine *m, uint8_t op, const struct pb_cfi_bytes *program,
                     struct pb_cursor *c)
{
    if (op < CFA_OFFSET_EXTENDED || (op > CFA_REGISTER && op < CFA_EXPRESSION))
        return false;
    if (op > CFA_VAL_EXPRESSION && op != CFA_NEGATIVE_OFFSET)
        return false;
    uint64_t reg = pb_uleb(c);
    switch (op) {
    case CFA_OFFSET_EXTENDED:
        set_rule(m, reg, PB_RULE_AT, scaled(m, pb_uleb(c)));
        break;
    case CFA_RESTORE_EXTENDED:
        restore(m, reg);
        break;
    case CFA_UNDEFINED:
        set_rule(m, reg, PB_RULE_UNDEFINED, 0);
        break;
    case CFA_SAME:
        set_rule(m, reg, PB_RULE_SAME, 0);
        break;
    case CFA_REGISTER:
        set_rule(m, reg, PB_RULE_REG, (int64_t)pb_uleb(c));
        break;
    case CFA_EXPRESSION:
        set_rule(m, reg, PB_RULE_AT_EXPR, expression(m, program, c));
        break;
    case CFA_VAL_EXPRESSION:
        set_rule(m, reg, PB_RULE_IS_EXPR, expression(m, program, c));
        break;
    case CFA_OFFSET_SF:
        set_rule(m, reg, PB_RULE_AT, scaled(m, (uint64_t)pb_sleb(c)));
        break;
    case CFA_VAL_OFFSET:
        set_rule(m, reg, PB_RULE_IS, scaled(m, pb_uleb(c)));
        break;
    case CFA_VAL_OFFSET_SF:
        set_rule(m, reg, PB_RULE_IS, scaled(m, (uint64_t)pb_sleb(c)));
        break;
    case CFA_NEGATIVE_OFFSET:
        set_rule(m, reg, PB_RULE_AT, scaled(m, 0 - pb_uleb(c)));
        break;
    default:
        return false;
    }
    return true;
}

static void run_other(struct cfi_machine *m, uint8_t op, const struct pb_cfi_bytes *program,
                      struct pb_cursor *c)
{
    switch (op) {
    case 0:
        break;
    case CFA_SET_LOC:
        m->loc = pb_cfi_pointer(c, m->cie->encoding, program->addr + (uint64_t)(c->at - program->data), 0);
        break;
    case CFA_ADVANCE1:
        m->loc += pb_u8(c) * m->cie->code_align;
        break;
    case CFA_ADVANCE2:
        m->loc += pb_u16(c) * m->cie->code_align;
        break;
    case CFA_ADVANCE4:
        m->loc += pb_u32(c) * m->cie->code_align;
        break;
    case CFA_REMEMBER:
        remember(m);
        break;
    case CFA_RECALL:
        recall(m);
        break;
    case CFA_NEGATE_RA:
        m->row.negated = !m->row.negated;
        break;
    case CFA_ARGS_SIZE:
        pb_uleb(c);
        break;
    default:
        m->bad = true;
    }
}

/* Runs until the row of pc is complete: the first advance beyond it ends the program. */
static int run_program(struct cfi_machine *m, const struct pb_cfi_bytes *program, uint64_t pc)
{
    struct pb_cursor c = {program->data, program->data + program->len, false};
    while (pb_left(&c) && !c.bad && !m->bad) {
        uint8_t op = pb_u8(&c), low = op & 0x3f;
        switch (op & 0xc0) {
        case 0x40:
            m->loc += low * m->cie->code_align;
            break;
        case 0x80:
            set_rule(m, low, PB_RULE_AT, scaled(m, pb_uleb(&c)));
            break;
        case 0xc0:
            restore(m, low);
            break;
        default:
            if (!run_cfa(m, op, program, &c) && !run_rule(m, op, program, &c))
                run_other(m, op, program, &c);
        }
        if (m->loc > pc)
            return 0;
    }
    return c.bad || m->bad ? -EBADMSG : 0;
}

int pb_cfi_run(const struct pb_cie *cie, const struct pb_fde *fde, uint64_t pc, struct pb_cfi_row *ret)
{
    struct cfi_machine m = {.cie = cie, .loc = fde->start};
    if (pc < fde->start || pc >= fde->end)
        return -ENOENT;
    m.row.addr = fde->program.addr;
    m.row.cfa_reg = PB_CFA_NONE;
    m.row.ra = (uint8_t)cie->ra;
    m.row.signal = cie->signal;
    int r = run_program(&m, &cie->program, pc);
    if (r < 0)
        return r;
    m.initial = m.row;
    r = run_program(&m, &fde->program, pc);
    if (r < 0)
        return r;
    if (m.row.cfa_reg == PB_CFA_NONE)
        return -EBADMSG;
    *ret = m.row;
    return 0;
}
