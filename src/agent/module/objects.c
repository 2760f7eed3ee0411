/* objects: reads the objects that Python's collector knows, in short slices (_probing.objects_next). For the
 * tables of live objects and the prompt (python/probing/_objects.py).
 *
 * A slice runs with the GIL held and without a bytecode, and only copies facts out, as text: no reference of
 * ours outlives it, so no object of the program can be destroyed in our thread because of us. No code of the
 * program's classes is called, only C functions of Python and torch, given by _objects.py.
 *
 * Between two slices the position must be kept while the program runs, makes objects and collects garbage.
 * The collector keeps its objects in rings, one per generation. A list of ours, the mark, is an object in
 * them like others: it is moved to behind the last object that was read. A collection appends survivors to
 * the next older ring, the mark with the objects behind it, and never moves an object from behind the mark to
 * before it. So a walk of the rings from the youngest to the oldest misses no object that existed when it
 * began; it meets some objects twice, after a collection of the oldest ring nearly all: slices get longer
 * when a walk does not finish. Python does not tell where the rings are: they are recognised in the
 * interpreter's state by their structure. Where they are not found (before 3.9, from 3.14 on), gc.get_objects
 * is called, in one piece of some 60 ms for a million objects. */
#include "agent/core/agent_clock.h"
#include "agent/core/own_memory.h"
#include "agent/module/module.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define TEXT_BYTES  (4u << 20)
#define ENOUGH      (1u << 20) /* text after which a slice ends */
#define STATE_BYTES (64u << 10)
#define MOST_PARTS  10000 /* of one object */
#define MOST_STATE  100   /* tensors in an optimizer's state for one parameter */
#define KINDS       4
#define CACHED      64

/* --- the collector's rings ------------------------------------------------------------------------- */

/* PyGC_Head, before each object that the collector knows. The lowest two bits are flags. */
struct object_ring {
    uintptr_t next, prev;
};
#define FLAGS ((uintptr_t)3)

/* struct gc_generation, and the interpreter's array of them from 3.9 to 3.13. */
struct generation {
    struct object_ring ring;
    int threshold, count;
};
struct generations {
    struct generation at[3];
    struct generation *youngest;
    struct generation frozen;
};
#define RINGS 4

static struct object_ring *ring_at(struct generations *g, int n)
{
    return n < 3 ? &g->at[n].ring : &g->frozen.ring;
}

static struct object_ring *next_of(const struct object_ring *at)
{
    return (struct object_ring *)(at->next & ~FLAGS);
}

static struct object_ring *prev_of(const struct object_ring *at)
{
    return (struct object_ring *)(at->prev & ~FLAGS);
}

static void set_next(struct object_ring *at, struct object_ring *next)
{
    at->next = (uintptr_t)next | (at->next & FLAGS);
}

static void set_prev(struct object_ring *at, struct object_ring *prev)
{
    at->prev = (uintptr_t)prev | (at->prev & FLAGS);
}

/* Moves the mark to behind another object. */
static void move_mark(struct object_ring *mark, struct object_ring *behind)
{
    if (behind == mark)
        return;
    set_next(prev_of(mark), next_of(mark));
    set_prev(next_of(mark), prev_of(mark));
    set_next(mark, next_of(behind));
    set_prev(mark, behind);
    set_prev(next_of(behind), mark);
    set_next(behind, mark);
}

static int read_ring(uintptr_t at, struct object_ring *ret)
{
    const struct iovec piece = {(void *)(at & ~FLAGS), sizeof(*ret)};
    return pb_own_memory_read(&piece, 1, ret) == (ssize_t)sizeof(*ret) ? 0 : -1;
}

/* Whether it is the head of a ring: both neighbours point to it. */
static int is_ring(uintptr_t at, const struct object_ring *head)
{
    struct object_ring next, prev;

    return (head->next & 7) == 0 && (head->prev & 7) == 0 && head->next && head->prev &&
           read_ring(head->next, &next) == 0 && read_ring(head->prev, &prev) == 0 &&
           (next.prev & ~FLAGS) == at && (prev.next & ~FLAGS) == at;
}

