/* module_span: spans and events recorded by Python code of the program.
 *
 *   with _probing.span("forward", phase="train", batch=3): ...
 *
 * A span is a row of python.trace_event from its begin on, so that the open spans of a hung program can be
 * read from outside, and after its death too; its end, duration and error are filled in late. The open span
 * is a context variable: threads and asyncio tasks each have their own, and a task begins with that of its
 * creator. (3.6 has none: there it is per thread.) If nothing records a span costs a few loads. */
#include "agent/core/recorder.h"
#include "agent/core/thread_start.h"
#include "agent/module/module.h"
#include "agent/module/span.h"
#include "agent/module/trace_table.h"
#include "agent/python/attributes.h"
#include "agent/python/python_cells.h"
#include "table/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static unsigned header;
static pb_pyobject *span_type;
static int binds_itself; /* with statements call the span itself: see FIRST_BY_ARRAY */

/* --- rows ------------------------------------------------------------------------------------------ */

struct span_text {
    const char *at;
    long length;
};

static struct span_text text_of(const struct pb_python *py, pb_pyobject *object)
{
    struct span_text text = {NULL, 0};

    if (object && !(text.at = py->utf8_size(object, &text.length)))
        py->err_clear();
    return text;
}

static void set_text(struct pb_row *row, unsigned column, struct span_text text)
{
    if (text.at)
        pb_set_string(row, column, text.at, (size_t)text.length);
}

/* All cells of a row except those of its end. */
struct row_fields {
    const char *type;
    uint64_t id, trace, parent_id;
    struct span_text name, phase, location, attributes;
};

static void set_fields(struct pb_row *row, const struct row_fields *b)
{
    int64_t step = pb_span_step();

    pb_set_string(row, PB_TRACE_RECORD_TYPE, b->type, strlen(b->type));
    if (b->trace)
        pb_set_i64(row, PB_TRACE_TRACE_ID, (int64_t)b->trace);
    if (b->id)
        pb_set_i64(row, PB_TRACE_SPAN_ID, (int64_t)b->id);
    if (b->parent_id)
        pb_set_i64(row, PB_TRACE_PARENT_ID, (int64_t)b->parent_id);
    set_text(row, PB_TRACE_NAME, b->name);
    set_text(row, PB_TRACE_PHASE, b->phase);
    set_text(row, PB_TRACE_LOCATION, b->location);
    set_text(row, PB_TRACE_ATTRIBUTES, b->attributes);
    if (step != INT64_MIN)
        pb_set_i64(row, PB_TRACE_STEP, step);
    pb_set_i32(row, PB_TRACE_THREAD_ID, pb_thread_id());
}

static struct row_fields fields_of_span(const struct pb_python *py, const struct pb_span_object *s)
{
    return (struct row_fields){.type = "span",
                               .id = s->id,
                               .trace = s->trace,
                               .parent_id = s->parent_id,
                               .name = text_of(py, s->name),
                               .phase = text_of(py, s->phase),
                               .location = text_of(py, s->location),
                               .attributes = text_of(py, s->attributes)};
}

static void open_row(const struct pb_python *py, struct pb_span_object *s)
{
    const struct row_fields b = fields_of_span(py, s);
    struct pb_row row;
    uint32_t place;

    if (pb_trace_begin_row(&row, &place) < 0)
        return;
    set_fields(&row, &b);
    memcpy(&s->began, pb_row_cell(&row, PB_TRACE_TIMESTAMP, PB_TIMESTAMP, sizeof(s->began)),
           sizeof(s->began));
    s->row = pb_row_ref(&row);
    if (pb_row_commit(&row) == 0)
        s->generation = pb_recorder_generation();
    pb_recorder_leave(place);
}

static void close_row(struct pb_span_object *s, struct span_text error)
{
    int64_t now = pb_clock_mono();
    uint32_t place;

    struct pb_arena *arena = pb_recorder_enter(&place);
    if (!arena)
        return;
    if (s->generation == pb_recorder_generation()) {
        double took = (double)(now - s->began) / 1e6;
        const struct pb_late end[] = {{PB_TRACE_ENDED, PB_TIMESTAMP, &now, sizeof(now)},
                                      {PB_TRACE_DURATION_MS, PB_F64, &took, sizeof(took)},
                                      {PB_TRACE_ERROR, PB_STRING, error.at, (size_t)error.length}};
        pb_fill_all(arena, s->row, end, error.at ? 3 : 2);
    }
    pb_recorder_leave(place);
}

