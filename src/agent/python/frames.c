/* frames: see frames.h.
 *
 * Why the walk is safe. CPython removes a thread state from the list only in its own thread and with the GIL,
 * which we hold: so none is removed during the walk. (PyThreadState_Delete of another thread's is for
 * sub-interpreters, which have lists of their own.) One that is added meanwhile, without the GIL, is put
 * before the first and changes no other; at worst it reads as the last one, and it has no frames yet. The
 * main thread's is the oldest, hence the last. Its frames change only while it holds the GIL. A function that
 * returns is unlinked before its slots are released (not in 3.11.0, which gets no locals), so a linked frame
 * holds references or null. Nothing here allocates an object that the garbage collector counts up to 3.11,
 * where a collection would run other code; later versions collect between bytecodes only. In free-threaded
 * builds none of this holds: no locals there. */
#include "agent/python/frames.h"

#include "agent/python/pylayout.h"
#include "control/own_code.h"

#include <string.h>

#define FRAMES_MAX        200
#define STACK_MAX         2000
#define LIST_MAX          100000 /* threads, interpreters: threads without the GIL change these lists */
#define CO_OPTIMIZED      1
#define KIND_HIDDEN       0x10 /* 3.12: of an inlined comprehension */
#define KIND_CELL         0xc0 /* a cell or a free variable */
#define FRAME_OBJECT_DATA 24   /* f_frame of a frame object, 3.11 and 3.12 */
#define OWNER_CSTACK      3    /* 3.12: marks a call from C into Python; no function */

/* A position in the chain of frames, from the innermost outwards. */
struct frame_walk {
    const struct pb_python *py;
    const struct pb_agent_layout *l;
    int raw;     /* read by layout; else by the C API, and frame is a reference that we own */
    void *frame; /* NULL at the end */
    int left;
};

static void *pointer_at(const void *base, size_t offset)
{
    void *p;
    memcpy(&p, (const char *)base + offset, sizeof(p));
    return p;
}

static int int_at(const void *base, size_t offset)
{
    int i;
    memcpy(&i, (const char *)base + offset, sizeof(i));
    return i;
}

static void *raw_top(const struct pb_agent_layout *l, const void *tstate)
{
    void *top = pointer_at(tstate, l->top);
    return l->kinds && top ? pointer_at(top, l->cframe_top) : top;
}

static void *main_interpreter(const struct pb_python *py)
{
    if (py->main_interpreter)
        return py->main_interpreter();
    /* 3.6: the oldest, which is the last. */
    void *last = NULL;
    void *i = py->first_interpreter ? py->first_interpreter() : NULL;
    for (int n = 0; i && n < LIST_MAX; n++, i = py->next_interpreter(i))
        last = i;
    return last;
}

static void *main_tstate(const struct pb_python *py)
{
    void *interpreter = main_interpreter(py), *last = NULL;

    if (!interpreter || !py->first_tstate || !py->next_tstate)
        return NULL;
    void *t = py->first_tstate(interpreter);
    for (int n = 0; t && n < LIST_MAX; n++, t = py->next_tstate(t))
        last = t;
    return last;
}

static pb_pyobject *attribute_is(const struct pb_python *py, pb_pyobject *object, const char *name,
                                 const void *expected)
{
    pb_pyobject *value = py->get_attr(object, name);
    if (!value) {
        py->err_clear();
        return NULL;
    }
    py->decref(value); /* object holds a reference too */
    return value == expected ? value : NULL;
}

/* The API's frame is the innermost one of this thread: comparing shows whether the layout fits this build.
 * Each address is compared before anything is read through it. */
static int layout_fits(const struct pb_python *py, const struct pb_agent_layout *l, const pb_pyobject *marker)
{
    char here;
    const char *tstate = py->current_tstate_checked();
    pb_pyobject *frame = py->eval_frame();
    unsigned long ident;

    memcpy(&ident, tstate + l->thread_id, sizeof(ident));
    if (!frame || ident != py->thread_ident())
        return 0;
    const char *top = pointer_at(tstate, l->top);
    if (l->kinds) {
        /* The struct with the innermost frame is on this thread's stack. */
        uintptr_t distance = (uintptr_t)top - (uintptr_t)&here;
        if (distance > 1u << 20 || (uintptr_t)top % sizeof(void *))
            return 0;
        top = pointer_at(top, l->cframe_top);
        if (top != pointer_at(frame, FRAME_OBJECT_DATA))
            return 0;
    } else if (top != (const char *)frame) {
        return 0;
    }
    pb_pyobject *code = pointer_at(top, l->code);
    if (!attribute_is(py, frame, "f_code", code) ||
        !attribute_is(py, code, "co_filename", pointer_at(code, l->file)) ||
        !(int_at(code, l->flags) & CO_OPTIMIZED) || pointer_at(top, l->slots) != marker)
        return 0;
    pb_pyobject *names = py->get_attr(code, "co_varnames");
    if (!names)
        py->err_clear();
    else
        py->decref(names); /* its type outlives it */
    return names && py->tuple_type == pointer_at(pointer_at(code, l->names), PB_PY_OBJECT_TYPE);
}

