/* describe: a program counter for a person: module, function, line, the calls inlined there. See unwind.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/native/eval.h"
#include "remote/native/library.h"
#include "remote/native/lines.h"
#include "remote/native/perfmap.h"
#include "remote/native/process_code.h"

enum {
    SLOTS = 4096,
    MAX_DESCRIBED = 256 << 10, /* then all are forgotten; no process is expected to reach it */
    NAME_MAX_LEN = 4096,
};

struct pb_description {
    struct pb_description *next;
    uint64_t pc;
    bool exact;
    size_t n;
    struct pb_native_frame frame[];
};

void pb_describe_forget(struct pb_native *n)
{
    for (size_t i = 0; n->described && i < SLOTS; i++) {
        for (struct pb_description *d = n->described[i], *next; d; d = next) {
            next = d->next;
            free(d);
        }
        n->described[i] = NULL;
    }
    n->ndescribed = 0;
}

static bool is_glue(const char *name)
{
    static const char *const glue[] = {
        "_PyEval_EvalFrame",
        "_PyEval_Vector",
        "_PyEval_EvalCodeWithName",
        "PyEval_EvalFrameEx",
        "PyEval_EvalCode",
        "PyEval_EvalCodeEx",
        "_PyFunction_Vectorcall",
        "function_code_fastcall",
        "_PyFunction_FastCallDict",
        "_PyFunction_FastCallKeywords",
        "fast_function",
        "call_function",
        "do_call_core",
        "PyObject_Call",
        "_PyObject_Call",
        "PyObject_Vectorcall",
        "_PyObject_Vectorcall",
        "_PyObject_VectorcallTstate",
        "_PyObject_FastCallDict",
        "_PyObject_MakeTpCall",
        "_PyObject_Call_Prepend",
        "PyVectorcall_Call",
        "_PyVectorcall_Call",
        "method_vectorcall",
        "PyObject_CallObject",
        "trampoline_call",
    };
    for (size_t i = 0; i < sizeof(glue) / sizeof(glue[0]); i++) {
        size_t len = strlen(glue[i]);
        if (strncmp(name, glue[i], len) == 0 && (!name[len] || name[len] == '.'))
            return true;
    }
    return false;
}

static const char *readable(struct pb_native *n, const char *name)
{
    char text[NAME_MAX_LEN];
    /* "@@VERSION" belongs to the linker. */
    size_t len = strcspn(name, "@");
    if (name[0] == '_' && name[1] == 'Z' && pb_library_demangle(&n->library, name, text, sizeof(text)) == 0)
        return pb_names_keep(&n->names, text);
    return pb_names_keep_len(&n->names, name, len);
}

static void find_function(struct pb_native *n, struct pb_range *r, uint64_t addr, struct pb_native_frame *f)
{
    char name[NAME_MAX_LEN];
    const struct pb_function *function;
    struct pb_symbols *s = pb_process_symbols(n, r->file);
    if (!s)
        return;
    if (pb_symbols_find(s, addr, &function) < 0) {
        if (pb_eval_holds(n, r, addr)) {
            f->function = "_PyEval_EvalFrameDefault";
            f->flags |= PB_NATIVE_EVAL;
        }
        return;
    }
    if (pb_symbols_name(s, function, name, sizeof(name)) < 0)
        return;
    f->offset = f->address - function->addr;
    f->function = readable(n, name);
    if (pb_eval_is_loop(n, r->file, name))
        f->flags |= PB_NATIVE_EVAL;
    else if (is_glue(name))
        f->flags |= PB_NATIVE_GLUE;
}

static void find_jit(struct pb_native *n, struct pb_native_frame *f, uint64_t pc)
{
    struct pb_perf_entry entry;
    if (pb_perf_map_find(&n->perf, n->source->pid, pc, &entry) < 0)
        return;
    f->function = pb_names_keep(&n->names, entry.name);
    f->offset = f->pc - entry.start;
    f->flags |= PB_NATIVE_JIT;
}

static const char *keep_text(struct pb_native *n, const char *text)
{
    return text[0] ? pb_names_keep(&n->names, text) : NULL;
}

static int ask_lines(struct pb_native *n, struct pb_file *file, uint64_t addr, struct pb_source_frame *source)
{
    const struct pb_object *debug = n->options.no_lines ? NULL : pb_process_debug(n, file);
    if (!debug || debug->fd < 0)
        return 0;
    if (file->reader_state == PB_NOT_TRIED)
        file->reader_state = pb_lines_open(debug, &file->reader) == 0 ? PB_OPEN : PB_FAILED;
    return file->reader_state == PB_OPEN ? pb_lines_find(file->reader, addr, source, PB_NATIVE_INLINE_MAX)
                                         : 0;
}

/* Adds the line to the frame and puts the inlined calls before it. Returns how many frames there are then. */
static size_t find_lines(struct pb_native *n, struct pb_file *file, uint64_t addr,
                         struct pb_native_frame frame[PB_NATIVE_INLINE_MAX])
{
    struct pb_source_frame source[PB_NATIVE_INLINE_MAX];
    int count = ask_lines(n, file, addr, source);
    if (count <= 0)
        return 1;
    struct pb_native_frame outer = frame[0];
    for (int i = 0; i < count; i++) {
        bool is_last = i == count - 1;
        frame[i] = outer;
        frame[i].file = keep_text(n, source[i].file);
        frame[i].line = source[i].line;
        if (is_last && outer.function)
            continue;
        frame[i].function = source[i].function[0] ? readable(n, source[i].function) : NULL;
        if (!is_last) {
            frame[i].flags = (outer.flags & ~(unsigned)(PB_NATIVE_EVAL | PB_NATIVE_GLUE)) | PB_NATIVE_INLINED;
            frame[i].offset = 0;
        }
    }
    return (size_t)count;
}

