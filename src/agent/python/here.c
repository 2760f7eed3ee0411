/* here: see here.h. */
#include "agent/python/here.h"

#include "agent/python/pylayout.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define MOST_FRAMES       100
#define TSTATE_INTERP     16             /* the same in every version */
#define FRAME_OBJECT_DATA 24             /* of a frame object, from 3.11 on: the structure that it is for */
#define OWNER_SHIM        3              /* this and above: where C called Python; no function */
#define TAGS              ((uintptr_t)3) /* from 3.14 on */
#define PY_FILE_INPUT     257

static int known; /* 1 yes, -1 no; with the GIL */

static void *pointer_at(const void *base, size_t offset)
{
    void *p;
    memcpy(&p, (const char *)base + offset, sizeof(p));
    return p;
}

static pb_pyobject *code_of(const struct pb_python *py, const struct pb_agent_layout *l, const void *frame)
{
    uintptr_t code = (uintptr_t)pointer_at(frame, l->code);
    return (pb_pyobject *)(py->minor >= 14 ? code & ~TAGS : code);
}

/* The thread state of the calling thread where it holds the GIL; NULL: it does not. */
static const char *own_tstate(const struct pb_python *py, const struct pb_agent_layout *l)
{
    const char *tstate = py->unchecked_tstate           ? py->unchecked_tstate()
                         : py->unchecked_tstate_private ? py->unchecked_tstate_private()
                                                        : NULL;
    unsigned long ident;

    if (!tstate)
        return NULL;
    /* Up to 3.11 it is the one of whatever thread holds the GIL. */
    memcpy(&ident, tstate + l->thread_id, sizeof(ident));
    if (ident != (unsigned long)pthread_self())
        return NULL;
    /* Other interpreters may have a GIL of their own. */
    if (py->minor >= 12 && pointer_at(tstate, TSTATE_INTERP) != py->main_interpreter())
        return NULL;
    return tstate;
}

/* From 3.11 on; in 3.11 and 3.12 a structure on the C stack names the innermost frame. */
static void *innermost(const struct pb_agent_layout *l, const char *tstate)
{
    void *top = pointer_at(tstate, l->top);
    return l->minor == 11 || l->minor == 12 ? (top ? pointer_at(top, l->cframe_top) : NULL) : top;
}

int pb_here_begin(const struct pb_python *py, struct pb_here *ret)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    const char *tstate = l ? own_tstate(py, l) : NULL;

    if (!tstate)
        return 0;
    *ret = (struct pb_here){
        .py = py, .frame = l->instr ? innermost(l, tstate) : py->eval_frame(), .left = MOST_FRAMES};
    return 1;
}

/* Up to 3.10 the line itself. */
int pb_here_next(struct pb_here *here, pb_pyobject **code, int *at)
{
    const struct pb_python *py = here->py;
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);

    while (here->frame && here->left-- > 0) {
        const char *frame = here->frame;
        here->frame = pointer_at(frame, l->back);
        if (l->owner && (unsigned char)frame[l->owner] >= OWNER_SHIM)
            continue;
        *code = code_of(py, l, frame);
        if (!*code || pointer_at(*code, PB_PY_OBJECT_TYPE) != py->code_type)
            continue;
        if (l->instr)
            *at = (int)((const char *)pointer_at(frame, l->instr) - ((const char *)*code + l->adaptive));
        else
            *at = py->frame_line((pb_pyobject *)(uintptr_t)frame);
        return 1;
    }
    return 0;
}

int pb_here_line(const struct pb_python *py, pb_pyobject *code, int at)
{
    return py->code_line ? py->code_line(code, at) : at;
}

const char *pb_here_text(const struct pb_python *py, pb_pyobject *code, enum pb_here_text which, size_t *size)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    pb_pyobject *text = pointer_at(code, which == PB_HERE_FILE ? l->file
                                         : l->qualname         ? l->qualname
                                                               : l->name);
    pb_pyobject *raised[3] = {NULL};
    long length = 0;

    /* Of ASCII this is a pointer into the string. Others are encoded once, into memory that the string keeps,
     * and where that fails there is an exception, which is none of the program's. */
    int pending = py->err_occurred() != NULL;
    if (pending)
        py->err_fetch(&raised[0], &raised[1], &raised[2]);
    const char *chars = py->utf8_size(text, &length);
    if (!chars)
        py->err_clear();
    if (pending)
        py->err_restore(raised[0], raised[1], raised[2]);
    *size = chars ? (size_t)length : 0;
    return chars ? chars : "";
}

