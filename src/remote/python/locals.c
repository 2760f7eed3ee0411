/* locals: the arguments and local variables of a frame; see python_reader.h. Names come from the code object,
 * values from the slots of the frame; variables shared with inner functions are in a cell. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/python/value.h"

#define LOCALS_MAX 64

enum { KIND_HIDDEN = 0x10 };

struct names {
    uint64_t tuples[3];
    uint64_t counts[3];
    uint64_t kinds; /* bytes object; 0: none */
};

static int open_names(struct pb_py *py, const struct code *code, struct names *ret)
{
    struct names n = {.tuples = {code->varnames, code->cellvars, code->freevars}, .kinds = code->kinds};

    for (int i = 0; i < 3; i++) {
        int r = n.tuples[i] ? read_u64(py, n.tuples[i] + py->layout.tuple.size, &n.counts[i]) : 0;
        if (r < 0)
            return r;
        if (n.counts[i] > 1 << 16)
            return -EBADMSG;
    }
    *ret = n;
    return 0;
}

static int name_of(struct pb_py *py, const struct names *n, uint64_t slot, char *ret, size_t size)
{
    uint64_t text;
    uint8_t kind;
    int which = 0;

    if (n->kinds && pb_source_read(py->source, n->kinds + py->layout.bytes.data + slot, &kind, 1) == 0 &&
        kind & KIND_HIDDEN)
        return -ENOENT;
    while (which < 3 && slot >= n->counts[which])
        slot -= n->counts[which++];
    if (which == 3)
        return -ENOENT;
    int r = read_u64(py, n->tuples[which] + py->layout.tuple.data + 8 * slot, &text);
    return r < 0 ? r : pb_py_text(py, text, ret, size, NULL);
}

/* The value of a slot, through its cell if it has one. 0: not bound. */
static uint64_t value_of(struct pb_py *py, uint64_t bits)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t object = untag(py, bits), type, name, inner;
    char text[5];

    if (!object || read_u64(py, object + l->object.type, &type) < 0 ||
        read_u64(py, type + l->type.name, &name) < 0 ||
        pb_source_read(py->source, name, text, sizeof(text)) < 0 || memcmp(text, "cell", sizeof(text)) != 0)
        return object;
    return read_u64(py, object + l->cell_value, &inner) < 0 ? 0 : inner;
}

/* False: it is not bound. */
static bool put_local(FILE *out, struct pb_py *py, const char *name, uint64_t bits)
{
    char value[VALUE_SIZE];
    struct value_out o = {.py = py, .buf = value, .size = sizeof(value)};

    bool tagged = py->layout.tagged && (bits & 3) == 3;
    uint64_t object = tagged ? 0 : value_of(py, bits);
    if (!tagged && !object)
        return false;
    o.masked = pb_py_is_secret(py, name);
    if (tagged)
        pb_py_putf(&o, "%lld", (long long)((int64_t)bits >> 2));
    else
        pb_py_put_value(&o, object, VALUE_DEPTH);
    fwrite(name, 1, strlen(name) + 1, out);
    fwrite(value, 1, strlen(value) + 1, out);
    return true;
}

int pb_py_nlocals(struct pb_py *py, const struct pb_py_code *code, uint64_t *ret)
{
    struct names names;

    int r = open_names(py, (const struct code *)code, &names);
    if (r == 0)
        *ret = names.counts[0] + names.counts[1] + names.counts[2];
    return r;
}

int pb_py_local(struct pb_py *py, const struct pb_py_frame *f, const char *name, uint64_t *ret)
{
    struct names names;
    char text[PB_PY_NAME_MAX];
    uint64_t bits;

    int r = open_names(py, (const struct code *)f->code, &names);
    uint64_t n = r < 0 ? 0 : names.counts[0] + names.counts[1] + names.counts[2];
    for (uint64_t i = 0; i < n && i < LOCALS_MAX; i++) {
        if (name_of(py, &names, i, text, sizeof(text)) < 0 || strcmp(text, name) != 0)
            continue;
        r = read_u64(py, f->addr + py->layout.frame.locals + 8 * i, &bits);
        if (r < 0 || !bits || (py->layout.tagged && (bits & 3) == 3))
            return r < 0 ? r : -ENOENT;
        *ret = value_of(py, bits);
        return *ret ? 0 : -ENOENT;
    }
    return r < 0 ? r : -ENOENT;
}

struct pb_py_locals *pb_py_locals(struct pb_py *py, const struct pb_py_frame *f)
{
    const struct code *code = (const struct code *)f->code;
    struct pb_py_locals head = {0}, *all = NULL;
    struct names names;
    char name[PB_PY_NAME_MAX];
    size_t size;

    if (open_names(py, code, &names) < 0)
        return NULL;
    FILE *out = open_memstream((char **)&all, &size);
    if (!out)
        return NULL;
    fwrite(&head, 1, sizeof(head), out);
    uint64_t n = names.counts[0] + names.counts[1] + names.counts[2], shown = n < LOCALS_MAX ? n : LOCALS_MAX;
    for (uint64_t i = 0; i < shown && !is_late(&py->budget); i++) {
        uint64_t bits;
        if (read_u64(py, f->addr + py->layout.frame.locals + 8 * i, &bits) == 0 && bits &&
            name_of(py, &names, i, name, sizeof(name)) >= 0)
            head.n += put_local(out, py, name, bits);
    }
    head.more = (uint32_t)(n - shown);
    if (fclose(out) != 0 || !all || (!head.n && !head.more)) {
        free(all);
        return NULL;
    }
    head.size = (uint32_t)size;
    memcpy(all, &head, sizeof(head));
    return all;
}

const char *pb_py_locals_get(const struct pb_py_locals *l, const char *name)
{
    const char *at = l ? l->text : NULL;

    for (uint32_t i = 0; l && i < l->n; i++) {
        const char *value = pb_py_locals_after(at);
        if (strcmp(at, name) == 0)
            return value;
        at = pb_py_locals_after(value);
    }
    return NULL;
}

char *pb_py_locals_lines(const struct pb_py_locals *l)
{
    const char *at = l ? l->text : NULL;
    char *text = NULL;
    size_t size;
    FILE *out = l ? open_memstream(&text, &size) : NULL;

    if (!out)
        return NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        const char *value = pb_py_locals_after(at);
        fprintf(out, "%s = %s\n", at, value);
        at = pb_py_locals_after(value);
    }
    if (l->more)
        fprintf(out, ".. %u more\n", l->more);
    fclose(out);
    return text;
}
