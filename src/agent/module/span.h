/* span: the object of `with probing.span(...)`, and which span is around which.
 *
 * Each thread and each asyncio task has a current span; from it a chain of references leads outwards to the
 * spans around it. Contexts are copied (tasks, callbacks, threads), so a span may be in several chains,
 * and may end in a context other than the one in which it began. What always holds:
 *
 * - Only an open span refers to the span around it. One that has ended refers to none, so what keeps it (the
 *   context of a callback that it scheduled) keeps nothing else.
 * - No chain contains itself: set_before() is the only place that makes a reference, and checks.
 * - Walks along a chain stop after MOST_DEEP spans.
 * - Free-threaded Pythons: references between spans are read and changed under PB_LOCK_SPANS. */
#pragma once

#include "agent/module/module.h"
#include "table/arena.h"

#include <stdint.h>

/* What follows an object's header. */
struct pb_span_object {
    uint64_t id, trace, parent_id;
    uint64_t generation; /* of the agent whose table has the row; 0: none */
    struct pb_row_ref row;
    int64_t began;
    pb_pyobject *name, *phase, *location; /* str or NULL */
    pb_pyobject *attributes;              /* str (JSON) or NULL */
    pb_pyobject *before;                  /* the span around; NULL: none, or this one is not open */
    pb_pyobject *inside; /* while suspended: the innermost span that was open in this one; NULL: itself */
    unsigned children;   /* spans whose `before` is this one */
    unsigned place;      /* of its token: see span.c */
    unsigned depth;      /* spans around it when it began */
    unsigned open : 1, suspended : 1;
    unsigned astray : 1; /* ended in a context where it was not around: others may still have it as current */
    pb_pyobject *(*call)(pb_pyobject *, pb_pyobject *const *, size_t, pb_pyobject *); /* call_span, or NULL */
};

static inline struct pb_span_object *pb_span_of(pb_pyobject *object)
{
    return (struct pb_span_object *)(void *)((char *)object + pb_module_header_known);
}

/* At the module's first use: the context variable; NULL in 3.6, where the current span is the thread's. */
int pb_span_chain_begin(const struct pb_python *py, pb_pyobject *shared);

/* All with the GIL; none leaves an exception. */

/* A new reference to the span around what runs now; NULL: none. It may have ended, as that of a task's
 * creator. */
pb_pyobject *pb_span_current(const struct pb_python *py);

/* A span begins inside of `around` (the caller's reference is taken), and becomes the current one. */
void pb_span_enter(const struct pb_python *py, pb_pyobject *self, pb_pyobject *around);

/* It ends. */
void pb_span_leave(const struct pb_python *py, pb_pyobject *self);

/* Around a yield: its caller is in neither this span nor the spans that the generator opened in it. */
void pb_span_suspend(const struct pb_python *py, pb_pyobject *self);
void pb_span_resume(const struct pb_python *py, pb_pyobject *self);

/* tp_dealloc. */
void pb_span_free(pb_pyobject *self);
