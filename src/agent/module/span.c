/* span: see span.h. */
#include "agent/module/span.h"

#include "agent/core/lock.h"
#include "agent/module/module.h"

#include <string.h>

#define THREAD_KEY "probing.span"

/* A span at this depth is the outermost one of its chain: spans that never end must not fill the memory. */
#define MOST_DEEP 10000

static pb_pyobject *current; /* the context variable; NULL in 3.6 */
static pb_pyobject *waiting; /* spans to be freed: see pb_span_free */
static int is_freeing;

static void release(const struct pb_python *py, pb_pyobject *object)
{
    if (object)
        py->decref(object);
}

/* --- the current span ------------------------------------------------------------------------------ */

/* A new reference, or NULL. */
static pb_pyobject *get_current(const struct pb_python *py)
{
    pb_pyobject *found = NULL;

    if (current) {
        if (py->context_get(current, NULL, &found) < 0)
            py->err_clear();
        if (found == py->none) { /* one was open before */
            py->decref(found);
            found = NULL;
        }
        return found;
    }
    pb_pyobject *dict = py->thread_dict();
    found = dict ? py->dict_get(dict, THREAD_KEY) : NULL;
    if (found)
        py->incref(found);
    return found;
}

/* Tokens of the context variable, of the spans entered last: resetting costs half of setting. A token
 * refers to the context, which refers to the span; a span that had its own token and is never left would keep
 * the context and all that is in it. So they are here, and few. With the GIL; not where there is none. */
static struct token {
    pb_pyobject *token, *span; /* span: whose it is, no reference; NULL: free */
    const pb_pyobject *before; /* what resetting restores */
} tokens[64];
#define TOKENS (sizeof(tokens) / sizeof(tokens[0]))

/* A new reference; NULL: it has none, or not any more. */
static pb_pyobject *take_token(pb_pyobject *self, const pb_pyobject **before)
{
    struct token *t = &tokens[pb_span_of(self)->place];
    pb_pyobject *token = t->span == self ? t->token : NULL;

    *before = t->before;
    if (token)
        *t = (struct token){0};
    return token;
}

static void keep_token(const struct pb_python *py, pb_pyobject *self, pb_pyobject *token)
{
    static unsigned next;
    struct token *t = &tokens[next % TOKENS];
    pb_pyobject *old = t->token;

    pb_span_of(self)->place = next++ % TOKENS;
    *t = (struct token){token, self, pb_span_of(self)->before};
    release(py, old);
}

/* In a forked child, where spans are used also without an agent. Other threads of the parent do not go on. */
static void forget(void)
{
    waiting = NULL;
    is_freeing = 0;
    pb_locks_forget();
}

int pb_span_chain_begin(const struct pb_python *py, pb_pyobject *shared)
{
    static int is_registered;

    memset(tokens, 0, sizeof(tokens)); /* of an interpreter that ended */
    if (!is_registered)
        is_registered = pthread_atfork(NULL, NULL, forget) == 0;
    if (!py->context_new)
        return 0;
    pb_pyobject *variable = py->context_new("probing.span", NULL);
    if (!variable || py->dict_set(shared, "current", variable) < 0)
        return -1;
    current = variable; /* the dict holds a reference too: as long as the module */
    py->decref(variable);
    return 0;
}

/* What a token has behind its header, in 3.7 to 3.15. */
struct token_fields {
    const void *context, *variable;
    pb_pyobject *before; /* what resetting restores; NULL: it removes the variable */
};

/* Takes the variable out of the context, where Python only does that for the token of the first value. Where
 * a token looks otherwise than expected the variable stays, and is None. */
static void remove_current(const struct pb_python *py)
{
    pb_pyobject *old = NULL;

    if (py->context_get(current, NULL, &old) < 0 || !old) {
        py->err_clear();
        return;
    }
    pb_pyobject *token = py->context_set(current, py->none);
    struct token_fields *f =
        token ? (struct token_fields *)(void *)((char *)token + pb_module_header_known) : NULL;
    if (f && f->variable == current && f->before == old) {
        f->before = NULL;
        py->decref(old);
        py->context_reset(current, token);
    }
    py->err_clear();
    release(py, token);
    py->decref(old);
}

