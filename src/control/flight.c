/* flight: see flight.h. Uses no heap: the agent includes it. */
#include "control/flight.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Offsets in a recorder. A reset that keeps old entries ("epoch") came later and moved the maps. */
#define HEAD_ENTRIES   48 /* begin, end, end of room */
#define HEAD_MOST      72
#define HEAD_NEXT      80
#define HEAD_ID        88
#define HEAD_EPOCH     96
#define HEAD_MAPS      96
#define HEAD_EPOCH_MAP 64 /* the epoch's number, and the table of where each began */
#define HEAD_SIZE      256
#define MAP_SIZE       48

/* Offsets in an entry of torch 2.9, whose number of the epoch, and thread, older ones do not have. A
 * tuple has its last element first. */
#define AT_ID          0
#define AT_EPOCH       8
#define AT_GROUP_ID    16
#define AT_DESCRIPTION 24
#define AT_GROUP       56
#define AT_SEQUENCE    88
#define AT_P2P         96
#define AT_OPERATION   104
#define AT_NAME        112
#define AT_START       160
#define AT_END         168
#define AT_CREATED     176
#define AT_TIMEOUT     184
#define AT_IS_P2P      192
#define AT_DURATION    196
#define AT_HAS_TIME    200
#define AT_STARTED     208
#define AT_COMPLETED   224
#define AT_INPUTS      240
#define AT_IN_TYPES    288
#define AT_OUTPUTS     312
#define AT_OUT_TYPES   360
#define AT_SIZES       384
#define AT_THREAD      464
#define AT_RETIRED     504
#define WHOLE          512
#define EPOCH_BYTES    8
#define THREAD_BYTES   40

#define LEAST_TIME (1500000000 * (int64_t)1000000000)
#define MOST_TEXT  65536
#define MOST_RING  10000000
#define MOST_DIMS  64

static uint64_t word(const void *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

/* --- the symbol table ------------------------------------------------------------------------------ */

struct elf_header {
    unsigned char ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, segments, sections;
    uint32_t flags;
    uint16_t size, segment_size, nsegments, section_size, nsections, names;
};
struct elf_section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t align, each;
};
struct elf_segment {
    uint32_t type, flags;
    uint64_t offset, address, physical, file_size, size, align;
};
struct elf_symbol {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
};

static int read_at(int fd, void *to, size_t size, uint64_t at)
{
    return at <= INT64_MAX && pread(fd, to, size, (off_t)at) == (ssize_t)size ? 0 : -EIO;
}

int pb_flight_symbols_open(int fd, struct pb_flight_symbols *ret)
{
    struct elf_header header;
    struct elf_section section, strings;
    struct elf_segment segment;

    if (read_at(fd, &header, sizeof(header), 0) < 0 || memcmp(header.ident, "\177ELF\2\1", 6) != 0 ||
        header.section_size != sizeof(section) || header.segment_size != sizeof(segment))
        return -ENOEXEC;
    *ret = (struct pb_flight_symbols){.fd = fd};
    uint64_t first = UINT64_MAX;
    for (unsigned i = 0; i < header.nsegments; i++) {
        if (read_at(fd, &segment, sizeof(segment), header.segments + i * sizeof(segment)) < 0)
            return -ENOEXEC;
        if (segment.type == 1 && segment.address - segment.offset < first) /* PT_LOAD */
            first = segment.address - segment.offset;
    }
    ret->first = first;
    for (unsigned i = 0; i < header.nsections; i++) {
        if (read_at(fd, &section, sizeof(section), header.sections + i * sizeof(section)) < 0)
            return -ENOEXEC;
        if (section.type != 2 || section.each != sizeof(struct elf_symbol)) /* SHT_SYMTAB */
            continue;
        if (section.link >= header.nsections ||
            read_at(fd, &strings, sizeof(strings), header.sections + section.link * sizeof(strings)) < 0)
            return -ENOEXEC;
        ret->at = section.offset;
        ret->end = section.offset + section.size;
        ret->strings = strings.offset;
        ret->strings_size = strings.size;
        return ret->end < ret->at ? -ENOEXEC : 0;
    }
    return -ENODATA;
}

