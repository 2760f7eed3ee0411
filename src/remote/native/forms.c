/* forms: the values of attributes, as each form of DWARF 2 to 5 writes them. See dwarf.h. */
#include "remote/native/dwarf.h"

enum form {
    FORM_ADDR = 0x01,
    FORM_BLOCK2 = 0x03,
    FORM_BLOCK4,
    FORM_DATA2,
    FORM_DATA4,
    FORM_DATA8,
    FORM_STRING,
    FORM_BLOCK,
    FORM_BLOCK1,
    FORM_DATA1,
    FORM_FLAG,
    FORM_SDATA,
    FORM_STRP,
    FORM_UDATA,
    FORM_REF_ADDR,
    FORM_REF1,
    FORM_REF2,
    FORM_REF4,
    FORM_REF8,
    FORM_REF_UDATA,
    FORM_INDIRECT,
    FORM_SEC_OFFSET,
    FORM_EXPRLOC,
    FORM_FLAG_PRESENT,
    FORM_STRX,
    FORM_ADDRX,
    FORM_REF_SUP4,
    FORM_STRP_SUP,
    FORM_DATA16,
    FORM_LINE_STRP,
    FORM_REF_SIG8,
    FORM_IMPLICIT_CONST,
    FORM_LOCLISTX,
    FORM_RNGLISTX,
    FORM_REF_SUP8,
    FORM_STRX1,
    FORM_STRX2,
    FORM_STRX3,
    FORM_STRX4,
    FORM_ADDRX1,
    FORM_ADDRX2,
    FORM_ADDRX3,
    FORM_ADDRX4,
    FORM_GNU_REF_ALT = 0x1f20,
    FORM_GNU_STRP_ALT = 0x1f21,
};

static uint64_t get_offset(struct pb_cursor *c, bool wide)
{
    return wide ? pb_u64(c) : pb_u32(c);
}

int pb_form_size(const struct pb_unit *u, unsigned form)
{
    switch (form) {
    case FORM_FLAG_PRESENT:
    case FORM_IMPLICIT_CONST:
        return 0;
    case FORM_DATA1:
    case FORM_FLAG:
    case FORM_REF1:
    case FORM_STRX1:
    case FORM_ADDRX1:
        return 1;
    case FORM_DATA2:
    case FORM_REF2:
    case FORM_STRX2:
    case FORM_ADDRX2:
        return 2;
    case FORM_DATA4:
    case FORM_REF4:
    case FORM_STRX4:
    case FORM_ADDRX4:
        return 4;
    case FORM_ADDR:
    case FORM_DATA8:
    case FORM_REF8:
    case FORM_REF_SIG8:
        return 8;
    case FORM_STRP:
    case FORM_LINE_STRP:
    case FORM_SEC_OFFSET:
        return u->wide ? 8 : 4;
    default:
        return -1;
    }
}

static struct pb_value number(uint64_t n)
{
    return (struct pb_value){.kind = PB_VALUE_NUMBER, .number = n};
}

static struct pb_value reference(uint64_t n)
{
    return (struct pb_value){.kind = PB_VALUE_REFERENCE, .number = n};
}

static struct pb_value string(enum pb_debug_section section, uint64_t at)
{
    return (struct pb_value){.kind = PB_VALUE_STRING, .number = at, .section = (uint8_t)section};
}

struct pb_value pb_form_indexed_string(const struct pb_unit *u, uint64_t index)
{
    uint64_t at = 0, size = u->wide ? 8 : 4;
    if (index > UINT32_MAX ||
        pb_dwarf_read(u->dwarf, PB_DEBUG_STR_OFFSETS, u->str_offsets + index * size, &at, size) < 0)
        return (struct pb_value){0};
    return string(PB_DEBUG_STR, at);
}

static struct pb_value indexed_address(const struct pb_unit *u, uint64_t index)
{
    uint64_t addr;
    if (index > UINT32_MAX || pb_dwarf_read(u->dwarf, PB_DEBUG_ADDR, u->addrs + index * 8, &addr, 8) < 0)
        return (struct pb_value){0};
    return (struct pb_value){.kind = PB_VALUE_ADDRESS, .number = addr};
}

static uint32_t get_u24(struct pb_cursor *c)
{
    uint32_t low = pb_u16(c);
    return low | (uint32_t)pb_u8(c) << 16;
}

/* Skips blocks and other unused values; false: another form. */
static bool skip_form(const struct pb_unit *u, unsigned form, struct pb_cursor *c)
{
    switch (form) {
    case FORM_BLOCK2:
        pb_skip(c, pb_u16(c));
        return true;
    case FORM_BLOCK4:
        pb_skip(c, pb_u32(c));
        return true;
    case FORM_BLOCK:
    case FORM_EXPRLOC:
        pb_skip(c, pb_uleb(c));
        return true;
    case FORM_BLOCK1:
        pb_skip(c, pb_u8(c));
        return true;
    case FORM_DATA16:
        pb_skip(c, 16);
        return true;
    case FORM_REF_SUP4:
        pb_skip(c, 4);
        return true;
    case FORM_REF_SUP8:
    case FORM_REF_SIG8:
        pb_skip(c, 8);
        return true;
    case FORM_STRP_SUP:
    case FORM_GNU_REF_ALT:
    case FORM_GNU_STRP_ALT:
        get_offset(c, u->wide);
        return true;
    case FORM_LOCLISTX:
        pb_uleb(c);
        return true;
    default:
        return false;
    }
}