/* Returns a token, or NULL. */
static pb_pyobject *set_current(const struct pb_python *py, pb_pyobject *span)
{
    pb_pyobject *token = NULL;

    if (current && !span) {
        remove_current(py);
    } else if (current) {
        token = py->context_set(current, span);
    } else {
        pb_pyobject *dict = py->thread_dict();
        if (dict && span)
            py->dict_set(dict, THREAD_KEY, span);
        else if (dict && py->dict_get(dict, THREAD_KEY))
            py->dict_del(dict, THREAD_KEY);
    }
    if (!token)
        py->err_clear();
    return token;
}

pb_pyobject *pb_span_current(const struct pb_python *py)
{
    pb_pyobject *found = get_current(py);

    if (found && pb_span_of(found)->astray) {
        set_current(py, NULL);
        py->decref(found);
        return NULL;
    }
    return found;
}

/* --- chains ---------------------------------------------------------------------------------------- */

/* With a GIL, nothing is called between the two that could release it. */
static void begin_links(const struct pb_python *py)
{
    if (py->free_threaded)
        pb_lock(PB_LOCK_SPANS);
}

static void end_links(const struct pb_python *py)
{
    if (py->free_threaded)
        pb_unlock(PB_LOCK_SPANS);
}

/* The span of the chain from `from` on whose `before` is `wanted`; NULL: there is none. */
static struct pb_span_object *find_child(pb_pyobject *from, const pb_pyobject *wanted)
{
    for (int n = 0; from && n < MOST_DEEP; n++) {
        struct pb_span_object *s = pb_span_of(from);
        if (s->before == wanted)
            return s;
        from = s->before;
    }
    return NULL;
}

/* Whether the chain from `from` on has `wanted`, or is too long to say. */
static int may_have(pb_pyobject *from, const pb_pyobject *wanted)
{
    for (int n = 0; n < MOST_DEEP; n++) {
        if (!from || from == wanted)
            return from != NULL;
        from = pb_span_of(from)->before;
    }
    return 1;
}

/* Takes the reference out. */
static pb_pyobject *take_before(struct pb_span_object *s)
{
    pb_pyobject *before = s->before;

    s->before = NULL;
    if (before)
        pb_span_of(before)->children--;
    return before;
}

/* Makes `before` the span around `self`, which has none, unless the chain would contain itself. The reference
 * is the caller's, and is taken if the result is 1. */
static int set_before(pb_pyobject *self, pb_pyobject *before)
{
    struct pb_span_object *s = pb_span_of(self), *outer = pb_span_of(before);

    if (before == self || outer->depth + 1 >= MOST_DEEP || (s->children && may_have(before, self)))
        return 0;
    s->before = before;
    s->depth = outer->depth + 1;
    outer->children++;
    return 1;
}

void pb_span_enter(const struct pb_python *py, pb_pyobject *self, pb_pyobject *around)
{
    struct pb_span_object *s = pb_span_of(self);

    begin_links(py);
    pb_pyobject *old = take_before(s); /* none, unless two threads enter the same span */
    s->open = 1;
    s->suspended = s->astray = 0;
    int linked = around && set_before(self, around);
    end_links(py);
    pb_pyobject *token = set_current(py, self);
    if (token && !py->free_threaded && (linked || !around))
        keep_token(py, self, token);
    else
        release(py, token);
    if (!linked)
        release(py, around);
    release(py, old);
}

/* If another span is the current one it stays: spans may end in another order than they began (generators
 * that take turns). The ended span is taken out of its chain. */
void pb_span_leave(const struct pb_python *py, pb_pyobject *self)
{
    struct pb_span_object *s = pb_span_of(self);
    const pb_pyobject *restored;
    pb_pyobject *now = get_current(py), *twice = NULL, *token = take_token(self, &restored);

    begin_links(py);
    struct pb_span_object *child = now && now != self && s->children ? find_child(now, self) : NULL;
    pb_pyobject *next = take_before(s), *inside = s->inside;
    s->inside = NULL;
    s->open = s->suspended = 0;
    s->depth = 0;
    s->astray = now != self && !child;
    if (child) {
        twice = take_before(child); /* self: the caller has a reference of its own */
        child->before = next;
        if (next)
            pb_span_of(next)->children++;
    }
    end_links(py);
    /* A token is valid only in the context in which it was made. */
    if (now == self && !(token && restored == next && py->context_reset(current, token) == 0)) {
        py->err_clear();
        release(py, set_current(py, next));
    }
    release(py, token);
    if (!child)
        release(py, next);
    release(py, twice);
    release(py, inside);
    release(py, now);
}

