/* symbols: see symbols.h. */
#include "remote/native/symbols.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "remote/elf.h"
#include "remote/native/object.h"

enum {
    MAX_SYMBOLS = 8 << 20,
    MAX_KNOWN = 65536,
    PASSES = 6,      /* after so many passes an index is cheaper */
    CHUNK = 4096,    /* symbols read at once: they stay in the cache */
    LOOK_BACK = 256, /* at most so many symbols may start between a function's start and the address */
    NAME_BITS = 30,
    FILTER_BITS = 1 << 15,
};

static bool is_function(const Elf64_Sym *s)
{
    unsigned type = ELF64_ST_TYPE(s->st_info);
    if (s->st_shndx == SHN_UNDEF || s->st_shndx == SHN_ABS || !s->st_value || s->st_name >> NAME_BITS)
        return false;
    /* Assembly often gives no type; local labels without one are places inside functions. */
    return type == STT_FUNC || type == STT_GNU_IFUNC ||
           (type == STT_NOTYPE && ELF64_ST_BIND(s->st_info) != STB_LOCAL);
}

static uint32_t rank(const Elf64_Sym *s)
{
    switch (ELF64_ST_BIND(s->st_info)) {
    case STB_GLOBAL:
        return 3;
    case STB_WEAK:
        return 2;
    default:
        return 1;
    }
}

/* A label of assembly has no size. If all symbols are known it reaches up to the next one (not far, to be
 * safe); if only exported ones are, its end is not known: then it covers its first byte only. */
static struct pb_function function_of(const Elf64_Sym *s, bool partial)
{
    uint64_t size = s->st_size ? s->st_size : partial ? 1 : 1024;
    return (struct pb_function){
        .addr = s->st_value,
        .size = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size,
        .name = s->st_name | rank(s) << NAME_BITS,
    };
}

static int open_section(const struct pb_object *o, const char *name, struct pb_symbols *s)
{
    struct pb_section table, names;
    int r = pb_object_section(o, name, &table);
    if (r == 0)
        r = pb_object_section_at(o, table.link, &names);
    if (r < 0)
        return -ENOENT;
    size_t n = table.size / sizeof(Elf64_Sym);
    if (n < 2 || n > MAX_SYMBOLS)
        return -ENOENT;
    *s = (struct pb_symbols){
        .from = o, .offset = table.offset, .n = n, .names = names.offset, .names_len = names.size};
    return 0;
}

/* The dynamic symbols, which the loader needs, are in memory. */
static int open_memory(struct pb_source *memory, uint64_t base, struct pb_symbols *s)
{
    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    int r = pb_elf_open(memory, base, &e);
    if (r < 0)
        return r;
    *s = (struct pb_symbols){.n = e.n, .names_len = e.str_len, .sym = e.sym, .text = e.str};
    s->bytes = e.str_len + e.n * sizeof(*e.sym);
    e = (struct pb_elf){0};
    return 0;
}

int pb_symbols_open(const struct pb_object *o, const struct pb_object *debug, uint64_t base,
                    struct pb_symbols *ret)
{
    int r = debug ? open_section(debug, ".symtab", ret) : -ENOENT;
    if (r < 0)
        r = open_section(o, ".symtab", ret);
    if (r == 0)
        return 0;
    r = open_section(o, ".dynsym", ret);
    if (r < 0 && o->fd < 0)
        r = open_memory(o->memory, base, ret);
    if (r == 0)
        ret->partial = true;
    return r;
}

void pb_symbols_done(struct pb_symbols *s)
{
    free(s->at);
    free(s->bucket);
    free(s->text);
    free(s->sym);
    free(s->known);
}

/* Calls `each` with all symbols, some thousand at a time. */
static int read_all(const struct pb_symbols *s, void (*each)(void *arg, const Elf64_Sym *sym, size_t n),
                    void *arg)
{
    if (s->sym) {
        each(arg, s->sym, s->n);
        return 0;
    }
    _cleanup_free_ Elf64_Sym *sym = reallocarray(NULL, CHUNK, sizeof(*sym));
    if (!sym)
        return -ENOMEM;
    for (size_t i = 0; i < s->n; i += CHUNK) {
        size_t n = s->n - i < CHUNK ? s->n - i : CHUNK;
        int r = pb_object_read_file(s->from, s->offset + i * sizeof(*sym), sym, n * sizeof(*sym));
        if (r < 0)
            return r;
        each(arg, sym, n);
    }
    return 0;
}