static bool is_exact(const struct pb_native_pc *pc)
{
    return pc->flags & PB_NATIVE_EXACT;
}

/* The address to look up: a return address may already belong to the next function. */
static uint64_t place_of(const struct pb_native_pc *pc)
{
    return is_exact(pc) ? pc->pc : pc->pc - 1;
}

static struct pb_description **slot_of(const struct pb_native *n, uint64_t pc)
{
    return &n->described[pc * 0x9e3779b97f4a7c15ull >> 52];
}

static size_t describe_pc(struct pb_native *n, const struct pb_native_pc *pc,
                          struct pb_native_frame frame[PB_NATIVE_INLINE_MAX])
{
    uint64_t at = place_of(pc);
    struct pb_native_frame *f = &frame[0];
    *f = (struct pb_native_frame){.pc = pc->pc};
    struct pb_range *r = pb_process_range(n, at);
    if (r && r->file)
        f->module = r->file->path;
    if (!pb_range_usable(r)) {
        /* Also in a file that is not an ELF object: a JIT maps its code from a memfd. */
        if (r)
            find_jit(n, f, at);
        return 1;
    }
    f->build_id = r->file->build_id;
    f->address = pc->pc - r->bias;
    find_function(n, r, at - r->bias, f);
    return find_lines(n, r->file, at - r->bias, frame);
}

/* The same address may be the end of one function as a return address and the start of another as an exact
 * pc. */
static const struct pb_description *find_description(const struct pb_native *n, const struct pb_native_pc *pc)
{
    const struct pb_description *d = n->described ? *slot_of(n, pc->pc) : NULL;
    while (d && (d->pc != pc->pc || d->exact != is_exact(pc)))
        d = d->next;
    return d;
}

/* Looks up the addresses of one file that are not described yet. */
static void prepare_file(struct pb_native *n, struct pb_file *f, const struct pb_native_pc *pcs, size_t count)
{
    struct pb_symbols *s = pb_process_symbols(n, f);
    uint64_t *addrs = s ? reallocarray(NULL, f->asked, sizeof(*addrs)) : NULL;
    size_t k = 0;
    for (size_t i = 0; addrs && i < count && k < f->asked; i++) {
        uint64_t at = place_of(&pcs[i]);
        struct pb_range *r = pb_process_range(n, at);
        if (pb_range_usable(r) && r->file == f)
            addrs[k++] = at - r->bias;
    }
    if (addrs)
        pb_symbols_scan(s, addrs, k);
    free(addrs);
    f->asked = 0;
}

void pb_native_prepare(struct pb_native *n, const struct pb_native_pc *pcs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct pb_range *r = pb_process_range(n, place_of(&pcs[i]));
        if (pb_range_usable(r) && !find_description(n, &pcs[i]))
            r->file->asked++;
    }
    for (struct pb_file *f = n->files; f; f = f->next)
        if (f->asked)
            prepare_file(n, f, pcs, count);
}

static struct pb_description *remember(struct pb_native *n, const struct pb_native_pc *pc,
                                       const struct pb_native_frame *frame, size_t count)
{
    if (!n->described)
        n->described = calloc(SLOTS, sizeof(struct pb_description *));
    if (!n->described)
        return NULL;
    if (n->ndescribed == MAX_DESCRIBED)
        pb_describe_forget(n);
    struct pb_description *d = malloc(sizeof(*d) + count * sizeof(*frame));
    if (!d)
        return NULL;
    struct pb_description **slot = slot_of(n, pc->pc);
    d->next = *slot;
    d->pc = pc->pc;
    d->exact = is_exact(pc);
    d->n = count;
    memcpy(d->frame, frame, count * sizeof(*frame));
    *slot = d;
    n->ndescribed++;
    return d;
}

size_t pb_native_describe(struct pb_native *n, const struct pb_native_pc *pc, struct pb_native_frame *ret,
                          size_t max)
{
    struct pb_native_frame frame[PB_NATIVE_INLINE_MAX];
    const struct pb_description *d = find_description(n, pc);
    const struct pb_native_frame *from = frame;
    size_t count;
    if (!d) {
        count = describe_pc(n, pc, frame);
        d = remember(n, pc, frame, count);
    }
    if (d) {
        from = d->frame;
        count = d->n;
    }
    /* Without room for all, the function itself is kept. */
    size_t skip = count > max ? count - max : 0;
    for (size_t i = skip; i < count; i++) {
        ret[i - skip] = from[i];
        ret[i - skip].flags |= pc->flags;
    }
    /* The kernel made this frame, no function called it: its symbol is not shown. */
    if (pc->flags & PB_NATIVE_SIGNAL)
        ret[count - skip - 1].function = "<signal handler called>";
    return count - skip;
}
