/* script_end: see script_end.h. */
#include "diagnose/script_end.h"

#include "base/text.h"

#include <string.h>

static void find_signs(const struct pb_shown_thread *t, struct pb_diag_thread *ret)
{
    for (size_t i = 0; i < t->nframes; i++) {
        const struct pb_py_code *code = t->frames[i].code;
        if (strcmp(code->name, "destroy_process_group") == 0 ||
            (pb_text_ends_with(code->file, "threading.py") && strcmp(code->name, "_shutdown") == 0))
            ret->leaving = true;
        ret->in_event_loop |=
            strcmp(code->name, "_run") == 0 && pb_text_ends_with(code->file, "asyncio/events.py");
    }
}

/* Below all that a program runs there is a module. Callbacks at the interpreter's end have none, nor has a
 * process that starts. One that waits for its threads first (leaving) may do so for ever: that is judged by
 * its threads. */
static bool has_left_script(const struct pb_shown_thread *t)
{
    const struct pb_py_code *outermost = t->nframes ? t->frames[t->nframes - 1].code : NULL;

    return !outermost ||
           (strcmp(outermost->name, "<module>") != 0 && strncmp(outermost->file, "<frozen", 7) != 0);
}

void pb_diag_find_end(const struct pb_shown_thread *t, struct pb_diag_thread *ret)
{
    find_signs(t, ret);
    /* `catch` holds a program at its last exception: it has left its script and does not end. */
    ret->finalizing = ret->main && t->python && !ret->leaving && !ret->held[0] && has_left_script(t) &&
                      (!t->truncated || !t->nframes);
}
