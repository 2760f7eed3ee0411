/* allocations: the probe memory_allocations: what Python and torch allocate, by which line, and what of it is
 * alive (allocations.h).
 *
 * Functions of ours are put before those of Python's allocator (PyMem_SetAllocator), of the domains that are
 * used with the GIL held; the raw one, which is not, is left alone. They keep the context of the functions
 * that were there and use none of their own, so a thread that reads half of a change finds functions and a
 * context that fit each other. Blocks are not changed, so that any of them can be freed with or without us.
 *
 * Others do the same (tracemalloc, memray), and put back what they found when they end: ours may be gone
 * then, or come back long after our stop. Whether our functions are called is therefore never concluded but
 * tried out, with an allocation of a size that nobody else asks for. They are taken out where they are the
 * first; otherwise they stay, and do nothing but pass on. */
#include "agent/probes/allocations/allocations.h"
#include "agent/python/imported.h"

#include "agent/core/agent_clock.h"
#include "agent/core/notes.h"
#include "agent/probes/probe.h"
#include "agent/python/gil_work.h"
#include "agent/python/here.h"
#include "control/settings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MEAN        (512u << 10)
#define LEAST_MEAN  (4u << 10)
#define MOST_MEAN   (1u << 30)
#define AGAIN_NS    PB_NS_PER_S
#define MOST_A_TICK 500   /* samples a second before they are taken less often */
#define MOST_ALIVE  12000 /* samples that are followed, the same */
#define TRIED       977   /* bytes */
#define SETTING     "interval="
#define HISTORY     "cuda=history"

static uint32_t wanted; /* the resident thread's word */
static uint32_t due;    /* there is something to do besides tensors */
static uint32_t put_in; /* with the GIL */
static uint64_t mean_wanted = MEAN, mean_set = MEAN;
static int history_set; /* whether torch's memory history is asked for */
static int switched = -1;
static uint64_t samples_before;
static int64_t left_before;
static char trouble[160], tensor_trouble[160], cuda_trouble[160];

/* --- our functions ---------------------------------------------------------------------------------- */

static struct pb_py_allocator mem, object; /* what was there before us */

/* Whatever thread it is: a word that is lost costs a sample. */
static inline int count_down(size_t size)
{
    int64_t left = __atomic_load_n(&pb_allocations.left, __ATOMIC_RELAXED) - (int64_t)size;
    __atomic_store_n(&pb_allocations.left, left, __ATOMIC_RELAXED);
    return __builtin_expect(left < 0, 0);
}

static inline void *allocated(void *block, size_t size)
{
    if (block && count_down(size))
        pb_alloc_sampled(block, size);
    return block;
}

static inline void is_freed(const void *block)
{
    if (__builtin_expect(*pb_alloc_filter(block) != 0, 0))
        pb_alloc_freed(block);
}

static inline void *allocated_again(const void *before, void *block, size_t size)
{
    if (block && before) /* it moved, or has another size: another block */
        is_freed(before);
    return allocated(block, size);
}

static void *mem_malloc(void *unused, size_t size)
{
    (void)unused;
    return allocated(mem.malloc(mem.ctx, size), size);
}

static void *mem_calloc(void *unused, size_t count, size_t size)
{
    (void)unused;
    return allocated(mem.calloc(mem.ctx, count, size), count * size);
}

static void *mem_realloc(void *unused, void *block, size_t size)
{
    (void)unused;
    return allocated_again(block, mem.realloc(mem.ctx, block, size), size);
}

static void mem_free(void *unused, void *block)
{
    (void)unused;
    is_freed(block);
    mem.free(mem.ctx, block);
}

static void *object_malloc(void *unused, size_t size)
{
    void *block = object.malloc(object.ctx, size);
    (void)unused;

    __atomic_store_n(&pb_allocations.newest, block, __ATOMIC_RELAXED);
    return allocated(block, size);
}

