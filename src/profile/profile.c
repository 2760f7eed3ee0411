/* profile: see profile.h. */
#include "profile/profile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/intern.h"
#include "base/text.h"
#include "base/time.h"
#include "profile/interpreter.h"
#include "table/clock.h"
#include "table/reader.h"

#define MEMORY_MAX  ((size_t)512 << 20)
#define TEXT_SIZE   4096
#define GAP_PERIODS 3 /* samples further apart than that many periods are not one span */

struct function {
    uint32_t name, file;
    enum pb_frame_kind kind;
    bool interpreter; /* CPython's own */
};

struct thread {
    pid_t pid, tid;
    uint32_t name, process;
    int32_t rank;
    bool ran, hidden;
    size_t last_span; /* + 1; 0: none */
};

struct pb_profile {
    size_t memory_max;
    struct pb_budget budget;
    struct pb_profile_facts facts;
    struct pb_texts texts;
    struct pb_keys function_keys, frame_keys, node_keys, thread_keys, count_keys;
    struct function *functions;
    struct pb_profile_frame *frames;
    struct pb_node *nodes;
    struct thread *threads;
    struct pb_count *counts;
    struct pb_profile_span *spans;
    size_t nfunctions, nframes, nnodes, nthreads, ncounts, nspans;
    size_t functions_cap, frames_cap, nodes_cap, threads_cap, counts_cap, spans_cap;
    bool timeline_cut;
    bool fold; /* frames of the interpreter are left out of stacks */
};

int pb_profile_new(size_t memory_max, struct pb_profile **ret)
{
    struct pb_profile *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->memory_max = p->budget.left = memory_max ? memory_max : MEMORY_MAX;
    p->facts.clock = "wall";
    int r = pb_grow((void **)&p->nodes, &p->nodes_cap, 0, sizeof(*p->nodes), &p->budget);
    if (r < 0) {
        pb_profile_free(p);
        return r;
    }
    p->nodes[p->nnodes++] = (struct pb_node){PB_PROFILE_NONE, PB_PROFILE_NONE, 0};
    *ret = p;
    return 0;
}

static void release(struct pb_profile *p)
{
    pb_texts_done(&p->texts);
    pb_keys_done(&p->function_keys);
    pb_keys_done(&p->frame_keys);
    pb_keys_done(&p->node_keys);
    pb_keys_done(&p->thread_keys);
    pb_keys_done(&p->count_keys);
    free(p->functions);
    free(p->frames);
    free(p->nodes);
    free(p->threads);
    free(p->counts);
    free(p->spans);
}

void pb_profile_free(struct pb_profile *p)
{
    if (p)
        release(p);
    free(p);
}

struct pb_profile_facts *pb_profile_facts(struct pb_profile *p)
{
    return &p->facts;
}

const struct pb_profile_facts *pb_profile_facts_of(const struct pb_profile *p)
{
    return &p->facts;
}

const char *pb_profile_clock_named(const char *text)
{
    static const char *const clocks[] = {"wall", "CPU", "GIL"};

    for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++)
        if (strcmp(text, clocks[i]) == 0)
            return clocks[i];
    return clocks[0];
}

void pb_profile_clocks_now(struct pb_profile_clocks *ret)
{
    struct timespec boot = {0};
    int64_t mono, real;

    pb_clock_both(&mono, &real);
    int64_t after = pb_clock_mono();
    clock_gettime(CLOCK_BOOTTIME, &boot);
    /* CLOCK_BOOTTIME was read a moment after the other two. */
    int64_t boot_ns = (int64_t)boot.tv_sec * (int64_t)PB_NS_PER_S + boot.tv_nsec - (after - mono);
    *ret = (struct pb_profile_clocks){(uint64_t)mono, boot_ns > 0 ? (uint64_t)boot_ns : 0, real};
}

