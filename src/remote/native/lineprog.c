/* lineprog: see lineprog.h. DWARF 2 to 5. */
#include "remote/native/lineprog.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "remote/native/dwarf.h"

enum {
    TABLE_MAX = 64 << 20,
    FORMATS = 8,
    ENTRIES_MAX = 65536,
    NAME_MAX_LEN = 512,
};

struct pb_line_table {
    const struct pb_dwarf *dwarf;
    unsigned char *data;
    size_t len;
    bool wide;
    unsigned version;
    uint8_t min_length, max_ops, line_range, opcode_base;
    int8_t line_base;
    unsigned char lengths[256]; /* of the standard opcodes' operands */
    struct pb_cursor names;     /* what follows the opcode lengths */
    struct pb_cursor program;
};

static uint64_t get_offset(struct pb_cursor *c, bool wide)
{
    return wide ? pb_u64(c) : pb_u32(c);
}

static int parse_head(struct pb_line_table *t)
{
    struct pb_cursor c = {t->data, t->data + t->len, false};
    t->wide = pb_u32(&c) == 0xffffffff;
    if (t->wide)
        pb_u64(&c);
    t->version = pb_u16(&c);
    if (t->version >= 5)
        pb_u16(&c); /* address and segment size */
    uint64_t head = get_offset(&c, t->wide);
    t->program = c;
    pb_skip(&t->program, head);
    t->min_length = pb_u8(&c);
    t->max_ops = t->version >= 4 ? pb_u8(&c) : 1;
    pb_u8(&c); /* is it a statement */
    t->line_base = (int8_t)pb_u8(&c);
    t->line_range = pb_u8(&c);
    t->opcode_base = pb_u8(&c);
    for (unsigned i = 1; i < t->opcode_base; i++)
        t->lengths[i] = pb_u8(&c);
    t->names = c;
    t->names.end = t->program.at;
    if (c.bad || t->program.bad || t->version < 2 || t->version > 5 || !t->line_range || c.at > t->program.at)
        return -EBADMSG;
    return 0;
}

