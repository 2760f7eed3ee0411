/* find: which CPython a target has, and which layout fits it.
 *
 * Nothing that the target names is ever run. From 3.13 on the runtime stores its own offsets, which are
 * checked; where they cannot be right the tables are tried. Before, the version comes from Py_Version (3.11
 * on), from sys.hexversion, or from a file's name. The result is checked in each case: an interpreter must
 * have a thread that points back at it, and its sys module must be where the layout says and name that
 * version. */
#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/loaded.h"
#include "remote/maps.h"
#include "remote/python/dict.h"
#include "remote/python/runtime_place.h"

#define OLDEST_WITH_RUNTIME  0x0307
#define FIRST_THAT_PUBLISHES 0x030d

/* Up to 3.6 the list of interpreters is in a static variable, which PyInterpreterState_Head returns: its
 * first instruction, "mov rel32(%rip), %rax", has the address. The result is checked like any other. */
static uint64_t head_by_code(struct pb_py *py, uint64_t function)
{
    static const uint8_t endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa}, mov[] = {0x48, 0x8b, 0x05};
    uint8_t text[16];
    size_t at;

    if (!function || pb_source_read(py->source, function, text, sizeof(text)) < 0)
        return 0;
    at = memcmp(text, endbr64, sizeof(endbr64)) == 0 ? sizeof(endbr64) : 0;
    if (memcmp(text + at, mov, sizeof(mov)) != 0)
        return 0;
    return function + at + 7 + (uint64_t)(int64_t)(int32_t)u32_at(text, at + 3);
}

void pb_py_take_layout(struct pb_py *py, const struct pb_py_layout *layout, const struct place *p)
{
    py->layout = *layout;
    if (!p->runtime) {
        py->interp_head = p->head ? p->head : head_by_code(py, p->head_function);
        py->runtime_gil = 0;
        py->current = p->current;
        return;
    }
    py->interp_head = p->runtime + layout->runtime.interp_head;
    py->runtime_gil = layout->runtime.gil ? p->runtime + layout->runtime.gil : 0;
    py->current = layout->runtime.current ? p->runtime + layout->runtime.current : 0;
}

bool pb_py_fits(struct pb_py *py)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t interp, tstate, back;

    return py->interp_head && read_u64(py, py->interp_head, &interp) == 0 && interp &&
           read_u64(py, interp + l->interp.tstate_head, &tstate) == 0 && tstate &&
           read_u64(py, tstate + l->tstate.interp, &back) == 0 && back == interp;
}

/* Whether the object's type has that name. */
static bool is_a(struct pb_py *py, uint64_t object, const char *type)
{
    uint64_t at;
    char text[16];
    size_t len = strlen(type) + 1;

    return object % 8 == 0 && len <= sizeof(text) &&
           read_u64(py, object + py->layout.object.type, &at) == 0 &&
           read_u64(py, at + py->layout.type.name, &at) == 0 &&
           pb_source_read(py->source, at, text, len) == 0 && memcmp(text, type, len) == 0;
}

uint32_t pb_py_sys_version(struct pb_py *py)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t interp, sys, number;
    uint32_t digit;

    if (read_u64(py, py->interp_head, &interp) < 0 || read_u64(py, interp + l->interp.sysdict, &sys) < 0 ||
        !is_a(py, sys, "dict") || pb_py_dict_get(py, sys, "hexversion", &number) < 0 ||
        !is_a(py, number, "int") ||
        pb_source_read(py->source, number + l->integer.digits, &digit, sizeof(digit)) < 0)
        return 0;
    return digit >> 24 == 3 ? digit >> 8 : 0;
}

static bool try_table(struct pb_py *py, const struct pb_py_layout *layout, const struct place *p)
{
    pb_py_take_layout(py, layout, p);
    if (!pb_py_fits(py))
        return false;
    /* Tables of versions that store their offsets differ little: sys itself must be found by this one. */
    bool ask = !p->exact || layout->version >= FIRST_THAT_PUBLISHES;
    uint32_t reported = ask ? pb_py_sys_version(py) : p->version;
    py->version = p->exact ? p->version : reported;
    return py->version >> 8 == layout->version && reported >> 8 == layout->version;
}

/* Tries the possible tables for a process without stored offsets, the most likely first. */
static int try_tables(struct pb_py *py, const struct place *p, bool force)
{
    const struct pb_py_layout *named = pb_py_layout_find(p->version >> 8, false);

    if (named && (named->version < OLDEST_WITH_RUNTIME) == !p->runtime && try_table(py, named, p))
        return 0;
    for (size_t i = 0; !p->exact && pb_py_layouts[i].version < FIRST_THAT_PUBLISHES; i++)
        if ((pb_py_layouts[i].version < OLDEST_WITH_RUNTIME) == !p->runtime &&
            try_table(py, &pb_py_layouts[i], p))
            return 0;
    if (!force || !p->version)
        return -ENOTSUP;
    py->version = p->version;
    pb_py_take_layout(py, pb_py_layout_nearest(p->version >> 8, false), p);
    return pb_py_fits(py) ? 0 : -ENOTSUP;
}