/* A target's function names may hold anything; files and terminals must not get control characters. */
static uint32_t intern_text(struct pb_profile *p, const char *text)
{
    char clean[TEXT_SIZE];
    size_t len = strnlen(text, sizeof(clean) - 1);
    uint32_t id;

    /* Cut at a character boundary. */
    while (text[len] && len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
        len--;
    memcpy(clean, text, len);
    clean[len] = '\0';
    pb_text_clean(clean);
    return pb_texts_intern(&p->texts, &p->budget, clean, &id) < 0 ? PB_PROFILE_NONE : id;
}

/* The number of a key; makes room for the entry of a new one. Known keys are found even without room. */
static int intern(struct pb_profile *p, struct pb_keys *keys, uint64_t a, uint64_t b, void **at, size_t *cap,
                  size_t n, size_t size, uint32_t *ret)
{
    if (pb_keys_find(keys, a, b, ret) == 0)
        return 0;
    int r = pb_grow(at, cap, n, size, &p->budget);
    return r < 0 ? r : pb_keys_intern(keys, &p->budget, a, b, ret);
}

uint32_t pb_profile_function(struct pb_profile *p, enum pb_frame_kind kind, const char *name,
                             const char *file)
{
    uint32_t n = intern_text(p, name), f = intern_text(p, file ? file : ""), id;

    if (n == PB_PROFILE_NONE || f == PB_PROFILE_NONE)
        return PB_PROFILE_NONE;
    int r = intern(p, &p->function_keys, (uint64_t)n << 32 | f, kind, (void **)&p->functions,
                   &p->functions_cap, p->nfunctions, sizeof(*p->functions), &id);
    if (r > 0)
        p->functions[p->nfunctions++] =
            (struct function){n, f, kind, kind == PB_FRAME_NATIVE && pb_interpreter_function(name)};
    return r < 0 ? PB_PROFILE_NONE : id;
}

uint32_t pb_profile_frame(struct pb_profile *p, uint32_t function, int line)
{
    uint32_t id;

    if (function >= p->nfunctions)
        return PB_PROFILE_NONE;
    int r = intern(p, &p->frame_keys, function, (uint32_t)line, (void **)&p->frames, &p->frames_cap,
                   p->nframes, sizeof(*p->frames), &id);
    if (r > 0)
        p->frames[p->nframes++] = (struct pb_profile_frame){function, line};
    return r < 0 ? PB_PROFILE_NONE : id;
}

uint32_t pb_profile_node(struct pb_profile *p, uint32_t parent, uint32_t frame)
{
    uint32_t id;

    if (parent >= p->nnodes || frame >= p->nframes)
        return PB_PROFILE_NONE;
    int r = intern(p, &p->node_keys, parent, frame, (void **)&p->nodes, &p->nodes_cap, p->nnodes,
                   sizeof(*p->nodes), &id);
    if (r > 0)
        p->nodes[p->nnodes++] = (struct pb_node){parent, frame, p->nodes[parent].depth + 1};
    return r < 0 ? PB_PROFILE_NONE : id + 1; /* the root has no key */
}

uint32_t pb_profile_thread(struct pb_profile *p, pid_t pid, pid_t tid, const char *name, const char *process)
{
    uint32_t id, n = intern_text(p, name), label = intern_text(p, process);

    if (n == PB_PROFILE_NONE || label == PB_PROFILE_NONE)
        return PB_PROFILE_NONE;
    int r = intern(p, &p->thread_keys, (uint64_t)(uint32_t)pid << 32 | (uint32_t)tid, 0, (void **)&p->threads,
                   &p->threads_cap, p->nthreads, sizeof(*p->threads), &id);
    if (r > 0)
        p->threads[p->nthreads++] =
            (struct thread){.pid = pid, .tid = tid, .name = n, .process = label, .rank = -1};
    return r < 0 ? PB_PROFILE_NONE : id;
}

void pb_profile_rank_thread(struct pb_profile *p, uint32_t thread, int32_t rank)
{
    if (thread < p->nthreads)
        p->threads[thread].rank = rank;
}

void pb_profile_name_thread(struct pb_profile *p, uint32_t thread, const char *name)
{
    uint32_t n = intern_text(p, name);

    if (thread < p->nthreads && n != PB_PROFILE_NONE)
        p->threads[thread].name = n;
}

void pb_profile_mark_ran(struct pb_profile *p, uint32_t thread)
{
    if (thread < p->nthreads)
        p->threads[thread].ran = true;
}

size_t pb_profile_hide_idle(struct pb_profile *p)
{
    size_t idle = 0;

    for (size_t i = 0; i < p->nthreads; i++)
        idle += !p->threads[i].ran;
    if (idle == p->nthreads)
        return 0;
    for (size_t i = 0; i < p->nthreads; i++)
        p->threads[i].hidden = !p->threads[i].ran;
    return idle;
}

/* n samples count as one, taken at `when`, the last of them; the n - 1 before it were missed and are assumed
 * to be one period apart. Returns the time of the first. */
static uint64_t first_of(const struct pb_profile *p, uint64_t when, uint32_t n)
{
    double before = p->facts.rate > 0 ? 1e9 / p->facts.rate * (n - 1.0) : 0;
    return before < (double)when ? when - (uint64_t)before : 0;
}

static bool continues(const struct pb_profile *p, const struct pb_profile_span *s, uint32_t node,
                      unsigned flags, uint64_t first)
{
    double period = p->facts.rate > 0 ? 1e9 / p->facts.rate : 0;
    return s->node == node && s->flags == flags &&
           (first <= s->end || (double)(first - s->end) <= GAP_PERIODS * period);
}

static void add_span(struct pb_profile *p, uint32_t thread, uint32_t node, unsigned flags, uint64_t when,
                     uint32_t n)
{
    struct thread *t = &p->threads[thread];
    struct pb_profile_span *last = t->last_span ? &p->spans[t->last_span - 1] : NULL;

    uint64_t first = first_of(p, when, n);
    if (last && when >= last->end && continues(p, last, node, flags, first) &&
        last->samples < UINT32_MAX - n) {
        last->end = when;
        last->samples += n;
        return;
    }
    if (last && first < last->end) /* it was elsewhere then */
        first = last->end < when ? last->end : when;
    if (pb_grow((void **)&p->spans, &p->spans_cap, p->nspans, sizeof(*p->spans), &p->budget) < 0) {
        p->timeline_cut = true; /* growing moves the spans: last is not to be used from here on */
        return;
    }
    p->spans[p->nspans++] = (struct pb_profile_span){first, when, thread, node, flags, n};
    t->last_span = p->nspans;
}

static int add_count(struct pb_profile *p, uint32_t thread, uint32_t node, unsigned flags, uint32_t n)
{
    uint32_t id;

    if (thread >= p->nthreads || node >= p->nnodes)
        return -EINVAL;
    int r = intern(p, &p->count_keys, (uint64_t)thread << 32 | node, flags, (void **)&p->counts,
                   &p->counts_cap, p->ncounts, sizeof(*p->counts), &id);
    if (r < 0)
        return r;
    if (r > 0)
        p->counts[p->ncounts++] = (struct pb_count){thread, node, flags, 0};
    p->counts[id].samples += n;
    return 0;
}

int pb_profile_add(struct pb_profile *p, uint32_t thread, uint32_t node, unsigned flags, uint64_t when,
                   uint32_t n)
{
    int r = add_count(p, thread, node, flags, n);
    if (r == 0 && !p->timeline_cut)
        add_span(p, thread, node, flags, when, n);
    return r;
}

int pb_profile_add_span(struct pb_profile *p, const struct pb_profile_span *span)
{
    int r = add_count(p, span->thread, span->node, span->flags, span->samples);
    if (r < 0 || p->timeline_cut)
        return r;
    if (pb_grow((void **)&p->spans, &p->spans_cap, p->nspans, sizeof(*p->spans), &p->budget) < 0)
        p->timeline_cut = true;
    else
        p->spans[p->nspans++] = *span;
    return 0;
}

void pb_profile_forget_samples(struct pb_profile *p)
{
    pb_keys_clear(&p->count_keys);
    p->ncounts = p->nspans = 0;
    for (size_t i = 0; i < p->nthreads; i++)
        p->threads[i].last_span = 0;
    p->timeline_cut = false;
}

static uint32_t copy_node(struct pb_profile *to, const struct pb_profile *from, uint32_t node)
{
    uint32_t depth = from->nodes[node].depth, own = PB_PROFILE_ROOT;
    _cleanup_free_ uint32_t *frames = malloc((depth + 1) * sizeof(*frames));

    if (!frames)
        return PB_PROFILE_NONE;
    for (uint32_t i = 0; i < depth; i++, node = from->nodes[node].parent)
        frames[i] = from->nodes[node].frame;
    for (uint32_t i = depth; i > 0 && own != PB_PROFILE_NONE; i--) {
        const struct pb_profile_frame *frame = &from->frames[frames[i - 1]];
        struct pb_profile_function f = pb_profile_function_at(from, frame->function);
        uint32_t function = pb_profile_function(to, f.kind, f.name, f.file);
        own = pb_profile_node(to, own, pb_profile_frame(to, function, frame->line));
    }
    return own;
}

int pb_profile_begin_epoch(struct pb_profile *p, uint32_t *nodes, size_t nnodes, uint32_t *threads,
                           size_t nthreads)
{
    _cleanup_free_ uint32_t *kept = malloc((nnodes + nthreads + 1) * sizeof(*kept));
    struct pb_profile *next = NULL;

    int r = kept ? pb_profile_new(p->memory_max, &next) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < nnodes; i++) {
        kept[i] = nodes[i] == PB_PROFILE_NONE ? PB_PROFILE_NONE : copy_node(next, p, nodes[i]);
        r = kept[i] == PB_PROFILE_NONE && nodes[i] != PB_PROFILE_NONE ? -ENOMEM : 0;
    }
    for (size_t i = 0; r == 0 && i < nthreads; i++) {
        const struct thread *t = &p->threads[threads[i]];
        uint32_t own = pb_profile_thread(next, t->pid, t->tid, p->texts.at[t->name], p->texts.at[t->process]);
        kept[nnodes + i] = own;
        r = own == PB_PROFILE_NONE ? -ENOMEM : 0;
        if (r == 0)
            pb_profile_rank_thread(next, own, t->rank);
        if (r == 0 && t->ran)
            pb_profile_mark_ran(next, own);
    }
    if (r < 0) {
        pb_profile_free(next);
        return r;
    }
    if (nnodes)
        memcpy(nodes, kept, nnodes * sizeof(*kept));
    if (nthreads)
        memcpy(threads, kept + nnodes, nthreads * sizeof(*kept));
    next->facts = p->facts;
    next->fold = p->fold;
    release(p);
    *p = *next; /* in place: pointers to the profile stay valid */
    free(next);
    return 0;
}