int pb_line_table_open(const struct pb_unit *u, struct pb_line_table **ret)
{
    unsigned char head[12] = {0};
    if (!u->has_lines || pb_dwarf_read(u->dwarf, PB_DEBUG_LINE, u->stmt_list, head, sizeof(head)) < 0)
        return -ENOENT;
    struct pb_cursor c = {head, head + sizeof(head), false};
    uint64_t len = pb_u32(&c), used = 4;
    if (len == 0xffffffff) {
        len = pb_u64(&c);
        used = 12;
    }
    if (len > TABLE_MAX)
        return -EBADMSG;
    struct pb_line_table *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->dwarf = u->dwarf;
    t->len = (size_t)(len + used);
    t->data = malloc(t->len);
    int r = t->data ? pb_dwarf_read(u->dwarf, PB_DEBUG_LINE, u->stmt_list, t->data, t->len) : -ENOMEM;
    if (r == 0)
        r = parse_head(t);
    if (r < 0) {
        pb_line_table_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

void pb_line_table_free(struct pb_line_table *t)
{
    if (!t)
        return;
    free(t->data);
    free(t);
}

struct line_row {
    uint64_t addr, file;
    uint64_t line;
    unsigned op_index;
};

struct run {
    const struct pb_line_table *t;
    uint64_t wanted;
    struct line_row now, last;
    bool has_last; /* last is a row of this sequence */
    bool found;
    struct line_row best;
};

/* A row holds up to the next row's address. */
static void emit_row(struct run *r, bool ends)
{
    if (r->has_last && r->last.addr <= r->wanted && r->wanted < r->now.addr) {
        r->best = r->last;
        r->found = true;
    }
    r->last = r->now;
    r->has_last = !ends;
}

static void start_sequence(struct run *r)
{
    r->now = (struct line_row){.file = 1, .line = 1};
    r->has_last = false;
}

static void advance(struct run *r, uint64_t by)
{
    const struct pb_line_table *t = r->t;
    if (t->max_ops <= 1) {
        r->now.addr += by * t->min_length;
        return;
    }
    uint64_t ops = r->now.op_index + by;
    r->now.addr += ops / t->max_ops * t->min_length;
    r->now.op_index = (unsigned)(ops % t->max_ops);
}

static void run_special(struct run *r, uint8_t op)
{
    unsigned by = op - r->t->opcode_base;
    advance(r, by / r->t->line_range);
    r->now.line += (uint64_t)(int64_t)(r->t->line_base + (int)(by % r->t->line_range));
    emit_row(r, false);
}

static void run_extended(struct run *r, struct pb_cursor *c)
{
    uint64_t len = pb_uleb(c);
    struct pb_cursor body = *c;
    pb_skip(c, len);
    body.end = c->at;
    switch (pb_u8(&body)) {
    case 1: /* the end of a sequence */
        emit_row(r, true);
        start_sequence(r);
        break;
    case 2:
        r->now.addr = pb_u64(&body);
        r->now.op_index = 0;
        break;
    }
}

static void run_standard(struct run *r, uint8_t op, struct pb_cursor *c)
{
    switch (op) {
    case 1:
        emit_row(r, false);
        break;
    case 2:
        advance(r, pb_uleb(c));
        break;
    case 3:
        r->now.line += (uint64_t)pb_sleb(c);
        break;
    case 4:
        r->now.file = pb_uleb(c);
        break;
    case 8: /* DW_LNS_const_add_pc: advances as special opcode 255 does, without a row */
        advance(r, (255u - r->t->opcode_base) / r->t->line_range);
        break;
    case 9:
        r->now.addr += pb_u16(c);
        r->now.op_index = 0;
        break;
    default:
        for (unsigned i = 0; i < r->t->lengths[op]; i++)
            pb_uleb(c);
    }
}

int pb_line_table_find(const struct pb_line_table *t, uint64_t addr, struct pb_line_row *ret)
{
    struct pb_cursor c = t->program;
    struct run r = {.t = t, .wanted = addr};
    if (!pb_dwarf_spend(t->dwarf, t->len / 16))
        return -ENOENT;
    start_sequence(&r);
    while (pb_left(&c) && !c.bad && !r.found) {
        uint8_t op = pb_u8(&c);
        if (op >= t->opcode_base)
            run_special(&r, op);
        else if (op == 0)
            run_extended(&r, &c);
        else
            run_standard(&r, op, &c);
    }
    if (!r.found || r.best.line > INT32_MAX)
        return -ENOENT;
    *ret = (struct pb_line_row){.file = r.best.file, .line = (unsigned)r.best.line};
    return 0;
}

/* DWARF 5 describes its entries: which parts they have, and the form of each. */
struct format {
    struct {
        uint64_t content, form;
    } part[FORMATS];
    unsigned n;
    uint64_t count;
};

static bool read_format(struct pb_cursor *c, struct format *f)
{
    f->n = pb_u8(c);
    if (f->n > FORMATS)
        return false;
    for (unsigned i = 0; i < f->n; i++) {
        f->part[i].content = pb_uleb(c);
        f->part[i].form = pb_uleb(c);
    }
    f->count = pb_uleb(c);
    return !c->bad && f->count <= ENTRIES_MAX;
}

struct file_entry {
    char name[NAME_MAX_LEN];
    uint64_t folder;
};

static void read_text(const struct pb_line_table *t, enum pb_debug_section s, uint64_t at, char *buf)
{
    uint64_t size = t->dwarf->section[s].size;
    size_t len = at >= size ? 0 : size - at < NAME_MAX_LEN - 1 ? (size_t)(size - at) : NAME_MAX_LEN - 1;
    if (pb_dwarf_read(t->dwarf, s, at, buf, len) < 0)
        len = 0;
    buf[len] = '\0';
}

static void take_inline_text(struct pb_cursor *c, char *buf)
{
    size_t len = strnlen((const char *)c->at, pb_left(c));
    if (buf)
        snprintf(buf, NAME_MAX_LEN, "%.*s", (int)(len < NAME_MAX_LEN ? len : NAME_MAX_LEN - 1),
                 (const char *)c->at);
    pb_skip(c, len + 1);
}

/* Reads one part of an entry; wanted NULL: skips it. Only the forms that a line table may use. */
static void read_part(const struct pb_line_table *t, struct pb_cursor *c, uint64_t content, uint64_t form,
                      struct file_entry *wanted)
{
    uint64_t value = 0;
    switch (form) {
    case 0x08:
        take_inline_text(c, wanted && content == 1 ? wanted->name : NULL);
        return;
    case 0x0e:
    case 0x1f:
        value = get_offset(c, t->wide);
        if (wanted && content == 1)
            read_text(t, form == 0x0e ? PB_DEBUG_STR : PB_DEBUG_LINE_STR, value, wanted->name);
        return;
    case 0x0b:
        value = pb_u8(c);
        break;
    case 0x05:
        value = pb_u16(c);
        break;
    case 0x06:
        value = pb_u32(c);
        break;
    case 0x0f:
        value = pb_uleb(c);
        break;
    case 0x1e:
        pb_skip(c, 16);
        break;
    case 0x09:
        pb_skip(c, pb_uleb(c));
        break;
    default:
        c->bad = true;
    }
    if (wanted && content == 2)
        wanted->folder = value;
}

/* Goes through all entries and keeps the wanted one. */
static bool read_entries(const struct pb_line_table *t, struct pb_cursor *c, uint64_t index,
                         struct file_entry *ret)
{
    struct format f;
    if (!read_format(c, &f))
        return false;
    for (uint64_t i = 0; i < f.count && !c->bad; i++)
        for (unsigned k = 0; k < f.n; k++)
            read_part(t, c, f.part[k].content, f.part[k].form, i == index ? ret : NULL);
    return !c->bad && index < f.count;
}

/* DWARF 2 to 4: texts one after the other, up to an empty one; the unit's own folder is number 0. */
static void old_folder(struct pb_cursor *c, uint64_t index, char *buf)
{
    for (uint64_t i = 1; pb_left(c) && *c->at; i++)
        take_inline_text(c, i == index ? buf : NULL);
    pb_u8(c);
}

static bool old_file(struct pb_cursor *c, uint64_t index, struct file_entry *ret)
{
    for (uint64_t i = 1; pb_left(c) && *c->at; i++) {
        take_inline_text(c, i == index ? ret->name : NULL);
        uint64_t folder = pb_uleb(c);
        pb_uleb(c);
        pb_uleb(c);
        if (i == index) {
            ret->folder = folder;
            return !c->bad;
        }
    }
    return false;
}

void pb_line_table_file(const struct pb_line_table *t, uint64_t file, char *buf, size_t size)
{
    struct file_entry folder = {0}, name = {0};
    struct pb_cursor c = t->names, again = t->names;
    bool found;
    if (t->version >= 5) {
        read_entries(t, &c, UINT64_MAX, &folder);
        found = read_entries(t, &c, file, &name);
        read_entries(t, &again, name.folder, &folder);
    } else {
        old_folder(&c, 0, NULL);
        found = old_file(&c, file, &name);
        old_folder(&again, name.folder, folder.name);
    }
    if (!found)
        buf[0] = '\0';
    else if (name.name[0] == '/' || !folder.name[0])
        snprintf(buf, size, "%s", name.name);
    else
        snprintf(buf, size, "%s/%s", folder.name, name.name);
}