static int is_recorder(const struct pb_flight_symbols *s, const struct elf_symbol *symbol)
{
    static const char *const known[] = {PB_FLIGHT_CUDA, PB_FLIGHT_CUDA_2, PB_FLIGHT_CPU, PB_FLIGHT_OLD};
    char name[sizeof(PB_FLIGHT_CUDA_2)] = "";

    /* A variable of eight bytes that is defined here. */
    if ((symbol->info & 15) != 1 || symbol->size != 8 || symbol->section == 0 ||
        symbol->name >= s->strings_size)
        return 0;
    size_t left = (size_t)(s->strings_size - symbol->name);
    if (read_at(s->fd, name, left < sizeof(name) ? left : sizeof(name), s->strings + symbol->name) < 0)
        return 0;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(name, known[i], sizeof(name)) == 0)
            return 1;
    return 0;
}

int pb_flight_symbols_step(struct pb_flight_symbols *s, size_t most, uint64_t *ret)
{
    struct elf_symbol some[256];

    while (most > 0 && s->at < s->end) {
        size_t n = (size_t)(s->end - s->at) / sizeof(some[0]);
        n = n < 256 ? n : 256;
        n = n < most ? n : most;
        if (n == 0 || read_at(s->fd, some, n * sizeof(some[0]), s->at) < 0)
            return -ENOENT;
        for (size_t i = 0; i < n; i++)
            if (is_recorder(s, &some[i])) {
                *ret = some[i].value - s->first;
                return 1;
            }
        s->at += n * sizeof(some[0]);
        most -= n;
    }
    return s->at < s->end ? 0 : -ENOENT;
}

/* --- the layout ------------------------------------------------------------------------------------ */

/* Where a field of the whole layout is in this one. */
static size_t place(const struct pb_flight *f, size_t at)
{
    size_t moved = at;

    if (!f->has_epoch && at > AT_EPOCH)
        moved -= EPOCH_BYTES;
    if (!f->has_thread && at > AT_THREAD)
        moved -= THREAD_BYTES;
    return moved;
}

/* Text of the entry at `at`: a short one is inside of it. */
static int take_text(const char *bytes, size_t at, uint64_t address, uint64_t *ret, uint64_t *ret_length)
{
    *ret = word(bytes + at);
    *ret_length = word(bytes + at + 8);
    return *ret_length <= MOST_TEXT && (*ret_length > 15 || *ret == address + at + 16);
}

static int64_t optional_time(const char *bytes, size_t at)
{
    return bytes[at + 8] == 1 ? (int64_t)word(bytes + at) : 0;
}

/* 0: no entry of this layout. */
static int take_entry(const struct pb_flight *f, const char *bytes, uint64_t address,
                      struct pb_flight_entry *ret)
{
    float duration;
    const char *flags[] = {bytes + place(f, AT_IS_P2P), bytes + place(f, AT_HAS_TIME),
                           bytes + place(f, AT_STARTED) + 8, bytes + place(f, AT_COMPLETED) + 8,
                           bytes + place(f, AT_RETIRED)};

    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (*flags[i] != 0 && *flags[i] != 1)
            return 0;
    ret->address = address;
    ret->id = word(bytes + AT_ID);
    ret->group_id = word(bytes + place(f, AT_GROUP_ID));
    ret->sequence = word(bytes + place(f, AT_SEQUENCE));
    ret->p2p_sequence = word(bytes + place(f, AT_P2P));
    ret->operation = word(bytes + place(f, AT_OPERATION));
    ret->thread = f->has_thread ? word(bytes + place(f, AT_THREAD)) : 0;
    ret->created = (int64_t)word(bytes + place(f, AT_CREATED));
    ret->timeout_ms = (int64_t)word(bytes + place(f, AT_TIMEOUT));
    ret->started = optional_time(bytes, place(f, AT_STARTED));
    ret->completed = optional_time(bytes, place(f, AT_COMPLETED));
    ret->is_p2p = *flags[0] != 0;
    ret->retired = *flags[4] != 0;
    ret->has_events = word(bytes + place(f, AT_START)) || word(bytes + place(f, AT_END));
    memcpy(&duration, bytes + place(f, AT_DURATION), sizeof(duration));
    ret->duration_ms = *flags[1] && duration >= 0 ? (double)duration : -1;
    return ret->created > LEAST_TIME && ret->group_id < MOST_RING &&
           take_text(bytes, place(f, AT_NAME), address, &ret->name, &ret->name_length) &&
           take_text(bytes, place(f, AT_GROUP), address, &ret->group, &ret->group_length) &&
           take_text(bytes, place(f, AT_DESCRIPTION), address, &ret->description, &ret->description_length);
}

