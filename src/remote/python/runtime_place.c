/* runtime_place: see runtime_place.h. Paths of the target are never trusted: a file is read only if it is the
 * mapped one, and the result is checked against memory afterwards: the layout must fit. */
#include "remote/python/runtime_place.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/native/object.h"
#include "remote/openin.h"

enum {
    FILES_MAX = 1024,
    STRINGS_MAX = 64 << 20,  /* bytes of names of one file */
    SYMBOLS_MAX = 4 << 20,   /* symbols of one file */
    FILES_BYTES = 256 << 20, /* of all files together */
    SYMBOLS_AT_ONCE = 4096,
    SPELLINGS = 4, /* places in the table of names that end in this name */
};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* "libpython3.8.so.1.0", "python2.7": 0x0308, 0x0207. 0: no version in it. */
static unsigned version_in(const char *name)
{
    const char *at = strstr(name, "python");
    if (!at || !isdigit((unsigned char)at[6]) || at[7] != '.' || !isdigit((unsigned char)at[8]))
        return 0;
    unsigned long minor = strtoul(at + 8, NULL, 10);
    return minor < 256 ? (unsigned)(at[6] - '0') << 8 | (unsigned)minor : 0;
}

static void name_version(struct pb_py *py, const struct pb_map *map, uint64_t py_version, struct place *p)
{
    uint64_t version;

    if (py_version && read_u64(py, py_version, &version) == 0 && version >> 24 == 3) {
        p->version = (uint32_t)version >> 8;
        p->exact = true;
    } else if (version_in(pb_maps_base(map))) {
        p->version = version_in(pb_maps_base(map)) << 8 | 0xff;
    }
}

static int ask_symbols(struct pb_py *py, const struct pb_map *map, struct place *ret)
{
    struct place p = {0};
    uint64_t version = 0;
    struct pb_source *from = py->source;

    if (pb_elf_lookup(from, map->start, "_PyRuntime", &p.runtime) < 0 &&
        (pb_elf_lookup(from, map->start, "_PyThreadState_Current", &p.current) < 0 ||
         pb_elf_lookup(from, map->start, "PyInterpreterState_Head", &p.head_function) < 0))
        return -ENOENT;
    pb_elf_lookup(from, map->start, "Py_Version", &version);
    name_version(py, map, version, &p);
    *ret = p;
    return 0;
}

/* A symbol that is searched for in a file. Several names may share their end in the table of names. */
struct wanted_symbols {
    const char *name;
    uint32_t spelled[SPELLINGS];
    unsigned n;
    uint64_t addr; /* 0: not found */
};

static void find_spellings(const char *names, size_t len, struct wanted_symbols *w)
{
    size_t size = strlen(w->name) + 1;

    for (const char *at = names; w->n < SPELLINGS; at++) {
        at = memmem(at, len - (size_t)(at - names), w->name, size);
        if (!at)
            return;
        w->spelled[w->n++] = (uint32_t)(at - names);
    }
}

static void compare_symbols(const Elf64_Sym *sym, size_t nsym, struct wanted_symbols *wanted, size_t nwanted)
{
    for (size_t i = 0; i < nsym; i++) {
        if (sym[i].st_shndx == SHN_UNDEF || ELF64_ST_TYPE(sym[i].st_info) != STT_OBJECT)
            continue;
        for (size_t k = 0; k < nwanted; k++)
            for (unsigned s = 0; s < wanted[k].n; s++)
                if (sym[i].st_name == wanted[k].spelled[s])
                    wanted[k].addr = sym[i].st_value;
    }
}

