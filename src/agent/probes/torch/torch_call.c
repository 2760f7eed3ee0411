/* torch_call: the function in the tp_call slot of modules' classes, through which every call of a module
 * goes.
 *
 * The open calls of a thread are kept in memory of ours, never on the thread's stack: greenlets move stacks
 * away while a call is in them. A level is identified by the address of its C frame. If a thread left a call
 * without passing its end (longjmp, an ended greenlet), the next call notices it: its frame is not below that
 * of the call it seems to be in. No row is open while the module runs, and nothing here calls Python after
 * it: an exception that the module raised stays unchanged. */
#include "agent/core/thread_start.h"
#include "agent/probes/torch/torch.h"
#include "table/clock.h"

#include <pthread.h>
#include <string.h>

#define THREADS 64
#define PROBES  4
#define LEVELS  48
#define UNKNOWN                                                                                              \
    256 /* calls of a thread that are left out as parts of one that began before we came, at most */
#define FRAMES 100

struct level {
    uintptr_t frame;
    uint32_t place;
    int64_t inside; /* ns in calls of other modules */
};

struct calls {
    uint64_t key; /* pthread_self */
    int32_t tid;
    uint32_t depth;
    uint32_t unknown; /* calls left out so far; above UNKNOWN none is left out any more */
    int64_t since;    /* when its outermost call began; 0: none runs. Read by any thread */
    struct level levels[LEVELS];
};

static struct calls threads[THREADS];

void pb_torch_calls_reset(void)
{
    memset(threads, 0, sizeof(threads));
}

int64_t pb_torch_oldest_call(int32_t *tid)
{
    int64_t oldest = 0;

    for (uint32_t i = 0; i < THREADS; i++) {
        int64_t since = __atomic_load_n(&threads[i].since, __ATOMIC_RELAXED);
        if (since && (!oldest || since < oldest)) {
            oldest = since;
            *tid = __atomic_load_n(&threads[i].tid, __ATOMIC_RELAXED);
        }
    }
    return oldest;
}

unsigned pb_torch_open_calls(void)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < THREADS; i++)
        n += threads[i].since != 0;
    return n;
}

static struct calls *take_calls(uint64_t key, uint32_t home)
{
    for (uint32_t i = 0; i < PROBES; i++) {
        struct calls *c = &threads[(home + i) % THREADS];
        if (c->depth && c->tid != 0)
            continue; /* its thread is in a call, or ended in one */
        c->key = key;
        c->tid = pb_thread_id();
        c->depth = c->unknown = 0;
        __atomic_store_n(&c->since, 0, __ATOMIC_RELAXED);
        return c;
    }
    return NULL;
}

/* The calls of this thread; NULL: too many threads. */
static inline struct calls *find_calls(void)
{
    uint64_t key = (uint64_t)pthread_self();
    uint32_t home = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 58);

    for (uint32_t i = 0; i < PROBES; i++) {
        struct calls *c = &threads[(home + i) % THREADS];
        if (c->key != key)
            continue;
        if (__builtin_expect(c->tid != pb_thread_id(), 0)) { /* another thread at the same address */
            c->tid = pb_thread_id();
            c->depth = c->unknown = 0;
            __atomic_store_n(&c->since, 0, __ATOMIC_RELAXED);
        }
        return c;
    }
    return take_calls(key, home);
}

struct call {
    struct calls *thread;
    uint32_t depth, run, place;
    uintptr_t frame;
    int64_t begun;
    int64_t before;     /* when our own code began; 0: its cost is not measured */
    uint64_t number;    /* of autograd's next node, if the backward of this step is measured */
    pb_pyobject *event; /* in the GPU's stream; NULL: none */
    int has_memory;
    struct pb_torch_memory memory;       /* before the call */
    struct pb_torch_outermost outermost; /* where the depth is 0 */
};

/* Whether the call is inside of one that began before the probe was on: its rows would show a model that does
 * not exist. Checked until a call of the thread is not. */
static __attribute__((noinline)) int is_part_of_unknown(struct calls *t, uint32_t run)
{
    int inside = pb_torch_called_by(pb_python_here(), "_call_impl", FRAMES);

    if (pb_torch_run() != run)
        return 1;
    t->unknown = inside ? t->unknown + 1 : UNKNOWN + 1;
    return inside;
}

/* May run torch code, and so let other threads run. False: the probe was stopped meanwhile. */
static __attribute__((noinline)) int look_at_arguments(struct call *c, int outermost, pb_pyobject *self,
                                                       pb_pyobject *args, pb_pyobject *keywords, char *shapes,
                                                       size_t size, size_t *length)
{
    const struct pb_python *py = pb_python_here();

    if (outermost) {
        c->outermost = (struct pb_torch_outermost){.tid = c->thread->tid};
        pb_torch_forward_begins(py, self, args, keywords, &c->outermost);
    }
    if (pb_torch_run() != c->run)
        return 0;
    *length = pb_torch.shapes ? pb_torch_shapes(py, args, keywords, shapes, size) : 0;
    return pb_torch_run() == c->run;
}