/* Whether frames of this build, up to 3.12, can be read by layout. */
static int can_read_raw(const struct pb_python *py, const struct pb_agent_layout *l,
                        const pb_pyobject *marker)
{
    static int fits; /* 1 yes, -1 no; the same for all threads, and only accessed with the GIL */

    if (!fits)
        fits = l && layout_fits(py, l, marker) ? 1 : -1;
    return fits > 0 && !(py->minor == 11 && py->micro == 0);
}

/* 0: this build's frames cannot be read. */
static int walk_main_thread(struct frame_walk *w, const struct pb_python *py, const pb_pyobject *marker)
{
    *w = (struct frame_walk){.py = py, .l = pb_agent_layout_find(py->minor), .left = FRAMES_MAX};
    if (py->free_threaded)
        return 0;
    if (py->minor >= 13) {
        if (!py->tstate_frame || !py->frame_back || !py->frame_code || !py->frame_locals)
            return 0;
        void *tstate = main_tstate(py);
        w->frame = tstate ? py->tstate_frame(tstate) : NULL;
        return 1;
    }
    w->raw = 1;
    if (!can_read_raw(py, w->l, marker))
        return 0;
    void *tstate = main_tstate(py);
    w->frame = tstate ? raw_top(w->l, tstate) : NULL;
    return 1;
}

static void step_out(struct frame_walk *w)
{
    if (w->raw) {
        w->frame = --w->left > 0 ? pointer_at(w->frame, w->l->back) : NULL;
        return;
    }
    void *inner = w->frame;
    w->frame = --w->left > 0 ? w->py->frame_back(inner) : NULL;
    w->py->decref(inner);
}

int pb_frames_is_library(const char *file, const char *stdlib)
{
    size_t size = strlen(stdlib);
    return pb_is_library_file(file) || (size && strncmp(file, stdlib, size) == 0);
}

/* -1: no function (the locals of a module are its globals), 0: of a library, 1: user code. Code from -c,
 * stdin or a notebook ("<string>") is user code. */
static int judge_frame(const struct frame_walk *w, const char *stdlib)
{
    const struct pb_python *py = w->py;
    pb_pyobject *code, *file;
    int flags;

    if (w->raw) {
        if (w->l->owner && ((const char *)w->frame)[w->l->owner] == OWNER_CSTACK)
            return -1;
        code = pointer_at(w->frame, w->l->code);
        flags = int_at(code, w->l->flags);
        file = pointer_at(code, w->l->file);
        py->incref(file);
    } else {
        code = py->frame_code(w->frame);
        pb_pyobject *number = py->get_attr(code, "co_flags");
        file = py->get_attr(code, "co_filename");
        flags = number ? (int)py->int_as(number) : 0;
        if (number)
            py->decref(number);
        py->decref(code);
    }
    const char *text = file ? py->utf8_of(file) : NULL;
    int user = !text || !pb_frames_is_library(text, stdlib);
    if (file)
        py->decref(file);
    py->err_clear();
    return flags & CO_OPTIMIZED ? user : -1;
}

/* The value of one slot of a frame by layout, through its cell; NULL: not bound, or hidden. Borrowed. */
static pb_pyobject *slot_value(const struct frame_walk *w, size_t slot, int in_cell, const char *kinds)
{
    pb_pyobject *value = pointer_at(w->frame, w->l->slots + slot * sizeof(void *));

    if (kinds) {
        unsigned kind = (unsigned char)kinds[PB_PY_BYTES_DATA + slot];
        if (w->py->minor >= 12 && kind & KIND_HIDDEN)
            return NULL;
        in_cell = (kind & KIND_CELL) != 0;
    }
    if (value && in_cell && pointer_at(value, PB_PY_OBJECT_TYPE) == w->py->cell_type)
        value = pointer_at(value, PB_PY_CELL_VALUE);
    return value;
}

