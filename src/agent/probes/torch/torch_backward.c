/* torch_backward: attributes the time of a backward to modules, in each step where that is cheap, else in one
 * step of 2, 4, 8 or 16.
 *
 * autograd numbers its nodes in the order of the forward pass, by a counter of the thread. Its values at the
 * begin and at the end of a module's call tell which nodes are the module's, also for modules without
 * parameters. In the backward of such a step an observer of torch's marks (at::RecordFunction, the scope of
 * backward) measures the time of every node. It sees no tensor and changes nothing; hooks on parameters would
 * do the same for some modules, but the program could see them. The offset of a node's number in torch's
 * object is found in the first backward: the numbers there are within those of the forward pass.
 *
 * Marks come from threads without the GIL; they write to places of their own. All else is with the GIL. */
#include "agent/probes/torch/torch.h"
#include "table/clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define NODE_NS   500 /* that observing a node takes, about */
#define SPANS     2048
#define NODES     8192
#define LOOK_BACK 64 /* nodes that are open at the same time, at most */
#define LEVELS    64
#define WORDS_AT  20 /* of torch's object: the range in which the number is searched for */
#define WORDS     9
#define LOOKED_AT 64
#define THREADS   16 /* of autograd, one a GPU */

/* A call of a module in the forward pass, in the order in which they ended: inner ones come first. */
static struct backward_span {
    uint64_t entry, exit;
    uint32_t name, parent;
    unsigned depth;
    int32_t tid;
    int64_t begun, own; /* of its own nodes */
} spans[SPANS];
static struct node {
    const void *mark;
    uint64_t number;
    int64_t begun, ended, inner; /* inner: ns of nodes and forward passes inside it */
    uint64_t thread;
} nodes[NODES];
static uint64_t seen_words[LOOKED_AT][WORDS];
static uint32_t nspans, nnodes, lost_spans;
static struct pb_torch_occasion occasion = {.least = 1, .most = 16, .first = 16, .at = 12};
static uint32_t collecting;  /* marks are recorded */
static int has_nested;       /* a forward pass ran inside a node */
static int number_word = -1; /* which of WORDS has the number; -1: not known yet, -2: none */
static uint64_t observer;
static uint64_t (*peek_number)(void);

int pb_torch_backward_wants(int64_t step)
{
    int is = pb_torch_is_occasion(&occasion, step);

    return is && peek_number && number_word != -2;
}

uint64_t pb_torch_backward_number(void)
{
    return peek_number();
}

/* A call of a module has ended. */
void pb_torch_backward_span(uint32_t place, uint64_t entry, int32_t tid)
{
    const struct pb_torch_place *p = pb_torch_place_at(place);
    uint64_t exit = peek_number();

    if (exit <= entry)
        return; /* it made no node */
    if (nspans == SPANS) {
        lost_spans++;
        return;
    }
    spans[nspans++] = (struct backward_span){.entry = entry,
                                             .exit = exit,
                                             .name = p->name,
                                             .parent = p->parent,
                                             .depth = p->depth + 1u,
                                             .tid = tid};
}

/* --- marks ----------------------------------------------------------------------------------------- */

static void *node_begins(void **ret, const void *mark)
{
    uint64_t words[WORDS];

    *ret = NULL;
    if (!__atomic_load_n(&collecting, __ATOMIC_ACQUIRE))
        return ret;
    uint32_t at = __atomic_fetch_add(&nnodes, 1, __ATOMIC_RELAXED);
    if (at >= NODES)
        return ret;
    memcpy(words, (const uint64_t *)mark + WORDS_AT, sizeof(words));
    if (number_word < 0 && at < LOOKED_AT)
        memcpy(seen_words[at], words, sizeof(words));
    nodes[at].number = number_word >= 0 ? words[number_word] : 0;
    nodes[at].thread = (uint64_t)pthread_self();
    nodes[at].begun = pb_clock_mono();
    __atomic_store_n(&nodes[at].mark, mark, __ATOMIC_RELEASE);
    return ret;
}

static void node_ends(const void *mark, void *unused)
{
    (void)unused;
    if (!__atomic_load_n(&collecting, __ATOMIC_ACQUIRE))
        return;
    uint32_t n = __atomic_load_n(&nnodes, __ATOMIC_RELAXED);
    n = n < NODES ? n : NODES;
    for (uint32_t i = n; i > 0 && n - i < LOOK_BACK; i--)
        if (__atomic_load_n(&nodes[i - 1].mark, __ATOMIC_ACQUIRE) == mark && !nodes[i - 1].ended) {
            __atomic_store_n(&nodes[i - 1].ended, pb_clock_mono(), __ATOMIC_RELEASE);
            return;
        }
}

void pb_torch_backward_put(const struct pb_python *py)
{
    void *torch = peek_number ? NULL : dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);

    if (!torch)
        return;
    void *found = pb_torch_observers_known(py) ? dlsym(torch, "_ZN2at15sequence_number4peekEv") : NULL;
    dlclose(torch);
    memcpy(&peek_number, &found, sizeof(found));
}

void pb_torch_backward_begin(void)
{
    nspans = lost_spans = 0;
    has_nested = 0;
    memset(nodes, 0, sizeof(nodes[0]) * (nnodes < NODES ? nnodes : NODES));
    __atomic_store_n(&nnodes, 0, __ATOMIC_RELAXED);
    if (!observer)
        observer = pb_torch_observe(PB_TORCH_BACKWARD_SCOPE, node_begins, node_ends);
    __atomic_store_n(&collecting, observer != 0, __ATOMIC_RELEASE);
}

