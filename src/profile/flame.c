/* flame: see flame.h. */
#include "profile/flame.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "remote/python/python_reader.h"

#define MEMORY_MAX ((size_t)512 << 20)
#define LOOP_DEPTH 24 /* of the innermost frames: the C functions of select among them */
#define DEPTH_MAX  (2 * PB_PY_FRAMES_MAX + 4) /* native frames may be merged in */

int pb_flame_init(struct pb_flame *f, const struct pb_flame_options *options)
{
    *f = (struct pb_flame){.options = *options, .budget.left = MEMORY_MAX};
    int r = pb_profile_new(0, &f->names);
    if (r == 0)
        r = pb_grow((void **)&f->at, &f->cap, 0, sizeof(*f->at), &f->budget);
    if (r < 0) {
        pb_flame_done(f);
        return r;
    }
    f->at[f->n++] = (struct pb_flame_node){
        PB_PROFILE_NONE, PB_PROFILE_NONE, PB_PROFILE_NONE, PB_PROFILE_NONE, 0, 0, {0}, {0}};
    return 0;
}

void pb_flame_done(struct pb_flame *f)
{
    pb_profile_free(f->names);
    pb_keys_done(&f->keys);
    free(f->at);
    *f = (struct pb_flame){0};
}

static int child_of(struct pb_flame *f, uint32_t parent, uint32_t function, int line, uint32_t *ret)
{
    uint32_t id;

    int r = pb_grow((void **)&f->at, &f->cap, f->n, sizeof(*f->at), &f->budget);
    if (r == 0)
        r = pb_keys_intern(&f->keys, &f->budget, (uint64_t)parent << 32 | function, (uint32_t)line, &id);
    if (r > 0) {
        uint32_t depth = f->at[parent].depth + 1;
        f->at[f->n++] =
            (struct pb_flame_node){parent, PB_PROFILE_NONE, PB_PROFILE_NONE, function, line, depth, {0}, {0}};
        f->depth = depth > f->depth ? depth : f->depth;
    }
    if (r >= 0)
        *ret = id + 1; /* the root has no key */
    return r;
}

static int label_level(struct pb_flame *f, enum pb_frame_kind kind, const char *label, uint32_t *node)
{
    uint32_t function = pb_profile_function(f->names, kind, label, "");
    return function == PB_PROFILE_NONE ? -ENOSPC : child_of(f, *node, function, 0, node);
}

/* The levels above a thread's stacks (process, thread). */
static int find_prefix(struct pb_flame *f, const struct pb_profile *p, uint32_t thread, uint32_t *ret)
{
    struct pb_profile_thread t = pb_profile_thread_at(p, thread);
    char label[256];
    int r = 0;

    *ret = 0;
    if (f->options.processes)
        r = label_level(f, PB_FRAME_PROCESS, t.process, ret);
    if (r >= 0 && f->options.threads) {
        snprintf(label, sizeof(label), "%s (%d)", *t.name ? t.name : "thread", (int)t.tid);
        r = label_level(f, PB_FRAME_THREAD, label, ret);
    }
    return r;
}

/* Maps the functions of a profile to those of names. */
static uint32_t *map_functions(struct pb_flame *f, const struct pb_profile *p)
{
    size_t n = pb_profile_nfunctions(p);
    uint32_t *map = malloc((n + 1) * sizeof(*map));

    for (size_t i = 0; map && i < n; i++) {
        struct pb_profile_function function = pb_profile_function_at(p, (uint32_t)i);
        map[i] = pb_profile_function(f->names, function.kind, function.name, function.file);
    }
    return map;
}

static int add_count(struct pb_flame *f, const struct pb_profile *p, const struct pb_count *c, int side,
                     const uint32_t *map, uint32_t *stack)
{
    uint32_t node;

    int r = find_prefix(f, p, c->thread, &node);
    for (size_t i = pb_profile_stack(p, c->node, stack, DEPTH_MAX); r >= 0 && i > 0; i--) {
        struct pb_profile_frame frame = pb_profile_frame_at(p, stack[i - 1]);
        if (map[frame.function] == PB_PROFILE_NONE)
            return -ENOSPC;
        r = child_of(f, node, map[frame.function], f->options.lines ? frame.line : 0, &node);
    }
    if (r >= 0)
        f->at[node].self[side] += c->samples;
    return r < 0 ? r : 0;
}

int pb_flame_add(struct pb_flame *f, const struct pb_profile *p, int side)
{
    _cleanup_free_ uint32_t *map = map_functions(f, p);
    _cleanup_free_ uint32_t *stack = malloc(DEPTH_MAX * sizeof(*stack));
    int r = 0;

    if (!map || !stack)
        return -ENOMEM;
    for (size_t i = 0; r == 0 && i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        if (!pb_profile_thread_at(p, c.thread).hidden)
            r = add_count(f, p, &c, side, map, stack);
    }
    return r;
}