static bool is_better(const struct pb_function *f, const struct pb_function *than)
{
    if (!than->name || f->addr != than->addr)
        return !than->name || f->addr > than->addr;
    return f->name >> NAME_BITS > than->name >> NAME_BITS;
}

static bool holds(const struct pb_function *f, uint64_t addr)
{
    return addr >= f->addr && addr - f->addr < f->size;
}

static void consider(struct pb_answer *a, const struct pb_function *f)
{
    if (holds(f, a->addr) && is_better(f, &a->function))
        a->function = *f;
}

struct symbol_scan {
    struct pb_answer *answer;
    size_t n;
    bool partial;
    uint64_t filter[FILTER_BITS / 64]; /* pages that are asked for, their low bits */
};

static bool may_hold(const struct symbol_scan *scan, const struct pb_function *f)
{
    uint64_t first = f->addr >> 12, last = (f->addr + f->size) >> 12;
    if (last - first >= FILTER_BITS)
        return true;
    for (uint64_t page = first; page <= last; page++)
        if (scan->filter[page % FILTER_BITS / 64] >> page % 64 & 1)
            return true;
    return false;
}

/* The first answer whose address is not below addr. */
static size_t lower_bound(const struct pb_answer *a, size_t n, uint64_t addr)
{
    size_t low = 0;
    while (low < n) {
        size_t mid = low + (n - low) / 2;
        if (a[mid].addr < addr)
            low = mid + 1;
        else
            n = mid;
    }
    return low;
}

static void scan_some(void *arg, const Elf64_Sym *sym, size_t n)
{
    struct symbol_scan *scan = arg;
    for (size_t i = 0; i < n; i++) {
        struct pb_function f = function_of(&sym[i], scan->partial);
        if (!may_hold(scan, &f) || !is_function(&sym[i]))
            continue;
        for (size_t k = lower_bound(scan->answer, scan->n, f.addr); k < scan->n; k++) {
            if (!holds(&f, scan->answer[k].addr))
                break;
            consider(&scan->answer[k], &f);
        }
    }
}

static int by_address(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Makes room for the addresses not known yet; both lists are sorted. */
static int add_unknown(struct pb_symbols *s, const uint64_t *addrs, size_t n)
{
    struct pb_answer *all = reallocarray(NULL, s->nknown + n, sizeof(*all));
    size_t count = 0, k = 0;
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        while (k < s->nknown && s->known[k].addr < addrs[i])
            all[count++] = s->known[k++];
        if ((k < s->nknown && s->known[k].addr == addrs[i]) || (count && all[count - 1].addr == addrs[i]))
            continue;
        all[count++] = (struct pb_answer){.addr = addrs[i]};
    }
    while (k < s->nknown)
        all[count++] = s->known[k++];
    free(s->known);
    s->known = all;
    s->bytes += (count - s->nknown) * sizeof(*all);
    s->nknown = count;
    return 0;
}

static bool is_known(const struct pb_symbols *s, uint64_t addr)
{
    size_t i = lower_bound(s->known, s->nknown, addr);
    return i < s->nknown && s->known[i].addr == addr;
}

int pb_symbols_scan(struct pb_symbols *s, uint64_t *addrs, size_t n)
{
    size_t unknown = 0;
    for (size_t i = 0; i < n; i++)
        if (!is_known(s, addrs[i]))
            addrs[unknown++] = addrs[i];
    if (unknown == 0 || s->at)
        return 0;
    qsort(addrs, unknown, sizeof(*addrs), by_address);
    int r = add_unknown(s, addrs, unknown);
    if (r < 0)
        return r;
    struct symbol_scan scan = {.answer = s->known, .n = s->nknown, .partial = s->partial};
    for (size_t i = 0; i < unknown; i++)
        scan.filter[(addrs[i] >> 12) % FILTER_BITS / 64] |= 1ull << (addrs[i] >> 12) % 64;
    s->passes++;
    return read_all(s, scan_some, &scan);
}

struct survey {
    uint64_t first, last;
    size_t n;
};

static void survey_some(void *arg, const Elf64_Sym *sym, size_t n)
{
    struct survey *v = arg;
    for (size_t i = 0; i < n; i++) {
        if (!is_function(&sym[i]))
            continue;
        v->n++;
        v->first = sym[i].st_value < v->first ? sym[i].st_value : v->first;
        v->last = sym[i].st_value > v->last ? sym[i].st_value : v->last;
    }
}

/* The file may change between two passes: a function that was not counted is skipped. */
static bool bucket_of(const struct pb_symbols *s, const Elf64_Sym *sym, uint64_t *ret)
{
    if (!is_function(sym) || sym->st_value < s->first)
        return false;
    *ret = (sym->st_value - s->first) >> s->shift;
    return *ret < s->nbuckets;
}

