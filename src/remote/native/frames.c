/* frames: the unwind tables of an object (see object.h): the search table of .eh_frame_hdr, or, in an object
 * that has none, an index made of .eh_frame or .debug_frame once. */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/vector.h"
#include "remote/native/cfi.h"
#include "remote/native/object.h"

enum {
    ENTRY_FIRST = 512,     /* most entries are shorter than this: one read */
    ENTRY_MAX = 256 << 10, /* of one function's frame information */
    CIE_MAX = 512,
    FRAMES_MAX = 64 << 20, /* of a section read whole */
    PROBE = 512,           /* pairs read at once at the end of a search: a page */
};

/* ntable stays 0 if the header has a form that linkers do not write. */
static void read_header(struct pb_object *o)
{
    unsigned char head[32];
    ssize_t n = o->hdr_size < 12 ? -1 : pb_object_read_some(o, o->hdr_addr, head, sizeof(head));
    if (n < 12)
        return;
    struct pb_cursor c = {head, head + n, false};
    uint8_t version = pb_u8(&c), frame = pb_u8(&c), count = pb_u8(&c), table = pb_u8(&c);
    if (version != 1 || table != 0x3b)
        return;
    pb_cfi_pointer(&c, frame, o->hdr_addr + 4, o->hdr_addr);
    uint64_t pairs = pb_cfi_pointer(&c, count, o->hdr_addr + (uint64_t)(c.at - head), o->hdr_addr);
    uint64_t at = (uint64_t)(c.at - head);
    if (c.bad || at > o->hdr_size || pairs > (o->hdr_size - at) / 8)
        return;
    o->table = o->hdr_addr + at;
    o->ntable = pairs;
}

struct frame_pair {
    int32_t start, fde; /* relative to the header */
};

/* The last pair that starts at addr or before: bisection while far away, then one read. */
static int search_header(const struct pb_object *o, uint64_t addr, uint64_t *ret_fde)
{
    int64_t wanted = (int64_t)(addr - o->hdr_addr);
    uint64_t low = 0, high = o->ntable;
    struct frame_pair pair[PROBE];
    while (high - low > PROBE) {
        uint64_t mid = low + (high - low) / 2;
        int r = pb_object_read(o, o->table + mid * sizeof(pair[0]), pair, sizeof(pair[0]));
        if (r < 0)
            return r;
        if (pair[0].start <= wanted)
            low = mid;
        else
            high = mid;
    }
    size_t n = (size_t)(high - low);
    int r = pb_object_read(o, o->table + low * sizeof(pair[0]), pair, n * sizeof(pair[0]));
    if (r < 0)
        return r;
    while (n > 0 && pair[n - 1].start > wanted)
        n--;
    if (n == 0)
        return -ENOENT;
    *ret_fde = o->hdr_addr + (uint64_t)(int64_t)pair[n - 1].fde;
    return 0;
}

/* Finds the frames of an object without a search table. An object read from memory has no sections. */
static int find_frames(struct pb_object *o)
{
    struct pb_section s;
    if (pb_object_section(o, ".eh_frame", &s) < 0 || s.size <= 4) {
        if (pb_object_section(o, ".debug_frame", &s) < 0 || s.flags & SHF_COMPRESSED)
            return -ENOENT;
        o->debug_frame = true;
    }
    if (s.size > FRAMES_MAX)
        return -ENOENT;
    /* A debug section has no address: its offset in the file serves as one. */
    o->frames = o->debug_frame ? s.offset : s.addr;
    o->frames_size = s.size;
    return 0;
}

static int append_fde(struct pb_fde_index *index, uint64_t start, uint64_t fde)
{
    if (pb_grow_full((void **)&index->at, index->n, sizeof(*index->at)) < 0)
        return -ENOMEM;
    index->at[index->n++] = (struct pb_fde_at){start, fde};
    return 0;
}

