/* find: where a process has CPython, which version it is, and which layout fits.
 *
 * By symbols of the mapped objects, never by running or opening what the target names: libpython, else the
 * program itself, else whichever object has the symbols. From 3.13 on the runtime tells its offsets. Before,
 * the version comes from Py_Version (3.11 on) or the file's name, and where that fails every table is tried;
 * what is taken is checked in each case: an interpreter must have a thread that points back at it. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/python/internal.h"

struct place {
    uint64_t runtime;       /* _PyRuntime; 0: before 3.7 */
    uint64_t current;       /* 3.6: _PyThreadState_Current */
    uint64_t head_function; /* 3.6: PyInterpreterState_Head */
    uint32_t version;       /* 0: not told */
};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* "libpython3.8.so.1.0", "python3.11": 0x0308, 0x030b. 0: no version in it. */
static unsigned version_in(const char *name)
{
    const char *at = strstr(name, "python3.");
    unsigned minor = at && isdigit((unsigned char)at[8]) ? (unsigned)strtoul(at + 8, NULL, 10) : 0;
    return minor && minor < 256 ? 0x0300 | minor : 0;
}

static int look_into(struct pb_py *py, const struct pb_map *map, struct place *ret)
{
    struct place p = {0};
    uint64_t addr, version;
    struct pb_source *from = py->source;

    if (pb_elf_lookup(from, map->start, "_PyRuntime", &p.runtime) < 0 &&
        (pb_elf_lookup(from, map->start, "_PyThreadState_Current", &p.current) < 0 ||
         pb_elf_lookup(from, map->start, "PyInterpreterState_Head", &p.head_function) < 0))
        return -ENOENT;
    if (pb_elf_lookup(from, map->start, "Py_Version", &addr) == 0 && read_u64(py, addr, &version) == 0 &&
        version >> 24 == 3)
        p.version = (uint32_t)version >> 8;
    else if (version_in(pb_maps_base(map)))
        p.version = version_in(pb_maps_base(map)) << 8 | 0xff;
    *ret = p;
    return 0;
}

static bool is_object(const struct pb_map *map)
{
    return map->offset == 0 && map->inode && (map->prot & 1);
}

/* In the order in which it is likely: libpython, the program, any other. */
static int find_place(struct pb_py *py, const struct pb_maps *maps, struct place *ret)
{
    char exe[4096];

    if (pb_source_exe(py->source, exe, sizeof(exe)) < 0)
        exe[0] = '\0';
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < maps->n; i++) {
            const struct pb_map *map = &maps->at[i];
            bool python = begins(pb_maps_base(map), "libpython3"), program = strcmp(map->path, exe) == 0;
            if (is_object(map) &&
                (pass == 0   ? python
                 : pass == 1 ? program
                             : !python && !program) &&
                look_into(py, map, ret) == 0)
                return 0;
        }
    return -ENOENT;
}

/* 3.6 keeps the list of interpreters in a static variable, which PyInterpreterState_Head returns: its first
 * instruction says where, "mov rel32(%rip), %rax". */
static uint64_t head_of_3_6(struct pb_py *py, uint64_t function)
{
    static const uint8_t endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa}, mov[] = {0x48, 0x8b, 0x05};
    uint8_t text[16];
    size_t at;

    if (pb_source_read(py->source, function, text, sizeof(text)) < 0)
        return 0;
    at = memcmp(text, endbr64, sizeof(endbr64)) == 0 ? sizeof(endbr64) : 0;
    if (memcmp(text + at, mov, sizeof(mov)) != 0)
        return 0;
    return function + at + 7 + (uint64_t)(int64_t)(int32_t)u32_at(text, at + 3);
}

static void take_layout(struct pb_py *py, const struct pb_py_layout *layout, const struct place *p)
{
    py->layout = *layout;
    py->interp_head =
        p->runtime ? p->runtime + layout->runtime.interp_head : head_of_3_6(py, p->head_function);
    py->runtime_gil = p->runtime && layout->runtime.gil ? p->runtime + layout->runtime.gil : 0;
    py->current = !p->runtime               ? p->current
                  : layout->runtime.current ? p->runtime + layout->runtime.current
                                            : 0;
}

/* Whether what is there looks like an interpreter with a thread, read by this layout. */
static bool fits(struct pb_py *py)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t interp, tstate, back;

    return py->interp_head && read_u64(py, py->interp_head, &interp) == 0 && interp &&
           read_u64(py, interp + l->interp.tstate_head, &tstate) == 0 && tstate &&
           read_u64(py, tstate + l->tstate.interp, &back) == 0 && back == interp;
}

/* The tables that can be meant where a process does not tell its offsets, the likely one first. */
static int try_tables(struct pb_py *py, const struct place *p)
{
    const struct pb_py_layout *named = pb_py_layout_find(p->version >> 8);

    if (named && (named->version == 0x0306) == !p->runtime) {
        py->version = p->version;
        take_layout(py, named, p);
        if (fits(py))
            return 0;
    }
    for (size_t i = 0; pb_py_layouts[i] && pb_py_layouts[i]->version < 0x030d; i++) {
        if ((pb_py_layouts[i]->version == 0x0306) != !p->runtime)
            continue;
        py->version = (uint32_t)pb_py_layouts[i]->version << 8 | 0xff;
        take_layout(py, pb_py_layouts[i], p);
        if (fits(py))
            return 0;
    }
    return -ENOTSUP;
}

static int take_told(struct pb_py *py, const struct place *p, bool force)
{
    uint8_t told[PB_PY_OFFSETS_SIZE];
    struct pb_py_layout layout;

    int r = p->runtime ? pb_source_read(py->source, p->runtime, told, sizeof(told)) : -ENOENT;
    if (r == 0)
        r = pb_py_layout_told(told, force, &layout, &py->version, &py->free_threaded);
    if (r == 0)
        take_layout(py, &layout, p);
    return r;
}

static int choose_layout(struct pb_py *py, const struct place *p, bool force, struct pb_err *err)
{
    int r = take_told(py, p, force);
    if (r == -ENOTSUP)
        return pb_fail(err, r,
                       "CPython %u.%u is newer than this release knows (--force tries the nearest layout)",
                       py->version >> 16, py->version >> 8 & 0xff);
    if (r == -EBADMSG)
        return pb_fail(err, r, "its CPython tells offsets that cannot be");
    if (r < 0)
        r = try_tables(py, p);
    if (r < 0)
        return pb_fail(err, r,
                       "it has CPython, but no known layout (3.6 to 3.15) fits it, or it is only starting");
    if (py->free_threaded)
        return pb_fail(err, -ENOTSUP,
                       "its CPython %u.%u is a free-threaded build, whose stacks cannot be read yet",
                       py->version >> 16, py->version >> 8 & 0xff);
    return 0;
}

int pb_py_find(struct pb_py *py, bool force, struct pb_err *err)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    struct place p;

    int r = pb_source_maps(py->source, &maps, err);
    if (r < 0)
        return r;
    r = find_place(py, &maps, &p);
    if (r < 0)
        return pb_fail(err, r, "there is no CPython in it");
    return choose_layout(py, &p, force, err);
}
