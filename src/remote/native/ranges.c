/* ranges: the addresses that a DIE covers: two numbers, or a list in a section of its own. See dwarf.h. */
#include <errno.h>

#include "remote/native/dwarf.h"

enum {
    LIST_MAX = 8 << 10, /* bytes of one list that are read */
};

enum {
    RLE_END,
    RLE_BASE_X,
    RLE_START_END_X,
    RLE_START_LENGTH_X,
    RLE_OFFSET_PAIR,
    RLE_BASE,
    RLE_START_END,
    RLE_START_LENGTH,
};

typedef bool each_range(void *arg, uint64_t low, uint64_t high);

/* A cursor over the list and the bytes after it, valid until the next read; empty: not found. */
static struct pb_cursor read_list(const struct pb_unit *u, enum pb_debug_section s, uint64_t at)
{
    struct pb_dwarf_window *w = u->dwarf->window;
    uint64_t size = u->dwarf->section[s].size, left = at < size ? size - at : 0;
    size_t len = left < LIST_MAX ? (size_t)left : LIST_MAX;

    if (len && !pb_dwarf_spend(u->dwarf, 20 + len / 256))
        len = 0;
    if (len && (w->section != s || at < w->at || at - w->at > w->len || w->len - (at - w->at) < len)) {
        w->section = s;
        w->at = at;
        w->len = left < sizeof(w->data) ? (size_t)left : sizeof(w->data);
        if (pb_dwarf_read(u->dwarf, s, at, w->data, w->len) < 0)
            len = w->len = 0;
    }
    const unsigned char *data = len ? w->data + (at - w->at) : w->data;
    return (struct pb_cursor){data, data + len, false};
}

/* DWARF 2 to 4: pairs of addresses. */
static bool old_list(const struct pb_unit *u, uint64_t at, each_range *each, void *arg)
{
    struct pb_cursor c = read_list(u, PB_DEBUG_RANGES, at);
    uint64_t base = u->low_pc;
    while (pb_left(&c)) {
        uint64_t low = pb_u64(&c), high = pb_u64(&c);
        if (c.bad || (low == 0 && high == 0))
            return false;
        if (low == UINT64_MAX)
            base = high;
        else if (each(arg, base + low, base + high))
            return true;
    }
    return false;
}

static uint64_t address_at(const struct pb_unit *u, uint64_t index)
{
    uint64_t addr = 0;
    if (index > UINT32_MAX || pb_dwarf_read(u->dwarf, PB_DEBUG_ADDR, u->addrs + index * 8, &addr, 8) < 0)
        return 0;
    return addr;
}

/* One entry; false: the end. A new base gives an empty range. */
static bool next_entry(const struct pb_unit *u, struct pb_cursor *c, uint64_t *base, uint64_t *low,
                       uint64_t *high)
{
    *low = *high = 0;
    switch (pb_u8(c)) {
    case RLE_BASE_X:
        *base = address_at(u, pb_uleb(c));
        break;
    case RLE_START_END_X:
        *low = address_at(u, pb_uleb(c));
        *high = address_at(u, pb_uleb(c));
        break;
    case RLE_START_LENGTH_X:
        *low = address_at(u, pb_uleb(c));
        *high = *low + pb_uleb(c);
        break;
    case RLE_OFFSET_PAIR:
        *low = *base + pb_uleb(c);
        *high = *base + pb_uleb(c);
        break;
    case RLE_BASE:
        *base = pb_u64(c);
        break;
    case RLE_START_END:
        *low = pb_u64(c);
        *high = pb_u64(c);
        break;
    case RLE_START_LENGTH:
        *low = pb_u64(c);
        *high = *low + pb_uleb(c);
        break;
    default:
        return false;
    }
    return !c->bad;
}

static bool new_list(const struct pb_unit *u, const struct pb_value *v, each_range *each, void *arg)
{
    uint64_t at = v->number, base = u->low_pc, low, high;
    if (v->is_index) {
        uint64_t size = u->wide ? 8 : 4, by = 0;
        if (at > UINT32_MAX ||
            pb_dwarf_read(u->dwarf, PB_DEBUG_RNGLISTS, u->rnglists + at * size, &by, size) < 0)
            return false;
        at = u->rnglists + by;
    }
    struct pb_cursor c = read_list(u, PB_DEBUG_RNGLISTS, at);
    while (pb_left(&c) && next_entry(u, &c, &base, &low, &high))
        if (low < high && each(arg, low, high))
            return true;
    return false;
}

bool pb_die_ranges(const struct pb_unit *u, const struct pb_die *die, each_range *each, void *arg)
{
    if (die->ranges.kind == PB_VALUE_NUMBER)
        return u->version >= 5 ? new_list(u, &die->ranges, each, arg)
                               : old_list(u, die->ranges.number, each, arg);
    if (die->low.kind != PB_VALUE_ADDRESS)
        return false;
    uint64_t low = die->low.number, high = die->high.number;
    /* Since DWARF 4 the end may be a length. */
    if (die->high.kind == PB_VALUE_NUMBER)
        high += low;
    else if (die->high.kind != PB_VALUE_ADDRESS)
        return false;
    return low < high && each(arg, low, high);
}
