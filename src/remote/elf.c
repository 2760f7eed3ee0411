/* elf: see elf.h. */
#include "remote/elf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "remote/source.h"

enum {
    MAX_PHDRS = 64,
    MAX_DYNAMIC = 256,
    MAX_SYMBOLS = 1 << 20,
    MAX_STRINGS = 64 << 20,
};

struct dynamic {
    uint64_t symtab, strtab, strsz, hash, gnu_hash;
};

static int read_phdrs(struct pb_source *from, uint64_t base, Elf64_Ehdr *eh, Elf64_Phdr *ph)
{
    int r = pb_source_read(from, base, eh, sizeof(*eh));
    if (r < 0)
        return r;
    if (memcmp(eh->e_ident, ELFMAG, SELFMAG) != 0 || eh->e_ident[EI_CLASS] != ELFCLASS64 ||
        eh->e_ident[EI_DATA] != ELFDATA2LSB)
        return -ENOEXEC;
    if (eh->e_phentsize != sizeof(*ph) || eh->e_phnum == 0 || eh->e_phnum > MAX_PHDRS)
        return -ENOEXEC;
    return pb_source_read(from, base + eh->e_phoff, ph, eh->e_phnum * sizeof(*ph));
}

/* The first segment's address in the file is not 0 in every object: the bias is relative to it. */
static const Elf64_Phdr *place_segments(struct pb_elf *e, const Elf64_Phdr *ph, size_t n)
{
    const Elf64_Phdr *dynamic = NULL;
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        if (ph[i].p_type == PT_LOAD && ph[i].p_vaddr - ph[i].p_offset % 4096 < first)
            first = ph[i].p_vaddr - ph[i].p_offset % 4096;
        if (ph[i].p_type == PT_DYNAMIC)
            dynamic = &ph[i];
    }
    if (first == UINT64_MAX)
        return NULL;
    e->bias = e->base - (first & ~4095ull);
    for (size_t i = 0; i < n; i++) {
        if (ph[i].p_type != PT_LOAD || !(ph[i].p_flags & PF_X))
            continue;
        uint64_t start = e->bias + ph[i].p_vaddr, end = start + ph[i].p_memsz;
        if (!e->text_end || start < e->text)
            e->text = start;
        if (end > e->text_end)
            e->text_end = end;
    }
    return dynamic;
}

/* glibc leaves relocated addresses in the section, musl and the vdso those of the file. */
static uint64_t place(const struct pb_elf *e, uint64_t value)
{
    return value < e->bias ? value + e->bias : value;
}

static int read_dynamic(struct pb_source *from, const struct pb_elf *e, const Elf64_Phdr *ph,
                        struct dynamic *ret)
{
    Elf64_Dyn dyn[MAX_DYNAMIC];
    size_t n = ph->p_memsz / sizeof(dyn[0]);
    if (n > MAX_DYNAMIC)
        n = MAX_DYNAMIC;
    int r = pb_source_read(from, e->bias + ph->p_vaddr, dyn, n * sizeof(dyn[0]));
    if (r < 0)
        return r;
    struct dynamic d = {0};
    for (size_t i = 0; i < n && dyn[i].d_tag != DT_NULL; i++) {
        uint64_t value = dyn[i].d_un.d_val;
        switch (dyn[i].d_tag) {
        case DT_SYMTAB:
            d.symtab = place(e, value);
            break;
        case DT_STRTAB:
            d.strtab = place(e, value);
            break;
        case DT_STRSZ:
            d.strsz = value;
            break;
        case DT_HASH:
            d.hash = place(e, value);
            break;
        case DT_GNU_HASH:
            d.gnu_hash = place(e, value);
            break;
        }
    }
    if (!d.symtab || !d.strtab || !d.strsz || d.strsz > MAX_STRINGS)
        return -ENOEXEC;
    *ret = d;
    return 0;
}

/* The GNU table does not store the number of symbols: the end of its last chain gives it. */
static int count_by_gnu_hash(struct pb_source *from, uint64_t table, size_t *ret)
{
    struct {
        uint32_t buckets, first, bloom, shift;
    } head;
    int r = pb_source_read(from, table, &head, sizeof(head));
    if (r < 0)
        return r;
    if (head.buckets == 0 || head.buckets > MAX_SYMBOLS || head.bloom > MAX_SYMBOLS)
        return -ENOEXEC;
    _cleanup_free_ uint32_t *bucket = malloc(head.buckets * sizeof(*bucket));
    if (!bucket)
        return -ENOMEM;
    uint64_t at = table + sizeof(head) + 8ull * head.bloom;
    r = pb_source_read(from, at, bucket, head.buckets * sizeof(*bucket));
    if (r < 0)
        return r;
    uint32_t last = 0;
    for (uint32_t i = 0; i < head.buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < head.first) {
        *ret = head.first;
        return head.first <= MAX_SYMBOLS ? 0 : -ENOEXEC;
    }
    uint64_t chain = at + 4ull * head.buckets - 4ull * head.first;
    for (; last < MAX_SYMBOLS; last++) {
        uint32_t word;
        r = pb_source_read(from, chain + 4ull * last, &word, sizeof(word));
        if (r < 0)
            return r;
        if (word & 1) {
            *ret = last + 1;
            return 0;
        }
    }
    return -ENOEXEC;
}

static int count_symbols(struct pb_source *from, const struct dynamic *d, size_t *ret)
{
    if (d->gnu_hash)
        return count_by_gnu_hash(from, d->gnu_hash, ret);
    uint32_t head[2];
    if (!d->hash)
        return -ENOEXEC;
    int r = pb_source_read(from, d->hash, head, sizeof(head));
    if (r < 0)
        return r;
    if (head[1] > MAX_SYMBOLS)
        return -ENOEXEC;
    *ret = head[1];
    return 0;
}

