/* code: the code objects seen so far, by address, with their names and line tables.
 *
 * A code object is freed when nothing refers to it, and another may take its address: so for every stack a
 * known one is compared with the present object (a new one has its names and tables at other addresses). That
 * costs one batched read a stack. Pointers handed out stay valid: a replaced entry is kept until the end. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/vector.h"
#include "remote/python/line_tables.h"
#include "remote/python/reader_impl.h"

#define BATCH      48
#define NAME_SIZE  1024 /* a longer name is cut */
#define FILE_SIZE  4096
#define TABLE_MAX  (1 << 20) /* bytes of a line table; a longer one is cut, and its last lines unknown */
#define LONG_TABLE 16384
#define WINDOW     256 /* of a string, read with others at once */
#define TYPE_NAME  "code"

static size_t slot_of(const struct pb_py *py, uint64_t addr)
{
    return (size_t)((addr >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (py->codes_cap - 1);
}

static struct code *lookup(const struct pb_py *py, uint64_t addr)
{
    if (!py->codes_cap)
        return NULL;
    for (size_t i = slot_of(py, addr); py->codes[i]; i = (i + 1) & (py->codes_cap - 1))
        if (py->codes[i]->pub.addr == addr)
            return py->codes[i];
    return NULL;
}

static void place(struct pb_py *py, struct code *code)
{
    size_t i = slot_of(py, code->pub.addr);

    while (py->codes[i] && py->codes[i]->pub.addr != code->pub.addr)
        i = (i + 1) & (py->codes_cap - 1);
    if (!py->codes[i])
        py->ncodes++;
    py->codes[i] = code;
}

static int grow_table(struct pb_py *py)
{
    size_t cap = py->codes_cap ? 2 * py->codes_cap : 1024, old_cap = py->codes_cap;
    struct code **old = py->codes, **more = calloc(cap, sizeof(struct code *));

    if (!more)
        return -ENOMEM;
    py->codes = more;
    py->codes_cap = cap;
    py->ncodes = 0;
    for (size_t i = 0; i < old_cap; i++)
        if (old[i])
            place(py, old[i]);
    free(old);
    return 0;
}

static int add_code(struct pb_py *py, struct code *code)
{
    int r = 2 * (py->ncodes + 1) > py->codes_cap ? grow_table(py) : 0;

    if (r == 0 && (py->nall >= CODES_MAX ||
                   pb_grow((void **)&py->all, &py->all_cap, py->nall, sizeof(struct code *), NULL) < 0))
        r = -ENOMEM;
    if (r < 0)
        return r;
    code->pub.id = (unsigned)py->nall;
    py->all[py->nall++] = code;
    place(py, code);
    return 0;
}

static void code_free(struct code *code)
{
    if (!code)
        return;
    free(code->table);
    free(code->text);
    free(code);
}

static void code_cleanup(struct code **code)
{
    code_free(*code);
}

void pb_py_codes_done(struct pb_py *py)
{
    for (size_t i = 0; i < py->nall; i++)
        code_free(py->all[i]);
    free(py->all);
    free(py->codes);
    py->all = py->codes = NULL;
    py->nall = py->all_cap = py->ncodes = py->codes_cap = 0;
}

static struct identity identity_of(const struct pb_py *py, const uint8_t *head)
{
    const struct pb_py_layout *l = &py->layout;
    return (struct identity){
        .name = u64_at(head, l->code.name),
        .file = u64_at(head, l->code.file),
        .lines = u64_at(head, l->code.lines),
        .size = l->code.bytes ? u64_at(head, l->code.bytes) : u64_at(head, l->bytes.size),
        .first_line = (int)u32_at(head, l->code.first_line),
    };
}

static bool is_same(const struct identity *a, const struct identity *b)
{
    return a->name == b->name && a->file == b->file && a->lines == b->lines && a->size == b->size &&
           a->first_line == b->first_line;
}

/* Whether it is of the type of code objects, which the first one identifies by its name. */
static bool is_code(struct pb_py *py, const uint8_t *head)
{
    uint64_t type = u64_at(head, py->layout.object.type), name;
    char text[sizeof(TYPE_NAME)];

    if (py->code_type)
        return type == py->code_type;
    if (read_u64(py, type + py->layout.type.name, &name) < 0 ||
        pb_source_read(py->source, name, text, sizeof(text)) < 0 ||
        memcmp(text, TYPE_NAME, sizeof(text)) != 0)
        return false;
    py->code_type = type;
    return true;
}

static int read_table(struct pb_py *py, struct code *code, const uint8_t *window, size_t have)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t len;

    bool inside = have >= 8 && l->bytes.size <= have - 8;
    int r = inside ? 0 : read_u64(py, code->id.lines + l->bytes.size, &len);
    if (r < 0)
        return r;
    if (inside)
        len = u64_at(window, l->bytes.size);
    if (len > TABLE_MAX)
        len = TABLE_MAX;
    /* Without its table a code has no lines, but everything else. */
    if (!take_bytes(&py->budget, &py->budget.tables, len))
        return 0;
    code->table = malloc(len + 1);
    if (!code->table)
        return -ENOMEM;
    code->table_len = len;
    if (l->bytes.data + len <= have) {
        memcpy(code->table, window + l->bytes.data, len);
        return 0;
    }
    return pb_source_read(py->source, code->id.lines + l->bytes.data, code->table, len);
}

/* One string of a code, into buf; strings that the batch did not bring are read separately. */
static int take_text(struct pb_py *py, uint64_t addr, const uint8_t *window, bool have, char *buf,
                     size_t size)
{
    int r = have ? pb_py_text_of(py, addr, window, WINDOW, buf, size, NULL)
                 : pb_py_text(py, addr, buf, size, NULL);
    return r;
}

static int keep_texts(struct pb_py *py, struct code *code, const char *name, const char *qualname,
                      const char *file)
{
    size_t n = strlen(name) + 1, q = strlen(qualname) + 1, f = strlen(file) + 1;

    if (!take_bytes(&py->budget, &py->budget.names, n + q + f + sizeof(*code)))
        return -ENOBUFS;
    code->text = malloc(n + q + f);
    if (!code->text)
        return -ENOMEM;
    code->pub.name = memcpy(code->text, name, n);
    code->pub.qualname = memcpy(code->text + n, qualname, q);
    code->pub.file = memcpy(code->text + n + q, file, f);
    return 0;
}

/* Name, qualified name, file and line table: four objects, fetched in one call where their surroundings are
 * mapped. */
static int read_parts(struct pb_py *py, struct code *code, uint64_t qualname_at)
{
    uint8_t window[4][WINDOW];
    char name[NAME_SIZE], qualname[NAME_SIZE], file[FILE_SIZE];
    struct pb_piece pieces[] = {{code->id.name, window[0], WINDOW},
                                {code->id.file, window[1], WINDOW},
                                {code->id.lines, window[2], WINDOW},
                                {qualname_at, window[3], WINDOW}};

    ssize_t have = pb_source_readv(py->source, pieces, qualname_at ? 4 : 3);
    if (have < 0)
        return (int)have;
    int r = take_text(py, code->id.name, window[0], have > 0, name, sizeof(name));
    if (r >= 0)
        r = take_text(py, code->id.file, window[1], have > 1, file, sizeof(file));
    if (r >= 0 && qualname_at)
        r = take_text(py, qualname_at, window[3], have > 3, qualname, sizeof(qualname));
    if (r >= 0)
        r = keep_texts(py, code, name, qualname_at ? qualname : name, file);
    if (r >= 0)
        r = read_table(py, code, window[2], have > 2 ? WINDOW : 0);
    return r;
}

static int make_code(struct pb_py *py, uint64_t addr, const uint8_t *head, const struct identity *id)
{
    const struct pb_py_layout *l = &py->layout;
    _cleanup_(code_cleanup) struct code *code = calloc(1, sizeof(*code));

    if (!code)
        return -ENOMEM;
    code->pub.addr = addr;
    code->pub.first_line = id->first_line;
    code->id = *id;
    code->flags = u32_at(head, l->code.flags);
    code->argcount = u32_at(head, l->code.argcount);
    code->kwonly = u32_at(head, l->code.kwonly);
    code->nlocals = u32_at(head, l->code.nlocals);
    code->stacksize = u32_at(head, l->code.stacksize);
    code->varnames = u64_at(head, l->code.varnames);
    code->kinds = l->code.kinds ? u64_at(head, l->code.kinds) : 0;
    code->cellvars = l->code.cellvars ? u64_at(head, l->code.cellvars) : 0;
    code->freevars = l->code.freevars ? u64_at(head, l->code.freevars) : 0;
    code->copies = l->code.tlbc ? u64_at(head, l->code.tlbc) : 0;
    code->hidden = l->code.first_traceable && u32_at(head, l->code.first_traceable) >= id->size;
    code->checked = py->stack_number;
    int r = read_parts(py, code, l->code.qualname ? u64_at(head, l->code.qualname) : 0);
    if (r >= 0)
        r = add_code(py, code);
    if (r < 0)
        return r == -EFAULT || r == -EBADMSG ? -EAGAIN : r;
    code = NULL;
    return 0;
}

static int check_one(struct pb_py *py, uint64_t addr, const uint8_t *head)
{
    if (!is_code(py, head))
        return -EAGAIN;
    struct identity id = identity_of(py, head);
    struct code *known = lookup(py, addr);
    if (!known || !is_same(&known->id, &id))
        return make_code(py, addr, head, &id);
    /* Replaced by a longer array when there are more threads. */
    known->copies = py->layout.code.tlbc ? u64_at(head, py->layout.code.tlbc) : 0;
    known->checked = py->stack_number;
    return 0;
}

static int check_batch(struct pb_py *py, const uint64_t *addrs, size_t n)
{
    uint8_t heads[BATCH][CODE_HEAD_MAX];
    struct pb_piece pieces[BATCH];

    if (n == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct pb_piece){addrs[i], heads[i], py->code_len};
    ssize_t have = pb_source_readv(py->source, pieces, n);
    if (have < (ssize_t)n)
        return have < 0 ? (int)have : -EAGAIN;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = check_one(py, addrs[i], heads[i]);
    return r;
}

static bool is_among(const uint64_t *addrs, size_t n, uint64_t addr)
{
    for (size_t i = 0; i < n; i++)
        if (addrs[i] == addr)
            return true;
    return false;
}

int pb_py_codes(struct pb_py *py, const uint64_t *raw, struct pb_py_frame *frames, size_t n)
{
    uint64_t batch[BATCH];
    size_t nbatch = 0;
    int r = 0;

    py->stack_number++;
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct code *known = lookup(py, raw[i]);
        if ((known && known->checked == py->stack_number) || is_among(batch, nbatch, raw[i]))
            continue;
        batch[nbatch++] = raw[i];
        if (nbatch == BATCH) {
            r = check_batch(py, batch, nbatch);
            nbatch = 0;
        }
    }
    if (r == 0 && nbatch)
        r = check_batch(py, batch, nbatch);
    for (size_t i = 0; r == 0 && i < n; i++)
        frames[i].code = &lookup(py, raw[i])->pub;
    return r;
}