static void *object_calloc(void *unused, size_t count, size_t size)
{
    void *block = object.calloc(object.ctx, count, size);
    (void)unused;

    __atomic_store_n(&pb_allocations.newest, block, __ATOMIC_RELAXED);
    return allocated(block, count * size);
}

static void *object_realloc(void *unused, void *block, size_t size)
{
    (void)unused;
    return allocated_again(block, object.realloc(object.ctx, block, size), size);
}

static void object_free(void *unused, void *block)
{
    (void)unused;
    is_freed(block);
    object.free(object.ctx, block);
}

/* --- with the GIL ----------------------------------------------------------------------------------- */

static int are_called(void *(*allocate)(size_t), void (*give_back)(void *))
{
    int64_t before = __atomic_load_n(&pb_allocations.left, __ATOMIC_RELAXED);

    /* So that it is no sample, which would begin another distance. */
    __atomic_store_n(&pb_allocations.left, PB_ALLOC_IDLE, __ATOMIC_RELAXED);
    give_back(allocate(TRIED));
    int64_t now = __atomic_load_n(&pb_allocations.left, __ATOMIC_RELAXED);
    __atomic_store_n(&pb_allocations.left, before, __ATOMIC_RELAXED);
    return now == PB_ALLOC_IDLE - TRIED;
}

static void put_domain(const struct pb_python *py, int domain, struct pb_py_allocator *before,
                       const struct pb_py_allocator *ours)
{
    struct pb_py_allocator there, next = *ours;

    py->get_allocator(domain, &there);
    if (there.malloc == ours->malloc) /* never before ourselves: that would call itself for ever */
        return;
    *before = there;
    next.ctx = there.ctx;
    py->set_allocator(domain, &next);
}

static void put_allocators(const struct pb_python *py)
{
    static const struct pb_py_allocator our_mem = {NULL, mem_malloc, mem_calloc, mem_realloc, mem_free};
    static const struct pb_py_allocator our_object = {NULL, object_malloc, object_calloc, object_realloc,
                                                      object_free};

    if (!are_called(py->mem_malloc, py->mem_free))
        put_domain(py, PB_PY_MEMORY_MEM, &mem, &our_mem);
    if (!are_called(py->object_malloc, py->object_free)) {
        pb_alloc_tensors_take(py); /* ends that we did not see: none of what was young is known to be alive */
        put_domain(py, PB_PY_MEMORY_OBJECT, &object, &our_object);
    }
}

static void take_domain(const struct pb_python *py, int domain, const struct pb_py_allocator *before,
                        void *(*our_malloc)(void *, size_t))
{
    struct pb_py_allocator there;

    py->get_allocator(domain, &there);
    if (there.malloc == our_malloc)
        py->set_allocator(domain, before);
}

/* The folder of Python's own modules. */
static void find_stdlib(const struct pb_python *py, char *ret, size_t size)
{
    pb_pyobject *file = pb_imported(py, "os", "__file__");
    const char *text = file ? py->utf8_of(file) : NULL;

    snprintf(ret, size, "%s", text ? text : "");
    char *slash = strrchr(ret, '/');
    ret[slash ? slash + 1 - ret : 0] = '\0';
    py->err_clear();
    if (file)
        py->decref(file);
}

static void begin(const struct pb_python *py)
{
    char stdlib[200];

    if (!pb_here_is_known(py) || !py->get_allocator || !py->set_allocator || !py->mem_malloc ||
        !py->mem_free || !py->object_malloc) {
        snprintf(trouble, sizeof(trouble), "the frames of this Python are laid out otherwise");
        return;
    }
    find_stdlib(py, stdlib, sizeof(stdlib));
    if (pb_alloc_begin(__atomic_load_n(&mean_wanted, __ATOMIC_RELAXED), stdlib) < 0) {
        snprintf(trouble, sizeof(trouble), "out of memory");
        return;
    }
    put_in = 1;
    __atomic_store_n(&pb_allocations.enabled, 1, __ATOMIC_SEQ_CST);
    /* The resident thread stores the other way round: one of the two sees the other. */
    if (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST))
        __atomic_store_n(&pb_allocations.enabled, 0, __ATOMIC_SEQ_CST);
}