static pb_pyobject *give_none(const struct pb_python *py)
{
    py->incref(py->none);
    return py->none;
}

/* --- Span ------------------------------------------------------------------------------------------ */

static pb_pyobject *enter(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    struct pb_span_object *s = pb_span_of(self);
    (void)unused;

    if (!s->name || s->open) {
        py->err_set(*py->runtime_error, s->name ? "a span is entered once: call probing.span for each"
                                                : "a span has a name: probing.span(\"forward\")");
        return NULL;
    }
    pb_pyobject *before = pb_span_current(py);
    s->id = pb_trace_new_id();
    s->trace = before ? pb_span_of(before)->trace : s->id;
    s->parent_id = before ? pb_span_of(before)->id : 0;
    if (before && !s->phase && pb_span_of(before)->phase) {
        s->phase = pb_span_of(before)->phase;
        py->incref(s->phase);
    }
    open_row(py, s);
    pb_span_enter(py, self, before);
    py->incref(self);
    return self;
}

/* suspend(), resume(): around a yield. The row keeps its parent. */
static pb_pyobject *suspend(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)unused;

    pb_span_suspend(py, self);
    return give_none(py);
}

static pb_pyobject *resume(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)unused;

    pb_span_resume(py, self);
    return give_none(py);
}

static int is_type(const struct pb_python *py, pb_pyobject *object)
{
    return py->type_is_subtype(pb_type_of(object, header), pb_type_of(py->object_type, header));
}

/* __exit__(type, exception, traceback): never swallows an exception. */
static pb_pyobject *leave(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    const struct pb_python *py = pb_python_here();
    struct pb_span_object *s = pb_span_of(self);
    struct span_text error = {NULL, 0};
    (void)names;

    if (s->open) {
        if (nargs > 0 && is_type(py, args[0])) { /* not asked for its __name__: a metaclass may answer */
            error.at = pb_class_name(args[0], header);
            error.length = (long)strlen(error.at);
        }
        close_row(s, error);
        pb_span_leave(py, self);
    }
    return py->bool_from(0);
}

static pb_pyobject *give_id(pb_pyobject *self, pb_pyobject *unused)
{
    (void)unused;
    return pb_python_here()->int64_from((long long)pb_span_of(self)->id);
}

/* @probing.span(...): spans.py in Python makes the decorated function. */
static pb_pyobject *decorate(const struct pb_python *py, const struct pb_span_object *s,
                             pb_pyobject *function)
{
    pb_pyobject *shared = pb_module_shared(py);
    pb_pyobject *how = shared ? py->dict_get(shared, "decorate") : NULL;

    if (!how) {
        py->err_set(*py->type_error, "a span decorates functions where probing is imported");
        return NULL;
    }
    return py->call(how, function, s->name ? s->name : py->none, s->phase ? s->phase : py->none,
                    s->attributes ? s->attributes : py->none, (void *)NULL);
}

static pb_pyobject *call(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *function = py->tuple_get(args, 0);
    (void)keywords;

    return function ? decorate(py, pb_span_of(self), function) : NULL;
}

/* __enter__ and __exit__ come first: see below. */
#define WITH_METHODS 2
static struct pb_py_method span_methods[] = {
    {"__enter__", (pb_py_function)enter, PB_METH_NOARGS, NULL},
    {"__exit__", (pb_py_function)leave, PB_METH_FAST, NULL},
    {"suspend", (pb_py_function)suspend, PB_METH_NOARGS, NULL},
    {"resume", (pb_py_function)resume, PB_METH_NOARGS, NULL},
    {"id", (pb_py_function)give_id, PB_METH_NOARGS, "id(): its span_id; 0 before it is entered."},
    {0},
};

/* --- without bound methods ------------------------------------------------------------------------- */

