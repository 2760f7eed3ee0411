/* lines: see lines.h. */
#include "remote/native/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/vector.h"
#include "remote/native/dwarf.h"
#include "remote/native/lineprog.h"
#include "remote/native/unwind.h"

enum {
    UNITS_KEPT = 8,
    LARGE_UNIT = 4 << 20,
    UNITS_MAX = 1 << 18,
    ARANGES_MAX = 64 << 20,
    DIES_MAX = 1 << 22,
    DEPTH_MAX = 64,
    WORK_EACH = 8 << 20, /* about half a second; real files take a hundredth of it */
    WORK_MAX = 64 << 20,
    ORIGINS_MAX = 8, /* links from a concrete function to the one with its name */
};

/* A function of a unit, one for each range of it. */
struct line_span {
    uint64_t low, high;
    size_t die;
};

struct open_object {
    struct pb_unit unit;
    struct pb_line_table *table; /* NULL: it has none */
    struct line_span *span;
    size_t nspans;
    uint64_t used;
};

/* Which unit an address belongs to. */
struct line_area {
    uint64_t low, high, unit;
};

struct pb_lines {
    struct pb_dwarf dwarf;
    struct line_area *area; /* sorted */
    size_t nareas;
    uint64_t *start; /* of all units, for references between them; read when there is such a reference */
    size_t nunits;
    struct open_object kept[UNITS_KEPT];
    uint64_t clock;
    uint64_t left;   /* remaining work for this file in all */
    uint64_t budget; /* for the present lookup */
    struct pb_dwarf_window window;
};

static int add_area(struct pb_lines *l, uint64_t low, uint64_t high, uint64_t unit)
{
    if (pb_grow_full((void **)&l->area, l->nareas, sizeof(*l->area)) < 0)
        return -ENOMEM;
    l->area[l->nareas++] = (struct line_area){low, high, unit};
    return 0;
}