double pb_profile_filled(const struct pb_profile *p)
{
    return 1 - (double)p->budget.left / (double)p->memory_max;
}

size_t pb_profile_nfunctions(const struct pb_profile *p)
{
    return p->nfunctions;
}

size_t pb_profile_nframes(const struct pb_profile *p)
{
    return p->nframes;
}

size_t pb_profile_nnodes(const struct pb_profile *p)
{
    return p->nnodes;
}

size_t pb_profile_nthreads(const struct pb_profile *p)
{
    return p->nthreads;
}

size_t pb_profile_ncounts(const struct pb_profile *p)
{
    return p->ncounts;
}

size_t pb_profile_nspans(const struct pb_profile *p)
{
    return p->nspans;
}

struct pb_profile_function pb_profile_function_at(const struct pb_profile *p, uint32_t function)
{
    const struct function *f = &p->functions[function];
    return (struct pb_profile_function){p->texts.at[f->name], p->texts.at[f->file], f->kind};
}

struct pb_profile_frame pb_profile_frame_at(const struct pb_profile *p, uint32_t frame)
{
    return p->frames[frame];
}

struct pb_node pb_profile_node_at(const struct pb_profile *p, uint32_t node)
{
    return p->nodes[node];
}

struct pb_profile_thread pb_profile_thread_at(const struct pb_profile *p, uint32_t thread)
{
    const struct thread *t = &p->threads[thread];
    return (struct pb_profile_thread){
        t->pid, t->tid, p->texts.at[t->name], p->texts.at[t->process], t->rank, t->ran, t->hidden};
}

