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

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC     "PBS1"
#define DEPTH_MAX (1u << 20)

static void put32(FILE *out, uint32_t value)
{
    fwrite(&value, sizeof(value), 1, out);
}

static void put64(FILE *out, uint64_t value)
{
    fwrite(&value, sizeof(value), 1, out);
}

static void put_stack(FILE *out, const struct pb_stackset *set, const struct set_stack *s)
{
    put32(out, s->apart);
    put32(out, s->nframes);
    for (uint32_t i = 0; i < s->nframes; i++)
        put32(out, set->numbers[s->first_frame + i]);
    put64(out, s->threads);
    put64(out, s->processes);
    put32(out, (uint32_t)s->ranks.n);
    for (size_t i = 0; i < s->ranks.n; i++) {
        put32(out, s->ranks.at[i].first);
        put32(out, s->ranks.at[i].last);
    }
    put32(out, (uint32_t)s->nmembers);
    for (size_t i = 0; i < s->nmembers; i++) {
        put32(out, s->members[i].process);
        put32(out, s->members[i].thread);
        put32(out, (uint32_t)s->members[i].tid);
    }
}

int pb_stackset_encode(const struct pb_stackset *set, void **ret, size_t *ret_size)
{
    char *bytes = NULL;
    FILE *out = open_memstream(&bytes, ret_size);

    if (!out)
        return -ENOMEM;
    fwrite(MAGIC, 4, 1, out);
    put64(out, set->processes);
    put64(out, set->threads);
    put64(out, set->without);
    put32(out, (uint32_t)set->texts.n);
    for (size_t i = 0; i < set->texts.n; i++) {
        size_t len = strlen(set->texts.at[i]);
        put32(out, (uint32_t)len);
        fwrite(set->texts.at[i], 1, len, out);
    }
    put32(out, (uint32_t)set->nframes);
    for (size_t i = 0; i < set->nframes; i++) {
        const struct set_frame *f = &set->frames[i];
        const uint32_t words[] = {f->native, f->function, f->file, f->module, f->line};
        fwrite(words, sizeof(words), 1, out);
        put64(out, f->address);
    }
    put32(out, (uint32_t)set->nstacks);
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

/* The bytes not read yet. A read beyond the end gives 0 and sets a flag. */
struct bytes {
    const char *at;
    size_t left;
    bool short_;
};

static const char *take_bytes(struct bytes *b, size_t n)
{
    const char *at = b->at;

    if (n > b->left) {
        b->short_ = true;
        b->left = 0;
        return NULL;
    }
    b->at += n;
    b->left -= n;
    return at;
}

static uint32_t take32(struct bytes *b)
{
    uint32_t value = 0;
    const char *at = take_bytes(b, sizeof(value));
    if (at)
        memcpy(&value, at, sizeof(value));
    return value;
}

static uint64_t take64(struct bytes *b)
{
    uint64_t value = 0;
    const char *at = take_bytes(b, sizeof(value));
    if (at)
        memcpy(&value, at, sizeof(value));
    return value;
}

/* Reads a count of items of at least `each` bytes; at most as many as the rest can hold. */
static uint32_t take_count(struct bytes *b, size_t each)
{
    uint32_t n = take32(b);

    if (n > b->left / each) {
        b->short_ = true;
        return 0;
    }
    return n;
}

/* Maps numbers in the bytes to numbers in the set: equal texts or frames may have been sent twice. */
struct numbers {
    uint32_t *at;
    uint32_t n;
};

static void numbers_done(struct numbers *n)
{
    free(n->at);
}

static int make_numbers(struct numbers *ret, uint32_t n)
{
    *ret = (struct numbers){calloc(n + 1u, sizeof(*ret->at)), n};
    return ret->at ? 0 : -ENOMEM;
}

static int take_texts(struct bytes *b, struct pb_stackset *set, struct numbers *ret)
{
    int r = make_numbers(ret, take_count(b, 4));

    for (uint32_t i = 0; r >= 0 && i < ret->n; i++) {
        uint32_t len = take32(b);
        const char *at = take_bytes(b, len);
        _cleanup_free_ char *text = at ? strndup(at, len) : NULL;
        r = !at ? -EBADMSG : !text ? -ENOMEM : pb_stackset_put_text(set, text, &ret->at[i]);
    }
    return r < 0 ? r : 0;
}

static int text_number(const struct numbers *texts, uint32_t sent, uint32_t *ret)
{
    if (sent != NO_TEXT && sent >= texts->n)
        return -EBADMSG;
    *ret = sent == NO_TEXT ? NO_TEXT : texts->at[sent];
    return 0;
}

static int take_frames(struct bytes *b, struct pb_stackset *set, const struct numbers *texts,
                       struct numbers *ret)
{
    int r = make_numbers(ret, take_count(b, 28));

    for (uint32_t i = 0; r >= 0 && i < ret->n; i++) {
        struct set_frame f = {.native = take32(b) != 0};
        uint32_t function = take32(b), file = take32(b), module = take32(b);
        f.line = take32(b);
        f.address = take64(b);
        r = b->short_ ? -EBADMSG : text_number(texts, function, &f.function);
        if (r >= 0)
            r = text_number(texts, file, &f.file);
        if (r >= 0)
            r = text_number(texts, module, &f.module);
        if (r >= 0)
            r = pb_stackset_put_frame(set, f, &ret->at[i]);
    }
    return r < 0 ? r : 0;
}

static int take_ranks(struct bytes *b, struct pb_stackset *set, struct set_stack *stack)
{
    uint32_t n = take_count(b, 8);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < n; i++) {
        struct pb_set_range range = {take32(b), take32(b)};
        r = range.first > range.last ? -EBADMSG : pb_stackset_put_range(set, &stack->ranks, range);
    }
    return r;
}

