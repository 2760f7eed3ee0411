/* object: see object.h. */
#include "remote/native/object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remote/source.h"

enum {
    MAX_PHDRS = 64,
    MAX_SECTIONS = 4096,
    MAX_NOTE = 4096,
    MAX_NAMES = 256 << 10, /* bytes, of the sections */
};

int pb_object_read_file(const struct pb_object *o, uint64_t offset, void *buf, size_t len)
{
    if (o->fd < 0)
        return -ENOTSUP;
    if (offset > INT64_MAX - len)
        return -EFAULT;
    ssize_t n = pread(o->fd, buf, len, (off_t)offset);
    if (n < 0)
        return -errno;
    return (size_t)n == len ? 0 : -EFAULT;
}

ssize_t pb_object_read_some(const struct pb_object *o, uint64_t addr, void *buf, size_t len)
{
    if (o->fd < 0)
        return pb_source_read_some(o->memory, o->bias + addr, buf, len);
    for (unsigned i = 0; i < o->nsegments; i++) {
        const struct pb_segment *s = &o->segment[i];
        uint64_t in = addr - s->addr;
        if (addr < s->addr || in >= s->filesz)
            continue;
        if (len > s->filesz - in)
            len = s->filesz - in;
        ssize_t n = pread(o->fd, buf, len, (off_t)(s->offset + in));
        return n < 0 ? -errno : n;
    }
    return -EFAULT;
}

int pb_object_read(const struct pb_object *o, uint64_t addr, void *buf, size_t len)
{
    ssize_t n = pb_object_read_some(o, addr, buf, len);
    if (n < 0)
        return (int)n;
    return (size_t)n == len ? 0 : -EFAULT;
}

static int check_header(const Elf64_Ehdr *eh)
{
    if (memcmp(eh->e_ident, ELFMAG, SELFMAG) != 0 || eh->e_ident[EI_CLASS] != ELFCLASS64 ||
        eh->e_ident[EI_DATA] != ELFDATA2LSB)
        return -ENOEXEC;
    if (eh->e_phentsize != sizeof(Elf64_Phdr) || eh->e_phnum == 0 || eh->e_phnum > MAX_PHDRS)
        return -ENOEXEC;
    return 0;
}

static void add_segment(struct pb_object *o, const Elf64_Phdr *ph)
{
    if (o->nsegments == PB_OBJECT_SEGMENTS || ph->p_offset > INT64_MAX - ph->p_filesz || !ph->p_memsz)
        return;
    o->segment[o->nsegments++] = (struct pb_segment){
        .addr = ph->p_vaddr,
        .offset = ph->p_offset,
        .filesz = ph->p_filesz,
        .memsz = ph->p_memsz,
        .flags = ph->p_flags,
    };
}

static void take_headers(struct pb_object *o, const Elf64_Ehdr *eh, const Elf64_Phdr *ph)
{
    o->machine = eh->e_machine;
    for (unsigned i = 0; i < eh->e_phnum; i++) {
        switch (ph[i].p_type) {
        case PT_LOAD:
            add_segment(o, &ph[i]);
            break;
        case PT_GNU_EH_FRAME:
            o->hdr_addr = ph[i].p_vaddr;
            o->hdr_size = ph[i].p_memsz;
            break;
        case PT_DYNAMIC:
            o->dynamic = ph[i].p_vaddr;
            o->dynamic_size = ph[i].p_memsz;
            break;
        }
    }
}

/* Reads all section headers at once: a dozen are looked up by name. Without them an object can still be
 * unwound. */
static void read_sections(struct pb_object *o, const Elf64_Ehdr *eh)
{
    if (eh->e_shentsize != sizeof(Elf64_Shdr) || eh->e_shnum > MAX_SECTIONS || eh->e_shstrndx >= eh->e_shnum)
        return;
    Elf64_Shdr *section = reallocarray(NULL, eh->e_shnum, sizeof(*section));
    int r = section ? pb_object_read_file(o, eh->e_shoff, section, eh->e_shnum * sizeof(*section)) : -ENOMEM;
    uint64_t len = r == 0 ? section[eh->e_shstrndx].sh_size : MAX_NAMES;
    char *names = len < MAX_NAMES ? malloc(len + 1) : NULL;
    if (!names || pb_object_read_file(o, section[eh->e_shstrndx].sh_offset, names, len) < 0) {
        free(section);
        free(names);
        return;
    }
    names[len] = '\0';
    o->section = section;
    o->nsections = eh->e_shnum;
    o->names = names;
    o->names_len = len;
}