/* Finds the value of name (a new reference), or adds all bound names to the list. */
static pb_pyobject *search_raw(const struct frame_walk *w, pb_pyobject *name, pb_pyobject *list)
{
    const struct pb_python *py = w->py;
    const char *code = pointer_at(w->frame, w->l->code);
    const char *kinds = w->l->kinds ? pointer_at(code, w->l->kinds) : NULL;
    const uint16_t groups[] = {w->l->names, w->l->cells, w->l->free};
    size_t slot = 0;

    for (int g = 0; g < 3 && groups[g]; g++) {
        const char *tuple = pointer_at(code, groups[g]);
        long n;
        memcpy(&n, tuple + PB_PY_TUPLE_SIZE, sizeof(n));
        for (long i = 0; i < n; i++, slot++) {
            pb_pyobject *item = pointer_at(tuple, PB_PY_TUPLE_ITEMS + (size_t)i * sizeof(void *));
            if (name && item != name && py->str_compare(item, name) != 0)
                continue;
            pb_pyobject *value = slot_value(w, slot, g > 0, kinds);
            if (value && name) {
                py->incref(value);
                return value;
            }
            if (value && py->list_append(list, item) < 0)
                return NULL;
        }
    }
    return NULL;
}

/* The same from 3.13 on, where f_locals of a function is a read-only view. */
static pb_pyobject *search_api(const struct frame_walk *w, pb_pyobject *name, pb_pyobject *list)
{
    const struct pb_python *py = w->py;
    pb_pyobject *view = py->frame_locals(w->frame), *found = NULL;

    if (view && name) {
        found = py->get_item(view, name);
    } else if (view) {
        pb_pyobject *keys = py->mapping_keys(view);
        if (keys && py->list_set_slice(list, 0, 0, keys) < 0)
            py->err_clear();
        if (keys)
            py->decref(keys);
    }
    if (view)
        py->decref(view);
    if (!found)
        py->err_clear();
    return found;
}

static pb_pyobject *search(const struct frame_walk *w, pb_pyobject *name, pb_pyobject *list)
{
    return w->raw ? search_raw(w, name, list) : search_api(w, name, list);
}

static pb_pyobject *search_functions(const struct pb_python *py, const char *stdlib, pb_pyobject *marker,
                                     pb_pyobject *name, pb_pyobject *list)
{
    struct frame_walk w, first = {0};
    pb_pyobject *found = NULL;
    int user_code = 0;

    if (!walk_main_thread(&w, py, marker))
        return NULL;
    for (; w.frame && !found; step_out(&w)) {
        int user = judge_frame(&w, stdlib);
        if (user > 0) {
            user_code = 1;
            found = search(&w, name, list);
        } else if (user == 0 && !first.frame) {
            first = w;
            if (!w.raw)
                py->incref(w.frame);
        }
    }
    if (w.frame && !w.raw)
        py->decref(w.frame);
    if (first.frame && !user_code)
        found = search(&first, name, list);
    if (first.frame && !first.raw)
        py->decref(first.frame);
    return found;
}

pb_pyobject *pb_frames_local(const struct pb_python *py, pb_pyobject *name, const char *stdlib,
                             pb_pyobject *marker)
{
    return search_functions(py, stdlib, marker, name, NULL);
}

pb_pyobject *pb_frames_names(const struct pb_python *py, const char *stdlib, pb_pyobject *marker)
{
    pb_pyobject *list = py->list_new(0);
    if (list)
        search_functions(py, stdlib, marker, NULL, list);
    return list;
}

/* --- all threads --- */

/* The innermost frame of a thread as an object, a new reference; NULL: none. Up to 3.10 frames are objects.
 */
static pb_pyobject *top_frame(const struct pb_python *py, const struct pb_agent_layout *l, void *tstate)
{
    if (py->minor >= 11)
        return py->tstate_frame(tstate);
    pb_pyobject *frame = pointer_at(tstate, l->top);
    if (frame)
        py->incref(frame);
    return frame;
}

static pb_pyobject *outer_frame(const struct pb_python *py, const struct pb_agent_layout *l,
                                pb_pyobject *frame)
{
    if (py->minor >= 11)
        return py->frame_back(frame);
    pb_pyobject *outer = pointer_at(frame, l->back);
    if (outer)
        py->incref(outer);
    return outer;
}

/* Whether threads can be listed. */
static int can_list_threads(const struct pb_python *py, const struct pb_agent_layout *l,
                            const pb_pyobject *marker)
{
    if (py->free_threaded || !l || !py->first_tstate || !py->next_tstate)
        return 0;
    if (py->minor >= 13)
        return py->tstate_frame && py->frame_back;
    return can_read_raw(py, l, marker) && (py->minor < 11 || (py->tstate_frame && py->frame_back));
}

static void append_and_drop(const struct pb_python *py, pb_pyobject *list, pb_pyobject *object)
{
    if (!object || py->list_append(list, object) < 0)
        py->err_clear();
    if (object)
        py->decref(object);
}