static int take_members(struct bytes *b, const struct numbers *texts, struct set_stack *stack)
{
    uint32_t n = take_count(b, 12);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < n; i++) {
        struct set_member member;
        uint32_t process = take32(b), thread = take32(b);
        member.tid = (int32_t)take32(b);
        if (process == NO_TEXT || thread == NO_TEXT)
            return -EBADMSG;
        r = text_number(texts, process, &member.process);
        if (r == 0)
            r = text_number(texts, thread, &member.thread);
        if (r == 0)
            pb_stackset_put_member(stack, member);
    }
    return r;
}

static int take_stack(struct bytes *b, struct pb_stackset *set, const struct numbers *texts,
                      const struct numbers *frames)
{
    _cleanup_(numbers_done) struct numbers row = {0};
    uint32_t number;

    bool apart = take32(b) != 0;
    int r = make_numbers(&row, take_count(b, 4));
    if (r == 0 && (row.n == 0 || row.n > DEPTH_MAX))
        r = -EBADMSG;
    for (uint32_t i = 0; r == 0 && i < row.n; i++) {
        uint32_t sent = take32(b);
        r = sent < frames->n ? 0 : -EBADMSG;
        row.at[i] = r == 0 ? frames->at[sent] : 0;
    }
    if (r == 0)
        r = pb_stackset_put_stack(set, row.at, row.n, apart, &number);
    if (r < 0)
        return r;
    struct set_stack *stack = &set->stacks[number];
    stack->threads += take64(b);
    stack->processes += take64(b);
    r = take_ranks(b, set, stack);
    return r < 0 ? r : take_members(b, texts, stack);
}

static int take_all(struct bytes *b, struct pb_stackset *set)
{
    _cleanup_(numbers_done) struct numbers texts = {0}, frames = {0};
    const char *magic = take_bytes(b, 4);

    if (!magic || memcmp(magic, MAGIC, 4) != 0)
        return -EBADMSG;
    set->processes = take64(b);
    set->threads = take64(b);
    set->without = take64(b);
    int r = take_texts(b, set, &texts);
    if (r == 0)
        r = take_frames(b, set, &texts, &frames);
    uint32_t n = r == 0 ? take_count(b, 32) : 0;
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = take_stack(b, set, &texts, &frames);
    return r == 0 && (b->short_ || b->left) ? -EBADMSG : r;
}

int pb_stackset_decode(const void *bytes, size_t size, struct pb_stackset **ret, struct pb_err *err)
{
    struct bytes b = {bytes, size, false};
    struct pb_stackset *set;

    int r = pb_stackset_new(&set);
    if (r == 0)
        r = take_all(&b, set);
    if (r == 0) {
        *ret = set;
        return 0;
    }
    pb_stackset_free(set);
    return pb_fail(err, r,
                   r == -EBADMSG ? "the bytes are no set of stacks" : "the set of stacks is too large");
}