static int read_head(struct pb_source *from, struct pb_elf *e, struct dynamic *ret)
{
    Elf64_Ehdr eh;
    Elf64_Phdr ph[MAX_PHDRS];
    int r = read_phdrs(from, e->base, &eh, ph);
    if (r < 0)
        return r;
    e->machine = eh.e_machine;
    const Elf64_Phdr *dynamic = place_segments(e, ph, eh.e_phnum);
    if (!dynamic)
        return -ENOEXEC;
    return read_dynamic(from, e, dynamic, ret);
}

int pb_elf_open(struct pb_source *from, uint64_t base, struct pb_elf *ret)
{
    _cleanup_(pb_elf_done) struct pb_elf e = {.base = base};
    struct dynamic d;

    int r = read_head(from, &e, &d);
    if (r < 0)
        return r;
    r = count_symbols(from, &d, &e.n);
    if (r < 0)
        return r;
    e.sym = malloc((e.n + 1) * sizeof(*e.sym));
    e.str = malloc(d.strsz + 1);
    e.str_len = d.strsz;
    if (!e.sym || !e.str)
        return -ENOMEM;
    r = pb_source_read(from, d.symtab, e.sym, e.n * sizeof(*e.sym));
    if (r < 0)
        return r;
    r = pb_source_read(from, d.strtab, e.str, d.strsz);
    if (r < 0)
        return r;
    e.str[d.strsz] = '\0';

    *ret = e;
    e = (struct pb_elf){0};
    return 0;
}

void pb_elf_done(struct pb_elf *e)
{
    free(e->sym);
    free(e->str);
}

bool pb_elf_at(const struct pb_elf *e, size_t i, struct pb_symbol *ret)
{
    const Elf64_Sym *s = &e->sym[i];
    if (s->st_shndx == SHN_UNDEF || s->st_name >= e->str_len)
        return false;
    *ret = (struct pb_symbol){
        .name = e->str + s->st_name,
        .addr = e->bias + s->st_value,
        .size = s->st_size,
        .type = ELF64_ST_TYPE(s->st_info),
    };
    return true;
}

int pb_elf_find(const struct pb_elf *e, const char *name, struct pb_symbol *ret)
{
    struct pb_symbol s;
    for (size_t i = 0; i < e->n; i++) {
        if (pb_elf_at(e, i, &s) && s.name[0] == name[0] && strcmp(s.name, name) == 0) {
            *ret = s;
            return 0;
        }
    }
    return -ENOENT;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

static int check_name(struct pb_source *from, const struct dynamic *d, const Elf64_Sym *sym, const char *name)
{
    char there[1024];
    size_t len = strlen(name) + 1;
    if (len > sizeof(there) || sym->st_name > d->strsz || sym->st_shndx == SHN_UNDEF)
        return -ENOENT;
    int r = pb_source_read(from, d->strtab + sym->st_name, there, len);
    if (r < 0)
        return r;
    return memcmp(there, name, len) == 0 ? 0 : -ENOENT;
}

/* Bloom filter, bucket, chain, as the loader does it. */
static int lookup_gnu(struct pb_source *from, const struct pb_elf *e, const struct dynamic *d,
                      const char *name, uint64_t *ret)
{
    struct {
        uint32_t buckets, first, bloom, shift;
    } head;
    uint64_t filter;
    uint32_t h = gnu_hash(name), i, word;
    int r = pb_source_read(from, d->gnu_hash, &head, sizeof(head));
    if (r < 0)
        return r;
    if (!head.buckets || !head.bloom || head.buckets > MAX_SYMBOLS || head.bloom > MAX_SYMBOLS)
        return -ENOEXEC;
    uint64_t at = d->gnu_hash + sizeof(head);
    r = pb_source_read(from, at + 8ull * (h / 64 % head.bloom), &filter, sizeof(filter));
    if (r < 0)
        return r;
    if (!(filter >> h % 64 & 1) || !(filter >> (h >> (head.shift & 31)) % 64 & 1))
        return -ENOENT;
    at += 8ull * head.bloom;
    r = pb_source_read(from, at + 4ull * (h % head.buckets), &i, sizeof(i));
    if (r < 0)
        return r;
    for (at += 4ull * head.buckets; i >= head.first && i < MAX_SYMBOLS; i++) {
        Elf64_Sym sym;
        r = pb_source_read(from, at + 4ull * (i - head.first), &word, sizeof(word));
        if (r < 0)
            return r;
        if ((word | 1) == (h | 1)) {
            r = pb_source_read(from, d->symtab + i * sizeof(sym), &sym, sizeof(sym));
            if (r == 0)
                r = check_name(from, d, &sym, name);
            if (r == 0)
                *ret = e->bias + sym.st_value;
            if (r != -ENOENT)
                return r;
        }
        if (word & 1)
            break;
    }
    return -ENOENT;
}

int pb_elf_lookup(struct pb_source *from, uint64_t base, const char *name, uint64_t *ret_addr)
{
    struct pb_elf head = {.base = base};
    struct dynamic d;
    int r = read_head(from, &head, &d);
    if (r < 0)
        return r;
    if (d.gnu_hash)
        return lookup_gnu(from, &head, &d, name, ret_addr);

    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    struct pb_symbol s;
    r = pb_elf_open(from, base, &e);
    if (r == 0)
        r = pb_elf_find(&e, name, &s);
    if (r == 0)
        *ret_addr = s.addr;
    return r;
}