static void take_build_id(struct pb_object *o, const unsigned char *note, size_t len)
{
    while (len >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr h;
        memcpy(&h, note, sizeof(h));
        size_t name = (h.n_namesz + 3ull) & ~3ull, desc = (h.n_descsz + 3ull) & ~3ull;
        if (name > len - sizeof(h) || desc > len - sizeof(h) - name)
            return;
        const unsigned char *id = note + sizeof(h) + name;
        if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && memcmp(note + sizeof(h), "GNU", 4) == 0) {
            for (size_t i = 0; i < h.n_descsz && i < 32; i++)
                snprintf(o->build_id + 2 * i, 3, "%02x", id[i]);
            return;
        }
        note = id + desc;
        len -= sizeof(h) + name + desc;
    }
}

static void read_notes(struct pb_object *o, const Elf64_Ehdr *eh, const Elf64_Phdr *ph)
{
    unsigned char note[MAX_NOTE];
    for (unsigned i = 0; i < eh->e_phnum && !o->build_id[0]; i++) {
        if (ph[i].p_type != PT_NOTE || ph[i].p_filesz > sizeof(note))
            continue;
        if (pb_object_read(o, ph[i].p_vaddr, note, ph[i].p_filesz) == 0)
            take_build_id(o, note, ph[i].p_filesz);
    }
}

int pb_object_open(int fd, struct pb_object *ret)
{
    struct pb_object o = {.fd = fd};
    Elf64_Ehdr eh;
    Elf64_Phdr ph[MAX_PHDRS];

    int r = pb_object_read_file(&o, 0, &eh, sizeof(eh));
    if (r == 0)
        r = check_header(&eh);
    if (r == 0)
        r = pb_object_read_file(&o, eh.e_phoff, ph, eh.e_phnum * sizeof(ph[0]));
    if (r < 0) {
        close(fd);
        return r == -EFAULT ? -ENOEXEC : r;
    }
    take_headers(&o, &eh, ph);
    read_notes(&o, &eh, ph);
    read_sections(&o, &eh);
    *ret = o;
    return 0;
}

int pb_object_map(struct pb_source *memory, uint64_t base, struct pb_object *ret)
{
    struct pb_object o = {.fd = -1, .memory = memory, .bias = base};
    Elf64_Ehdr eh;
    Elf64_Phdr ph[MAX_PHDRS];

    int r = pb_source_read(memory, base, &eh, sizeof(eh));
    if (r == 0)
        r = check_header(&eh);
    if (r == 0)
        r = pb_source_read(memory, base + eh.e_phoff, ph, eh.e_phnum * sizeof(ph[0]));
    if (r < 0)
        return r;
    take_headers(&o, &eh, ph);
    uint64_t first = UINT64_MAX;
    for (unsigned i = 0; i < o.nsegments; i++)
        if (o.segment[i].addr - o.segment[i].offset < first)
            first = o.segment[i].addr - o.segment[i].offset;
    o.bias = base - (first == UINT64_MAX ? 0 : first & ~4095ull);
    read_notes(&o, &eh, ph);
    *ret = o;
    return 0;
}

void pb_object_done(struct pb_object *o)
{
    if (o->fd >= 0)
        close(o->fd);
    free(o->index.at);
    free(o->section);
    free(o->names);
}

int pb_object_section_at(const struct pb_object *o, unsigned index, struct pb_section *ret)
{
    if (index >= o->nsections)
        return -ENOENT;
    const Elf64_Shdr *sh = &o->section[index];
    *ret = (struct pb_section){
        .addr = sh->sh_addr,
        .offset = sh->sh_offset,
        .size = sh->sh_type == SHT_NOBITS ? 0 : sh->sh_size,
        .link = sh->sh_link,
        .type = sh->sh_type,
        .flags = sh->sh_flags,
    };
    return 0;
}

int pb_object_section(const struct pb_object *o, const char *name, struct pb_section *ret)
{
    for (unsigned i = 0; i < o->nsections; i++)
        if (o->section[i].sh_name < o->names_len && strcmp(o->names + o->section[i].sh_name, name) == 0)
            return pb_object_section_at(o, i, ret);
    return -ENOENT;
}

int pb_object_address_of(const struct pb_object *o, uint64_t offset, uint64_t *ret)
{
    for (unsigned i = 0; i < o->nsegments; i++) {
        const struct pb_segment *s = &o->segment[i];
        /* A mapping starts at a page, a segment anywhere in it. */
        uint64_t first = s->offset & ~4095ull;
        if (!(s->flags & PF_X) || offset < first || offset >= s->offset + s->filesz)
            continue;
        *ret = s->addr - s->offset + offset;
        return 0;
    }
    return -ENOENT;
}