static void put_in_or_take_out(const struct pb_python *py)
{
    if (!__atomic_load_n(&wanted, __ATOMIC_SEQ_CST)) {
        if (!put_in)
            return;
        pb_alloc_cuda_end(py);
        pb_alloc_tensors_take(py);
        take_domain(py, PB_PY_MEMORY_MEM, &mem, mem_malloc);
        take_domain(py, PB_PY_MEMORY_OBJECT, &object, object_malloc);
        pb_alloc_end(py);
        put_in = 0;
        return;
    }
    if (!__atomic_load_n(&pb_allocations.enabled, __ATOMIC_SEQ_CST)) {
        pb_alloc_tensors_take(py); /* of a run before, whose ends were not looked at */
        begin(py);
    }
    if (!__atomic_load_n(&pb_allocations.enabled, __ATOMIC_SEQ_CST))
        return;
    put_allocators(py);
    if (__atomic_load_n(&pb_allocations.left, __ATOMIC_RELAXED) > PB_ALLOC_IDLE / 2)
        __atomic_store_n(&pb_allocations.left, 0, __ATOMIC_RELAXED); /* a word that was lost */
    pb_alloc_tensors_put(py, tensor_trouble, sizeof(tensor_trouble));
    if (pb_alloc_tensors_are_in())
        pb_alloc_cuda_look(py, cuda_trouble, sizeof(cuda_trouble));
}

static int are_left_in(void)
{
    return !__atomic_load_n(&wanted, __ATOMIC_SEQ_CST) && __atomic_load_n(&put_in, __ATOMIC_SEQ_CST);
}

static void refuse(const char *why)
{
    snprintf(trouble, sizeof(trouble), "%s", why);
}

/* The GIL is not asked for only to see whether torch is imported. */
static int is_due(void)
{
    return !__atomic_load_n(&wanted, __ATOMIC_SEQ_CST) || __atomic_exchange_n(&due, 0, __ATOMIC_SEQ_CST) ||
           pb_alloc_is_torch_loaded();
}

static struct pb_gil_work work = {.name = "probing-memory",
                                  .possible = is_due,
                                  .least_minor = 6,
                                  .run = put_in_or_take_out,
                                  .refused = refuse,
                                  .again = are_left_in};

/* --- the probe -------------------------------------------------------------------------------------- */

static int configure(const struct pb_settings *settings, const char *changed)
{
    int before = switched;
    uint64_t mean = MEAN;
    char why[160];

    if (!settings) {
        switched = -1;
        return -1;
    }
    const char *text = settings->at[PB_SET_MEMORY_SAMPLING].text, *interval = strstr(text, "," SETTING);
    if (interval)
        pb_probe_size(interval + 1, "interval", LEAST_MEAN, MOST_MEAN, &mean, why, sizeof(why));
    mean_set = mean;
    history_set = strstr(text, "," HISTORY) != NULL;
    switched = pb_settings_switched(settings, PB_SET_MEMORY_SAMPLING);
    if (changed && strcmp(changed, pb_setting_info[PB_SET_MEMORY_SAMPLING].name) == 0) {
        if (switched == 1) { /* where it is on already */
            __atomic_store_n(&pb_allocations.mean, mean, __ATOMIC_RELAXED);
            pb_alloc_cuda_want(history_set);
        }
        return switched;
    }
    return switched != before ? switched : -1;
}