/* False: the call is not recorded. */
static inline int begin_call(struct call *c, pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords,
                             uintptr_t frame)
{
    struct calls *t = find_calls();
    char shapes[160];
    size_t length = 0;

    if (__builtin_expect(!t, 0)) {
        pb_torch.lost++;
        return 0;
    }
    while (t->depth && t->levels[t->depth - 1].frame <= frame)
        t->depth--;
    uint32_t depth = t->depth, parent = depth ? t->levels[depth - 1].place : 0;
    if (__builtin_expect(depth == 0 && t->unknown <= UNKNOWN, 0) && is_part_of_unknown(t, c->run))
        return 0;
    if (depth && !parent)
        return 0; /* the outermost call of a step whose modules make no rows */
    if (__builtin_expect(depth >= LEVELS, 0)) {
        pb_torch.lost++;
        return 0;
    }
    uint32_t place = 0;
    c->thread = t;
    c->before =
        pb_torch_cost_due() && !pb_torch.shapes && !pb_torch.gpu && !pb_torch.memory ? pb_clock_mono() : 0;
    if ((depth == 0 || pb_torch.shapes) &&
        !look_at_arguments(c, depth == 0, self, args, keywords, shapes, sizeof(shapes), &length))
        return 0;
    enum pb_torch_stage stage = depth == 0 ? c->outermost.stage : pb_torch_place_at(parent)->stage;
    if (pb_torch.modules) {
        uint32_t name = pb_torch_name(pb_python_here(), self, depth == 0, parent);
        uint32_t text = length ? pb_torch_shapes_text(shapes, length) : 0;
        place = name ? pb_torch_place(stage, name, parent, t->tid, depth, text) : 0;
        if (__builtin_expect(!place, 0)) {
            pb_torch.lost++;
            if (depth)
                return 0;
        }
    }
    if (__builtin_expect(pb_torch.gpu && place, 0) && stage == PB_TORCH_FORWARD &&
        (depth == 0 || pb_torch.gpu == PB_TORCH_GPU_MODULES)) {
        c->event = pb_torch_gpu_begin(pb_python_here());
        if (pb_torch_run() != c->run)
            return 0;
    }
    if (__builtin_expect(pb_torch.memory && place, 0) && stage == PB_TORCH_FORWARD) {
        c->has_memory = pb_torch_memory_read(pb_python_here(), &c->memory);
        if (pb_torch_run() != c->run)
            return 0;
    }
    t->levels[depth] = (struct level){.frame = frame, .place = place};
    t->depth = depth + 1;
    c->depth = depth;
    c->place = place;
    c->frame = frame;
    c->number = pb_torch.exact && place ? pb_torch_backward_number() : UINT64_MAX;
    c->begun = pb_clock_mono();
    if (depth == 0)
        __atomic_store_n(&t->since, c->begun, __ATOMIC_RELAXED);
    return 1;
}

static void end_outermost(struct call *c, int64_t now)
{
    __atomic_store_n(&c->thread->since, 0, __ATOMIC_RELAXED);
    c->outermost.begun = c->begun;
    c->outermost.ended = now;
    pb_torch_forward_ended(&c->outermost);
}

static inline void end_call(struct call *c, int ended)
{
    struct calls *t = c->thread;
    int64_t now = pb_clock_mono(), took = now - c->begun;

    if (pb_torch_run() != c->run || t->depth <= c->depth || t->levels[c->depth].frame != c->frame ||
        t->key != (uint64_t)pthread_self())
        return; /* switched off meanwhile, or a greenlet switch happened in between */
    took = took > 0 ? took : 0;
    int64_t own = took - t->levels[c->depth].inside;
    t->depth = c->depth;
    if (c->depth)
        t->levels[c->depth - 1].inside += took;
    if (c->number != UINT64_MAX && pb_torch.exact && pb_torch_is_stepping(t->tid))
        pb_torch_backward_span(c->place, c->number, t->tid);
    const struct pb_torch_call_row row = {
        .place = c->place, .begun = c->begun, .took = took, .own = own > 0 ? own : 0};
    if (__builtin_expect(c->has_memory, 0) && ended) { /* where the module raised, no code may run */
        pb_torch_memory_write(pb_python_here(), &row, &c->memory);
        if (pb_torch_run() == c->run && c->depth == 0)
            end_outermost(c, now);
        return;
    }
    if (c->place)
        pb_torch_write_call(&row);
    if (c->before && c->place)
        pb_torch_cost_of_call(c->begun - c->before + pb_clock_mono() - now);
    if (c->depth == 0)
        end_outermost(c, now);
}

/* The end of the module's work in the GPU's stream. Not if the module raised: then no Python code may run. */
static __attribute__((noinline)) void end_on_gpu(const struct call *c, int ended)
{
    const struct pb_python *py = pb_python_here();
    char path[200];
    size_t length = 0;

    if (!ended || pb_torch_run() != c->run) {
        py->decref(c->event);
        return;
    }
    /* Copied: a stop while Python runs frees the memory of names. */
    const char *name = pb_torch_path(pb_torch_place_at(c->place)->name, &length);
    length = length < sizeof(path) ? length : sizeof(path);
    memcpy(path, name, length);
    pb_torch_gpu_end(py, c->event, "forward", path, length, c->begun);
}

pb_pyobject *pb_torch_call_module(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords)
{
    const pb_torch_call original = pb_torch.original_call;
    struct call c;

    c.run = pb_torch_run();
    c.event = NULL;
    c.has_memory = 0;
    int seen = c.run && begin_call(&c, self, args, keywords, (uintptr_t)__builtin_frame_address(0));
    pb_pyobject *result = original(self, args, keywords);
    if (c.event)
        end_on_gpu(&c, result != NULL && seen);
    if (seen)
        end_call(&c, result != NULL);
    return result;
}