static int is_state(uintptr_t at, const struct generations *g, const int *thresholds)
{
    if ((uintptr_t)g->youngest != at)
        return 0;
    for (int i = 0; i < 3; i++)
        if (g->at[i].threshold != thresholds[i] || !is_ring(at + sizeof(g->at[0]) * i, &g->at[i].ring))
            return 0;
    return is_ring(at + offsetof(struct generations, frozen), &g->frozen.ring);
}

/* objects_rings(gc.get_threshold()): the address of the rings, 0: not found. */
static pb_pyobject *objects_rings(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    uintptr_t begin = py->main_interpreter ? (uintptr_t)py->main_interpreter() : 0, found = 0;
    int thresholds[3];
    (void)self;

    for (int i = 0; i < 3; i++) {
        pb_pyobject *number = py->tuple_get(args, i);
        long n = number ? py->int_as(number) : -1;
        if (n == -1 && py->err_occurred())
            return NULL;
        thresholds[i] = (int)n;
    }
    if (py->minor < 9 || py->minor > 13 || py->free_threaded || !begin)
        return py->int_from(0);
    for (size_t at = 0; at + sizeof(struct generations) <= STATE_BYTES && !found; at += sizeof(void *)) {
        struct generations g;
        static char copy[4096 + sizeof(struct generations)]; /* with the GIL */
        size_t in = at % 4096;
        if (in == 0) {
            const struct iovec piece = {(void *)(begin + at), sizeof(copy)};
            if (pb_own_memory_read(&piece, 1, copy) < (ssize_t)sizeof(copy))
                break;
        }
        memcpy(&g, copy + in, sizeof(g));
        if (is_state(begin + at, &g, thresholds))
            found = begin + at;
    }
    return py->int_from(found);
}

/* objects_frozen(rings): the address of the first object that gc.freeze has put aside; 0: there is none. It
 * changes when the program freezes or unfreezes: objects that move between the rings then may be missed. */
static pb_pyobject *objects_frozen(pb_pyobject *self, pb_pyobject *rings)
{
    const struct pb_python *py = pb_python_here();
    struct generations *g = (struct generations *)(uintptr_t)py->uint64_as(rings);
    (void)self;

    if (py->err_occurred())
        return NULL;
    return py->int_from(g && g->frozen.ring.next != (uintptr_t)&g->frozen.ring ? g->frozen.ring.next : 0);
}

/* objects_mark(): a list with a reference that the collector does not know. So the collector considers the
 * list reachable from outside and leaves it in its place, while other objects may be removed from the ring
 * and appended again. */
static pb_pyobject *objects_mark(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *mark = py->list_new(0);
    (void)self;
    (void)unused;

    if (mark)
        py->incref(mark);
    return mark;
}

/* objects_unmark(mark): releases that reference. */
static pb_pyobject *objects_unmark(pb_pyobject *self, pb_pyobject *mark)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    py->decref(mark);
    py->incref(py->none);
    return py->none;
}

/* --- the facts about an object --------------------------------------------------------------------- */

/* The parameters of a walk: the fields of the tuple that _objects.py gives. */
enum { MARK, HEADS, SLICE, TYPES, GETTERS, REFS, GET_FIELDS, DICT, LIST, GC, HOW };
enum { SHAPE, DTYPE, DEVICE, REQUIRES_GRAD, NUMEL, ELEMENT_SIZE, IS_VIEW };
enum { GET_OBJECTS, DISABLE, ENABLE, IS_ENABLED };
enum { TENSOR, MODULE, OPTIMIZER, OTHER, UNWANTED };