void pb_torch_backward_cancel(void)
{
    __atomic_store_n(&collecting, 0, __ATOMIC_RELEASE);
    if (observer)
        pb_torch_observe_no_more(observer);
    observer = 0;
}

void pb_torch_backward_forget(void)
{
    collecting = 0; /* an observer that is running checks this */
    observer = 0;
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* The innermost call whose nodes include that number. Exits only grow from one to the next. */
static struct backward_span *find_span(uint64_t number)
{
    uint32_t low = 0, high = nspans;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (spans[middle].exit > number)
            high = middle;
        else
            low = middle + 1;
    }
    while (low < nspans && spans[low].entry > number)
        low++;
    return low < nspans ? &spans[low] : NULL;
}

/* Finds the word with the numbers: most of them are within the forward pass, and not all are the same. */
static void find_word(uint32_t n)
{
    uint32_t looked = n < LOOKED_AT ? n : LOOKED_AT;

    number_word = -2;
    for (int word = 0; word < WORDS && number_word < 0; word++) {
        uint32_t inside = 0, changes = 0;
        for (uint32_t i = 0; i < looked; i++) {
            inside += find_span(seen_words[i][word]) != NULL;
            changes += i > 0 && seen_words[i][word] != seen_words[i - 1][word];
        }
        if (inside * 4 >= looked && changes * 4 >= looked)
            number_word = word;
    }
}

/* Writes the rows of one step's calls: own times are added to the enclosing calls. */
static void write_spans(void)
{
    int64_t inner[LEVELS + 1] = {0}, first[LEVELS + 1] = {0};

    for (uint32_t i = 0; i < nspans; i++) {
        struct backward_span *s = &spans[i];
        unsigned depth = s->depth < LEVELS ? s->depth : LEVELS - 1;
        int64_t took = s->own + inner[depth + 1];
        if (first[depth + 1] && (!s->begun || first[depth + 1] < s->begun))
            s->begun = first[depth + 1];
        inner[depth + 1] = first[depth + 1] = 0;
        if (took <= 0)
            continue;
        inner[depth] += took;
        if (!first[depth] || s->begun < first[depth])
            first[depth] = s->begun;
        uint32_t place = pb_torch_place(PB_TORCH_BACKWARD, s->name, s->parent, s->tid, s->depth, 0);
        if (place)
            pb_torch_write_call(
                &(struct pb_torch_call_row){.place = place, .begun = s->begun, .took = took, .own = s->own});
    }
}

void pb_torch_backward_nests(void)
{
    has_nested = 1;
}

uint32_t pb_torch_backward_inside(int64_t now)
{
    static const char no_mark;

    if (!__atomic_load_n(&collecting, __ATOMIC_ACQUIRE))
        return NODES;
    uint32_t at = __atomic_fetch_add(&nnodes, 1, __ATOMIC_RELAXED);
    if (at >= NODES)
        return NODES;
    has_nested = 1;
    nodes[at].number = UINT64_MAX;
    nodes[at].thread = (uint64_t)pthread_self();
    nodes[at].begun = now;
    __atomic_store_n(&nodes[at].mark, &no_mark, __ATOMIC_RELEASE);
    return at;
}

void pb_torch_backward_inside_ended(uint32_t at, int64_t now)
{
    if (at < NODES && __atomic_load_n(&collecting, __ATOMIC_ACQUIRE))
        __atomic_store_n(&nodes[at].ended, now, __ATOMIC_RELEASE);
}

/* Nodes run inside others where a forward pass or another backward runs in a backward (checkpoints): time
 * counts once, for the innermost. Nodes are in the order of their begins. */
static void take_out_inner(uint32_t n)
{
    static uint32_t around[NODES]; /* by node: the one it is in, + 1 */
    uint64_t threads[THREADS] = {0};
    uint32_t last[THREADS] = {0};

    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = 0;
        while (t + 1 < THREADS && threads[t] && threads[t] != nodes[i].thread)
            t++;
        threads[t] = nodes[i].thread;
        uint32_t j = last[t];
        while (j && nodes[j - 1].ended <= nodes[i].begun)
            j = around[j - 1];
        around[i] = j;
        last[t] = i + 1;
        if (j && nodes[i].ended > nodes[i].begun)
            nodes[j - 1].inner += nodes[i].ended - nodes[i].begun;
    }
}

void pb_torch_backward_end(void)
{
    uint32_t n = __atomic_load_n(&nnodes, __ATOMIC_ACQUIRE);

    if (!__atomic_load_n(&collecting, __ATOMIC_ACQUIRE))
        return;
    pb_torch_backward_cancel();
    /* Hooks on parameters would mark every step for less, but take the GIL in autograd's threads. */
    occasion.spent = (int64_t)n * NODE_NS;
    pb_torch_occasion_ended(&occasion);
    n = n < NODES ? n : NODES;
    if (number_word == -1 && n >= 4 && nspans) {
        find_word(n);
        if (number_word < 0)
            return;
        for (uint32_t i = 0; i < n; i++)
            nodes[i].number = i < LOOKED_AT ? seen_words[i][number_word] : UINT64_MAX;
    }
    if (number_word < 0 || lost_spans)
        return;
    if (has_nested)
        take_out_inner(n);
    for (uint32_t i = 0; i < n; i++) {
        int64_t ended = __atomic_load_n(&nodes[i].ended, __ATOMIC_ACQUIRE);
        struct backward_span *s = ended > nodes[i].begun ? find_span(nodes[i].number) : NULL;
        if (!s)
            continue; /* of no module: a loss, or the sum of a gradient */
        s->own += ended - nodes[i].begun - nodes[i].inner;
        if (!s->begun || nodes[i].begun < s->begun)
            s->begun = nodes[i].begun;
    }
    write_spans();
}