static void list_stack(const struct pb_python *py, const struct pb_agent_layout *l, void *tstate,
                       pb_pyobject *list)
{
    pb_pyobject *frame = top_frame(py, l, tstate);

    for (int left = STACK_MAX; frame && left > 0; left--) {
        pb_pyobject *outer = outer_frame(py, l, frame);
        append_and_drop(py, list, frame);
        frame = outer;
    }
    if (frame)
        py->decref(frame);
}

/* ident 0: all threads. The list is made before the walk: up to 3.11 making an object that the garbage
 * collector counts may start a collection, hence run other code, and thread states may be removed. In 3.11
 * getting a frame makes such an object, so the collector is disabled meanwhile. */
static pb_pyobject *list_frames(const struct pb_python *py, unsigned long ident, pb_pyobject *marker)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    pb_pyobject *list = py->list_new(0);
    void *interpreter = main_interpreter(py);
    unsigned long other;

    if (!list || !interpreter || !can_list_threads(py, l, marker))
        return list;
    int collects = py->gc_disable && py->gc_enable && py->gc_disable();
    void *t = py->first_tstate(interpreter);
    for (int n = 0; t && n < LIST_MAX; n++, t = py->next_tstate(t)) {
        other = __atomic_load_n((const unsigned long *)((const char *)t + l->thread_id), __ATOMIC_RELAXED);
        if (!other) /* stored for later, of no thread: states.h */
            continue;
        if (!ident) {
            pb_pyobject *frame = top_frame(py, l, t);
            append_and_drop(py, list, py->int_from(other));
            if (!frame)
                py->incref(py->none);
            append_and_drop(py, list, frame ? frame : py->none);
        } else if (ident == other) {
            list_stack(py, l, t, list);
            break;
        }
    }
    if (collects)
        py->gc_enable();
    return list;
}

pb_pyobject *pb_frames_threads(const struct pb_python *py, pb_pyobject *marker)
{
    return list_frames(py, 0, marker);
}

pb_pyobject *pb_frames_stack(const struct pb_python *py, unsigned long ident, pb_pyobject *marker)
{
    return list_frames(py, ident, marker);
}

/* The caller holds a reference to the frame, so its slots stay references or null. */
pb_pyobject *pb_frames_locals_of(const struct pb_python *py, pb_pyobject *frame, pb_pyobject *marker)
{
    struct frame_walk w = {.py = py, .l = pb_agent_layout_find(py->minor), .raw = 1};
    pb_pyobject *names = py->list_new(0), *found = py->dict_new(), *own = py->eval_frame();

    if (!names || !found || !own || py->free_threaded || py->minor >= 13 ||
        pointer_at(frame, PB_PY_OBJECT_TYPE) != pointer_at(own, PB_PY_OBJECT_TYPE) ||
        !can_read_raw(py, w.l, marker)) {
        if (names)
            py->decref(names);
        if (found)
            py->decref(found);
        return NULL;
    }
    w.frame = py->minor >= 11 ? pointer_at(frame, FRAME_OBJECT_DATA) : frame;
    if (w.frame && int_at(pointer_at(w.frame, w.l->code), w.l->flags) & CO_OPTIMIZED) {
        search_raw(&w, NULL, names);
        for (long i = 0, n = py->size_of(names); i < n; i++) {
            pb_pyobject *name = py->list_get(names, i), *value = name ? search_raw(&w, name, NULL) : NULL;
            if (value && py->dict_set_object(found, name, value) < 0)
                py->err_clear();
            if (value)
                py->decref(value);
        }
    }
    py->err_clear();
    py->decref(names);
    return found;
}

unsigned long pb_frames_main_ident(const struct pb_python *py)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    const char *tstate = main_tstate(py);
    unsigned long ident;

    if (!l || !tstate)
        return 0;
    /* Our own thread shows whether the layout fits. */
    memcpy(&ident, (const char *)py->current_tstate_checked() + l->thread_id, sizeof(ident));
    if (ident != py->thread_ident())
        return 0;
    memcpy(&ident, tstate + l->thread_id, sizeof(ident));
    return ident;
}

void *pb_frames_tstate(const struct pb_python *py, unsigned long ident)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    void *interpreter = main_interpreter(py);
    unsigned long number;

    if (!l || !interpreter || !py->first_tstate || !py->next_tstate)
        return NULL;
    memcpy(&number, (const char *)py->current_tstate_checked() + l->thread_id, sizeof(number));
    if (number != py->thread_ident()) /* the layout does not fit */
        return NULL;
    void *t = py->first_tstate(interpreter);
    for (int n = 0; t && n < LIST_MAX; n++, t = py->next_tstate(t)) {
        memcpy(&number, (const char *)t + l->thread_id, sizeof(number));
        if (number == ident)
            return t;
    }
    return NULL;
}