static int take_published(struct pb_py *py, const struct place *p, bool force, struct pb_err *err)
{
    uint8_t offsets[PB_PY_OFFSETS_SIZE];
    struct pb_py_layout layout;

    int r = p->runtime ? pb_source_read(py->source, p->runtime, offsets, sizeof(offsets)) : -ENOENT;
    if (r == 0)
        r = pb_py_layout_published(offsets, force, &layout, &py->version, err);
    if (r == 0)
        pb_py_take_layout(py, &layout, p);
    return r;
}

/* The offsets that the process stores are refused, or do not fit: one of the tables may. */
static int fall_back(struct pb_py *py, const struct place *p, const struct pb_err *why)
{
    struct pb_py_layout published = py->layout;
    uint32_t version = py->version;

    for (size_t i = 0; pb_py_layouts[i].version; i++) {
        if (pb_py_layouts[i].version < FIRST_THAT_PUBLISHES || !try_table(py, &pb_py_layouts[i], p))
            continue;
        snprintf(py->note, sizeof(py->note), "%s; the offsets of CPython %u.%u are used", why->text,
                 py->version >> 16, py->version >> 8 & 0xff);
        return 0;
    }
    pb_py_take_layout(py, &published, p);
    py->version = version;
    return -ENOENT;
}

/* -ENOENT: it stores no offsets. */
static int choose_stored_offsets(struct pb_py *py, const struct place *p, bool force, struct pb_err *err)
{
    struct pb_err why = {0};

    int r = take_published(py, p, force, &why);
    if (r == 0 && !pb_py_layout_is_known(&py->layout) &&
        (!pb_py_fits(py) || pb_py_sys_version(py) >> 8 != py->layout.version))
        pb_fail(&why, r, "its CPython stores offsets that cannot be used");
    else if (r == -ENOTSUP)
        pb_fail(&why, r, "CPython %u.%u is newer than this release knows (--force tries the nearest layout)",
                py->version >> 16, py->version >> 8 & 0xff);
    else if (r != -EBADMSG)
        return r;
    if (fall_back(py, p, &why) == 0)
        return 0;
    /* It may be starting just now, and its offsets still be right. */
    return r == 0 ? 0 : pb_fail(err, r, "%s", why.text);
}

static int choose_layout(struct pb_py *py, const struct place *p, bool force, struct pb_err *err)
{
    if (p->version && p->version >> 16 != 3)
        return pb_fail(err, -ENOTSUP, "CPython %u.%u cannot be read, only 3.4 to 3.15", p->version >> 16,
                       p->version >> 8 & 0xff);
    py->note[0] = '\0';
    int r = choose_stored_offsets(py, p, force, err);
    if (r == -ENOTSUP || r == -EBADMSG)
        return r;
    if (r < 0)
        r = try_tables(py, p, force);
    if (r < 0 && p->version && !pb_py_layout_find(p->version >> 8, false))
        return pb_fail(err, r,
                       "CPython %u.%u is not supported by this release (3.4 to 3.15; --force tries the "
                       "nearest layout)",
                       p->version >> 16, p->version >> 8 & 0xff);
    if (r < 0)
        return pb_fail(err, r,
                       "it has CPython, but no known layout (3.4 to 3.15) fits it, or it is only starting "
                       "(then try again)");
    return 0;
}

int pb_py_find(struct pb_py *py, bool force, struct pb_err *err)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0}, likely = {0};
    struct place p = {0};
    struct pb_err why = {0};

    /* Nearly always right, and needs no list of all mappings. */
    if (pb_loaded_find(py->source, "libpython3", &likely) == 0 &&
        pb_py_place_by_symbols(py, &likely, &p) == 0 && choose_layout(py, &p, force, NULL) == 0)
        return 0;
    int r = pb_source_maps(py->source, &maps, err);
    if (r < 0)
        return r;
    int found = pb_py_place_by_symbols(py, &maps, &p);
    if (found < 0)
        found = pb_py_place_by_files(py, &maps, &p);
    if (found == 0) {
        r = choose_layout(py, &p, force, &why);
        /* Before 3.7 there may be symbols without the address of the list of interpreters. */
        if (r == 0 || p.runtime || p.version >> 16 == 2) {
            if (r < 0 && err)
                *err = why;
            return r;
        }
    }
    if (pb_py_place_by_scan(py, &maps, &p) == 0)
        return choose_layout(py, &p, force, err);
    if (found == 0 && err)
        *err = why;
    return found == 0 ? r : pb_fail(err, -ENOENT, "there is no CPython in it");
}
