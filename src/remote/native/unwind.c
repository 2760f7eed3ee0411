/* unwind: unwinds a captured stack into program counters; see unwind.h.
 *
 * Rules come from the unwind tables, cached by program counter. Without rules, in this order: a return
 * address on the stack whose call leads to the present function (certain), the chain of frame pointers, the
 * first word that could be a return address. All three are marked. */
#include "remote/native/unwind.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "remote/mem.h"
#include "remote/native/expr.h"
#include "remote/native/process_code.h"
#include "remote/native/unwind_arch.h"

enum {
    EXPRESSION_MAX = 256,
    LEAF_ROOM = 128, /* bytes that a function may use below its stack pointer */
    SCAN_WORDS = 512,
    FUNCTION_MAX = 1 << 20, /* bytes; the largest are some hundred thousand */
    GUESSES_MAX = 64,       /* frames found without tables in one stack */
};

struct unwind_walk {
    struct pb_native *n;
    struct pb_capture *c;
    uint64_t reg[PB_NATIVE_REGS];
    uint64_t known;
    uint64_t pc;
    bool exact;      /* pc is exact, not a return address */
    uint64_t missed; /* the last address that was not in the copy */
    unsigned guesses;
    unsigned how; /* flags for the frame that was found last */
};

static int read_copy(void *arg, uint64_t addr, void *ret, size_t len)
{
    struct unwind_walk *w = arg;
    for (unsigned i = 0; i < PB_CAPTURE_PARTS; i++) {
        const struct pb_capture_part *p = &w->c->part[i];
        if (addr >= p->addr && addr - p->addr < p->len && len <= p->len - (addr - p->addr)) {
            memcpy(ret, p->data + (addr - p->addr), len);
            return 0;
        }
    }
    w->missed = addr;
    return -EFAULT;
}

/* Memory that was not copied ends the stack; if the process has it, the next capture copies it, from the
 * frame's stack pointer on. */
static void want_missed(struct unwind_walk *w)
{
    uint64_t sp = w->reg[w->n->arch->sp] - LEAF_ROOM;
    const struct pb_map *map = pb_maps_find(&w->n->maps, w->missed);
    if (!map || w->c->cut)
        return;
    w->c->wanted = sp >= map->start && sp < w->missed ? sp : w->missed;
}

static int read_word(struct unwind_walk *w, uint64_t addr, uint64_t *ret)
{
    return read_copy(w, addr, ret, sizeof(*ret));
}

static bool is_known(const struct unwind_walk *w, unsigned reg)
{
    return w->known >> reg & 1;
}

/* The address whose rules apply: a call that never returns may be the last instruction of its function. */
static uint64_t lookup_pc(const struct unwind_walk *w)
{
    return w->exact ? w->pc : w->pc - 1;
}

static struct pb_row_slot *slot_of(struct pb_native *n, uint64_t pc)
{
    return &n->rows[(pc * 0x9e3779b97f4a7c15ull >> 52) & (PB_ROW_SLOTS - 1)];
}

/* The rules at the walk's pc, cached, also their absence; NULL: there are none. */
static const struct pb_row_slot *find_row(struct unwind_walk *w)
{
    uint64_t pc = lookup_pc(w), start;
    struct pb_row_slot *slot = slot_of(w->n, pc);
    if (pc == 0) /* marks an empty slot */
        return NULL;
    if (slot->pc == pc)
        return slot->none ? NULL : slot;
    struct pb_range *range = pb_process_range(w->n, pc);
    if (!range && pb_process_refresh(w->n, true))
        range = pb_process_range(w->n, pc);
    *slot = (struct pb_row_slot){.pc = pc, .range = range, .none = true};
    if (pb_range_usable(range) &&
        pb_object_row(&range->file->object, pc - range->bias, &slot->row, &start) == 0)
        slot->none = false;
    return slot->none ? NULL : slot;
}