/* Counts are stored one bucket further on; filling the buckets moves the starts back. */
static void count_some(void *arg, const Elf64_Sym *sym, size_t n)
{
    struct pb_symbols *s = arg;
    uint64_t b;
    for (size_t i = 0; i < n; i++)
        if (bucket_of(s, &sym[i], &b))
            s->bucket[b + 2]++;
}

static void put_some(void *arg, const Elf64_Sym *sym, size_t n)
{
    struct pb_symbols *s = arg;
    uint64_t b;
    for (size_t i = 0; i < n; i++)
        if (bucket_of(s, &sym[i], &b) && s->bucket[b + 1] < s->nat)
            s->at[s->bucket[b + 1]++] = function_of(&sym[i], s->partial);
}

static int make_index(struct pb_symbols *s)
{
    struct survey v = {.first = UINT64_MAX};
    int r = read_all(s, survey_some, &v);
    if (v.n == 0)
        s->n = 0; /* no need to look again */
    if (r < 0 || v.n == 0)
        return r < 0 ? r : -ENOENT;
    s->first = v.first;
    s->shift = 0;
    while ((v.last - v.first) >> s->shift > v.n / 2 + 1)
        s->shift++;
    s->nbuckets = (size_t)((v.last - v.first) >> s->shift) + 1;
    s->nat = v.n;
    _cleanup_free_ uint32_t *bucket = calloc(s->nbuckets + 2, sizeof(*bucket));
    _cleanup_free_ struct pb_function *at = calloc(v.n, sizeof(*at));
    if (!bucket || !at)
        return -ENOMEM;
    s->bucket = bucket;
    s->at = at;
    r = read_all(s, count_some, s);
    for (size_t i = 2; i < s->nbuckets + 2; i++)
        bucket[i] += bucket[i - 1];
    if (r == 0)
        r = read_all(s, put_some, s);
    if (r < 0) {
        s->bucket = NULL;
        s->at = NULL;
        return r;
    }
    s->bytes += (s->nbuckets + 2) * sizeof(*bucket) + s->nat * sizeof(*at);
    pb_take_ptr(bucket);
    pb_take_ptr(at);
    return 0;
}

static int find_in_index(struct pb_symbols *s, uint64_t addr, const struct pb_function **ret)
{
    struct pb_answer *best = &s->last;
    *best = (struct pb_answer){.addr = addr};
    if (addr < s->first)
        return -ENOENT;
    uint64_t b = (addr - s->first) >> s->shift;
    size_t end = b >= s->nbuckets ? s->nat : s->bucket[b + 1];
    for (size_t i = end < s->nat ? end : s->nat, looked = 0; i-- > 0 && looked < LOOK_BACK; looked++) {
        const struct pb_function *f = &s->at[i];
        /* Buckets are in order, entries within one are not: an earlier bucket has nothing better. */
        if (best->function.size &&
            (f->addr - s->first) >> s->shift < (best->function.addr - s->first) >> s->shift)
            break;
        if (f->name)
            consider(best, f);
    }
    *ret = &best->function;
    return best->function.name ? 0 : -ENOENT;
}

int pb_symbols_find(struct pb_symbols *s, uint64_t addr, const struct pb_function **ret)
{
    if (!s->at && !is_known(s, addr)) {
        int r = s->passes < PASSES && s->nknown < MAX_KNOWN ? pb_symbols_scan(s, &addr, 1) : make_index(s);
        if (r < 0)
            return r;
    }
    size_t i = lower_bound(s->known, s->nknown, addr);
    if (i == s->nknown || s->known[i].addr != addr)
        return find_in_index(s, addr, ret);
    *ret = &s->known[i].function;
    return s->known[i].function.name ? 0 : -ENOENT;
}

int pb_symbols_name(const struct pb_symbols *s, const struct pb_function *f, char *buf, size_t size)
{
    uint64_t at = f->name & ((1u << NAME_BITS) - 1);
    if (at >= s->names_len)
        return -EBADMSG;
    size_t len = s->names_len - at < size - 1 ? (size_t)(s->names_len - at) : size - 1;
    if (s->text) {
        memcpy(buf, s->text + at, len);
    } else {
        int r = pb_object_read_file(s->from, s->names + at, buf, len);
        if (r < 0)
            return r;
    }
    buf[len] = '\0';
    return buf[0] ? 0 : -ENOENT;
}