/* Whether the first entries, up to eight, have this layout and follow each other. */
static int fits(struct pb_flight *f, uint64_t begin, uint64_t bytes)
{
    char entries[8 * WHOLE];
    struct pb_flight_entry entry;
    uint64_t n = bytes / f->stride;

    if (bytes % f->stride)
        return 0;
    n = n < 8 ? n : 8;
    if (f->fetch(f->of, begin, entries, (size_t)n * f->stride) < 0)
        return 0;
    for (uint64_t i = 0, before = 0; i < n; i++) {
        if (!take_entry(f, entries + i * f->stride, begin + i * f->stride, &entry))
            return 0;
        /* The ring may turn over between two of them: then the number is smaller. */
        if (i && entry.id != before + 1 && entry.id > before)
            return 0;
        before = entry.id;
    }
    return n > 0;
}

static int find_layout(struct pb_flight *f, uint64_t begin, uint64_t bytes)
{
    for (uint32_t i = 0; i < 4; i++) {
        f->has_epoch = !(i & 2);
        f->has_thread = !(i & 1);
        f->stride = WHOLE - (f->has_epoch ? 0 : EPOCH_BYTES) - (f->has_thread ? 0 : THREAD_BYTES);
        if (fits(f, begin, bytes))
            return 0;
    }
    f->stride = 0;
    return -ENOTSUP;
}

int pb_flight_look(struct pb_flight *f, struct pb_flight_head *ret)
{
    char head[HEAD_SIZE];

    memset(ret, 0, sizeof(*ret));
    if (!f->recorder && f->fetch(f->of, f->variable, &f->recorder, sizeof(f->recorder)) < 0)
        return -EFAULT;
    if (!f->recorder)
        return -ENOENT;
    if (f->fetch(f->of, f->recorder, head, sizeof(head)) < 0)
        return -EFAULT;
    uint64_t begin = word(head + HEAD_ENTRIES), end = word(head + HEAD_ENTRIES + 8),
             next = word(head + HEAD_NEXT);
    ret->most = word(head + HEAD_MOST);
    if (head[0] == 0 && ret->most == 0)
        return -ENODATA;
    if (head[0] != 1 || ret->most > MOST_RING || end < begin || end - begin > ret->most * WHOLE ||
        next > ret->most)
        return -ENOTSUP;
    if (begin == end)
        return 0;
    if (!f->stride && find_layout(f, begin, end - begin) < 0)
        return -ENOTSUP;
    if ((end - begin) % f->stride)
        return -EAGAIN; /* it grows just now */
    ret->begin = begin;
    ret->count = (end - begin) / f->stride;
    ret->newest = word(head + HEAD_ID) - 1;
    ret->newest_at = ret->count < ret->most ? ret->count - 1 : (next + ret->most - 1) % ret->most;
    ret->epoch = f->has_epoch ? word(head + HEAD_EPOCH) : 0;
    ret->status = f->recorder + HEAD_MAPS + (f->has_epoch ? HEAD_EPOCH_MAP : 0);
    ret->names = ret->status + MAP_SIZE;
    return 0;
}

long pb_flight_read(const struct pb_flight *f, const struct pb_flight_head *head, uint64_t from, void *buffer,
                    size_t size, struct pb_flight_entry *ret, size_t most, uint64_t *first)
{
    uint64_t oldest = head->newest + 1 >= head->count ? head->newest + 1 - head->count : 0;

    if (!head->count)
        return 0;
    *first = from > oldest ? from : oldest;
    if (*first > head->newest)
        return 0;
    uint64_t n = head->newest - *first + 1, back = head->newest - *first;
    uint64_t at = (head->newest_at + head->count - back % head->count) % head->count;
    n = n < size / f->stride ? n : size / f->stride;
    n = n < most ? n : most;
    n = n < head->count - at ? n : head->count - at; /* up to where the ring turns over */
    if (f->fetch(f->of, head->begin + at * f->stride, buffer, (size_t)n * f->stride) < 0)
        return -EFAULT;
    for (uint64_t i = 0; i < n; i++)
        if (!take_entry(f, (const char *)buffer + i * f->stride, head->begin + (at + i) * f->stride,
                        &ret[i]) ||
            ret[i].id != *first + i) { /* it was overwritten meanwhile, or is of the time before a reset */
            ret[i].id = *first + i;
            ret[i].created = 0;
        }
    return (long)n;
}