struct pb_count pb_profile_count_at(const struct pb_profile *p, size_t i)
{
    return p->counts[i];
}

struct pb_profile_span pb_profile_span_at(const struct pb_profile *p, size_t i)
{
    return p->spans[i];
}

uint64_t pb_profile_samples(const struct pb_profile *p)
{
    uint64_t n = 0;

    for (size_t i = 0; i < p->ncounts; i++)
        n += p->threads[p->counts[i].thread].hidden ? 0 : p->counts[i].samples;
    return n;
}

bool pb_profile_timeline_cut(const struct pb_profile *p)
{
    return p->timeline_cut;
}

bool pb_profile_fold_interpreter(struct pb_profile *p, bool fold)
{
    bool some = false;

    for (size_t i = 0; i < p->nfunctions && !some; i++)
        some = p->functions[i].interpreter;
    p->fold = fold;
    return some;
}

bool pb_profile_folds(const struct pb_profile *p, uint32_t function)
{
    return p->fold && p->functions[function].interpreter;
}

static size_t walk_stack(const struct pb_profile *p, uint32_t node, uint32_t *ret_frames, size_t max,
                         bool all)
{
    size_t n = 0;

    for (; node != PB_PROFILE_ROOT && node != PB_PROFILE_NONE && n < max; node = p->nodes[node].parent)
        if (all || !pb_profile_folds(p, p->frames[p->nodes[node].frame].function))
            ret_frames[n++] = p->nodes[node].frame;
    return n;
}

