/* torch_step: the phases of a step, and where one ends and the next begins.
 *
 * A step ends when an optimizer has stepped. Of several optimizers (a GAN) it is the one that was seen first
 * that counts, until it steps no more. Backwards without a step between them are micro-batches of one step.
 * Where a program runs modules and neither backward nor an optimizer, each outermost call is a step. Phases
 * are those of the thread that steps; the first step begins where the first one seen ends. */
#include "agent/probes/torch.h"
#include "agent/thread.h"
#include "table/clock.h"

#include <string.h>

#define ENOUGH_FORWARDS 8 /* outermost calls without backward: it is an inference */
#define OTHER_STEPS     4 /* of other optimizers: the one that counted is gone */

static struct {
    struct pb_torch_step_row now; /* what goes on */
    int begun;                    /* its beginning was seen */
    int training;                 /* a backward or an optimizer was seen */
    int forwards;                 /* outermost calls since the probe is on */
    const void *primary;          /* an optimizer's address; never looked into */
    int32_t tid;                  /* the thread that steps; 0: not known */
    int others;
    uint64_t calls; /* rows of modules before this step */
    /* The optimizer that is in its step, in the thread that steps. */
    int64_t optimizer_begun, optimizer_inside;
} s;

static int is_ours(int32_t tid)
{
    return !s.tid || s.tid == tid;
}

/* Every rank chooses the same steps, since it goes by their numbers alone. */
static int is_chosen(int64_t step)
{
    double before = (double)step * pb_torch.rate, after = (double)(step + 1) * pb_torch.rate;
    return (int64_t)before != (int64_t)after;
}

static void begin_step(int64_t now, int64_t step)
{
    s.now = (struct pb_torch_step_row){.begun = now, .step = step, .sampled = is_chosen(step)};
    s.begun = 1;
    s.calls = pb_torch.calls;
    pb_torch.step = step;
    pb_torch.modules = (uint32_t)s.now.sampled;
}

static void end_step(int32_t tid, int64_t now)
{
    int64_t next = s.now.step + (s.begun ? 1 : 0);

    if (s.begun) {
        s.now.ended = now;
        s.now.tid = tid;
        s.now.calls = (uint32_t)(pb_torch.calls - s.calls);
        pb_torch_write_step(&s.now);
    }
    begin_step(now, next);
}

void pb_torch_steps_reset(int64_t now)
{
    (void)now;
    memset(&s, 0, sizeof(s));
    pb_torch.step = 0;
    pb_torch.modules = 1; /* until the first boundary: nobody knows yet whose calls they are */
}

static void write_phase(enum pb_torch_stage stage, uint32_t name, int32_t tid, int64_t begun, int64_t took)
{
    uint32_t place = pb_torch.modules && name ? pb_torch_place(stage, name, 0, tid, 0) : 0;

    if (place)
        pb_torch_write_call(place, begun, took, took);
}

void pb_torch_forward_ended(int32_t tid, int64_t begun, int64_t ended)
{
    if (!is_ours(tid))
        return;
    s.now.forward += ended - begun;
    if (s.optimizer_begun)
        s.optimizer_inside += ended - begun;
    if (s.training)
        return;
    if (s.forwards < ENOUGH_FORWARDS)
        s.forwards++;
    else
        end_step(tid, ended);
}

/* --- backward -------------------------------------------------------------------------------------- */

pb_pyobject *pb_torch_run_backward(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords)
{
    uint32_t run = pb_torch_run();
    int64_t begun = run ? pb_clock_mono() : 0;

    pb_pyobject *result = pb_torch.original_backward(self, args, keywords);
    if (!run || run != pb_torch_run())
        return result;
    int64_t took = pb_clock_mono() - begun;
    int32_t tid = pb_thread_id();
    if (is_ours(tid)) {
        s.training = 1;
        s.now.backward += took;
        s.now.micro_batches++;
        if (s.optimizer_begun)
            s.optimizer_inside += took;
    }
    if (result) /* with an exception no call of Python's may follow */
        write_phase(PB_TORCH_BACKWARD, pb_torch_name_of_class(pb_python_here(), self), tid, begun, took);
    return result;
}

/* --- optimizers ------------------------------------------------------------------------------------ */

static pb_pyobject *give_none(void)
{
    const struct pb_python *py = pb_python_here();

    py->incref(py->none);
    return py->none;
}

static pb_pyobject *before_step(pb_pyobject *self, pb_pyobject *args)
{
    (void)self;
    (void)args;
    if (pb_torch_run() && is_ours(pb_thread_id())) {
        s.optimizer_begun = pb_clock_mono();
        s.optimizer_inside = 0;
    }
    return give_none();
}

/* Whether this optimizer's step ends ours. */
static int counts(const void *optimizer, int32_t tid)
{
    if (s.primary == optimizer) {
        s.others = 0;
        s.tid = tid;
        return 1;
    }
    if (s.primary && ++s.others < OTHER_STEPS)
        return 0;
    s.primary = optimizer;
    s.others = 0;
    s.tid = tid;
    return 1;
}

static pb_pyobject *after_step(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    int32_t tid = pb_thread_id();
    (void)self;

    pb_pyobject *optimizer = pb_torch_run() ? py->tuple_get(args, 0) : NULL;
    if (!optimizer) {
        py->err_clear();
        return give_none();
    }
    int64_t now = pb_clock_mono();
    if (is_ours(tid) && s.optimizer_begun) {
        s.now.optimizer += now - s.optimizer_begun - s.optimizer_inside;
        write_phase(PB_TORCH_OPTIMIZER, pb_torch_name_of_class(py, optimizer), tid, s.optimizer_begun,
                    now - s.optimizer_begun);
        s.optimizer_begun = 0;
    }
    s.training = 1;
    if (counts(optimizer, tid))
        end_step(tid, now);
    return give_none();
}

struct pb_py_method pb_torch_before_step = {"probing_before_step", (pb_py_function)before_step,
                                            PB_METH_VARARGS, NULL};
struct pb_py_method pb_torch_after_step = {"probing_after_step", (pb_py_function)after_step, PB_METH_VARARGS,
                                           NULL};

/* --- data loaders ---------------------------------------------------------------------------------- */

pb_pyobject *pb_torch_next_batch(pb_pyobject *self)
{
    uint32_t run = pb_torch_run();
    int64_t begun = run ? pb_clock_mono() : 0;

    pb_pyobject *result = pb_torch.original_next(self);
    if (!run || run != pb_torch_run() || !result) /* the last batch was before */
        return result;
    int64_t took = pb_clock_mono() - begun;
    int32_t tid = pb_thread_id();
    if (is_ours(tid))
        s.now.data += took;
    write_phase(PB_TORCH_LOADER, pb_torch_name_of_class(pb_python_here(), self), tid, begun, took);
    return result;
}