/* --- texts ----------------------------------------------------------------------------------------- */

size_t pb_flight_text(const struct pb_flight *f, uint64_t address, uint64_t length, char *ret, size_t size)
{
    size_t n = length < size - 1 ? (size_t)length : size - 1;

    if (n && f->fetch(f->of, address, ret, n) < 0)
        n = 0;
    ret[n] = '\0';
    return n;
}

static void add(char *ret, size_t size, size_t *at, const char *text)
{
    int n = snprintf(ret + *at, size - *at, "%s", text);
    *at += n > 0 && (size_t)n < size - *at ? (size_t)n : 0;
}

/* Numbers of a SmallVector: {first, how many, room}. */
static long take_numbers(const struct pb_flight *f, uint64_t address, int64_t *ret, size_t most)
{
    char bytes[16];
    uint32_t n;

    if (f->fetch(f->of, address, bytes, sizeof(bytes)) < 0)
        return -1;
    memcpy(&n, bytes + 8, sizeof(n));
    n = n < most ? n : (uint32_t)most;
    return n && f->fetch(f->of, word(bytes), ret, n * sizeof(*ret)) < 0 ? -1 : (long)n;
}

void pb_flight_sizes(const struct pb_flight *f, const struct pb_flight_entry *entry, int outputs, char *ret,
                     size_t size)
{
    int64_t in[MOST_DIMS], out[MOST_DIMS], sizes[4 * MOST_DIMS];
    char number[32];
    size_t at = 0;
    long used = 0, nin = take_numbers(f, entry->address + place(f, AT_INPUTS), in, MOST_DIMS);
    long nout = take_numbers(f, entry->address + place(f, AT_OUTPUTS), out, MOST_DIMS);
    long n = take_numbers(f, entry->address + place(f, AT_SIZES), sizes, 4 * MOST_DIMS);

    for (long i = 0; outputs && i < nin; i++)
        used += in[i] > 0 && in[i] < MOST_DIMS ? in[i] : 0;
    add(ret, size, &at, "[");
    for (long i = 0; i < (outputs ? nout : nin); i++) {
        int64_t dims = outputs ? out[i] : in[i];
        add(ret, size, &at, i ? ", [" : "[");
        for (int64_t d = 0; d < dims && d < MOST_DIMS && used < n; d++) {
            snprintf(number, sizeof(number), "%s%lld", d ? ", " : "", (long long)sizes[used++]);
            add(ret, size, &at, number);
        }
        add(ret, size, &at, "]");
    }
    add(ret, size, &at, "]");
}

void pb_flight_types(const struct pb_flight *f, const struct pb_flight_entry *entry, int outputs, char *ret,
                     size_t size)
{
    /* c10::ScalarType, the first twenty-eight, as torch prints them. */
    static const char *const names[] = {"Byte",
                                        "Char",
                                        "Short",
                                        "Int",
                                        "Long",
                                        "Half",
                                        "Float",
                                        "Double",
                                        "ComplexHalf",
                                        "ComplexFloat",
                                        "ComplexDouble",
                                        "Bool",
                                        "QInt8",
                                        "QUInt8",
                                        "QInt32",
                                        "BFloat16",
                                        "QUInt4x2",
                                        "QUInt2x4",
                                        "Bits1x8",
                                        "Bits2x4",
                                        "Bits4x2",
                                        "Bits8",
                                        "Bits16",
                                        "Float8_e5m2",
                                        "Float8_e4m3fn",
                                        "Float8_e5m2fnuz",
                                        "Float8_e4m3fnuz",
                                        "UInt16",
                                        "UInt32",
                                        "UInt64"};
    char ends[16];
    int8_t types[MOST_DIMS];
    size_t at = 0, n = 0;

    if (f->fetch(f->of, entry->address + place(f, outputs ? AT_OUT_TYPES : AT_IN_TYPES), ends,
                 sizeof(ends)) == 0 &&
        word(ends + 8) >= word(ends)) {
        n = (size_t)(word(ends + 8) - word(ends));
        n = n < MOST_DIMS ? n : MOST_DIMS;
        if (n && f->fetch(f->of, word(ends), types, n) < 0)
            n = 0;
    }
    add(ret, size, &at, "[");
    for (size_t i = 0; i < n; i++) {
        int known = types[i] >= 0 && (size_t)types[i] < sizeof(names) / sizeof(names[0]);
        add(ret, size, &at, i ? ", " : "");
        add(ret, size, &at, known ? names[types[i]] : "?");
    }
    add(ret, size, &at, "]");
}

