/* stackset_wire: a set of stacks as bytes; see stackset.h.
 *
 *   "PBS1", processes, threads, without                          u64 each
 *   texts    n, then each: length, bytes                         u32
 *   frames   n, then each: native, function, file, module, line  u32; address u64
 *   stacks   n, then each: apart, frames n and their numbers, threads u64, processes u64, ranks n and their
 *            ranges, members n and their process, thread, tid    u32
 *
 * Little endian. Identities are not sent: the receiver computes them, and cannot be given wrong ones. */
#include "ask/stackset_impl.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC     "PBS1"
#define DEPTH_MAX (1u << 20)

static void put_stack(FILE *out, const struct pb_stackset *set, const struct set_stack *s)
{
    pb_put_u32(out, s->apart);
    pb_put_u32(out, s->nframes);
    for (uint32_t i = 0; i < s->nframes; i++)
        pb_put_u32(out, set->numbers[s->first_frame + i]);
    pb_put_u64(out, s->threads);
    pb_put_u64(out, s->processes);
    pb_put_u32(out, (uint32_t)s->ranks.n);
    for (size_t i = 0; i < s->ranks.n; i++) {
        pb_put_u32(out, s->ranks.at[i].first);
        pb_put_u32(out, s->ranks.at[i].last);
    }
    pb_put_u32(out, (uint32_t)s->nmembers);
    for (size_t i = 0; i < s->nmembers; i++) {
        pb_put_u32(out, s->members[i].process);
        pb_put_u32(out, s->members[i].thread);
        pb_put_u32(out, (uint32_t)s->members[i].tid);
    }
}

int pb_stackset_encode(const struct pb_stackset *set, void **ret, size_t *ret_size)
{
    char *bytes = NULL;
    FILE *out = open_memstream(&bytes, ret_size);

    if (!out)
        return -ENOMEM;
    fwrite(MAGIC, 4, 1, out);
    pb_put_u64(out, set->processes);
    pb_put_u64(out, set->threads);
    pb_put_u64(out, set->without);
    pb_put_u32(out, (uint32_t)set->texts.n);
    for (size_t i = 0; i < set->texts.n; i++) {
        size_t len = strlen(set->texts.at[i]);
        pb_put_u32(out, (uint32_t)len);
        fwrite(set->texts.at[i], 1, len, out);
    }
    pb_put_u32(out, (uint32_t)set->nframes);
    for (size_t i = 0; i < set->nframes; i++) {
        const struct set_frame *f = &set->frames[i];
        const uint32_t words[] = {f->native, f->function, f->file, f->module, f->line};
        fwrite(words, sizeof(words), 1, out);
        pb_put_u64(out, f->address);
    }
    pb_put_u32(out, (uint32_t)set->nstacks);
    for (size_t i = 0; i < set->nstacks; i++)
        put_stack(out, set, &set->stacks[i]);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(bytes);
        return -ENOMEM;
    }
    *ret = bytes;
    return 0;
}

/* Reads a count of items of at least `each` bytes; at most as many as the rest can hold. */
static uint32_t take_count(struct pb_cursor *c, size_t each)
{
    uint32_t n = pb_u32(c);

    if (n > pb_left(c) / each) {
        c->bad = true;
        return 0;
    }
    return n;
}

/* --- reading --- */

/* What is read, and the set that it goes into. First all is looked at with no set, so that bytes which are
 * wrong in their last line have changed nothing. */
struct set_reading {
    struct pb_cursor b;
    struct pb_stackset *set; /* NULL: it is only looked at */
    bool (*owns)(void *arg, const struct pb_set_range *range);
    void *arg;
    struct set_hints now; /* index in the sent set -> index in ours; the sender may repeat a text or frame */
    uint32_t *row;        /* of the stack at hand */
    size_t row_cap;
    bool fresh; /* the set was empty */
};

static void reading_done(struct set_reading *r)
{
    free(r->now.texts);
    free(r->now.frames);
    free(r->now.stacks);
    free(r->row);
}

static int make_numbers(const struct set_reading *r, uint32_t **ret, size_t n)
{
    if (!r->set)
        return 0;
    *ret = calloc(n + 1, sizeof(**ret));
    return *ret ? 0 : -ENOMEM;
}