/* Before 3.14 a with statement makes bound methods of __enter__ and __exit__: a fifth of a span's cost. So
 * both are a descriptor whose __get__ returns the span itself, and a call of the span tells by the number of
 * arguments what it is for: none, __enter__; three, __exit__; one, as a decorator. Needs vectorcall for types
 * made at run time, which exists from 3.9 on. */
#define FIRST_BY_ARRAY    9
#define LAST_BOUND_METHOD 13
#define CALLED_BY_ARRAY   (1u << 11) /* Py_TPFLAGS_HAVE_VECTORCALL */
#define SLOT_DESCR_GET    54
#define MEMBER_SIZE       19 /* T_PYSSIZET */
#define MEMBER_READONLY   1

static pb_pyobject *call_span(pb_pyobject *self, pb_pyobject *const *args, size_t flags, pb_pyobject *names)
{
    size_t n = flags & (SIZE_MAX >> 1); /* the highest bit is a flag */
    (void)names;

    if (n == 0)
        return enter(self, NULL);
    return n == 3 ? leave(self, args, 3, NULL) : decorate(pb_python_here(), pb_span_of(self), args[0]);
}

static pb_pyobject *give_span(pb_pyobject *self, pb_pyobject *span, pb_pyobject *type)
{
    pb_pyobject *given = span ? span : self; /* Span.__enter__ itself: contextlib.ExitStack */
    (void)type;

    pb_python_here()->incref(given);
    return given;
}

/* Span.__enter__(span), Span.__exit__(span, type, exception, traceback). */
static pb_pyobject *call_unbound(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *given[4];
    long n = py->size_of(args);
    (void)self;
    (void)keywords;

    for (long i = 0; i < n && i < 4; i++)
        given[i] = py->tuple_get(args, i);
    if ((n != 1 && n != 4) || pb_type_of(given[0], header) != span_type) {
        py->err_set(*py->type_error, "a method of a span is called with the span, and at its end with the "
                                     "exception's type, value and traceback");
        return NULL;
    }
    return n == 1 ? enter(given[0], NULL) : leave(given[0], given + 1, 3, NULL);
}

static struct pb_py_slot with_method_slots[] = {
    {SLOT_DESCR_GET, (void *)give_span},
    {PB_SLOT_CALL, (void *)call_unbound},
    {0, NULL},
};

static struct pb_py_spec with_method_spec = {"_probing.SpanMethod", 0, 0, PB_TYPE_FLAGS, with_method_slots};

static struct pb_py_member {
    const char *name;
    int type;
    long offset;
    int flags;
    const char *doc;
} span_members[] = {{"__vectorcalloffset__", MEMBER_SIZE, 0, MEMBER_READONLY, NULL}, {0}};

static struct pb_py_slot span_slots[] = {
    {PB_SLOT_METHODS, span_methods},
    {PB_SLOT_DEALLOC, (void *)pb_span_free},
    {PB_SLOT_CALL, (void *)call},
    {0, NULL}, /* members */
    {0, NULL},
};

static struct pb_py_spec span_spec = {"_probing.Span", 0, 0, PB_TYPE_FLAGS, span_slots};

static void bind_itself(const struct pb_python *py)
{
    binds_itself = py->minor >= FIRST_BY_ARRAY && py->minor <= LAST_BOUND_METHOD;
    if (!binds_itself)
        return;
    span_members[0].offset = (long)(header + offsetof(struct pb_span_object, call));
    span_slots[0].function = span_methods + WITH_METHODS;
    span_slots[3] = (struct pb_py_slot){PB_SLOT_MEMBERS, span_members};
    span_spec.flags = PB_TYPE_FLAGS | CALLED_BY_ARRAY;
}

/* -1 with an exception. */
static int add_with_methods(const struct pb_python *py, pb_pyobject *shared)
{
    if (!binds_itself)
        return 0;
    with_method_spec.size = (int)header;
    if (pb_module_add_type(py, shared, "SpanMethod", &with_method_spec) < 0)
        return -1;
    pb_pyobject *method = py->type_alloc(py->dict_get(shared, "SpanMethod"), 0);
    int r = -1;
    if (method && py->set_attr(span_type, "__enter__", method) == 0)
        r = py->set_attr(span_type, "__exit__", method);
    if (method)
        py->decref(method);
    return r;
}

/* --- functions of the module ----------------------------------------------------------------------- */

