/* stackset: see stackset.h. The wire form is in stackset_wire.c. */
#include "ask/stackset_impl.h"

#include "ask/stacks.h"
#include "base/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SET_BYTES   (256u << 20)
#define SAME_ID_MAX 64 /* frames or stacks of one hash; more are made on purpose, and would cost time */

int pb_stackset_new(struct pb_stackset **ret)
{
    struct pb_stackset *set = calloc(1, sizeof(*set));
    if (!set)
        return -ENOMEM;
    set->budget.left = SET_BYTES;
    *ret = set;
    return 0;
}

void pb_stackset_drop_lines(struct pb_stackset *set)
{
    set->no_lines = true;
}

void pb_stackset_free(struct pb_stackset *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->nstacks; i++)
        free(set->stacks[i].ranks.at);
    pb_texts_done(&set->texts);
    pb_keys_done(&set->frame_keys);
    pb_keys_done(&set->stack_keys);
    free(set->frames);
    free(set->numbers);
    free(set->stacks);
    free(set->order);
    free(set->last.texts);
    free(set->last.frames);
    free(set->last.stacks);
    free(set);
}

/* --- identities: FNV-1a over the visible texts --- */

static uint64_t hash_text(const struct pb_stackset *set, uint64_t h, uint32_t text)
{
    const char *s = text == NO_TEXT ? "" : set->texts.at[text];
    return pb_hash_bytes(h, s, strlen(s) + 1);
}

static uint64_t frame_id(const struct pb_stackset *set, const struct set_frame *f)
{
    uint64_t h = pb_hash_bytes(PB_HASH_START, f->native ? "n" : "p", 1);

    h = hash_text(set, h, f->function);
    h = hash_text(set, h, f->file);
    h = hash_text(set, h, f->module);
    h = pb_hash_bytes(h, &f->line, sizeof(f->line));
    return pb_hash_bytes(h, &f->address, sizeof(f->address));
}

/* --- putting things in once --- */

int pb_stackset_put_text(struct pb_stackset *set, const char *text, uint32_t *ret)
{
    if (text)
        return pb_texts_intern(&set->texts, &set->budget, text, ret);
    *ret = NO_TEXT;
    return 0;
}

static bool same_frame(const struct set_frame *a, const struct set_frame *b)
{
    return a->native == b->native && a->function == b->function && a->file == b->file &&
           a->module == b->module && a->line == b->line && a->address == b->address;
}

bool pb_stackset_is_frame(const struct pb_stackset *set, uint32_t number, const struct set_frame *f)
{
    struct set_frame own = *f;

    own.line = set->no_lines ? 0 : f->line;
    return number < set->nframes && same_frame(&set->frames[number], &own);
}

int pb_stackset_put_frame(struct pb_stackset *set, struct set_frame f, uint32_t *ret)
{
    if (set->no_lines)
        f.line = 0;
    f.id = frame_id(set, &f);
    for (uint64_t again = 0; again < SAME_ID_MAX; again++) {
        int r = pb_keys_intern(&set->frame_keys, &set->budget, f.id, again, ret);
        if (r == 0 && *ret >= set->nframes) /* there was no room when it was added */
            return -ENOSPC;
        if (r == 0 && same_frame(&set->frames[*ret], &f))
            return 0;
        if (r == 0)
            continue;
        if (r == 1)
            r = pb_grow((void **)&set->frames, &set->frames_cap, set->nframes, sizeof(f), &set->budget);
        if (r < 0)
            return r;
        set->frames[set->nframes++] = f;
        return 0;
    }
    return -ENOSPC;
}

static bool same_stack(const struct pb_stackset *set, const struct set_stack *a, const uint32_t *frames,
                       uint32_t n, bool apart)
{
    return a->nframes == n && a->apart == apart &&
           memcmp(set->numbers + a->first_frame, frames, n * sizeof(*frames)) == 0;
}

bool pb_stackset_is_stack(const struct pb_stackset *set, uint32_t number, const uint32_t *frames, uint32_t n,
                          bool apart)
{
    return number < set->nstacks && same_stack(set, &set->stacks[number], frames, n, apart);
}

static int new_stack(struct pb_stackset *set, uint64_t id, const uint32_t *frames, uint32_t n, bool apart)
{
    struct set_stack stack = {.id = id, .first_frame = set->nnumbers, .nframes = n, .apart = apart};
    int r = pb_grow((void **)&set->stacks, &set->stacks_cap, set->nstacks, sizeof(stack), &set->budget);

    for (uint32_t i = 0; r == 0 && i < n; i++) {
        r = pb_grow((void **)&set->numbers, &set->numbers_cap, set->nnumbers, sizeof(*frames), &set->budget);
        if (r == 0)
            set->numbers[set->nnumbers++] = frames[i];
    }
    if (r == 0)
        set->stacks[set->nstacks++] = stack;
    return r;
}