struct object_walk {
    const struct pb_python *py;
    pb_pyobject *how[HOW];
    pb_pyobject *types[KINDS]; /* tensor, module, optimizer, another */
    pb_pyobject *plain[3];     /* the exact types for which torch's own functions may be called; DTensor */
    struct {
        const pb_pyobject *type;
        int kind;
    } cache[CACHED];
    char *text;
    size_t length;
    int full; /* the present record does not fit */
};

__attribute__((format(printf, 2, 3))) static void put_format(struct object_walk *w, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int n = vsnprintf(w->text + w->length, TEXT_BYTES - w->length, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= TEXT_BYTES - w->length)
        w->full = 1;
    else
        w->length += (size_t)n;
}

/* A name of the program, without field separators. */
static void put_name(struct object_walk *w, const char *name)
{
    size_t at = w->length;

    put_format(w, "\t%.300s", name ? name : "?");
    for (at++; at < w->length; at++)
        if ((unsigned char)w->text[at] < 0x20)
            w->text[at] = '?';
}

/* A key of a dict: only text is written. */
static void put_key(struct object_walk *w, pb_pyobject *key)
{
    int is_text = pb_type_of(key, pb_module_header(w->py)) == w->py->str_type;

    put_name(w, is_text ? w->py->utf8_of(key) : NULL);
    w->py->err_clear();
}

static void put_class(struct object_walk *w, const pb_pyobject *object)
{
    unsigned header = pb_module_header(w->py);
    const char *name = pb_program_class(w->py, pb_type_of(object, header), header), *dot = strrchr(name, '.');

    put_name(w, dot ? dot + 1 : name);
}

/* A new reference, or NULL without an exception. */
static pb_pyobject *ask_tensor(const struct object_walk *w, int getter, pb_pyobject *tensor)
{
    pb_pyobject *function = w->py->tuple_get(w->how[GETTERS], getter);
    pb_pyobject *found =
        function && function != w->py->none ? w->py->call(function, tensor, (void *)NULL) : NULL;
    if (!found)
        w->py->err_clear();
    return found;
}

static void put_text_of(struct object_walk *w, int getter, pb_pyobject *tensor)
{
    pb_pyobject *value = ask_tensor(w, getter, tensor), *text = value ? w->py->str_of(value) : NULL;
    const char *chars = text ? w->py->utf8_of(text) : NULL;

    put_name(w, chars && strncmp(chars, "torch.", 6) == 0 ? chars + 6 : chars ? chars : "");
    w->py->err_clear();
    if (text)
        w->py->decref(text);
    if (value)
        w->py->decref(value);
}

static long long number_of(const struct object_walk *w, int getter, pb_pyobject *tensor)
{
    pb_pyobject *value = ask_tensor(w, getter, tensor);
    long long n = value ? w->py->int64_as(value) : -1;

    w->py->err_clear();
    if (value)
        w->py->decref(value);
    return n;
}

/* shape: a reference that is taken over, or NULL. */
static void put_shape(struct object_walk *w, pb_pyobject *shape)
{
    long n = shape ? w->py->size_of(shape) : 0;

    put_format(w, "\t%s", shape && n == 0 ? "scalar" : "");
    for (long i = 0; i < n && i < 64; i++)
        put_format(w, "%s%lld", i ? "x" : "", w->py->int64_as(w->py->tuple_get(shape, i)));
    w->py->err_clear();
    if (shape)
        w->py->decref(shape);
}

/* What an object has under that name itself: a new reference, or NULL without an exception. */
static pb_pyobject *own_of(const struct object_walk *w, pb_pyobject *object, const char *name)
{
    pb_pyobject *word = w->py->str_from_utf8(name, (long)strlen(name), "strict");
    pb_pyobject *found = word ? w->py->call(w->how[GET_FIELDS], object, word, (void *)NULL) : NULL;

    if (word)
        w->py->decref(word);
    w->py->err_clear();
    return found;
}

/* Or of a class derived from it. */
static int is_tuple(const struct object_walk *w, pb_pyobject *object)
{
    return object && w->py->type_is_subtype(pb_type_of(object, pb_module_header(w->py)),
                                            (pb_pyobject *)(uintptr_t)w->py->tuple_type);
}