static int start(struct pb_arena *arena, const char *settings, char *why, size_t why_size)
{
    uint64_t mean = mean_set;
    (void)arena; /* its table is made with the first row */

    int r = pb_probe_check(settings, "interval cuda", why, why_size);
    if (r == 0)
        r = pb_probe_size(settings, "interval", LEAST_MEAN, MOST_MEAN, &mean, why, why_size);
    if (r < 0)
        return r;
    __atomic_store_n(&mean_wanted, mean, __ATOMIC_RELAXED);
    pb_alloc_cuda_want(history_set || strstr(settings, HISTORY));
    trouble[0] = tensor_trouble[0] = cuda_trouble[0] = '\0';
    samples_before = 0;
    __atomic_store_n(&due, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&wanted, 1, __ATOMIC_SEQ_CST);
    pb_gil_work_start(&work);
    return 0;
}

static int stop(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    __atomic_store_n(&wanted, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&pb_allocations.enabled, 0, __ATOMIC_SEQ_CST);
    pb_gil_work_start(&work);
    return 0;
}

/* Twice the distance where there are too many: rows say what they stand for, so sums stay what they are. */
static void thin_out(uint64_t samples)
{
    uint64_t mean = __atomic_load_n(&pb_allocations.mean, __ATOMIC_RELAXED);
    uint32_t alive = __atomic_load_n(&pb_allocations.alive, __ATOMIC_RELAXED);

    if ((samples - samples_before > MOST_A_TICK || alive > MOST_ALIVE) && mean < MOST_MEAN) {
        __atomic_store_n(&pb_allocations.mean, 2 * mean, __ATOMIC_RELAXED);
        pb_note_log("memory_allocations", "%llu samples in a second, %u alive: from now on one in %llu KB",
                    (unsigned long long)(samples - samples_before), alive,
                    (unsigned long long)(2 * mean >> 10));
    }
    samples_before = samples;
}

static uint64_t tick(uint64_t now)
{
    int64_t left = __atomic_load_n(&pb_allocations.left, __ATOMIC_RELAXED);
    int on = __atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE) != 0;

    if (on)
        thin_out(__atomic_load_n(&pb_allocations.samples, __ATOMIC_RELAXED));
    /* Nothing was allocated: the program waits, or our functions are called no more. */
    if ((!on && !trouble[0]) || (on && (left == left_before || left > PB_ALLOC_IDLE / 2)))
        __atomic_store_n(&due, 1, __ATOMIC_SEQ_CST);
    if (on && pb_alloc_tensors_are_in() && pb_alloc_cuda_is_due())
        __atomic_store_n(&due, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&due, __ATOMIC_SEQ_CST) || (on && !pb_alloc_tensors_are_in()))
        pb_gil_work_start(&work);
    left_before = left;
    return now + AGAIN_NS;
}

static void forget(void)
{
    wanted = 0;
    pb_gil_work_forget(&work);
    pb_alloc_tensors_forget();
    pb_alloc_cuda_forget();
    __atomic_store_n(&pb_allocations.enabled, 0, __ATOMIC_SEQ_CST);
}

static void describe(char *ret, size_t size)
{
    if (trouble[0])
        snprintf(ret, size, "%s", trouble);
    else if (!__atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE))
        snprintf(ret, size, "waits for the GIL");
    else
        snprintf(ret, size, "one in %llu KB; %llu samples, %u alive%s%s%s%s",
                 (unsigned long long)(__atomic_load_n(&pb_allocations.mean, __ATOMIC_RELAXED) >> 10),
                 (unsigned long long)__atomic_load_n(&pb_allocations.samples, __ATOMIC_RELAXED),
                 __atomic_load_n(&pb_allocations.alive, __ATOMIC_RELAXED), tensor_trouble[0] ? "; " : "",
                 tensor_trouble, cuda_trouble[0] ? "; " : "", cuda_trouble);
}

const struct pb_probe pb_probe_memory_allocations = {
    .name = "memory_allocations",
    .text = "what Python and torch allocate, sampled by bytes",
    .settings = "interval=512KB",
    .configure = configure,
    .start = start,
    .stop = stop,
    .tick = tick,
    .forked = forget,
    .describe = describe,
};
