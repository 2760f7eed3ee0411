/* dwarf: see dwarf.h. */
#include "remote/native/dwarf.h"
#include "base/vector.h"

#include <errno.h>
#include <stdlib.h>

enum {
    UNIT_MAX = 64 << 20,
    ABBREV_FIRST = 16 << 10,
    ABBREV_MAX = 4 << 20,
    ABBREVS_MAX = 1 << 20,
    SKIP_MAX = 1 << 22, /* DIEs walked over to reach a sibling */
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

/* Reads as many bytes as the section has. */
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
    if (pb_grow_full((void **)&u->attribute, u->nattributes, sizeof(*u->attribute)) < 0)
        return -ENOMEM;
    u->attribute[u->nattributes++] = *a;
    return 0;
}

static int add_abbrev(struct pb_unit *u, const struct pb_abbrev *a)
{
    if (u->nabbrevs == ABBREVS_MAX)
        return -EBADMSG;
    if (pb_grow_full((void **)&u->abbrev, u->nabbrevs, sizeof(*u->abbrev)) < 0)
        return -ENOMEM;
    u->abbrev[u->nabbrevs++] = *a;
    return 0;
}

static int32_t size_of_values(const struct pb_unit *u, const struct pb_abbrev *a)
{
    int32_t size = 0;
    for (uint32_t i = 0; i < a->n && i < UINT16_MAX; i++) {
        int each = pb_form_size(u, u->attribute[a->first + i].form);
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
        if (form == PB_FORM_IMPLICIT_CONST)
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

/* Their length is not stored: a little is read first, then more. */
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
    /* Producers number them from 1; other codes are searched for. */
    if (code - 1 < u->nabbrevs && u->abbrev[code - 1].code == code)
        return &u->abbrev[code - 1];
    for (size_t i = 0; i < u->nabbrevs; i++)
        if (u->abbrev[i].code == code)
            return &u->abbrev[i];
    return NULL;
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
        pb_form_value(u, &u->attribute[abbrev->first + i], &c);
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
            struct pb_value v = pb_form_value(u, a, &c), *slot = slot_of(ret, a->name);
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
    struct pb_value at = v->is_index ? pb_form_indexed_string(u, v->number) : *v;
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

/* The first DIE tells where the unit's own tables start, and its strings and addresses may need them: so it
 * is read twice. */
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