/* Parses the one positional argument and the keywords that are not attributes: phase, location, json
 * (attributes as JSON). The rest becomes attributes. Borrowed and new (attributes) references. */
struct given {
    pb_pyobject *name, *phase, *location, *attributes;
};

#define OWN 4

static int is_text(const struct pb_python *py, pb_pyobject *object)
{
    return pb_type_of(object, header) == py->str_type || py->is_instance(object, py->str_type);
}

static int take_given(const struct pb_python *py, pb_pyobject *const *args, long nargs, long wanted,
                      pb_pyobject *names, struct given *ret)
{
    static const char *const own[] = {"phase", "location", "json", "kind"}; /* kind: another name of phase */
    struct pb_attributes text;

    *ret = (struct given){0};
    if (nargs != wanted || (wanted && !is_text(py, args[0]))) {
        py->err_set(*py->type_error, "the first argument must be the name (str); pass attributes by keyword");
        return -1;
    }
    ret->name = wanted ? args[0] : NULL;
    if (!names)
        return 0;
    pb_pyobject **places[] = {&ret->phase, &ret->location, &ret->attributes, &ret->phase};
    pb_attributes_begin(&text);
    long n = py->size_of(names);
    for (long i = 0; i < n; i++) {
        pb_pyobject *value = args[nargs + i];
        const char *name = py->utf8_of(py->tuple_get(names, i));
        unsigned k = 0;
        while (name && k < OWN && strcmp(name, own[k]) != 0)
            k++;
        if (!name || k == OWN)
            pb_attributes_add(&text, py, name, value);
        else if (is_text(py, value))
            *places[k] = value;
    }
    py->err_clear();
    if (ret->attributes)
        py->incref(ret->attributes);
    else
        ret->attributes = pb_attributes_end(&text, py);
    return 0;
}

/* first_use(function): called before the first spans; it starts the agent if there is none. Until it has
 * returned in one thread, spans of other threads call it too, and so wait for the agent. Its reference is
 * kept for good: another thread may be about to call it. */
static pb_pyobject *first_use_hook;

static pb_pyobject *first_use(pb_pyobject *self, pb_pyobject *function)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    py->incref(function);
    __atomic_store_n(&first_use_hook, function, __ATOMIC_SEQ_CST);
    return give_none(py);
}