/* The shape of all of a DTensor, over its ranks: a new reference, or NULL. */
static pb_pyobject *whole_shape(const struct object_walk *w, pb_pyobject *tensor)
{
    pb_pyobject *spec = own_of(w, tensor, "_spec"), *meta = spec ? own_of(w, spec, "tensor_meta") : NULL;
    pb_pyobject *shape = is_tuple(w, meta) ? w->py->tuple_get(meta, 0) : NULL;

    shape = is_tuple(w, shape) ? shape : NULL;
    if (shape)
        w->py->incref(shape);
    w->py->err_clear();
    if (meta)
        w->py->decref(meta);
    if (spec)
        w->py->decref(spec);
    return shape;
}

/* T address class [shape dtype device bytes requires_grad is_view numbers]. Bytes and numbers are of what
 * this rank has of a DTensor.
 *
 * Only functions of torch are asked that read the tensor as it is. A copy of its C++ handle is not
 * harmless: in torch before 2.10 a thread without the GIL may be about to end it and wait for the GIL to
 * tell Python. is_leaf, grad_fn and grad take locks of autograd or race with a backward that runs without
 * the GIL. */
static void describe_tensor(struct object_walk *w, pb_pyobject *tensor)
{
    const pb_pyobject *type = pb_type_of(tensor, pb_module_header(w->py));

    put_format(w, "T\t%lu", (unsigned long)(uintptr_t)tensor);
    put_class(w, tensor);
    /* For a subclass, the shape may be code of the program (__torch_dispatch__). */
    pb_pyobject *local = type == w->plain[2] ? own_of(w, tensor, "_local_tensor") : NULL;
    const pb_pyobject *kind = local ? pb_type_of(local, pb_module_header(w->py)) : type;
    if (kind == w->plain[0] || kind == w->plain[1]) {
        put_shape(w, local ? whole_shape(w, tensor) : ask_tensor(w, SHAPE, tensor));
        tensor = local ? local : tensor;
        put_text_of(w, DTYPE, tensor);
        put_text_of(w, DEVICE, tensor);
        long long n = number_of(w, NUMEL, tensor), size = number_of(w, ELEMENT_SIZE, tensor);
        put_format(w, "\t%lld", n > 0 && size > 0 ? n * size : 0);
        put_format(w, "\t%lld", number_of(w, REQUIRES_GRAD, tensor));
        put_format(w, "\t%lld\t%lld", local ? 0 : number_of(w, IS_VIEW, tensor), n);
    }
    if (local)
        w->py->decref(local);
    put_format(w, "\n");
}

/* The attributes of an object: a new reference to its dict, NULL: it has none. */
static pb_pyobject *fields_of(const struct object_walk *w, pb_pyobject *object)
{
    pb_pyobject *fields = own_of(w, object, "__dict__");

    if (fields && pb_type_of(fields, pb_module_header(w->py)) != w->how[DICT]) {
        w->py->decref(fields);
        return NULL;
    }
    return fields;
}

/* A field that is a dict or of a subclass; borrowed. */
static pb_pyobject *dict_in(const struct object_walk *w, pb_pyobject *fields, const char *name)
{
    pb_pyobject *found = w->py->dict_get(fields, name);

    return found && w->py->type_is_subtype(pb_type_of(found, pb_module_header(w->py)), w->how[DICT]) ? found
                                                                                                     : NULL;
}

static pb_pyobject *list_in(const struct object_walk *w, pb_pyobject *fields, const char *name)
{
    pb_pyobject *found = w->py->dict_get(fields, name);

    return found && pb_type_of(found, pb_module_header(w->py)) == w->how[LIST] ? found : NULL;
}