/* --- groups ---------------------------------------------------------------------------------------- */

/* The nodes of a std::map in order: each is {colour, parent, left, right, what it holds}. `visit` returns
 * 0 to stop. */
static void walk(const struct pb_flight *f, uint64_t map, size_t holds,
                 int (*visit)(const struct pb_flight *f, uint64_t node, const char *held, void *to), void *to)
{
    uint64_t stack[64], at;
    char head[MAP_SIZE], node[160];
    size_t deep = 0, seen = 0;

    if (!map || f->fetch(f->of, map, head, sizeof(head)) < 0)
        return;
    at = word(head + 16);
    while ((at || deep) && seen++ < 4096) {
        if (at) {
            if (deep == 64 || f->fetch(f->of, at, node, 32 + holds) < 0)
                return;
            stack[deep++] = at;
            at = word(node + 16);
            continue;
        }
        uint64_t here = stack[--deep];
        if (f->fetch(f->of, here, node, 32 + holds) < 0 || !visit(f, here + 32, node + 32, to))
            return;
        at = word(node + 24);
    }
}

struct collected {
    struct pb_flight_group *ret;
    size_t n, most;
};

static int collect(const struct pb_flight *f, uint64_t node, const char *held, void *to)
{
    struct collected *c = to;
    int64_t reached[3];
    (void)node;

    if (f->fetch(f->of, word(held + 8), reached, sizeof(reached)) < 0)
        return 1;
    c->ret[c->n++] = (struct pb_flight_group){word(held), reached[0], reached[1], reached[2]};
    return c->n < c->most;
}

size_t pb_flight_groups(const struct pb_flight *f, const struct pb_flight_head *head,
                        struct pb_flight_group *ret, size_t most)
{
    struct collected c = {.ret = ret, .most = most};

    walk(f, head->status, 24, collect, &c);
    return c.n;
}

struct wanted_entry {
    const char *name;
    char *ret;
    size_t size;
};

static int take_ranks(const struct pb_flight *f, uint64_t node, const char *held, void *to)
{
    struct wanted_entry *w = to;
    char name[128], number[24];
    uint64_t ranks[256], text = word(held + 32), begin = word(held + 64), end = word(held + 72);
    size_t at = 0, n;
    (void)node;

    pb_flight_text(f, text, word(held + 40), name, sizeof(name));
    if (strcmp(name, w->name) != 0 || end < begin)
        return 1;
    n = (size_t)(end - begin) / 8;
    n = n < 256 ? n : 256;
    if (n && f->fetch(f->of, begin, ranks, n * 8) < 0)
        return 0;
    for (size_t i = 0; i < n; i++) {
        snprintf(number, sizeof(number), "%s%llu", i ? "," : "", (unsigned long long)ranks[i]);
        add(w->ret, w->size, &at, number);
    }
    return 0;
}

void pb_flight_ranks(const struct pb_flight *f, const struct pb_flight_head *head, const char *name,
                     char *ret, size_t size)
{
    struct wanted_entry w = {name, ret, size};

    ret[0] = '\0';
    walk(f, head->names, 64 + 24, take_ranks, &w);
}

enum pb_flight_state pb_flight_state_of(const struct pb_flight_entry *entry,
                                        const struct pb_flight_group *group)
{
    if (entry->completed)
        return PB_FLIGHT_COMPLETED;
    if (entry->started ||
        (group && !entry->is_p2p && group->started >= 0 && (uint64_t)group->started >= entry->sequence))
        return PB_FLIGHT_STARTED;
    return PB_FLIGHT_SCHEDULED;
}

const char *pb_flight_state_name(enum pb_flight_state state)
{
    static const char *const names[] = {"scheduled", "started", "completed"};

    return names[state];
}
