/* symbols: see symbols.h. */
#include "remote/native/symbols.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "remote/elf.h"
#include "remote/native/object.h"

enum {
    MAX_SYMBOLS = 8 << 20,
    LOOK_BACK = 256, /* how many symbols may start between a function's start and the address asked for */
    NAME_BITS = 30,
};

static bool is_function(const Elf64_Sym *s)
{
    unsigned type = ELF64_ST_TYPE(s->st_info);
    if (s->st_shndx == SHN_UNDEF || s->st_shndx == SHN_ABS || !s->st_value || s->st_name >> NAME_BITS)
        return false;
    /* Assembly often gives no type; local labels without one are places in functions, not functions. */
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

/* Which addresses there are, and how many. */
static void survey(struct pb_symbols *s, const Elf64_Sym *sym, size_t n, uint64_t *ret_last)
{
    uint64_t first = UINT64_MAX, last = 0;
    s->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_function(&sym[i]))
            continue;
        s->n++;
        first = sym[i].st_value < first ? sym[i].st_value : first;
        last = sym[i].st_value > last ? sym[i].st_value : last;
    }
    s->first = first;
    *ret_last = last;
}

static int make_buckets(struct pb_symbols *s, const Elf64_Sym *sym, size_t n)
{
    uint64_t last;
    survey(s, sym, n, &last);
    if (s->n == 0)
        return 0;
    while ((last - s->first) >> s->shift > s->n / 2 + 1)
        s->shift++;
    s->nbuckets = (size_t)((last - s->first) >> s->shift) + 1;
    s->bucket = calloc(s->nbuckets + 2, sizeof(*s->bucket));
    s->at = reallocarray(NULL, s->n, sizeof(*s->at));
    if (!s->bucket || !s->at)
        return -ENOMEM;
    s->bytes = (s->nbuckets + 2) * sizeof(*s->bucket) + s->n * sizeof(*s->at);

    /* Counted one place further on, the starts move into theirs while the entries are put there. */
    for (size_t i = 0; i < n; i++)
        if (is_function(&sym[i]))
            s->bucket[((sym[i].st_value - s->first) >> s->shift) + 2]++;
    for (size_t i = 2; i < s->nbuckets + 2; i++)
        s->bucket[i] += s->bucket[i - 1];
    for (size_t i = 0; i < n; i++) {
        if (!is_function(&sym[i]))
            continue;
        uint32_t place = s->bucket[((sym[i].st_value - s->first) >> s->shift) + 1]++;
        s->at[place] = (struct pb_function){
            .addr = sym[i].st_value,
            .size = sym[i].st_size > UINT32_MAX ? UINT32_MAX : (uint32_t)sym[i].st_size,
            .name = sym[i].st_name | rank(&sym[i]) << NAME_BITS,
        };
    }
    return 0;
}

static int load_section(const struct pb_object *o, const char *name, struct pb_symbols *s)
{
    struct pb_section table, names;
    int r = pb_object_section(o, name, &table);
    if (r == 0)
        r = pb_object_section_at(o, table.link, &names);
    if (r < 0)
        return r;
    size_t n = table.size / sizeof(Elf64_Sym);
    if (n == 0 || n > MAX_SYMBOLS)
        return -ENOENT;
    _cleanup_free_ Elf64_Sym *sym = reallocarray(NULL, n, sizeof(*sym));
    if (!sym)
        return -ENOMEM;
    r = pb_object_read_file(o, table.offset, sym, n * sizeof(*sym));
    if (r < 0)
        return r;
    s->names = names.offset;
    s->names_len = names.size;
    s->from = o;
    return make_buckets(s, sym, n);
}

/* What the loader needs is in memory: the dynamic symbols. */
static int load_memory(pid_t pid, uint64_t base, struct pb_symbols *s)
{
    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    int r = pb_elf_open(pid, base, &e);
    if (r < 0)
        return r;
    r = make_buckets(s, e.sym, e.n);
    if (r < 0)
        return r;
    s->text = e.str;
    s->names_len = e.str_len;
    s->bytes += e.str_len;
    e.str = NULL;
    return 0;
}

int pb_symbols_load(const struct pb_object *o, const struct pb_object *debug, uint64_t base,
                    struct pb_symbols *ret)
{
    _cleanup_(pb_symbols_done) struct pb_symbols s = {0};
    int r = debug ? load_section(debug, ".symtab", &s) : -ENOENT;
    if (r == -ENOENT)
        r = load_section(o, ".symtab", &s);
    if (r == -ENOENT)
        r = load_section(o, ".dynsym", &s);
    if (r == -ENOENT && o->fd < 0)
        r = load_memory(o->pid, base, &s);
    if (r < 0)
        return r;
    *ret = s;
    s = (struct pb_symbols){0};
    return 0;
}

void pb_symbols_done(struct pb_symbols *s)
{
    free(s->at);
    free(s->bucket);
    free(s->text);
}

static bool is_better(const struct pb_function *f, const struct pb_function *than)
{
    if (!than || f->addr != than->addr)
        return !than || f->addr > than->addr;
    return f->name >> NAME_BITS > than->name >> NAME_BITS;
}

int pb_symbols_find(const struct pb_symbols *s, uint64_t addr, const struct pb_function **ret)
{
    const struct pb_function *holds = NULL, *before = NULL;
    if (s->n == 0 || addr < s->first)
        return -ENOENT;
    uint64_t b = (addr - s->first) >> s->shift;
    size_t end = b >= s->nbuckets ? s->n : s->bucket[b + 1];
    for (size_t i = end, looked = 0; i-- > 0 && looked < LOOK_BACK; looked++) {
        const struct pb_function *f = &s->at[i];
        /* Buckets are in order, entries of one are not: an earlier bucket has nothing better. */
        if (holds && (f->addr - s->first) >> s->shift < (holds->addr - s->first) >> s->shift)
            break;
        if (f->addr > addr)
            continue;
        if (is_better(f, before))
            before = f;
        if (addr - f->addr < f->size && is_better(f, holds))
            holds = f;
    }
    /* A label of assembly has no size: it reaches up to the next. */
    if (!holds && before && before->size == 0)
        holds = before;
    if (!holds)
        return -ENOENT;
    *ret = holds;
    return 0;
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
