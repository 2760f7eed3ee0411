/* watch_node: a stack that was read as a node of the profile; see watch.h. */
#include <stdio.h>
#include <stdlib.h>

#include "profile/watch.h"
#include "remote/threads.h"

#define CODES_MAX (1u << 20)

static uint32_t function_of(struct pb_sampler *s, struct pb_process_watch *w, const struct pb_py_code *code)
{
    struct pb_code_map *map = &w->codes;

    if (code->id >= map->cap && code->id < CODES_MAX) {
        size_t cap = map->cap ? map->cap : 512;
        while (cap <= code->id)
            cap *= 2;
        uint32_t *more = reallocarray(map->at, cap, sizeof(*more));
        if (!more)
            return PB_PROFILE_NONE;
        for (size_t i = map->cap; i < cap; i++)
            more[i] = 0;
        map->at = more;
        map->cap = cap;
    }
    if (code->id < map->cap && map->at[code->id])
        return map->at[code->id] - 1;
    uint32_t function = pb_profile_function(s->profile, PB_FRAME_PYTHON, code->qualname, code->file);
    if (code->id < map->cap && function != PB_PROFILE_NONE)
        map->at[code->id] = function + 1;
    return function;
}

uint32_t pb_python_node(struct pb_sampler *s, struct pb_process_watch *w, uint32_t parent, size_t i)
{
    const struct pb_py_frame *f = &s->stack.at[i];
    uint32_t function = function_of(s, w, f->code);

    if (function == PB_PROFILE_NONE)
        return PB_PROFILE_NONE;
    return pb_profile_node(s->profile, parent, pb_profile_frame(s->profile, function, pb_py_line(w->py, f)));
}

/* Outermost first. A stack for which there is no room is cut there. */
uint32_t pb_python_stack(struct pb_sampler *s, struct pb_process_watch *w, bool *ret_truncated)
{
    uint32_t node = PB_PROFILE_ROOT;

    *ret_truncated = s->stack.truncated;
    for (size_t i = s->stack.n; i > 0; i--) {
        uint32_t next = pb_python_node(s, w, node, i - 1);
        if (next == PB_PROFILE_NONE) {
            *ret_truncated = true;
            break;
        }
        node = next;
    }
    return node;
}

uint32_t pb_wait_node(struct pb_sampler *s, uint32_t node, const struct pb_moment *m, char state)
{
    const char *name = m->syscall >= 0 ? pb_syscall_name(m->syscall) : "the kernel";
    char text[64];

    if (state == 'T')
        snprintf(text, sizeof(text), "[stopped by a signal]");
    else if (name)
        snprintf(text, sizeof(text), "[waiting in %s]", name);
    else
        snprintf(text, sizeof(text), "[waiting in system call %d]", m->syscall);
    uint32_t function = pb_profile_function(s->profile, PB_FRAME_WAIT, text, "");
    uint32_t next = pb_profile_node(s->profile, node, pb_profile_frame(s->profile, function, 0));
    return next == PB_PROFILE_NONE ? node : next;
}
