/* merge: see merge.h. */
#include "remote/native/merge.h"

#include <string.h>

struct merge {
    const struct pb_native_frame *native;
    size_t nnative;
    const struct pb_py_frame *python;
    size_t npython, next; /* next: the first Python frame not placed yet */
    struct pb_merged *out;
    size_t n;
    const char *loop_in; /* module of the loop, if unnamed functions in it count as the loop; or NULL */
};

static size_t count_entries(const struct pb_py_frame *python, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (python[i].flags & PB_PY_ENTRY) != 0;
    /* Frames above the last entry belong to a call of the loop too, whose entry was cut off. */
    return count + (n && !(python[n - 1].flags & PB_PY_ENTRY));
}

/* A stripped interpreter has no name for the parts of the loop that the compiler moved away. */
static bool may_be_loop(const struct pb_native_frame *f, const char *module)
{
    return module && !f->function && f->module && strcmp(f->module, module) == 0;
}

static bool is_loop(const struct merge *m, const struct pb_native_frame *f)
{
    return f->flags & PB_NATIVE_EVAL || may_be_loop(f, m->loop_in);
}

static const char *module_of_loop(const struct merge *m)
{
    for (size_t i = 0; i < m->nnative; i++)
        if (m->native[i].flags & PB_NATIVE_EVAL)
            return m->native[i].module;
    return NULL;
}

static size_t count_loops(const struct merge *m, const char *module)
{
    size_t count = 0;
    for (size_t i = 0; i < m->nnative; i++)
        count += (m->native[i].flags & PB_NATIVE_EVAL) || may_be_loop(&m->native[i], module);
    return count;
}

static void put_frame(struct merge *m, bool python, size_t index)
{
    m->out[m->n++] = (struct pb_merged){.python = python, .index = index};
}

/* The Python frames of one call of the loop. */
static void put_call(struct merge *m)
{
    while (m->next < m->npython) {
        size_t i = m->next++;
        put_frame(m, true, i);
        if (m->python[i].flags & PB_PY_ENTRY)
            return;
    }
}

/* True for a frame inlined into the loop: it comes before the loop, at the same place. */
static bool is_within_loop(const struct merge *m, size_t i)
{
    while (i < m->nnative && m->native[i].flags & PB_NATIVE_INLINED)
        i++;
    return i < m->nnative && m->native[i].flags & PB_NATIVE_EVAL;
}

static void weave(struct merge *m)
{
    for (size_t i = 0; i < m->nnative; i++) {
        if (is_loop(m, &m->native[i]) && m->next < m->npython)
            put_call(m);
        else if (!(m->native[i].flags & PB_NATIVE_INLINED) || !is_within_loop(m, i))
            put_frame(m, false, i);
    }
    while (m->next < m->npython)
        put_frame(m, true, m->next++);
}

static void put_native_first(struct merge *m)
{
    for (size_t i = 0; i < m->nnative; i++)
        put_frame(m, false, i);
    for (size_t i = 0; i < m->npython; i++)
        put_frame(m, true, i);
}

enum pb_merge pb_merge_stacks(const struct pb_native_frame *native, size_t nnative, unsigned flags,
                              const struct pb_py_frame *python, size_t npython, bool python_truncated,
                              struct pb_merged *ret, size_t *ret_n)
{
    struct merge m = {.native = native, .nnative = nnative, .python = python, .npython = npython, .out = ret};
    enum pb_merge how = PB_MERGE_FULL;
    size_t entries = count_entries(python, npython), loops = count_loops(&m, NULL);
    if (loops < entries && count_loops(&m, module_of_loop(&m)) == entries) {
        m.loop_in = module_of_loop(&m);
        loops = entries;
    }
    /* A stack that is cut at its outer end is still correct from its inner end on. */
    if (loops < entries)
        how = flags & PB_NATIVE_TRUNCATED ? PB_MERGE_PARTIAL : PB_MERGE_APART;
    else if (loops > entries)
        how = python_truncated ? PB_MERGE_PARTIAL : PB_MERGE_APART;
    if (how == PB_MERGE_APART)
        put_native_first(&m);
    else
        weave(&m);
    *ret_n = m.n;
    return how;
}