/* Nodes of one job send nearly the same: at the same place there is mostly what the node before sent, and a
 * look at that is all it takes. */
static int put_text(struct set_reading *r, size_t i, const char *at, size_t len)
{
    const struct set_hints *last = &r->set->last;

    len = strnlen(at, len);
    if (i < last->ntexts) {
        const char *known = r->set->texts.at[last->texts[i]];
        if (strncmp(known, at, len) == 0 && !known[len]) {
            r->now.texts[i] = last->texts[i];
            return 0;
        }
    }
    _cleanup_free_ char *text = strndup(at, len);
    return text ? pb_stackset_put_text(r->set, text, &r->now.texts[i]) : -ENOMEM;
}

static int take_texts(struct set_reading *r)
{
    r->now.ntexts = take_count(&r->b, 4);
    int e = make_numbers(r, &r->now.texts, r->now.ntexts);
    for (size_t i = 0; e >= 0 && i < r->now.ntexts; i++) {
        uint32_t len = pb_u32(&r->b);
        const char *at = pb_span(&r->b, len);
        e = !at ? -EBADMSG : r->set ? put_text(r, i, at, len) : 0;
    }
    return e < 0 ? e : 0;
}

static int text_number(const struct set_reading *r, uint32_t sent, uint32_t *ret)
{
    if (sent != NO_TEXT && sent >= r->now.ntexts)
        return -EBADMSG;
    *ret = sent == NO_TEXT || !r->set ? NO_TEXT : r->now.texts[sent];
    return 0;
}

static int put_frame(struct set_reading *r, size_t i, struct set_frame f)
{
    const struct set_hints *last = &r->set->last;

    if (i < last->nframes && pb_stackset_is_frame(r->set, last->frames[i], &f)) {
        r->now.frames[i] = last->frames[i];
        return 0;
    }
    return pb_stackset_put_frame(r->set, f, &r->now.frames[i]);
}

static int take_frames(struct set_reading *r)
{
    r->now.nframes = take_count(&r->b, 28);
    int e = make_numbers(r, &r->now.frames, r->now.nframes);
    for (size_t i = 0; e >= 0 && i < r->now.nframes; i++) {
        struct set_frame f = {.native = pb_u32(&r->b) != 0};
        uint32_t function = pb_u32(&r->b), file = pb_u32(&r->b), module = pb_u32(&r->b);
        f.line = pb_u32(&r->b);
        f.address = pb_u64(&r->b);
        e = r->b.bad ? -EBADMSG : text_number(r, function, &f.function);
        if (e >= 0)
            e = text_number(r, file, &f.file);
        if (e >= 0)
            e = text_number(r, module, &f.module);
        if (e >= 0 && r->set)
            e = put_frame(r, i, f);
    }
    return e < 0 ? e : 0;
}

/* Ranges that touch are one. */
static int take_ranks(struct set_reading *r, struct set_stack *stack)
{
    uint32_t n = take_count(&r->b, 8);
    struct pb_set_range whole = {1, 0};
    int e = 0;

    for (uint32_t i = 0; e == 0 && i < n; i++) {
        struct pb_set_range range = {pb_u32(&r->b), pb_u32(&r->b)};
        if (range.first > range.last || (r->owns && !r->owns(r->arg, &range)))
            return r->owns && range.first <= range.last ? -EPERM : -EBADMSG;
        if (!stack)
            continue;
        if (whole.first <= whole.last && range.first == whole.last + 1ull) {
            whole.last = range.last;
            continue;
        }
        if (whole.first <= whole.last)
            e = pb_stackset_put_range(r->set, &stack->ranks, whole);
        whole = range;
    }
    if (e == 0 && stack && whole.first <= whole.last)
        e = pb_stackset_put_range(r->set, &stack->ranks, whole);
    return e;
}