/* The array of copies begins with their number. */
static int at_of_batch(struct pb_py *py, const struct copy *const *copies, struct pb_py_frame *const *frames,
                       size_t n)
{
    uint64_t words[BATCH / 2][2];
    struct pb_piece pieces[BATCH];

    for (size_t i = 0; i < n; i++) {
        uint64_t array = ((const struct code *)frames[i]->code)->copies;
        pieces[2 * i] = (struct pb_piece){array, &words[i][0], 8};
        pieces[2 * i + 1] = (struct pb_piece){array + 8 + 8ull * copies[i]->index, &words[i][1], 8};
    }
    ssize_t have = n ? pb_source_readv(py->source, pieces, 2 * n) : 0;
    if (have < (ssize_t)(2 * n))
        return have < 0 ? (int)have : -EAGAIN;
    for (size_t i = 0; i < n; i++) {
        int64_t at = (int64_t)(copies[i]->instr - words[i][1]);
        /* One unit before the first instruction: the frame is about to begin. */
        if (copies[i]->index >= words[i][0] || at < -2 || at > INT32_MAX)
            return -EAGAIN;
        frames[i]->at = at < 0 ? -1 : (int32_t)at;
    }
    return 0;
}

int pb_py_at_of_copies(struct pb_py *py, const struct copy *copies, struct pb_py_frame *frames, size_t n)
{
    const struct copy *some[BATCH / 2];
    struct pb_py_frame *theirs[BATCH / 2];
    size_t nsome = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        if (!copies[i].index)
            continue;
        some[nsome] = &copies[i];
        theirs[nsome++] = &frames[i];
        if (nsome == BATCH / 2) {
            r = at_of_batch(py, some, theirs, nsome);
            nsome = 0;
        }
    }
    return r < 0 ? r : at_of_batch(py, some, theirs, nsome);
}

int pb_py_line(struct pb_py *py, const struct pb_py_frame *f)
{
    const struct code *code = (const struct code *)f->code;

    /* A table is read from its beginning: for a long one the clock is checked. */
    if (!code->table || (code->table_len > LONG_TABLE && is_late(&py->budget)))
        return 0;
    return pb_py_line_at(py->layout.lines, code->table, code->table_len, code->pub.first_line, f->at);
}