static void put_parts(struct object_walk *w, pb_pyobject *fields, const char *name, char letter)
{
    pb_pyobject *parts = dict_in(w, fields, name), *key, *part;
    long at = 0;

    for (int n = 0; parts && n < MOST_PARTS && w->py->dict_next(parts, &at, &key, &part); n++) {
        if (part == w->py->none)
            continue;
        put_format(w, "\x1e%c\t%lu", letter, (unsigned long)(uintptr_t)part);
        put_key(w, key);
    }
}

static const char *const hook_dicts[] = {"_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks",
                                         "_backward_hooks"};

/* M address class training hooks; then for its parameters, buffers and children P, B, C address name. Parts
 * of a record begin with \\x1e. */
static void describe_module(struct object_walk *w, pb_pyobject *module)
{
    pb_pyobject *fields = fields_of(w, module);

    if (fields && w->py->dict_get(fields, "_parameters")) {
        long hooks = 0;
        for (size_t i = 0; i < sizeof(hook_dicts) / sizeof(hook_dicts[0]); i++) {
            pb_pyobject *dict = dict_in(w, fields, hook_dicts[i]), *key, *hook;
            long at = 0;
            for (int n = 0; dict && n < MOST_PARTS && w->py->dict_next(dict, &at, &key, &hook); n++)
                hooks++;
        }
        put_format(w, "M\t%lu", (unsigned long)(uintptr_t)module);
        put_class(w, module);
        put_format(w, "\t%d\t%ld", w->py->dict_get(fields, "training") == w->py->true_object, hooks);
        put_parts(w, fields, "_parameters", 'P');
        put_parts(w, fields, "_buffers", 'B');
        put_parts(w, fields, "_modules", 'C');
        put_format(w, "\n");
    }
    if (fields)
        w->py->decref(fields);
}

static void put_number(struct object_walk *w, pb_pyobject *group, const char *name)
{
    pb_pyobject *value = group ? w->py->dict_get(group, name) : NULL;
    const pb_pyobject *type = value ? pb_type_of(value, pb_module_header(w->py)) : NULL;

    if (value && (type == w->py->float_type || type == w->py->int_type))
        put_format(w, "\t%.17g", w->py->float_as(value));
    else
        put_format(w, "\t");
    w->py->err_clear();
}

/* O address class groups lr weight_decay momentum; then G address: its parameters, S address: tensors of its
 * state. */
static void describe_optimizer(struct object_walk *w, pb_pyobject *optimizer)
{
    pb_pyobject *fields = fields_of(w, optimizer);
    pb_pyobject *groups = fields ? list_in(w, fields, "param_groups") : NULL, *key, *one, *part;
    pb_pyobject *state = fields ? dict_in(w, fields, "state") : NULL;
    long n = groups ? w->py->list_size(groups) : 0, at = 0;

    if (groups) {
        pb_pyobject *first = n ? w->py->list_get(groups, 0) : NULL;
        if (first && pb_type_of(first, pb_module_header(w->py)) != w->how[DICT])
            first = NULL;
        put_format(w, "O\t%lu", (unsigned long)(uintptr_t)optimizer);
        put_class(w, optimizer);
        put_format(w, "\t%ld", n);
        put_number(w, first, "lr");
        put_number(w, first, "weight_decay");
        put_number(w, first, "momentum");
    }
    for (long i = 0; i < n; i++) {
        pb_pyobject *group = w->py->list_get(groups, i);
        if (pb_type_of(group, pb_module_header(w->py)) != w->how[DICT])
            continue;
        pb_pyobject *params = list_in(w, group, "params");
        for (long k = 0, m = params ? w->py->list_size(params) : 0; k < m && k < MOST_PARTS; k++)
            put_format(w, "\x1eG\t%lu", (unsigned long)(uintptr_t)w->py->list_get(params, k));
    }
    for (int i = 0; groups && state && i < MOST_PARTS && w->py->dict_next(state, &at, &key, &one); i++) {
        long in = 0;
        if (!w->py->type_is_subtype(pb_type_of(one, pb_module_header(w->py)), w->how[DICT]))
            continue;
        for (int k = 0; k < MOST_STATE && w->py->dict_next(one, &in, &key, &part); k++)
            if (w->types[TENSOR] != w->py->none &&
                w->py->type_is_subtype(pb_type_of(part, pb_module_header(w->py)), w->types[TENSOR]))
                put_format(w, "\x1eS\t%lu", (unsigned long)(uintptr_t)part);
    }
    if (groups)
        put_format(w, "\n");
    if (fields)
        w->py->decref(fields);
}