/* Goes through .symtab once; addresses of symbols not found stay 0. */
static void search_symbols(const struct pb_object *o, struct wanted_symbols *wanted, size_t nwanted,
                           int64_t *left)
{
    struct pb_section table, strings;

    if (pb_object_section(o, ".symtab", &table) < 0 || pb_object_section_at(o, table.link, &strings) < 0)
        return;
    size_t n = table.size / sizeof(Elf64_Sym), spelled = 0;
    if (strings.size == 0 || strings.size > STRINGS_MAX || n > SYMBOLS_MAX ||
        (*left -= (int64_t)(strings.size + table.size)) < 0)
        return;
    _cleanup_free_ char *names = malloc(strings.size + 1);
    _cleanup_free_ Elf64_Sym *sym = reallocarray(NULL, SYMBOLS_AT_ONCE, sizeof(*sym));
    if (!names || !sym || pb_object_read_file(o, strings.offset, names, strings.size) < 0)
        return;
    names[strings.size] = '\0';
    for (size_t k = 0; k < nwanted; k++) {
        find_spellings(names, strings.size + 1, &wanted[k]);
        spelled += wanted[k].n;
    }
    for (size_t i = 0; spelled && i < n; i += SYMBOLS_AT_ONCE) {
        size_t some = n - i < SYMBOLS_AT_ONCE ? n - i : SYMBOLS_AT_ONCE;
        if (pb_object_read_file(o, table.offset + i * sizeof(*sym), sym, some * sizeof(*sym)) < 0)
            return;
        compare_symbols(sym, some, wanted, nwanted);
    }
}

static int open_file(struct pb_py *py, const struct pb_map *map, bool program, struct pb_object *ret)
{
    struct pb_source *from = py->source;
    pid_t pid = from->pid;

    if (from->ops->open_file) {
        int theirs = from->ops->open_file(from, map->path, map->inode, map->start);
        return theirs < 0 ? theirs : pb_object_open(theirs, ret);
    }
    int fd = pb_open_mapped(pid, map->start, map->end);
    if (fd < 0 && program)
        fd = pb_open_program(pid);
    if (fd < 0)
        fd = pb_open_in_root(pid, map->path, map->inode);
    return fd < 0 ? fd : pb_object_open(fd, ret);
}

static int ask_file(struct pb_py *py, const struct pb_map *map, bool program, int64_t *left,
                    struct place *ret)
{
    _cleanup_(pb_object_done) struct pb_object o = {.fd = -1};
    struct wanted_symbols wanted[] = {{.name = "_PyRuntime"},
                                      {.name = "interp_head"},
                                      {.name = "_PyThreadState_Current"},
                                      {.name = "Py_Version"}};
    struct pb_section runtime;

    int r = open_file(py, map, program, &o);
    if (r < 0 || o.nsegments == 0)
        return -ENOENT;
    uint64_t bias = map->start - (o.segment[0].addr - o.segment[0].offset);
    if (pb_object_section(&o, ".PyRuntime", &runtime) == 0)
        wanted[0].addr = runtime.addr;
    search_symbols(&o, wanted, sizeof(wanted) / sizeof(wanted[0]), left);
    if (!wanted[0].addr && !(wanted[1].addr && wanted[2].addr))
        return -ENOENT;
    struct place p = {.runtime = wanted[0].addr ? bias + wanted[0].addr : 0};
    if (!p.runtime) {
        p.head = bias + wanted[1].addr;
        p.current = bias + wanted[2].addr;
    }
    name_version(py, map, wanted[3].addr ? bias + wanted[3].addr : 0, &p);
    *ret = p;
    return 0;
}

static bool is_object(const struct pb_map *map)
{
    return map->offset == 0 && map->inode && (map->prot & PROT_READ);
}

/* Tries the objects in the order of likelihood until one has the runtime: libpython, the program, any
 * other. */
static int try_objects(struct pb_py *py, const struct pb_maps *maps, bool files, struct place *ret)
{
    char exe[4096];
    int64_t left = FILES_BYTES;
    int tried = 0;

    if (pb_source_exe(py->source, exe, sizeof(exe)) < 0)
        exe[0] = '\0';
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < maps->n && tried < FILES_MAX; i++) {
            const struct pb_map *map = &maps->at[i];
            bool python = begins(pb_maps_base(map), "libpython"), program = strcmp(map->path, exe) == 0;
            int now = python ? 0 : program ? 1 : 2;
            if (!is_object(map) || now != pass)
                continue;
            tried += files;
            int r = files ? ask_file(py, map, program, &left, ret) : ask_symbols(py, map, ret);
            if (r == 0)
                return 0;
        }
    return -ENOENT;
}

int pb_py_place_by_symbols(struct pb_py *py, const struct pb_maps *maps, struct place *ret)
{
    return try_objects(py, maps, false, ret);
}

int pb_py_place_by_files(struct pb_py *py, const struct pb_maps *maps, struct place *ret)
{
    return try_objects(py, maps, true, ret);
}