/* The expression is in the file: its length, then its code. */
static int evaluate(struct unwind_walk *w, const struct pb_row_slot *s, int32_t place, const uint64_t *cfa,
                    uint64_t *ret)
{
    unsigned char text[EXPRESSION_MAX];
    const struct pb_object *o = &s->range->file->object;
    ssize_t n = pb_object_read_frames(o, s->row.addr + (uint64_t)(int64_t)place, text, sizeof(text));
    if (n < 0)
        return (int)n;
    struct pb_cursor c = {text, text + n, false};
    uint64_t len = pb_uleb(&c);
    if (c.bad || len > pb_left(&c))
        return -EBADMSG;
    struct pb_expr_env env = {.reg = w->reg, .known = w->known, .read = read_copy, .arg = w};
    return pb_expr_run(c.at, len, &env, cfa, ret);
}

static int find_cfa(struct unwind_walk *w, const struct pb_row_slot *s, uint64_t *ret)
{
    if (s->row.cfa_reg == PB_CFA_EXPR)
        return evaluate(w, s, s->row.cfa, NULL, ret);
    if (s->row.cfa_reg >= w->n->arch->nregs || !is_known(w, s->row.cfa_reg))
        return -ENODATA;
    *ret = w->reg[s->row.cfa_reg] + (uint64_t)(int64_t)s->row.cfa;
    return 0;
}

/* The caller's value of a register. -ENODATA: not known, which is no error until it is needed. */
static int apply_rule(struct unwind_walk *w, const struct pb_row_slot *s, unsigned reg, uint64_t cfa,
                      uint64_t *ret)
{
    int32_t value = s->row.value[reg];
    uint64_t at;
    int r;
    switch (s->row.rule[reg]) {
    case PB_RULE_SAME:
        *ret = w->reg[reg];
        return is_known(w, reg) ? 0 : -ENODATA;
    case PB_RULE_AT:
        return read_word(w, cfa + (uint64_t)(int64_t)value, ret);
    case PB_RULE_IS:
        *ret = cfa + (uint64_t)(int64_t)value;
        return 0;
    case PB_RULE_REG:
        if ((unsigned)value >= w->n->arch->nregs || !is_known(w, (unsigned)value))
            return -ENODATA;
        *ret = w->reg[value];
        return 0;
    case PB_RULE_AT_EXPR:
        r = evaluate(w, s, value, &cfa, &at);
        return r < 0 ? r : read_word(w, at, ret);
    case PB_RULE_IS_EXPR:
        return evaluate(w, s, value, &cfa, ret);
    default:
        return -ENODATA;
    }
}

static void apply_all(struct unwind_walk *w, const struct pb_row_slot *s, uint64_t cfa)
{
    const struct pb_native_arch *arch = w->n->arch;
    uint64_t reg[PB_NATIVE_REGS], known = 0;
    for (unsigned i = 0; i < arch->nregs; i++)
        if (apply_rule(w, s, i, cfa, &reg[i]) == 0)
            known |= 1ull << i;
    /* Without a rule the caller's stack pointer is the CFA, by definition. */
    if (s->row.rule[arch->sp] == PB_RULE_SAME) {
        reg[arch->sp] = cfa;
        known |= 1ull << arch->sp;
    }
    memcpy(w->reg, reg, sizeof(reg));
    w->known = known;
}

static void go_to(struct unwind_walk *w, uint64_t pc, bool exact)
{
    w->pc = pc;
    w->exact = exact;
    w->reg[w->n->arch->pc] = pc;
    w->known |= 1ull << w->n->arch->pc;
}