/* --- the walk -------------------------------------------------------------------------------------- */

static int kind_of(struct object_walk *w, pb_pyobject *type)
{
    unsigned slot = (unsigned)((uintptr_t)type >> 4) % CACHED;

    if (w->cache[slot].type != type) {
        w->cache[slot].type = type;
        w->cache[slot].kind = UNWANTED;
        for (int i = KINDS - 1; i >= 0; i--)
            if (w->types[i] != w->py->none && w->py->type_is_subtype(type, w->types[i]))
                w->cache[slot].kind = i;
    }
    return w->cache[slot].kind;
}

/* Copies the wanted facts of an object. If references are wanted: a weak one for each record, or for other
 * objects the result of the one getter. -1: an exception. */
static int describe_object(struct object_walk *w, pb_pyobject *object)
{
    int kind = kind_of(w, pb_type_of(object, pb_module_header(w->py)));

    if (kind == UNWANTED)
        return 0;
    size_t before = w->length;
    w->full = 0;
    if (kind == TENSOR)
        describe_tensor(w, object);
    else if (kind == MODULE)
        describe_module(w, object);
    else if (kind == OPTIMIZER)
        describe_optimizer(w, object);
    if (w->full)
        w->length = before;
    if (w->how[REFS] == w->py->none || (kind != OTHER && w->length == before))
        return 0;
    pb_pyobject *kept = w->how[GETTERS] == w->py->none || kind != OTHER
                            ? w->py->weakref_new(object, NULL)
                            : w->py->call(w->how[GETTERS], object, (void *)NULL);
    if (!kept) {
        w->py->err_clear();
        w->py->incref(kept = w->py->none);
    }
    int r = w->py->list_append(w->how[REFS], kept);
    w->py->decref(kept);
    return r;
}

/* Everything, in one piece. */
static int walk_list(struct object_walk *w)
{
    pb_pyobject *function = w->py->tuple_get(w->how[GC], GET_OBJECTS);
    pb_pyobject *all = function ? w->py->call(function, (void *)NULL) : NULL;
    int r = all ? 0 : -1;

    for (long i = 0, n = all ? w->py->list_size(all) : 0; i < n && r == 0; i++)
        r = describe_object(w, w->py->list_get(all, i));
    if (all)
        w->py->decref(all);
    return r < 0 ? r : RINGS;
}

/* A slice of the rings until that time, from stage on: the number of the ring. Returns the stage of the next
 * slice, RINGS at the end, -1 with an exception. */
static int walk_rings(struct object_walk *w, struct generations *g, int stage, uint64_t until)
{
    struct object_ring *mark = (struct object_ring *)(void *)w->how[MARK] - 1, *at = mark;
    int r = 0;

    if (!mark->next) /* no program is known to untrack a list, but it is possible */
        return RINGS;
    if (stage < 0) {
        stage = 0;
        at = ring_at(g, 0);
    }
    for (unsigned n = 1; r == 0; n++) {
        at = next_of(at);
        int is_head = 0;
        for (int i = 0; i < RINGS; i++)
            is_head |= at == ring_at(g, i);
        if (is_head) {
            if (++stage == RINGS)
                return RINGS;
            at = ring_at(g, stage);
        } else if (at != mark) {
            r = describe_object(w, (pb_pyobject *)(void *)(at + 1));
        }
        if ((n % 64 == 0 && pb_now_ns() > until) || w->length > ENOUGH)
            break;
    }
    move_mark(mark, at);
    return r < 0 ? r : stage;
}

