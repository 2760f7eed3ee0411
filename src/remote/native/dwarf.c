/* dwarf: see dwarf.h. */
#include "remote/native/dwarf.h"

#include <errno.h>
#include <stdlib.h>

enum {
    UNIT_MAX = 64 << 20,
    ABBREV_FIRST = 16 << 10,
    ABBREV_MAX = 4 << 20,
    ABBREVS_MAX = 1 << 20,
    SKIP_MAX = 1 << 22, /* DIEs walked over to reach a sibling */
};

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

int pb_dwarf_open(const struct pb_object *o, struct pb_dwarf *ret)
{
    static const char *const names[PB_DEBUG_SECTIONS] = {
        ".debug_info",   ".debug_abbrev",   ".debug_line", ".debug_str",         ".debug_line_str",
        ".debug_ranges", ".debug_rnglists", ".debug_addr", ".debug_str_offsets", ".debug_aranges"};
    struct pb_dwarf d = {.object = o};
    for (unsigned i = 0; i < PB_DEBUG_SECTIONS; i++)
        if (pb_object_section(o, names[i], &d.section[i]) < 0 || d.section[i].flags & SHF_COMPRESSED)
            d.section[i].size = 0;
    if (!d.section[PB_DEBUG_INFO].size || !d.section[PB_DEBUG_ABBREV].size)
        return -ENOENT;
    *ret = d;
    return 0;
}

bool pb_dwarf_spend(const struct pb_dwarf *d, uint64_t work)
{
    if (*d->budget < work) {
        *d->budget = 0;
        return false;
    }
    *d->budget -= work;
    return true;
}

int pb_dwarf_read(const struct pb_dwarf *d, enum pb_debug_section s, uint64_t offset, void *buf, size_t len)
{
    const struct pb_section *section = &d->section[s];
    if (offset > section->size || len > section->size - offset)
        return -EFAULT;
    return pb_object_read_file(d->object, section->offset + offset, buf, len);
}

/* As many as there are. */
static size_t read_some(const struct pb_dwarf *d, enum pb_debug_section s, uint64_t offset, void *buf,
                        size_t len)
{
    if (offset >= d->section[s].size)
        return 0;
    if (len > d->section[s].size - offset)
        len = (size_t)(d->section[s].size - offset);
    return pb_dwarf_read(d, s, offset, buf, len) < 0 ? 0 : len;
}

static uint64_t get_offset(struct pb_cursor *c, bool wide)
{
    return wide ? pb_u64(c) : pb_u32(c);
}

int pb_unit_skip(const struct pb_dwarf *d, uint64_t offset, uint64_t *ret_next)
{
    unsigned char head[12];
    size_t n = read_some(d, PB_DEBUG_INFO, offset, head, sizeof(head));
    struct pb_cursor c = {head, head + n, false};
    uint64_t len = pb_u32(&c), used = 4;
    if (len == 0xffffffff) {
        len = pb_u64(&c);
        used = 12;
    }
    if (c.bad || len < 7 || len > UNIT_MAX)
        return -EBADMSG;
    *ret_next = offset + used + len;
    return 0;
}

static int add_attribute(struct pb_unit *u, const struct pb_attribute *a)
{
    if ((u->nattributes & (u->nattributes - 1)) == 0) {
        size_t room = u->nattributes ? u->nattributes * 2 : 1;
        struct pb_attribute *more = reallocarray(u->attribute, room, sizeof(*more));
        if (!more)
            return -ENOMEM;
        u->attribute = more;
    }
    u->attribute[u->nattributes++] = *a;
    return 0;
}

static int add_abbrev(struct pb_unit *u, const struct pb_abbrev *a)
{
    if (u->nabbrevs == ABBREVS_MAX)
        return -EBADMSG;
    if ((u->nabbrevs & (u->nabbrevs - 1)) == 0) {
        struct pb_abbrev *more = reallocarray(u->abbrev, u->nabbrevs ? u->nabbrevs * 2 : 1, sizeof(*more));
        if (!more)
            return -ENOMEM;
        u->abbrev = more;
    }
    u->abbrev[u->nabbrevs++] = *a;
    return 0;
}