static int by_low(const void *a, const void *b)
{
    const struct line_area *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* One set of .debug_aranges: the unit, then pairs of address and length. */
static int read_set(struct pb_lines *l, struct pb_cursor *all)
{
    struct pb_cursor c = *all;
    const unsigned char *start = c.at;
    uint64_t len = pb_u32(&c);
    bool wide = len == 0xffffffff;
    if (wide)
        len = pb_u64(&c);
    if (len > pb_left(&c))
        return -EBADMSG;
    all->at = c.at + len;
    c.end = all->at;
    pb_u16(&c); /* version */
    uint64_t unit = wide ? pb_u64(&c) : pb_u32(&c);
    uint8_t address_size = pb_u8(&c);
    pb_u8(&c);
    if (c.bad || address_size != 8)
        return -EBADMSG;
    /* Pairs are aligned to their size, counted from the set's start. */
    pb_skip(&c, (16 - (uint64_t)(c.at - start) % 16) % 16);
    while (pb_left(&c) >= 16) {
        uint64_t addr = pb_u64(&c), size = pb_u64(&c);
        if (addr == 0 && size == 0)
            break;
        int r = size && addr + size > addr ? add_area(l, addr, addr + size, unit) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_aranges(struct pb_lines *l)
{
    uint64_t size = l->dwarf.section[PB_DEBUG_ARANGES].size;
    if (size == 0 || size > ARANGES_MAX)
        return -ENOENT;
    unsigned char *data = malloc(size);
    if (!data)
        return -ENOMEM;
    int r = pb_dwarf_read(&l->dwarf, PB_DEBUG_ARANGES, 0, data, size);
    struct pb_cursor c = {data, data + size, false};
    while (r == 0 && pb_left(&c) >= 12)
        r = read_set(l, &c);
    free(data);
    return r;
}

struct adding {
    struct pb_lines *l;
    uint64_t unit;
};

static bool add_range(void *arg, uint64_t low, uint64_t high)
{
    struct adding *a = arg;
    return add_area(a->l, low, high, a->unit) < 0;
}

/* Reads the start of each unit, and its ranges if no table has them. */
static void read_units(struct pb_lines *l, bool ranges)
{
    uint64_t at = 0, next;
    while (l->nunits < UNITS_MAX && pb_unit_skip(&l->dwarf, at, &next) == 0) {
        if (pb_grow_full((void **)&l->start, l->nunits, sizeof(*l->start)) < 0)
            return;
        l->start[l->nunits++] = at;
        struct pb_unit u;
        struct pb_die root;
        if (ranges && pb_unit_open(&l->dwarf, at, &u) == 0) {
            if (pb_die_read(&u, u.first_die, &root) == 0)
                pb_die_ranges(&u, &root, add_range, &(struct adding){l, at});
            pb_unit_done(&u);
        }
        at = next;
    }
}

int pb_lines_open(const struct pb_object *o, struct pb_lines **ret)
{
    struct pb_lines *l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    int r = pb_dwarf_open(o, &l->dwarf);
    l->dwarf.budget = &l->budget;
    l->dwarf.window = &l->window;
    l->left = WORK_MAX;
    l->budget = WORK_EACH;
    if (r < 0) {
        pb_lines_free(l);
        return r;
    }
    /* Clang writes no table of ranges. */
    if (read_aranges(l) < 0 || l->nareas == 0)
        read_units(l, true);
    if (l->nareas)
        qsort(l->area, l->nareas, sizeof(*l->area), by_low);
    *ret = l;
    return 0;
}

static void release(struct open_object *k)
{
    pb_line_table_free(k->table);
    pb_unit_done(&k->unit);
    free(k->span);
    *k = (struct open_object){0};
}

void pb_lines_free(struct pb_lines *l)
{
    if (!l)
        return;
    for (unsigned i = 0; i < UNITS_KEPT; i++)
        release(&l->kept[i]);
    free(l->area);
    free(l->start);
    free(l);
}

struct spans {
    struct open_object *k;
    size_t die;
};

static bool add_span(void *arg, uint64_t low, uint64_t high)
{
    struct spans *s = arg;
    struct open_object *k = s->k;
    if (pb_grow_full((void **)&k->span, k->nspans, sizeof(*k->span)) < 0)
        return true;
    k->span[k->nspans++] = (struct line_span){low, high, s->die};
    return false;
}

/* DIEs that may contain functions. Functions declared in a class are defined outside of it. */
static bool is_scope(unsigned tag)
{
    return tag == PB_TAG_COMPILE_UNIT || tag == PB_TAG_PARTIAL_UNIT || tag == PB_TAG_NAMESPACE ||
           tag == PB_TAG_MODULE;
}

static void find_spans(struct open_object *k)
{
    const struct pb_unit *u = &k->unit;
    const struct pb_abbrev *abbrev;
    struct pb_die die;
    size_t at = u->first_die, next;
    for (unsigned i = 0; i < DIES_MAX && at < u->len; i++, at = next) {
        if (pb_die_peek(u, at, &abbrev, &next) < 0)
            return;
        bool is_function = abbrev && abbrev->tag == PB_TAG_SUBPROGRAM;
        if (!abbrev || is_scope(abbrev->tag) || (!is_function && !abbrev->has_children))
            continue;
        if (pb_die_read(u, at, &die) < 0)
            return;
        if (is_function)
            pb_die_ranges(u, &die, add_span, &(struct spans){k, die.at});
        if (pb_die_skip(u, &die, &next) < 0)
            return;
    }
}

static int open_kept(struct pb_lines *l, uint64_t offset, struct open_object **ret)
{
    struct open_object *oldest = &l->kept[0];
    for (unsigned i = 0; i < UNITS_KEPT; i++) {
        struct open_object *k = &l->kept[i];
        if (k->used && k->unit.offset == offset) {
            k->used = ++l->clock;
            *ret = k;
            return 0;
        }
        if (k->used < oldest->used)
            oldest = k;
    }
    release(oldest);
    int r = pb_unit_open(&l->dwarf, offset, &oldest->unit);
    if (r < 0)
        return r;
    /* At most one large unit is kept. */
    for (unsigned i = 0; i < UNITS_KEPT && oldest->unit.len > LARGE_UNIT; i++)
        if (&l->kept[i] != oldest)
            release(&l->kept[i]);
    oldest->used = ++l->clock;
    if (pb_line_table_open(&oldest->unit, &oldest->table) < 0)
        oldest->table = NULL;
    *ret = oldest;
    return 0;
}

/* The unit that holds an offset of .debug_info. */
static int unit_holding(struct pb_lines *l, uint64_t offset, uint64_t *ret)
{
    if (!l->nunits)
        read_units(l, false);
    size_t low = 0, high = l->nunits;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (l->start[mid] <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return -ENOENT;
    *ret = l->start[low - 1];
    return 0;
}

/* Its own name, or that of the function it was made from. */
static void name_of(struct pb_lines *l, const struct pb_unit *u, const struct pb_die *die, char *buf,
                    size_t size)
{
    struct pb_unit other = {0};
    struct pb_die d = *die;
    char plain[256] = "";
    buf[0] = '\0';
    for (unsigned i = 0; i < ORIGINS_MAX; i++) {
        pb_value_text(u, &d.linkage_name, buf, size);
        if (buf[0])
            break;
        if (!plain[0])
            pb_value_text(u, &d.name, plain, sizeof(plain));
        uint64_t offset = d.origin.number, start;
        if (d.origin.kind != PB_VALUE_REFERENCE)
            break;
        if (offset < u->offset || offset - u->offset >= u->len) {
            if (unit_holding(l, offset, &start) < 0)
                break;
            pb_unit_done(&other);
            other = (struct pb_unit){0};
            if (pb_unit_open(&l->dwarf, start, &other) < 0)
                break;
            u = &other;
        }
        if (pb_die_read(u, (size_t)(offset - u->offset), &d) < 0 || !d.abbrev)
            break;
    }
    if (!buf[0] && size > sizeof(plain))
        memcpy(buf, plain, sizeof(plain));
    pb_unit_done(&other);
}

struct within {
    uint64_t addr;
};

static bool holds(void *arg, uint64_t low, uint64_t high)
{
    const struct within *w = arg;
    return w->addr >= low && w->addr < high;
}

/* From the function inwards: chain[0] is the function, then the inlined calls that hold addr. */
static size_t find_chain(const struct pb_unit *u, size_t function, uint64_t addr, struct pb_die *chain,
                         size_t max)
{
    struct within w = {addr};
    struct pb_die die;
    size_t n = 0;
    if (pb_die_read(u, function, &chain[n]) < 0)
        return 0;
    size_t at = chain[n].next;
    bool has_children = chain[n].abbrev && chain[n].abbrev->has_children;
    n++;
    const struct pb_abbrev *abbrev;
    size_t next;
    for (unsigned i = 0; has_children && i < DIES_MAX && n < max; i++, at = next) {
        /* The end of a list ends the search: every DIE that holds addr was entered, and has no further
         * ones. */
        if (pb_die_peek(u, at, &abbrev, &next) < 0 || !abbrev)
            break;
        bool is_call = abbrev->tag == PB_TAG_INLINED, is_block = abbrev->tag == PB_TAG_LEXICAL_BLOCK;
        if (!is_call && !is_block && !abbrev->has_children)
            continue;
        if (pb_die_read(u, at, &die) < 0)
            break;
        if ((is_call || is_block) && pb_die_ranges(u, &die, holds, &w)) {
            if (is_call)
                chain[n++] = die;
            has_children = abbrev->has_children;
        } else if (pb_die_skip(u, &die, &next) < 0) {
            break;
        }
    }
    return n;
}

static const struct line_span *span_of(struct open_object *k, uint64_t addr)
{
    if (!k->span)
        find_spans(k);
    for (size_t i = 0; i < k->nspans; i++)
        if (addr >= k->span[i].low && addr < k->span[i].high)
            return &k->span[i];
    return NULL;
}

static void put_place(const struct open_object *k, uint64_t file, uint64_t line, struct pb_source_frame *f)
{
    f->line = line <= INT32_MAX ? (unsigned)line : 0;
    f->file[0] = '\0';
    if (k->table)
        pb_line_table_file(k->table, file, f->file, sizeof(f->file));
}

static int find_in_unit(struct pb_lines *l, struct open_object *k, uint64_t addr, struct pb_source_frame *ret,
                        size_t max)
{
    struct pb_die chain[PB_NATIVE_INLINE_MAX];
    struct pb_line_row line = {0};
    const struct line_span *span = span_of(k, addr);
    if (max > PB_NATIVE_INLINE_MAX)
        max = PB_NATIVE_INLINE_MAX;
    size_t n = span ? find_chain(&k->unit, span->die, addr, chain, max) : 0;
    bool has_line = k->table && pb_line_table_find(k->table, addr, &line) == 0;
    if (n == 0) {
        if (!has_line || max == 0)
            return 0;
        ret[0].function[0] = '\0';
        put_place(k, line.file, line.line, &ret[0]);
        return 1;
    }
    uint64_t file = line.file, number = line.line;
    for (size_t i = 0; i < n; i++) {
        const struct pb_die *die = &chain[n - 1 - i];
        name_of(l, &k->unit, die, ret[i].function, sizeof(ret[i].function));
        put_place(k, file, number, &ret[i]);
        file = die->call_file.number;
        number = die->call_line.number;
    }
    return (int)n;
}

int pb_lines_find(struct pb_lines *l, uint64_t addr, struct pb_source_frame *ret, size_t max)
{
    size_t low = 0, high = l->nareas;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (l->area[mid].low <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    /* Ranges of one object overlap in a hostile file only. */
    if (low == 0 || addr >= l->area[low - 1].high)
        return 0;
    struct open_object *k;
    uint64_t given = l->left < WORK_EACH ? l->left : WORK_EACH;
    l->budget = given;
    int n = open_kept(l, l->area[low - 1].unit, &k);
    if (n == 0)
        n = find_in_unit(l, k, addr, ret, max);
    l->left -= given - l->budget;
    return n < 0 ? 0 : n;
}