int pb_stackset_put_stack(struct pb_stackset *set, const uint32_t *frames, uint32_t n, bool apart,
                          uint32_t *ret)
{
    uint64_t id = pb_hash_bytes(PB_HASH_START, apart ? "a" : "f", 1);

    for (uint32_t i = 0; i < n; i++)
        id = pb_hash_bytes(id, &set->frames[frames[i]].id, sizeof(id));
    for (uint64_t again = 0; again < SAME_ID_MAX; again++) {
        int r = pb_keys_intern(&set->stack_keys, &set->budget, id, again, ret);
        if (r == 0 && *ret >= set->nstacks)
            return -ENOSPC;
        if (r == 0 && same_stack(set, &set->stacks[*ret], frames, n, apart))
            return 0;
        if (r == 0)
            continue;
        return r == 1 ? new_stack(set, id, frames, n, apart) : r;
    }
    return -ENOSPC;
}

/* The first range that is not before the given one and does not touch it either: nodes answer in any order,
 * and a stack of thousands of ranks has hundreds of ranges meanwhile. */
static size_t find_range(const struct set_ranges *in, uint32_t first)
{
    size_t low = 0, high = in->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (in->at[middle].last + 1ull < first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int pb_stackset_put_range(struct pb_stackset *set, struct set_ranges *to, struct pb_set_range range)
{
    size_t at = find_range(to, range.first), end;

    for (end = at; end < to->n && to->at[end].first <= range.last + 1ull; end++) {
        if (to->at[end].first < range.first)
            range.first = to->at[end].first;
        if (to->at[end].last > range.last)
            range.last = to->at[end].last;
    }
    if (end == at) {
        int r = pb_grow((void **)&to->at, &to->cap, to->n, sizeof(range), &set->budget);
        if (r < 0)
            return r;
        memmove(&to->at[at + 1], &to->at[at], (to->n - at) * sizeof(range));
        to->n++;
    } else {
        memmove(&to->at[at + 1], &to->at[end], (to->n - end) * sizeof(range));
        to->n -= end - at - 1;
    }
    to->at[at] = range;
    return 0;
}

void pb_stackset_put_member(struct set_stack *to, struct set_member member)
{
    if (to->nmembers < PB_SET_NAMED)
        to->members[to->nmembers++] = member;
}

/* --- a process --- */

static int put_python(struct pb_stackset *set, const struct pb_shown_frame *f, uint32_t *ret)
{
    struct set_frame frame = {.module = NO_TEXT, .line = f->line > 0 ? (uint32_t)f->line : 0};

    int r = pb_stackset_put_text(set, f->code->qualname, &frame.function);
    if (r >= 0)
        r = pb_stackset_put_text(set, f->code->file, &frame.file);
    return r < 0 ? r : pb_stackset_put_frame(set, frame, ret);
}

/* A frame without a name is identified by its offset in its file; processes load it at different
 * addresses. */
static int put_native(struct pb_stackset *set, const struct pb_native_frame *f, uint32_t *ret)
{
    struct set_frame frame = {.native = true, .line = f->line, .address = f->function ? 0 : f->address};

    int r = pb_stackset_put_text(set, f->function, &frame.function);
    if (r >= 0)
        r = pb_stackset_put_text(set, f->file, &frame.file);
    if (r >= 0)
        r = pb_stackset_put_text(set, f->module, &frame.module);
    return r < 0 ? r : pb_stackset_put_frame(set, frame, ret);
}

/* The stack of a thread as it is shown: native and Python frames merged where both were read. */
static int put_thread(struct pb_stackset *set, const struct pb_shown_thread *t, uint32_t *ret)
{
    size_t n = t->nmerged ? t->nmerged : t->nframes;
    uint32_t *frames = calloc(n, sizeof(*frames));
    int r = frames ? 0 : -ENOMEM;

    for (size_t i = 0; r >= 0 && i < n; i++) {
        size_t index = t->nmerged ? t->merged[i].index : i;
        if (t->nmerged && !t->merged[i].python)
            r = put_native(set, &t->natives[index], &frames[i]);
        else
            r = put_python(set, &t->frames[index], &frames[i]);
    }
    bool apart = t->nmerged && t->nnatives && t->merge == PB_MERGE_APART;
    if (r >= 0)
        r = pb_stackset_put_stack(set, frames, (uint32_t)n, apart, ret);
    free(frames);
    return r;
}

bool pb_stackset_has_member(const struct set_stack *stack, uint32_t process)
{
    for (size_t i = 0; i < stack->nmembers; i++)
        if (stack->members[i].process == process)
            return true;
    return false;
}

int pb_stackset_add(struct pb_stackset *set, const struct pb_stacks *s, int32_t rank)
{
    struct set_member member;
    size_t before = set->processes++;
    uint64_t *seen = calloc(s->n + 1, sizeof(*seen)); /* stacks of this process, each once */
    size_t nseen = 0;

    int r = seen ? pb_stackset_put_text(set, s->label, &member.process) : -ENOMEM;
    free(set->order);
    set->order = NULL;
    for (size_t i = 0; r >= 0 && i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        uint32_t number;
        if (!(t->nmerged ? t->nmerged : t->nframes)) {
            set->without++;
            continue;
        }
        r = put_thread(set, t, &number);
        if (r >= 0)
            r = pb_stackset_put_text(set, t->name[0] ? t->name : t->native.name, &member.thread);
        if (r < 0)
            break;
        struct set_stack *stack = &set->stacks[number];
        bool again = false;
        for (size_t k = 0; !again && k < nseen; k++)
            again = seen[k] == number;
        set->threads++;
        stack->threads++;
        member.tid = t->native.tid;
        if (!again || before == 0)
            pb_stackset_put_member(stack, member);
        if (again)
            continue;
        seen[nseen++] = number;
        stack->processes++;
        if (rank >= 0)
            r = pb_stackset_put_range(set, &stack->ranks,
                                      (struct pb_set_range){(uint32_t)rank, (uint32_t)rank});
    }
    free(seen);
    return r < 0 ? r : 0;
}

/* --- sets --- */

static const char *text_of(const struct pb_stackset *set, uint32_t text)
{
    return text == NO_TEXT ? NULL : set->texts.at[text];
}

/* --- reading the set --- */

size_t pb_stackset_processes(const struct pb_stackset *set)
{
    return set->processes;
}

size_t pb_stackset_threads(const struct pb_stackset *set)
{
    return set->threads;
}

size_t pb_stackset_without(const struct pb_stackset *set)
{
    return set->without;
}

size_t pb_stackset_n(const struct pb_stackset *set)
{
    return set->nstacks;
}

static int rarest_first(const void *a, const void *b, void *arg)
{
    const struct pb_stackset *set = arg;
    const struct set_stack *x = &set->stacks[*(const uint32_t *)a], *y = &set->stacks[*(const uint32_t *)b];

    if (x->threads != y->threads)
        return x->threads < y->threads ? -1 : 1;
    if (x->nframes != y->nframes)
        return x->nframes > y->nframes ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id); /* the same order on every machine */
}

void pb_stackset_stack(struct pb_stackset *set, size_t i, struct pb_set_stack *ret)
{
    if (!set->order && (set->order = calloc(set->nstacks, sizeof(*set->order)))) {
        for (size_t k = 0; k < set->nstacks; k++)
            set->order[k] = (uint32_t)k;
        qsort_r(set->order, set->nstacks, sizeof(*set->order), rarest_first, set);
    }
    /* Out of memory: in the order of insertion. */
    const struct set_stack *stack = &set->stacks[set->order ? set->order[i] : i];
    *ret = (struct pb_set_stack){.id = stack->id,
                                 .frames = set->numbers + stack->first_frame,
                                 .nframes = stack->nframes,
                                 .apart = stack->apart,
                                 .threads = stack->threads,
                                 .processes = stack->processes,
                                 .ranks = stack->ranks.at,
                                 .nranks = stack->ranks.n,
                                 .nmembers = stack->nmembers};
    for (size_t k = 0; k < stack->nmembers; k++)
        ret->members[k] =
            (struct pb_set_member){text_of(set, stack->members[k].process),
                                   text_of(set, stack->members[k].thread), stack->members[k].tid};
}

void pb_stackset_frame(const struct pb_stackset *set, uint32_t number, struct pb_set_frame *ret)
{
    const struct set_frame *f = &set->frames[number];

    *ret = (struct pb_set_frame){.id = f->id,
                                 .native = f->native,
                                 .function = text_of(set, f->function),
                                 .file = text_of(set, f->file),
                                 .module = text_of(set, f->module),
                                 .line = f->line,
                                 .address = f->address};
}