/* 1: at the caller; 0: this was the outermost frame; negative: the rules lead no further. */
static int step_by_row(struct unwind_walk *w, const struct pb_row_slot *s)
{
    const struct pb_native_arch *arch = w->n->arch;
    unsigned ra = s->row.ra;
    uint64_t cfa, pc, sp = w->reg[arch->sp];
    if (s->row.rule[ra] == PB_RULE_UNDEFINED)
        return 0;
    /* Only in the innermost function can it still be in its register: elsewhere the walk would repeat
     * itself. */
    if (s->row.rule[ra] == PB_RULE_SAME && (ra != arch->link || !w->exact))
        return 0;
    int r = find_cfa(w, s, &cfa);
    if (r == 0)
        r = apply_rule(w, s, ra, cfa, &pc);
    if (r < 0)
        return r;
    /* Callers are further up the stack, otherwise the walk is in a loop. A handler may be on a stack of its
     * own. */
    if (!s->row.signal && (cfa < sp || (cfa == sp && pc == w->pc)))
        return -EBADMSG;
    pc &= arch->pointer_mask;
    /* Zero ends a stack; but a signal may have interrupted a call to address 0. */
    if (pc == 0 && !s->row.signal)
        return 0;
    apply_all(w, s, cfa);
    go_to(w, pc, s->row.signal);
    w->how = 0;
    return 1;
}

/* True for the code that a signal handler returns to. */
static bool is_signal_return(struct unwind_walk *w, uint64_t pc)
{
    unsigned char code[16];
    struct pb_range *r = pb_process_range(w->n, pc);
    return w->n->arch->context && pb_range_usable(r) &&
           pb_object_read(&r->file->object, pc - r->bias, code, sizeof(code)) == 0 &&
           w->n->arch->returns_from_signal(code);
}

/* True where a return address follows a call, or was put there by the kernel for a handler. *ret_target: the
 * call's destination, or 0. */
static bool follows_call(struct unwind_walk *w, uint64_t ra, uint64_t *ret_target)
{
    unsigned char before[8];
    struct pb_range *r = pb_process_range(w->n, ra - 1);
    *ret_target = 0;
    if (!pb_range_usable(r) || ra - 8 < r->start)
        return false;
    if (is_signal_return(w, ra))
        return true;
    if (pb_object_read(&r->file->object, ra - 8 - r->bias, before, sizeof(before)) < 0)
        return false;
    return w->n->arch->call_before(before, ra, ret_target);
}

/* The destination of a call through the PLT, which jumps through a word that the loader has filled in. */
static uint64_t follow_plt(struct unwind_walk *w, uint64_t target)
{
    unsigned char code[16];
    uint64_t slot, to;
    struct pb_range *r = pb_process_range(w->n, target);
    if (!pb_range_usable(r) || pb_object_read(&r->file->object, target - r->bias, code, sizeof(code)) < 0)
        return target;
    if (!w->n->arch->jump_slot(code, target, &slot) ||
        pb_source_read(w->n->source, slot, &to, sizeof(to)) < 0)
        return target;
    return to;
}

/* True where a call to target can have led to the present pc: no known function starts in between. */
static bool leads_here(struct unwind_walk *w, uint64_t target)
{
    const struct pb_function *f;
    uint64_t pc = lookup_pc(w);
    struct pb_range *r = pb_process_range(w->n, pc);
    struct pb_symbols *s = pb_range_usable(r) ? pb_process_symbols(w->n, r->file) : NULL;
    target = follow_plt(w, target);
    if (!r || target < r->start || target > pc || pc - target > FUNCTION_MAX)
        return false;
    if (s && pb_symbols_find(s, pc - r->bias, &f) == 0)
        return f->addr == target - r->bias;
    /* The present code has no name: then it is not part of a function that has a name and a size. */
    return !s || pb_symbols_find(s, target - r->bias, &f) < 0 || f->size == 1;
}

/* Uses the return address at `at` as the caller's. Registers saved by the function are lost; the frame
 * pointer is kept if the function was not known to use it. */
static void use_guess(struct unwind_walk *w, uint64_t at, uint64_t ra, unsigned how)
{
    const struct pb_native_arch *arch = w->n->arch;
    w->reg[arch->sp] = at + 8;
    w->known &= 1ull << arch->sp | 1ull << arch->fp;
    go_to(w, ra, false);
    w->how = how;
}