/* Bytes that a value of a form takes; -1: that depends on the value. */
static int size_of_form(const struct pb_unit *u, unsigned form)
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

static int32_t size_of_values(const struct pb_unit *u, const struct pb_abbrev *a)
{
    int32_t size = 0;
    for (uint32_t i = 0; i < a->n && i < UINT16_MAX; i++) {
        int each = size_of_form(u, u->attribute[a->first + i].form);
        if (each < 0)
            return -1;
        size += each;
    }
    return a->n < UINT16_MAX ? size : -1;
}

static int parse_abbrev(struct pb_unit *u, struct pb_cursor *c, struct pb_abbrev *a)
{
    a->tag = (unsigned)pb_uleb(c);
    a->has_children = pb_u8(c);
    a->first = (uint32_t)u->nattributes;
    for (;;) {
        uint64_t name = pb_uleb(c), form = pb_uleb(c);
        struct pb_attribute attribute = {.name = (uint16_t)name, .form = (uint16_t)form};
        if (form == FORM_IMPLICIT_CONST)
            attribute.constant = pb_sleb(c);
        if (c->bad || form > UINT16_MAX)
            return -EBADMSG;
        if (name == 0 && form == 0)
            break;
        if (name > UINT16_MAX)
            attribute.name = 0;
        int r = add_attribute(u, &attribute);
        if (r < 0)
            return r;
    }
    a->n = (uint32_t)(u->nattributes - a->first);
    a->size = size_of_values(u, a);
    return 0;
}

/* 0: all of them; -EBADMSG: also where `data` ends before they do. */
static int parse_abbrevs(struct pb_unit *u, const unsigned char *data, size_t len)
{
    struct pb_cursor c = {data, data + len, false};
    u->nabbrevs = u->nattributes = 0;
    for (;;) {
        struct pb_abbrev a = {.code = pb_uleb(&c)};
        if (c.bad)
            return -EBADMSG;
        if (a.code == 0)
            return 0;
        int r = parse_abbrev(u, &c, &a);
        if (r == 0)
            r = add_abbrev(u, &a);
        if (r < 0)
            return r;
    }
}

/* Their length is not written anywhere: a little is read first, then more. */
static int read_abbrevs(struct pb_unit *u, uint64_t offset)
{
    for (size_t size = ABBREV_FIRST; size <= ABBREV_MAX; size *= 16) {
        unsigned char *data = malloc(size);
        if (!data)
            return -ENOMEM;
        size_t n = read_some(u->dwarf, PB_DEBUG_ABBREV, offset, data, size);
        int r = parse_abbrevs(u, data, n);
        free(data);
        if (r == 0 || n < size || r == -ENOMEM)
            return r;
        free(u->abbrev);
        free(u->attribute);
        u->abbrev = NULL;
        u->attribute = NULL;
    }
    return -EBADMSG;
}