static void call_first_use(const struct pb_python *py)
{
    pb_pyobject *function = __atomic_load_n(&first_use_hook, __ATOMIC_SEQ_CST);
    pb_pyobject *result = function ? py->call(function, (void *)NULL) : NULL;

    if (result)
        py->decref(result);
    else
        py->err_clear();
    __atomic_compare_exchange_n(&first_use_hook, &function, NULL, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static pb_pyobject *span(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    const struct pb_python *py = pb_python_here();
    struct given given;
    (void)self;

    if (__builtin_expect(__atomic_load_n(&first_use_hook, __ATOMIC_RELAXED) != NULL, 0))
        call_first_use(py);
    if (nargs == 1 && !names && py->is_callable(args[0])) /* @probing.span above a function */
        return decorate(py, &(const struct pb_span_object){0}, args[0]);
    if (take_given(py, args, nargs, nargs == 0 ? 0 : 1, names, &given) < 0)
        return NULL;
    if (!given.name)
        given.name = given.phase; /* or that of the function that it decorates */
    pb_pyobject *made = py->type_alloc(span_type, 0);
    if (!made) {
        if (given.attributes)
            py->decref(given.attributes);
        return NULL;
    }
    struct pb_span_object *s = pb_span_of(made);
    s->name = given.name;
    s->phase = given.phase;
    s->location = given.location;
    s->attributes = given.attributes;
    s->call = binds_itself ? call_span : NULL;
    for (int i = 0; i < 3; i++) {
        pb_pyobject *held = i == 0 ? s->name : i == 1 ? s->phase : s->location;
        if (held)
            py->incref(held);
    }
    return made;
}

/* Writes a whole row at once: an event, or a span whose ends are both known. */
static void write_row(const struct pb_python *py, const struct given *given, const int64_t *ends)
{
    pb_pyobject *before = pb_span_current(py);
    const struct pb_span_object *p = before ? pb_span_of(before) : NULL;
    struct row_fields b = {.type = ends ? "span" : "event",
                           .id = ends ? pb_trace_new_id()
                                 : p  ? p->id
                                      : 0,
                           .parent_id = ends && p ? p->id : 0,
                           .name = text_of(py, given->name),
                           .phase = text_of(py, given->phase ? given->phase
                                                : p          ? p->phase
                                                             : NULL),
                           .location = text_of(py, given->location),
                           .attributes = text_of(py, given->attributes)};
    int64_t mono, real;
    struct pb_row row;
    uint32_t place;

    b.trace = p ? p->trace : b.id;
    pb_clock_both(&mono, &real);
    if (pb_trace_begin_row(&row, &place) == 0) {
        set_fields(&row, &b);
        if (ends) {
            pb_set_timestamp(&row, PB_TRACE_TIMESTAMP, ends[0] - (real - mono));
            pb_set_timestamp(&row, PB_TRACE_ENDED, ends[1] - (real - mono));
            pb_set_f64(&row, PB_TRACE_DURATION_MS, ((double)ends[1] - (double)ends[0]) / 1e6);
        }
        pb_recorder_end_row(&row, place);
    }
    if (before)
        py->decref(before);
}

static pb_pyobject *event(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    const struct pb_python *py = pb_python_here();
    struct given given;
    (void)self;

    if (take_given(py, args, nargs, 1, names, &given) < 0)
        return NULL;
    write_row(py, &given, NULL);
    if (given.attributes)
        py->decref(given.attributes);
    return give_none(py);
}

/* record_span(name, start, end, ...): times as ints (ns since 1970) or floats (s since 1970). */
static pb_pyobject *record_span(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)
{
    static const char *const called[] = {"start", "end"};
    const struct pb_python *py = pb_python_here();
    int64_t ends[2];
    struct given given;
    int r = 0;
    (void)self;

    if (take_given(py, args, nargs, 3, names, &given) < 0)
        return NULL;
    for (int i = 0; r == 0 && i < 2; i++)
        if (pb_value_epoch(py, args[1 + i], &ends[i]) < 0)
            r = pb_value_refuse(py, called[i], PB_TIMESTAMP, args[1 + i]);
    if (r == 0)
        write_row(py, &given, ends);
    if (given.attributes)
        py->decref(given.attributes);
    return r < 0 ? NULL : give_none(py);
}

/* phase(): of the span that is open here; None: none. */
static pb_pyobject *phase(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *found = pb_span_current(py), *given = found ? pb_span_of(found)->phase : NULL;
    (void)self;
    (void)unused;

    given = given ? given : py->none;
    py->incref(given);
    if (found)
        py->decref(found);
    return given;
}

void pb_span_around(const struct pb_python *py, struct pb_span_seen *ret)
{
    pb_pyobject *found = pb_span_current(py);

    *ret = (struct pb_span_seen){0};
    if (!found)
        return;
    const struct pb_span_object *s = pb_span_of(found);
    *ret = (struct pb_span_seen){s->id, s->trace, s->began};
    py->decref(found);
}

struct pb_py_method pb_span_methods[] = {
    {"span", (pb_py_function)span, PB_METH_FAST,
     "span(name, phase=None, **attributes): a context manager; its row is there while it is open."},
    {"first_use", (pb_py_function)first_use, PB_METH_O, NULL},
    {"event", (pb_py_function)event, PB_METH_FAST,
     "event(name, **attributes): a row in the span that is open."},
    {"record_span", (pb_py_function)record_span, PB_METH_FAST,
     "record_span(name, start, end, **attributes): a span whose start and end are known."},
    {"phase", (pb_py_function)phase, PB_METH_NOARGS, NULL},
    {0},
};

int pb_module_add_span_type(const struct pb_python *py, pb_pyobject *shared)
{
    header = pb_module_header(py);
    span_spec.size = (int)(header + sizeof(struct pb_span_object));
    bind_itself(py);
    if (pb_module_add_type(py, shared, "Span", &span_spec) < 0)
        return -1;
    span_type = py->dict_get(shared, "Span");
    if (add_with_methods(py, shared) < 0)
        return -1;
    return pb_span_chain_begin(py, shared);
}