/* Reads the two words at a frame pointer: the caller's frame pointer and a return address. */
static bool read_frame(struct unwind_walk *w, uint64_t fp, uint64_t *ret_next, uint64_t *ret_ra)
{
    uint64_t target;
    if (fp % 8 || read_word(w, fp, ret_next) < 0 || read_word(w, fp + 8, ret_ra) < 0)
        return false;
    *ret_ra &= w->n->arch->pointer_mask;
    return follows_call(w, *ret_ra, &target);
}

/* Whether the present code uses a frame pointer at all: otherwise the register may point anywhere, also to an
 * old frame. If the function's start is not known, the next frame must be valid too. */
static bool keeps_frame_pointer(struct unwind_walk *w, uint64_t next)
{
    unsigned char code[128];
    const struct pb_function *f;
    uint64_t pc = lookup_pc(w), further, ra;
    struct pb_range *r = pb_process_range(w->n, pc);
    struct pb_symbols *s = pb_range_usable(r) ? pb_process_symbols(w->n, r->file) : NULL;
    if (!s || pb_symbols_find(s, pc - r->bias, &f) < 0)
        return read_frame(w, next, &further, &ra) || !pb_range_usable(r);
    uint64_t len = pc - r->bias - f->addr < sizeof(code) ? pc - r->bias - f->addr : sizeof(code);
    return pb_object_read(&r->file->object, f->addr, code, len) == 0 &&
           w->n->arch->sets_frame_pointer(code, len);
}

static bool step_by_frame_pointer(struct unwind_walk *w)
{
    const struct pb_native_arch *arch = w->n->arch;
    uint64_t fp = w->reg[arch->fp], next, ra;
    if (!is_known(w, arch->fp) || fp + 16 <= w->reg[arch->sp])
        return false;
    if (!read_frame(w, fp, &next, &ra) || !keeps_frame_pointer(w, next))
        return false;
    use_guess(w, fp + 8, ra, PB_NATIVE_BY_FP);
    w->reg[arch->fp] = next;
    return true;
}

/* If the return address just found belongs to the frame pointer, the frame pointer advances too. */
static void step_frame_pointer(struct unwind_walk *w, uint64_t at)
{
    const struct pb_native_arch *arch = w->n->arch;
    uint64_t next;
    if (is_known(w, arch->fp) && w->reg[arch->fp] + 8 == at && read_word(w, at - 8, &next) == 0)
        w->reg[arch->fp] = next;
}

/* sure: only a direct call that leads to the present function counts. */
static bool step_by_scan(struct unwind_walk *w, bool sure)
{
    uint64_t sp = w->reg[w->n->arch->sp] & ~7ull;
    for (unsigned i = 0; i < SCAN_WORDS; i++) {
        uint64_t ra, target;
        if (read_word(w, sp + 8ull * i, &ra) < 0)
            return false;
        if (!follows_call(w, ra, &target) || (sure && (!target || !leads_here(w, target))))
            continue;
        step_frame_pointer(w, sp + 8ull * i);
        use_guess(w, sp + 8ull * i, ra, PB_NATIVE_BY_SCAN);
        return true;
    }
    return false;
}

/* A call to an invalid address has only pushed its return address; on other processors it is in the link
 * register. */
static bool step_out_of_bad_call(struct unwind_walk *w)
{
    const struct pb_native_arch *arch = w->n->arch;
    uint64_t ra, target, sp = w->reg[arch->sp];
    if (!w->exact || pb_process_range(w->n, w->pc))
        return false;
    if (arch->link < arch->nregs) {
        if (!is_known(w, arch->link))
            return false;
        ra = w->reg[arch->link] & arch->pointer_mask;
        go_to(w, ra, false);
        w->how = 0;
        return pb_process_range(w->n, ra - 1) != NULL;
    }
    if (read_word(w, sp, &ra) < 0 || !follows_call(w, ra, &target))
        return false;
    w->reg[arch->sp] = sp + 8;
    go_to(w, ra, false);
    w->how = 0;
    return true;
}