/* --- whether the layout fits ----------------------------------------------------------------------- */

static int attribute_is(const struct pb_python *py, pb_pyobject *object, const char *name,
                        const void *expected)
{
    pb_pyobject *value = py->get_attr(object, name);

    if (!value) {
        py->err_clear();
        return 0;
    }
    py->decref(value); /* object has it too */
    return value == expected;
}

/* Each address is compared with what the API gives before anything is read through it. */
static int frame_fits(const struct pb_python *py, const struct pb_agent_layout *l, pb_pyobject *object,
                      const char *frame)
{
    pb_pyobject *code = frame ? code_of(py, l, frame) : NULL;

    if (!frame || !attribute_is(py, object, "f_code", code) ||
        pointer_at(code, PB_PY_OBJECT_TYPE) != py->code_type ||
        !attribute_is(py, code, "co_name", pointer_at(code, l->name)) ||
        !attribute_is(py, code, "co_filename", pointer_at(code, l->file)))
        return 0;
    return !l->qualname || attribute_is(py, code, "co_qualname", pointer_at(code, l->qualname));
}

static int stack_fits(const struct pb_python *py, const struct pb_agent_layout *l)
{
    char on_stack;
    const char *tstate = py->current_tstate_checked();
    pb_pyobject *object = py->eval_frame(), *back, *code;
    unsigned long ident;
    int at, lines[2] = {0};

    memcpy(&ident, tstate + l->thread_id, sizeof(ident));
    if (!object || ident != py->thread_ident() || own_tstate(py, l) != tstate)
        return 0;
    const void *top = object;
    if (l->instr) {
        const char *named = pointer_at(tstate, l->top);
        if (l->minor <= 12 && ((uintptr_t)named - (uintptr_t)&on_stack > 1u << 20 || (uintptr_t)named % 8))
            return 0;
        top = innermost(l, tstate);
        if (top != pointer_at(object, FRAME_OBJECT_DATA))
            return 0;
    }
    if (!frame_fits(py, l, object, top))
        return 0;
    back = py->get_attr(object, "f_back");
    const char *outer = pointer_at(top, l->back);
    int fits = back && back != py->none && frame_fits(py, l, back, outer);
    py->err_clear();
    pb_pyobject *both[] = {object, back};
    for (int i = 0; fits && i < 2; i++) {
        pb_pyobject *number = py->get_attr(both[i], "f_lineno");
        lines[i] = number ? (int)py->int_as(number) : -1;
        py->err_clear();
        if (number)
            py->decref(number);
    }
    if (back)
        py->decref(back);
    struct pb_here here;
    if (!fits || lines[0] != 2 || lines[1] != 4 || !pb_here_begin(py, &here))
        return 0;
    for (int i = 0; i < 2; i++)
        if (!pb_here_next(&here, &code, &at) || pb_here_line(py, code, at) != lines[i])
            return 0;
    return 1;
}

/* Called by the lines below. */
static pb_pyobject *compare(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)self;
    (void)unused;

    known = stack_fits(py, pb_agent_layout_find(py->minor)) ? 1 : -1;
    py->incref(py->none);
    return py->none;
}
static struct pb_py_method compare_method = {"compare", (pb_py_function)compare, PB_METH_NOARGS, NULL};

int pb_here_is_known(const struct pb_python *py)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);

    if (known)
        return known > 0;
    if (py->free_threaded || !l || !py->code_type ||
        !(l->instr ? (void *)py->code_line : (void *)py->frame_line) ||
        (py->minor >= 12 && !py->main_interpreter))
        return 0;
    pb_pyobject *names = py->dict_new(), *function = py->cfunction(&compare_method, NULL, NULL);
    pb_pyobject *code = py->compile("def inner():\n    compare()\n\ninner()\n", "<probing>", PY_FILE_INPUT);
    pb_pyobject *done = NULL;
    if (names && function && code && py->dict_set(names, "__builtins__", py->builtins()) == 0 &&
        py->dict_set(names, "compare", function) == 0)
        done = py->eval_code(code, names, names);
    py->err_clear();
    pb_pyobject *held[] = {names, function, code, done};
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        if (held[i])
            py->decref(held[i]);
    return known > 0;
}