static int call_gc(const struct object_walk *w, int which)
{
    pb_pyobject *function = w->py->tuple_get(w->how[GC], which);
    pb_pyobject *answer = function ? w->py->call(function, (void *)NULL) : NULL;
    int is_true = answer == w->py->true_object;

    if (answer)
        w->py->decref(answer);
    return answer ? is_true : -1;
}

/* Fills in the walk from the tuple. -1 with an exception. */
static int read_parameters(struct object_walk *w, pb_pyobject *how)
{
    for (int i = 0; i < HOW; i++)
        if (!(w->how[i] = w->py->tuple_get(how, i)))
            return -1;
    for (int i = 0; i < KINDS; i++)
        if (!(w->types[i] = w->py->tuple_get(w->how[TYPES], i)))
            return -1;
    for (int i = 0; i < 3; i++)
        if (!(w->plain[i] = w->py->tuple_get(w->how[TYPES], KINDS + i)))
            return -1;
    return 0;
}

/* objects_next(how, stage): [the next stage, text]. The first stage is -1; RINGS is the end. */
static pb_pyobject *objects_next(pb_pyobject *self, pb_pyobject *args)
{
    struct object_walk w = {.py = pb_python_here()};
    const struct pb_python *py = w.py;
    pb_pyobject *how = py->tuple_get(args, 0), *given = how ? py->tuple_get(args, 1) : NULL, *list = NULL;
    (void)self;

    if (!given || read_parameters(&w, how) < 0)
        return NULL;
    long stage = py->int_as(given);
    uint64_t until = pb_now_ns() + py->uint64_as(w.how[SLICE]) * 1000;
    uintptr_t heads = (uintptr_t)py->uint64_as(w.how[HEADS]);
    if (py->err_occurred())
        return NULL;
    w.text = mmap(NULL, TEXT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w.text == MAP_FAILED) {
        py->err_set(*py->runtime_error, "out of memory for the list of objects");
        return NULL;
    }
    /* Objects made here must not start a collection: it would destroy objects of the program in this thread,
     * and change the rings during the walk. The program does not notice: the GIL is held until the collector
     * is enabled again. */
    int collects = py->free_threaded ? 0 : call_gc(&w, IS_ENABLED);
    if (collects >= 0 && (!collects || call_gc(&w, DISABLE) >= 0)) {
        stage = heads ? walk_rings(&w, (struct generations *)heads, (int)stage, until) : walk_list(&w);
        pb_pyobject *number = stage >= 0 ? py->int_signed(stage) : NULL;
        pb_pyobject *text = number ? py->str_from_utf8(w.text, (long)w.length, "replace") : NULL;
        list = text ? py->list_new(0) : NULL;
        if (list && (py->list_append(list, number) < 0 || py->list_append(list, text) < 0)) {
            py->decref(list);
            list = NULL;
        }
        if (number)
            py->decref(number);
        if (text)
            py->decref(text);
    }
    if (collects > 0) {
        pb_pyobject *type = NULL, *value = NULL, *trace = NULL;
        py->err_fetch(&type, &value, &trace);
        call_gc(&w, ENABLE);
        py->err_restore(type, value, trace);
    }
    munmap(w.text, TEXT_BYTES);
    return list;
}

struct pb_py_method pb_object_methods[] = {
    {"objects_rings", (pb_py_function)objects_rings, PB_METH_VARARGS, NULL},
    {"objects_mark", (pb_py_function)objects_mark, PB_METH_NOARGS, NULL},
    {"objects_unmark", (pb_py_function)objects_unmark, PB_METH_O, NULL},
    {"objects_frozen", (pb_py_function)objects_frozen, PB_METH_O, NULL},
    {"objects_next", (pb_py_function)objects_next, PB_METH_VARARGS, NULL},
    {0},
};