/* Out of a signal handler, where the C library's return code has no rules. */
static bool step_by_context(struct unwind_walk *w)
{
    const struct pb_native_arch *arch = w->n->arch;
    uint64_t reg[PB_NATIVE_REGS];
    if (!is_known(w, arch->sp) || !is_signal_return(w, w->pc))
        return false;
    for (unsigned i = 0; i < arch->nregs; i++)
        if (read_word(w, w->reg[arch->sp] + arch->context[i], &reg[i]) < 0)
            return false;
    memcpy(w->reg, reg, sizeof(reg));
    w->known = (1ull << arch->nregs) - 1;
    go_to(w, reg[arch->pc], true);
    w->how = 0;
    return true;
}

static bool step_by_guess(struct unwind_walk *w)
{
    if (step_out_of_bad_call(w))
        return true;
    if (w->c->no_guesses || w->guesses++ == GUESSES_MAX || !is_known(w, w->n->arch->sp))
        return false;
    return step_by_scan(w, true) || step_by_frame_pointer(w) || step_by_scan(w, false);
}

/* True in the outermost function of every stack, in a C library without unwind tables. */
static bool is_outermost(struct unwind_walk *w)
{
    static const char *const outermost[] = {"_start", "_dlstart", "__clone", "clone", "clone3", "__clone3"};
    const struct pb_function *f;
    char name[32];
    uint64_t pc = lookup_pc(w);
    struct pb_range *r = pb_process_range(w->n, pc);
    struct pb_symbols *s = pb_range_usable(r) ? pb_process_symbols(w->n, r->file) : NULL;
    if (!s || pb_symbols_find(s, pc - r->bias, &f) < 0 || pb_symbols_name(s, f, name, sizeof(name)) < 0)
        return false;
    for (size_t i = 0; i < sizeof(outermost) / sizeof(outermost[0]); i++)
        if (strcmp(name, outermost[i]) == 0)
            return true;
    return false;
}

/* 1: at the caller; 0: complete; negative: there are more frames, which cannot be found. */
static int step_to_caller(struct unwind_walk *w, unsigned *flags)
{
    const struct pb_row_slot *s = find_row(w);
    int r = -ENOENT;
    if (s) {
        if (s->row.signal)
            *flags |= PB_NATIVE_SIGNAL;
        r = step_by_row(w, s);
        if (r >= 0)
            return r;
        /* If the stack was not copied, nothing can be found in it either. */
        if (r == -EFAULT) {
            want_missed(w);
            return r;
        }
    }
    if (step_by_context(w)) {
        *flags |= PB_NATIVE_SIGNAL;
        return 1;
    }
    if (is_outermost(w))
        return 0;
    return step_by_guess(w) ? 1 : r;
}

static bool prepare(struct pb_native *n)
{
    if (!n->rows)
        n->rows = calloc(PB_ROW_SLOTS, sizeof(*n->rows));
    return n->rows != NULL;
}

size_t pb_native_unwind(struct pb_native *n, struct pb_capture *c, struct pb_native_pc *pcs, size_t max,
                        unsigned *ret_flags)
{
    struct unwind_walk w = {.n = n, .c = c, .known = c->known, .pc = c->pc, .exact = true};
    unsigned all = 0;
    size_t count = 0;
    memcpy(w.reg, c->reg, sizeof(w.reg));
    c->wanted = 0;
    pb_process_refresh(n, false);
    int r = prepare(n) ? 1 : 0;
    all |= r ? 0 : PB_NATIVE_TRUNCATED;
    while (count < max) {
        unsigned flags = w.how | (w.exact ? PB_NATIVE_EXACT : 0);
        pcs[count].pc = w.pc;
        if (r > 0)
            r = step_to_caller(&w, &flags);
        pcs[count++].flags = flags;
        all |= flags;
        if (r <= 0)
            break;
    }
    /* A full array truncates it too, unless the last frame was the outermost. */
    if (r != 0)
        all |= PB_NATIVE_TRUNCATED;
    *ret_flags = all & ~(unsigned)PB_NATIVE_EXACT;
    return count;
}