static int take_members(struct set_reading *r, struct set_stack *stack)
{
    uint32_t n = take_count(&r->b, 12);
    int e = 0;

    for (uint32_t i = 0; e == 0 && i < n; i++) {
        struct set_member member;
        uint32_t process = pb_u32(&r->b), thread = pb_u32(&r->b);
        member.tid = (int32_t)pb_u32(&r->b);
        if (process == NO_TEXT || thread == NO_TEXT)
            return -EBADMSG;
        e = text_number(r, process, &member.process);
        if (e == 0)
            e = text_number(r, thread, &member.thread);
        /* Each of several processes is named once. */
        if (e == 0 && stack && (r->fresh || !pb_stackset_has_member(stack, member.process)))
            pb_stackset_put_member(stack, member);
    }
    return e;
}

/* The numbers of the stack's frames, into row. */
static int take_row(struct set_reading *r, uint32_t n)
{
    if (n == 0 || n > DEPTH_MAX)
        return -EBADMSG;
    if (r->set && n > r->row_cap) {
        uint32_t *more = reallocarray(r->row, n, 2 * sizeof(*more));
        if (!more)
            return -ENOMEM;
        r->row = more;
        r->row_cap = 2 * (size_t)n;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sent = pb_u32(&r->b);
        if (sent >= r->now.nframes)
            return -EBADMSG;
        if (r->set)
            r->row[i] = r->now.frames[sent];
    }
    return 0;
}

static int take_stack(struct set_reading *r, size_t i)
{
    const struct set_hints *last = r->set ? &r->set->last : NULL;
    struct set_stack *stack = NULL;

    bool apart = pb_u32(&r->b) != 0;
    uint32_t n = take_count(&r->b, 4);
    int e = take_row(r, n);
    if (e == 0 && r->set && i < last->nstacks &&
        pb_stackset_is_stack(r->set, last->stacks[i], r->row, n, apart))
        r->now.stacks[i] = last->stacks[i];
    else if (e == 0 && r->set)
        e = pb_stackset_put_stack(r->set, r->row, n, apart, &r->now.stacks[i]);
    if (e < 0)
        return e;
    uint64_t threads = pb_u64(&r->b), processes = pb_u64(&r->b);
    if (r->set) {
        stack = &r->set->stacks[r->now.stacks[i]];
        stack->threads += threads;
        stack->processes += processes;
    }
    e = take_ranks(r, stack);
    return e < 0 ? e : take_members(r, stack);
}

static int take_all(struct set_reading *r)
{
    const char *magic = pb_span(&r->b, 4);

    if (!magic || memcmp(magic, MAGIC, 4) != 0)
        return -EBADMSG;
    uint64_t processes = pb_u64(&r->b), threads = pb_u64(&r->b), without = pb_u64(&r->b);
    int e = take_texts(r);
    if (e == 0)
        e = take_frames(r);
    r->now.nstacks = e == 0 ? take_count(&r->b, 32) : 0;
    if (e == 0)
        e = make_numbers(r, &r->now.stacks, r->now.nstacks);
    for (size_t i = 0; e == 0 && i < r->now.nstacks; i++)
        e = take_stack(r, i);
    if (e == 0 && (r->b.bad || pb_left(&r->b)))
        e = -EBADMSG;
    if (e == 0 && r->set) {
        r->set->processes += processes;
        r->set->threads += threads;
        r->set->without += without;
    }
    return e;
}

int pb_stackset_merge(struct pb_stackset *set, const void *bytes, size_t size,
                      bool (*owns)(void *arg, const struct pb_set_range *range), void *arg,
                      struct pb_err *err)
{
    const unsigned char *at = bytes;
    struct set_reading look = {.b = {at, at + size, false}, .owns = owns, .arg = arg};
    _cleanup_(reading_done) struct set_reading take = {
        .b = {at, at + size, false}, .set = set, .fresh = set->nstacks == 0};

    int r = take_all(&look);
    if (r == 0) {
        r = take_all(&take);
        free(set->order);
        set->order = NULL;
    }
    if (r == 0) {
        struct set_hints before = set->last;
        set->last = take.now;
        take.now = before;
    }
    if (r < 0)
        pb_fail(err, r,
                r == -EBADMSG ? "the bytes are no set of stacks"
                : r == -EPERM ? "there is a stack of a rank that is another's"
                              : "the set of stacks is too large");
    return r;
}