static int by_start(const void *a, const void *b)
{
    const struct pb_fde_at *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* The CIE that an FDE in `all` refers to. */
static int cie_within(const struct pb_object *o, const struct pb_cfi_bytes *all, uint64_t addr,
                      struct pb_cie *ret)
{
    struct pb_cfi_head h;
    if (addr < all->addr || addr - all->addr >= all->len)
        return -EBADMSG;
    size_t skip = (size_t)(addr - all->addr);
    struct pb_cfi_bytes b = {all->data + skip, all->len - skip, addr};
    int r = pb_cfi_head(&b, o->debug_frame, o->frames, &h);
    if (r < 0)
        return r;
    return h.is_cie ? pb_cie_parse(&b, &h, ret) : -EBADMSG;
}

static int index_frames(struct pb_object *o, const unsigned char *data)
{
    struct pb_cfi_bytes all = {data, o->frames_size, o->frames};
    struct pb_cie cie = {0};
    uint64_t cie_at = 0;
    for (size_t at = 0; at + 4 <= all.len;) {
        struct pb_cfi_bytes b = {data + at, all.len - at, o->frames + at};
        struct pb_cfi_head h;
        struct pb_fde fde;
        int r = pb_cfi_head(&b, o->debug_frame, o->frames, &h);
        if (r < 0 || h.end > b.len)
            break;
        at += h.end;
        if (h.is_cie || h.is_end)
            continue;
        r = h.cie == cie_at ? 0 : cie_within(o, &all, h.cie, &cie);
        cie_at = r < 0 ? 0 : h.cie;
        if (r == 0)
            r = pb_fde_parse(&b, &h, &cie, &fde);
        if (r == 0)
            r = append_fde(&o->index, fde.start, b.addr);
        if (r == -ENOMEM)
            return r;
    }
    if (o->index.n)
        qsort(o->index.at, o->index.n, sizeof(o->index.at[0]), by_start);
    return 0;
}

static void make_index(struct pb_object *o)
{
    o->indexed = true;
    read_header(o);
    if (o->ntable || find_frames(o) < 0)
        return;
    _cleanup_free_ unsigned char *data = malloc(o->frames_size);
    if (!data)
        return;
    int r = o->debug_frame ? pb_object_read_file(o, o->frames, data, o->frames_size)
                           : pb_object_read(o, o->frames, data, o->frames_size);
    if (r == 0)
        index_frames(o, data);
}

static int search_index(const struct pb_object *o, uint64_t addr, uint64_t *ret_fde)
{
    size_t low = 0, high = o->index.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (o->index.at[mid].start <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return -ENOENT;
    *ret_fde = o->index.at[low - 1].fde;
    return 0;
}

ssize_t pb_object_read_frames(const struct pb_object *o, uint64_t addr, void *buf, size_t len)
{
    if (!o->debug_frame)
        return pb_object_read_some(o, addr, buf, len);
    if (addr - o->frames >= o->frames_size)
        return -EFAULT;
    if (len > o->frames_size - (addr - o->frames))
        len = o->frames_size - (addr - o->frames);
    int r = pb_object_read_file(o, addr, buf, len);
    return r < 0 ? r : (ssize_t)len;
}

/* Reads a whole entry into `small`, or if it does not fit into memory kept in *big. */
static int read_entry(const struct pb_object *o, uint64_t addr, unsigned char *small, size_t size,
                      unsigned char **big, struct pb_cfi_bytes *ret, struct pb_cfi_head *ret_head)
{
    ssize_t n = pb_object_read_frames(o, addr, small, size);
    if (n < 0)
        return (int)n;
    struct pb_cfi_bytes b = {small, (size_t)n, addr};
    int r = pb_cfi_head(&b, o->debug_frame, o->frames, ret_head);
    if (r < 0)
        return r;
    if (ret_head->end > b.len) {
        if (ret_head->end > ENTRY_MAX)
            return -EBADMSG;
        *big = malloc(ret_head->end);
        if (!*big)
            return -ENOMEM;
        n = pb_object_read_frames(o, addr, *big, ret_head->end);
        if (n != (ssize_t)ret_head->end)
            return -EBADMSG;
        b.data = *big;
    }
    b.len = ret_head->end;
    *ret = b;
    return 0;
}

int pb_object_row(struct pb_object *o, uint64_t addr, struct pb_cfi_row *ret, uint64_t *ret_start)
{
    unsigned char small[ENTRY_FIRST], small_cie[CIE_MAX];
    _cleanup_free_ unsigned char *big = NULL, *big_cie = NULL;
    struct pb_cfi_bytes b, cie_bytes;
    struct pb_cfi_head h, cie_head;
    struct pb_cie cie;
    struct pb_fde fde;
    uint64_t at;

    if (!o->indexed)
        make_index(o);
    int r = o->ntable ? search_header(o, addr, &at) : search_index(o, addr, &at);
    if (r == 0)
        r = read_entry(o, at, small, sizeof(small), &big, &b, &h);
    if (r == 0)
        r = read_entry(o, h.cie, small_cie, sizeof(small_cie), &big_cie, &cie_bytes, &cie_head);
    if (r < 0)
        return r;
    if (h.is_cie || h.is_end || !cie_head.is_cie)
        return -EBADMSG;
    r = pb_cie_parse(&cie_bytes, &cie_head, &cie);
    if (r == 0)
        r = pb_fde_parse(&b, &h, &cie, &fde);
    if (r == 0)
        r = pb_cfi_run(&cie, &fde, addr, ret);
    if (r == 0)
        *ret_start = fde.start;
    return r;
}