size_t pb_profile_stack(const struct pb_profile *p, uint32_t node, uint32_t *ret_frames, size_t max)
{
    size_t n = walk_stack(p, node, ret_frames, max, false);
    return n ? n : walk_stack(p, node, ret_frames, max, true);
}

const char *pb_profile_short_file(const char *file)
{
    static const char *const folders[] = {"/site-packages/", "/dist-packages/", "/lib/python3."};
    const char *at = strrchr(file, '/');
    size_t best = 0;

    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        const char *found = strstr(file, folders[i]);
        size_t past = found ? (size_t)(found - file) + strlen(folders[i]) : 0;
        best = past > best ? past : best;
    }
    /* Starts after the library's own folder, whose name ends in the version. */
    if (best && file[best - 1] == '.') {
        const char *slash = strchr(file + best, '/');
        best = slash ? (size_t)(slash + 1 - file) : 0;
    }
    return best ? file + best : at ? at + 1 : file;
}

/* Removes an incomplete character from the end of a text that was cut. */
static void trim_character(char *buf, size_t size)
{
    for (size_t i = size - 1; i > 0 && (unsigned char)buf[i - 1] >= 0x80; i--) {
        bool begins = (unsigned char)buf[i - 1] >= 0xc0;
        buf[i - 1] = '\0';
        if (begins)
            break;
    }
}

const char *pb_profile_label(const struct pb_profile *p, uint32_t function, char *buf, size_t size)
{
    struct pb_profile_function f = pb_profile_function_at(p, function);
    const char *file = pb_profile_short_file(f.file);

    int n = *file ? snprintf(buf, size, "%s (%s)", f.name, file) : snprintf(buf, size, "%s", f.name);
    if (n >= (int)size)
        trim_character(buf, size);
    return buf;
}

const char *pb_profile_methods(const struct pb_profile *p, char *buf, size_t size)
{
    const struct pb_profile_facts *f = &p->facts;
    const struct {
        const char *name;
        uint64_t n;
    } ways[] = {{"asleep", f->asleep},
                {"interrupted", f->interrupted},
                {"preempted", f->pinned},
                {"stopped", f->stopped},
                {"dead", f->dead}};
    uint64_t all = f->asleep + f->interrupted + f->pinned + f->stopped + f->dead;
    size_t len = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && len < size; i++)
        if (ways[i].n)
            len += (size_t)snprintf(buf + len, size - len, "%s%s %.1f%%", len ? ", " : "", ways[i].name,
                                    100.0 * (double)ways[i].n / (double)all);
    if (len < size)
        len += (size_t)snprintf(buf + len, size - len, "%s%llu refused, %llu truncated", len ? "; " : "",
                                (unsigned long long)f->refused, (unsigned long long)f->truncated);
    if (f->failed && len < size)
        len += (size_t)snprintf(buf + len, size - len, ", %llu failed", (unsigned long long)f->failed);
    if (f->late && len < size)
        len += (size_t)snprintf(buf + len, size - len, ", %llu late", (unsigned long long)f->late);
    if (f->apart && len < size)
        len += (size_t)snprintf(buf + len, size - len, ", %llu with native frames apart",
                                (unsigned long long)f->apart);
    if (f->unverified && len < size)
        snprintf(buf + len, size - len, "; by a layout that was not verified: doubt what looks odd");
    return buf;
}