static int heaviest_first(const void *a, const void *b, void *nodes)
{
    const struct pb_flame_node *all = nodes, *x = &all[*(const uint32_t *)a], *y = &all[*(const uint32_t *)b];
    uint64_t s = x->total[0] + x->total[1], t = y->total[0] + y->total[1];

    return s != t ? (s < t ? 1 : -1) : (x > y) - (x < y);
}

int pb_flame_finish(struct pb_flame *f)
{
    _cleanup_free_ uint32_t *order = malloc(f->n * sizeof(*order));

    if (!order)
        return -ENOMEM;
    /* Children come after their parents. */
    for (size_t i = f->n; i-- > 0;) {
        struct pb_flame_node *node = &f->at[i];
        order[i] = (uint32_t)i;
        for (int side = 0; side < 2; side++) {
            node->total[side] += node->self[side];
            if (i > 0)
                f->at[node->parent].total[side] += node->total[side];
        }
    }
    qsort_r(order + 1, f->n - 1, sizeof(*order), heaviest_first, f->at);
    /* Added from the lightest to the heaviest, each before its siblings. */
    for (size_t i = f->n; i-- > 1;) {
        struct pb_flame_node *node = &f->at[order[i]], *parent = &f->at[node->parent];
        node->next = parent->child;
        parent->child = order[i];
    }
    return 0;
}

static int largest_self_first(const void *a, const void *b)
{
    const struct pb_hot *x = a, *y = b;

    if (x->self != y->self)
        return x->self < y->self ? 1 : -1;
    if (x->total != y->total)
        return x->total < y->total ? 1 : -1;
    return (x->function > y->function) - (x->function < y->function);
}

/* Counts a function of one stack. False: it is no function but what the thread waits for. */
static bool count_function(const struct pb_profile *p, const struct pb_count *c, uint32_t function, bool leaf,
                           struct pb_hot *hot, uint32_t *seen, uint32_t stamp)
{
    if (pb_profile_function_at(p, function).kind == PB_FRAME_WAIT)
        return false;
    if (leaf) {
        hot[function].self += c->samples;
        hot[function].waiting += c->flags & PB_SAMPLE_WAITING ? c->samples : 0;
    }
    if (seen[function] == stamp) /* recursion: once a stack */
        return true;
    seen[function] = stamp;
    hot[function].total += c->samples;
    hot[function].gil += c->flags & PB_SAMPLE_GIL ? c->samples : 0;
    return true;
}

bool pb_profile_waits_for_events(const struct pb_profile *p, const struct pb_count *c)
{
    static const struct {
        const char *file, *function;
    } loop[] = {{"selectors.py", ".select"}, {"asyncio/base_events.py", "._run_once"}};
    uint32_t stack[LOOP_DEPTH];
    size_t depth = c->flags & PB_SAMPLE_WAITING ? pb_profile_stack(p, c->node, stack, LOOP_DEPTH) : 0, at = 0;

    for (size_t i = 0; i < depth && at < 2; i++) {
        struct pb_profile_function f = pb_profile_function_at(p, pb_profile_frame_at(p, stack[i]).function);
        if (f.kind != PB_FRAME_PYTHON)
            continue;
        if (!pb_text_ends_with(f.file, loop[at].file) || !pb_text_ends_with(f.name, loop[at].function))
            return false;
        at++;
    }
    return at == 2;
}

int pb_profile_hot(const struct pb_profile *p, const bool *without, struct pb_hot **ret)
{
    size_t n = pb_profile_nfunctions(p);
    struct pb_hot *hot = calloc(n + 1, sizeof(*hot));
    _cleanup_free_ uint32_t *seen = calloc(n + 1, sizeof(*seen));
    _cleanup_free_ uint32_t *stack = malloc(DEPTH_MAX * sizeof(*stack));
    size_t kept = 0;

    if (!hot || !seen || !stack) {
        free(hot);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        hot[i].function = (uint32_t)i;
    for (size_t i = 0; i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        bool leaf = true, left_out = pb_profile_thread_at(p, c.thread).hidden ||
                                     (without && (without[c.thread] || pb_profile_waits_for_events(p, &c)));
        size_t depth = left_out ? 0 : pb_profile_stack(p, c.node, stack, DEPTH_MAX);
        for (size_t k = 0; k < depth; k++)
            if (count_function(p, &c, pb_profile_frame_at(p, stack[k]).function, leaf, hot, seen,
                               (uint32_t)i + 1))
                leaf = false;
    }
    for (size_t i = 0; i < n; i++)
        if (hot[i].total)
            hot[kept++] = hot[i];
    qsort(hot, kept, sizeof(*hot), largest_self_first);
    *ret = hot;
    return (int)kept;
}