/* References are relative to the start of the unit. */
static bool get_reference(const struct pb_unit *u, unsigned form, struct pb_cursor *c, struct pb_value *ret)
{
    switch (form) {
    case FORM_REF_ADDR:
        *ret = reference(u->version == 2 ? pb_u64(c) : get_offset(c, u->wide));
        return true;
    case FORM_REF1:
        *ret = reference(u->offset + pb_u8(c));
        return true;
    case FORM_REF2:
        *ret = reference(u->offset + pb_u16(c));
        return true;
    case FORM_REF4:
        *ret = reference(u->offset + pb_u32(c));
        return true;
    case FORM_REF8:
        *ret = reference(u->offset + pb_u64(c));
        return true;
    case FORM_REF_UDATA:
        *ret = reference(u->offset + pb_uleb(c));
        return true;
    default:
        return false;
    }
}

static bool get_number(const struct pb_unit *u, unsigned form, struct pb_cursor *c, struct pb_value *ret)
{
    switch (form) {
    case FORM_DATA1:
    case FORM_FLAG:
        *ret = number(pb_u8(c));
        return true;
    case FORM_DATA2:
        *ret = number(pb_u16(c));
        return true;
    case FORM_DATA4:
        *ret = number(pb_u32(c));
        return true;
    case FORM_DATA8:
        *ret = number(pb_u64(c));
        return true;
    case FORM_SDATA:
        *ret = number((uint64_t)pb_sleb(c));
        return true;
    case FORM_UDATA:
        *ret = number(pb_uleb(c));
        return true;
    case FORM_SEC_OFFSET:
        *ret = number(get_offset(c, u->wide));
        return true;
    case FORM_FLAG_PRESENT:
        *ret = number(1);
        return true;
    case FORM_RNGLISTX:
        *ret = number(pb_uleb(c));
        ret->is_index = true;
        return true;
    default:
        return false;
    }
}

static bool get_string(const struct pb_unit *u, unsigned form, struct pb_cursor *c, struct pb_value *ret)
{
    switch (form) {
    case FORM_STRING:
        *ret = (struct pb_value){.kind = PB_VALUE_STRING, .text = (const char *)c->at};
        pb_skip(c, strnlen((const char *)c->at, pb_left(c)) + 1);
        return true;
    case FORM_STRP:
        *ret = string(PB_DEBUG_STR, get_offset(c, u->wide));
        return true;
    case FORM_LINE_STRP:
        *ret = string(PB_DEBUG_LINE_STR, get_offset(c, u->wide));
        return true;
    case FORM_STRX:
        *ret = (struct pb_value){.kind = PB_VALUE_STRING, .number = pb_uleb(c), .is_index = true};
        return true;
    case FORM_STRX1:
        *ret = (struct pb_value){.kind = PB_VALUE_STRING, .number = pb_u8(c), .is_index = true};
        return true;
    case FORM_STRX2:
        *ret = (struct pb_value){.kind = PB_VALUE_STRING, .number = pb_u16(c), .is_index = true};
        return true;
    case FORM_STRX3:
        *ret = (struct pb_value){.kind = PB_VALUE_STRING, .number = get_u24(c), .is_index = true};
        return true;
    case FORM_STRX4:
        *ret = (struct pb_value){.kind = PB_VALUE_STRING, .number = pb_u32(c), .is_index = true};
        return true;
    default:
        return false;
    }
}

static bool get_address(const struct pb_unit *u, unsigned form, struct pb_cursor *c, struct pb_value *ret)
{
    switch (form) {
    case FORM_ADDR:
        *ret = (struct pb_value){.kind = PB_VALUE_ADDRESS, .number = pb_u64(c)};
        return true;
    case FORM_ADDRX:
        *ret = indexed_address(u, pb_uleb(c));
        return true;
    case FORM_ADDRX1:
        *ret = indexed_address(u, pb_u8(c));
        return true;
    case FORM_ADDRX2:
        *ret = indexed_address(u, pb_u16(c));
        return true;
    case FORM_ADDRX3:
        *ret = indexed_address(u, get_u24(c));
        return true;
    case FORM_ADDRX4:
        *ret = indexed_address(u, pb_u32(c));
        return true;
    default:
        return false;
    }
}

struct pb_value pb_form_value(const struct pb_unit *u, const struct pb_attribute *a, struct pb_cursor *c)
{
    struct pb_value v = {0};
    unsigned form = a->form;
    if (form == FORM_INDIRECT)
        form = (unsigned)pb_uleb(c);
    if (form == FORM_IMPLICIT_CONST)
        return number((uint64_t)a->constant);
    if (!get_number(u, form, c, &v) && !get_reference(u, form, c, &v) && !get_string(u, form, c, &v) &&
        !get_address(u, form, c, &v) && !skip_form(u, form, c))
        c->bad = true;
    return v;
}