void pb_span_suspend(const struct pb_python *py, pb_pyobject *self)
{
    struct pb_span_object *s = pb_span_of(self);
    pb_pyobject *now = get_current(py), *next = NULL, *twice = NULL;

    begin_links(py);
    struct pb_span_object *child = now && now != self && s->children ? find_child(now, self) : NULL;
    int is_around = s->open && !s->suspended && (now == self || child);
    if (is_around) {
        s->suspended = 1;
        next = take_before(s);
        if (child) { /* no reference back to it remains: it may keep them */
            twice = take_before(child);
            s->inside = now;
        }
    }
    end_links(py);
    if (is_around)
        release(py, set_current(py, next));
    release(py, next);
    release(py, twice);
    if (!child || !is_around)
        release(py, now);
}

/* The outermost open span of the chain that was inside of a suspended one. */
static pb_pyobject *find_outermost(pb_pyobject *from)
{
    for (int n = 0; n < MOST_DEEP; n++) {
        pb_pyobject *before = pb_span_of(from)->before;
        if (!before || !pb_span_of(before)->open)
            return from;
        from = before;
    }
    return NULL;
}

void pb_span_resume(const struct pb_python *py, pb_pyobject *self)
{
    struct pb_span_object *s = pb_span_of(self);
    pb_pyobject *now = pb_span_current(py), *old = NULL, *ended = NULL, *to = self;

    begin_links(py);
    int is_around = now == self || (now && s->children && find_child(now, self));
    pb_pyobject *inside = s->inside;
    int goes_on = s->open && (s->suspended || !is_around);
    if (goes_on) {
        s->suspended = 0;
        s->inside = NULL;
        old = take_before(s);
        if (now && set_before(self, now))
            py->incref(now);
        pb_pyobject *outermost = inside && pb_span_of(inside)->open ? find_outermost(inside) : NULL;
        if (outermost) {
            ended = take_before(pb_span_of(outermost));
            if (set_before(outermost, self)) {
                py->incref(self);
                to = inside;
            }
        }
    }
    end_links(py);
    if (goes_on) {
        release(py, set_current(py, to));
        release(py, inside);
    }
    release(py, ended);
    release(py, old);
    release(py, now);
}

/* --- the end of the object ------------------------------------------------------------------------- */

/* A span that was never left refers to the spans around it: freeing it frees the next. In a loop, since the C
 * stack has no room for a long chain: a span that is freed while the loop runs, also by another thread, waits
 * in the list. The list is linked by `name`. */
/* The next of the list; NULL: the loop ends. */
static pb_pyobject *take_waiting(const struct pb_python *py)
{
    begin_links(py);
    pb_pyobject *found = waiting;
    if (found)
        waiting = pb_span_of(found)->name;
    else
        is_freeing = 0;
    end_links(py);
    return found;
}

static void free_with_type(const struct pb_python *py, pb_pyobject *self)
{
    pb_pyobject *type = pb_type_of(self, pb_module_header(py));

    py->object_free(self);
    py->decref(type);
}

void pb_span_free(pb_pyobject *self)
{
    const struct pb_python *py = pb_python_here();
    struct pb_span_object *s = pb_span_of(self);
    const pb_pyobject *unused;
    pb_pyobject *texts[] = {s->name, s->phase, s->location, s->attributes, take_token(self, &unused)};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        release(py, texts[i]);
    if (!s->before && !s->inside) {
        free_with_type(py, self);
        return;
    }
    begin_links(py);
    int is_first = !is_freeing;
    is_freeing = 1;
    s->name = waiting;
    waiting = self;
    end_links(py);
    for (pb_pyobject *each; is_first && (each = take_waiting(py));) {
        begin_links(py);
        pb_pyobject *before = take_before(pb_span_of(each)), *inside = pb_span_of(each)->inside;
        end_links(py);
        free_with_type(py, each);
        release(py, before);
        release(py, inside);
    }
}