static const struct pb_abbrev *find_abbrev(const struct pb_unit *u, uint64_t code)
{
    /* Numbered from 1 by every producer; others are looked for. */
    if (code - 1 < u->nabbrevs && u->abbrev[code - 1].code == code)
        return &u->abbrev[code - 1];
    for (size_t i = 0; i < u->nabbrevs; i++)
        if (u->abbrev[i].code == code)
            return &u->abbrev[i];
    return NULL;
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

/* By its number in .debug_str_offsets and .debug_addr. What cannot be found has no value. */
static struct pb_value indexed_string(const struct pb_unit *u, uint64_t index)
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

/* Blocks and what else has no value for us; false: it is another form. */
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

/* References are written from the start of the unit. */
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

static struct pb_value get_value(const struct pb_unit *u, const struct pb_attribute *a, struct pb_cursor *c)
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

static struct pb_value *slot_of(struct pb_die *die, unsigned name)
{
    switch (name) {
    case PB_AT_NAME:
        return &die->name;
    case PB_AT_LINKAGE_NAME:
    case PB_AT_MIPS_LINKAGE_NAME:
        return &die->linkage_name;
    case PB_AT_LOW_PC:
        return &die->low;
    case PB_AT_HIGH_PC:
        return &die->high;
    case PB_AT_RANGES:
        return &die->ranges;
    case PB_AT_ABSTRACT_ORIGIN:
    case PB_AT_SPECIFICATION:
        return &die->origin;
    case PB_AT_SIBLING:
        return &die->sibling;
    case PB_AT_CALL_FILE:
        return &die->call_file;
    case PB_AT_CALL_LINE:
        return &die->call_line;
    case PB_AT_STMT_LIST:
        return &die->stmt_list;
    case PB_AT_STR_OFFSETS_BASE:
        return &die->str_offsets;
    case PB_AT_ADDR_BASE:
        return &die->addrs;
    case PB_AT_RNGLISTS_BASE:
        return &die->rnglists;
    default:
        return NULL;
    }
}

int pb_die_peek(const struct pb_unit *u, size_t at, const struct pb_abbrev **ret, size_t *ret_next)
{
    if (at < u->first_die || at >= u->len || !pb_dwarf_spend(u->dwarf, 1))
        return -EBADMSG;
    struct pb_cursor c = {u->data + at, u->data + u->len, false};
    uint64_t code = pb_uleb(&c);
    const struct pb_abbrev *abbrev = code ? find_abbrev(u, code) : NULL;
    if (code && !abbrev)
        return -EBADMSG;
    if (abbrev && abbrev->size >= 0)
        pb_skip(&c, (uint64_t)abbrev->size);
    for (uint32_t i = 0; abbrev && abbrev->size < 0 && i < abbrev->n && !c.bad; i++)
        get_value(u, &u->attribute[abbrev->first + i], &c);
    if (c.bad)
        return -EBADMSG;
    *ret = abbrev;
    *ret_next = (size_t)(c.at - u->data);
    return 0;
}

int pb_die_read(const struct pb_unit *u, size_t at, struct pb_die *ret)
{
    if (at < u->first_die || at >= u->len || !pb_dwarf_spend(u->dwarf, 1))
        return -EBADMSG;
    struct pb_cursor c = {u->data + at, u->data + u->len, false};
    uint64_t code = pb_uleb(&c);
    *ret = (struct pb_die){.at = at};
    if (code) {
        ret->abbrev = find_abbrev(u, code);
        if (!ret->abbrev)
            return -EBADMSG;
        for (uint32_t i = 0; i < ret->abbrev->n && !c.bad; i++) {
            const struct pb_attribute *a = &u->attribute[ret->abbrev->first + i];
            struct pb_value v = get_value(u, a, &c), *slot = slot_of(ret, a->name);
            if (slot)
                *slot = v;
        }
    }
    ret->next = (size_t)(c.at - u->data);
    return c.bad ? -EBADMSG : 0;
}

int pb_die_skip(const struct pb_unit *u, const struct pb_die *die, size_t *ret)
{
    uint64_t sibling = die->sibling.number - u->offset;
    if (!die->abbrev || !die->abbrev->has_children) {
        *ret = die->next;
        return 0;
    }
    if (die->sibling.kind == PB_VALUE_REFERENCE && sibling > die->next && sibling <= u->len) {
        *ret = (size_t)sibling;
        return 0;
    }
    const struct pb_abbrev *child;
    size_t at = die->next;
    for (unsigned depth = 1, i = 0; depth > 0; i++) {
        int r = i < SKIP_MAX ? pb_die_peek(u, at, &child, &at) : -EBADMSG;
        if (r < 0)
            return r;
        if (!child)
            depth--;
        else if (child->has_children)
            depth++;
    }
    *ret = at;
    return 0;
}

void pb_value_text(const struct pb_unit *u, const struct pb_value *v, char *buf, size_t size)
{
    buf[0] = '\0';
    if (v->kind != PB_VALUE_STRING)
        return;
    struct pb_value at = v->is_index ? indexed_string(u, v->number) : *v;
    if (at.kind != PB_VALUE_STRING)
        return;
    size_t n;
    if (at.text) {
        n = strnlen(at.text, size - 1);
        memcpy(buf, at.text, n);
    } else {
        n = read_some(u->dwarf, at.section, at.number, buf, size - 1);
    }
    buf[n] = '\0';
}

static int parse_head(struct pb_unit *u, uint64_t *ret_abbrevs)
{
    struct pb_cursor c = {u->data, u->data + u->len, false};
    u->wide = pb_u32(&c) == 0xffffffff;
    if (u->wide)
        pb_u64(&c);
    u->version = pb_u16(&c);
    uint8_t type = 1, address_size;
    if (u->version >= 5) {
        type = pb_u8(&c);
        address_size = pb_u8(&c);
        *ret_abbrevs = get_offset(&c, u->wide);
        if (type == 4 || type == 5) /* a skeleton, a split unit: an identifier */
            pb_u64(&c);
    } else {
        *ret_abbrevs = get_offset(&c, u->wide);
        address_size = pb_u8(&c);
    }
    u->first_die = (size_t)(c.at - u->data);
    if (c.bad || u->version < 2 || u->version > 5 || address_size != 8 || type == 2 || type == 6)
        return -EBADMSG;
    return 0;
}

/* Where the unit's own tables start is told by its first DIE, whose strings and addresses may need them: so
 * it is read twice. */
static int read_root(struct pb_unit *u)
{
    struct pb_die root;
    u->str_offsets = u->wide ? 16 : 8;
    u->addrs = u->wide ? 16 : 8;
    int r = pb_die_read(u, u->first_die, &root);
    if (r < 0)
        return r;
    if (root.str_offsets.kind == PB_VALUE_NUMBER)
        u->str_offsets = root.str_offsets.number;
    if (root.addrs.kind == PB_VALUE_NUMBER)
        u->addrs = root.addrs.number;
    if (root.rnglists.kind == PB_VALUE_NUMBER)
        u->rnglists = root.rnglists.number;
    r = pb_die_read(u, u->first_die, &root);
    if (r < 0)
        return r;
    u->low_pc = root.low.kind == PB_VALUE_ADDRESS ? root.low.number : 0;
    u->has_lines = root.stmt_list.kind == PB_VALUE_NUMBER;
    u->stmt_list = root.stmt_list.number;
    return 0;
}

int pb_unit_open(const struct pb_dwarf *d, uint64_t offset, struct pb_unit *ret)
{
    struct pb_unit u = {.dwarf = d, .offset = offset};
    uint64_t next, abbrevs;
    int r = pb_unit_skip(d, offset, &next);
    if (r < 0)
        return r;
    u.len = (size_t)(next - offset);
    if (!pb_dwarf_spend(d, 100 + u.len / 256))
        return -EBADMSG;
    u.data = malloc(u.len);
    if (!u.data)
        return -ENOMEM;
    r = pb_dwarf_read(d, PB_DEBUG_INFO, offset, u.data, u.len);
    if (r == 0)
        r = parse_head(&u, &abbrevs);
    if (r == 0)
        r = read_abbrevs(&u, abbrevs);
    if (r == 0)
        r = read_root(&u);
    if (r < 0) {
        pb_unit_done(&u);
        return r;
    }
    *ret = u;
    return 0;
}

void pb_unit_done(struct pb_unit *u)
{
    free(u->data);
    free(u->abbrev);
    free(u->attribute);
}
