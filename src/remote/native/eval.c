/* eval: see eval.h. */
#include "remote/native/eval.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "remote/elf.h"
#include "remote/native/process_code.h"
#include "remote/native/unwind_arch.h"

enum {
    CODE_MAX = 256 << 10,
    TARGETS_MAX = 4096,
    VOTES_MIN = 8, /* bytes that only look like jumps lead anywhere, but not so often to one function */
    PARTS = 64,
};

static const char loop_name[] = "_PyEval_EvalFrameDefault";

/* _PyEval_EvalFrameDefault is the loop from 3.6 on, where the older function is a wrapper around it and
 * counts only in its absence. */
bool pb_eval_is_loop(struct pb_native *n, const struct pb_file *f, const char *name)
{
    size_t len = sizeof(loop_name) - 1;
    uint64_t addr;
    if (name[0] == '_')
        return (strncmp(name, loop_name, len) == 0 && (!name[len] || name[len] == '.')) ||
               strncmp(name, "_TAIL_CALL_", 11) == 0;
    return strcmp(name, "PyEval_EvalFrameEx") == 0 &&
           pb_elf_lookup(n->source, f->base, loop_name, &addr) == -ENOENT;
}

struct value_part {
    uint64_t start;
    unsigned votes;
};

static void vote(struct value_part part[PARTS], uint64_t start)
{
    for (unsigned i = 0; i < PARTS; i++) {
        if (part[i].votes && part[i].start != start)
            continue;
        part[i].start = start;
        part[i].votes++;
        return;
    }
}

/* The targets of jumps that leave this code. Instructions are not decoded: matching bytes suffice. */
static size_t find_jumps(const unsigned char *code, size_t len, uint64_t addr, uint64_t target[TARGETS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i + 6 <= len && n < TARGETS_MAX; i++) {
        bool is_jump = code[i] == 0xe9, is_branch = code[i] == 0x0f && (code[i + 1] & 0xf0) == 0x80;
        if (!is_jump && !is_branch)
            continue;
        int32_t by;
        size_t size = is_jump ? 5 : 6;
        memcpy(&by, code + i + size - 4, sizeof(by));
        uint64_t to = addr + i + size + (uint64_t)(int64_t)by;
        if (to < addr || to >= addr + len)
            target[n++] = to;
    }
    return n;
}

/* The unnamed function that the loop jumps into most. */
static uint64_t find_part(struct pb_file *f, struct pb_symbols *s, const struct pb_function *loop)
{
    size_t len = loop->size < CODE_MAX ? loop->size : CODE_MAX;
    _cleanup_free_ unsigned char *code = malloc(len);
    _cleanup_free_ uint64_t *target = calloc(TARGETS_MAX, sizeof(*target));
    struct value_part part[PARTS] = {0}, best = {0};
    uint64_t addr = loop->addr, start;
    struct pb_cfi_row row;
    if (!code || !target || pb_object_read(&f->object, addr, code, len) < 0)
        return 0;
    size_t n = find_jumps(code, len, addr, target);
    for (size_t i = 0; i < n; i++)
        if (pb_object_row(&f->object, target[i], &row, &start) == 0)
            vote(part, start);
    for (unsigned i = 0; i < PARTS; i++) {
        const struct pb_function *named;
        if (part[i].votes > best.votes && pb_symbols_find(s, part[i].start, &named) < 0)
            best = part[i];
    }
    return best.votes >= VOTES_MIN ? best.start : 0;
}

static uint64_t look_for_part(struct pb_native *n, const struct pb_range *r)
{
    const struct pb_function *loop;
    uint64_t addr;
    struct pb_symbols *s = pb_process_symbols(n, r->file);
    /* With all symbols that part has a name. */
    if (!s || !s->partial || n->arch->machine != EM_X86_64)
        return 0;
    if (pb_elf_lookup(n->source, r->file->base, loop_name, &addr) < 0)
        return 0;
    if (pb_symbols_find(s, addr - r->bias, &loop) < 0)
        return 0;
    struct pb_function copy = *loop;
    return find_part(r->file, s, &copy);
}

bool pb_eval_holds(struct pb_native *n, const struct pb_range *r, uint64_t addr)
{
    struct pb_file *f = r->file;
    struct pb_cfi_row row;
    uint64_t start;
    if (!f->loop_sought) {
        f->loop_sought = true;
        f->loop_part = look_for_part(n, r);
    }
    return f->loop_part && pb_object_row(&f->object, addr, &row, &start) == 0 && start == f->loop_part;
}
