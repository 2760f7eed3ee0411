/* group: the process group of a collective of torch.distributed, read from outside; see python_reader.h.
 *
 * The frame of the collective has it in its variable `group`, an opaque C++ object. Its name and ranks are in
 * two dictionaries of the frame's module, with that object as the key: _pg_names, and _pg_group_ranks with a
 * dictionary of ranks for each. This holds since torch 1.0. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "remote/python/dict.h"
#include "remote/python/value.h"

#define GROUPS_MAX 4096

/* Whether there is still a frame of that code. */
static bool is_frame(struct pb_py *py, const struct pb_py_frame *f)
{
    uint64_t code;

    return read_u64(py, f->addr + py->layout.frame.code, &code) == 0 && untag(py, code) == f->code->addr;
}

static bool is_none(struct pb_py *py, uint64_t object)
{
    char text[VALUE_SIZE];
    struct value_out o = {.py = py, .buf = text, .size = sizeof(text)};

    pb_py_put_value(&o, object, 0);
    return strcmp(text, "None") == 0;
}

/* Looks up this very object as a key in the module's dictionary of that name. */
static int find_by_object(struct pb_py *py, uint64_t globals, const char *name, uint64_t object,
                          uint64_t *ret)
{
    uint64_t dict, key, value;
    struct items it;

    int r = pb_py_dict_get(py, globals, name, &dict);
    if (r == 0)
        r = pb_py_items_of_dict(py, dict, &it);
    for (int n = 0; r == 0 && n < GROUPS_MAX && pb_py_items_next(py, &it, &key, &value) == 1; n++)
        if (key == object) {
            *ret = value;
            return 0;
        }
    return r < 0 ? r : -ENOENT;
}

/* The default group, used where the call names none. */
static int find_default(struct pb_py *py, uint64_t globals, uint64_t *ret)
{
    uint64_t world;

    int r = pb_py_dict_get(py, globals, "_world", &world);
    return r < 0 ? pb_py_dict_get(py, globals, "_default_pg", ret) /* before torch 2.0 */
                 : pb_py_attribute(py, world, "_default_pg", ret);
}

static int by_number(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The keys of the dictionary are the ranks in the whole job. */
static int read_ranks(struct pb_py *py, uint64_t dict, struct pb_py_group *ret)
{
    struct items it;
    uint64_t key, value;
    char text[VALUE_SIZE];

    int r = pb_py_items_of_dict(py, dict, &it);
    if (r < 0 || it.n > PB_PY_GROUP_RANKS || it.n == 0)
        return r < 0 ? r : -ENOENT;
    int *ranks = calloc(it.n, sizeof(*ranks));
    if (!ranks)
        return -ENOMEM;
    size_t n = 0;
    while (r == 0 && n < it.n && !is_late(&py->budget) && pb_py_items_next(py, &it, &key, &value) == 1) {
        struct value_out o = {.py = py, .buf = text, .size = sizeof(text)};
        char *end;
        pb_py_put_value(&o, key, 0);
        long rank = strtol(text, &end, 10);
        if (end == text || *end || rank < 0 || rank > INT32_MAX)
            r = -EBADMSG;
        else
            ranks[n++] = (int)rank;
    }
    if (r < 0 || n == 0) {
        free(ranks);
        return r < 0 ? r : -ENOENT;
    }
    qsort(ranks, n, sizeof(*ranks), by_number);
    ret->ranks = ranks;
    ret->n = n;
    return 0;
}

int pb_py_process_group(struct pb_py *py, const struct pb_py_frame *f, struct pb_py_group *ret)
{
    struct pb_py_group found = {0};
    uint64_t globals, group, name, ranks;

    if (!is_frame(py, f))
        return -ESRCH;
    int r = read_u64(py, f->addr + py->layout.frame.globals, &globals);
    if (r == 0)
        r = pb_py_local(py, f, "group", &group);
    if (r == 0 && is_none(py, group))
        r = find_default(py, globals, &group);
    if (r == 0)
        r = find_by_object(py, globals, "_pg_names", group, &name);
    if (r == 0)
        r = pb_py_text(py, name, found.name, sizeof(found.name), NULL);
    if (r < 0)
        return r;
    /* A name without ranks is useful too. */
    if (find_by_object(py, globals, "_pg_group_ranks", group, &ranks) == 0)
        read_ranks(py, ranks, &found);
    *ret = found;
    return 0;
}
