/* torch_step: the phases of a step, and where one ends and the next begins.
 *
 * A step ends when an optimizer has stepped. With several optimizers (a GAN) the one seen first counts,
 * until it does not step any more. Backwards without a step between them are micro-batches of one step. If
 * nobody tells of optimizers (Keras has its own), each backward is a step, which ends where the next batch
 * or forward pass begins. If a program runs modules and neither backward nor an optimizer, each outermost
 * call has a row, in any thread. Phases are those of the thread that runs the steps; the first step begins
 * where the first seen one ends. Evaluations are no part of a step (torch_eval.c), nor are forward passes
 * inside a backward. */
#include "agent/core/thread_start.h"
#include "agent/probes/torch/torch.h"
#include "table/clock.h"

#include <string.h>

#define ENOUGH_FORWARDS 8 /* outermost calls without backward: it is an inference */
#define OTHER_STEPS     4 /* steps of other optimizers: the primary one is gone */
#define BATCHES_READ    4 /* outermost calls of a step whose arguments are read */
#define SAME_STEPS      3 /* steps with as many backwards: the next ones are expected to have as many */
#define MOST_SKIPPED    8 /* in a row: not skipped after all, the program accumulates more by now */
#define ALONE_STEPS     64
#define LOOKS           8  /* optimizer steps whose callers are checked */
#define ENOUGH_ALONE    16 /* backwards, and no optimizer ever stepped: each is a step */

static struct {
    struct pb_torch_step_row now; /* the present step */
    int begun;                    /* its beginning was seen */
    int numbered;                 /* the framework's number of it was looked at */
    int unseen;                   /* a step ended whose beginning was not: it has no number, but is tracked */
    int training;                 /* a backward or an optimizer was seen */
    int forwards;                 /* outermost calls since the probe is on */
    uint32_t backwards_alone;     /* since an optimizer stepped */
    int by_backward;              /* steps end where a backward is over */
    int64_t last_ended;           /* of the last row; 0: none */
    int64_t outside;              /* ns of evaluations inside this step */
    int64_t batch_data;           /* ns waited for batches since the last outermost call */
    uint64_t evaluated;           /* calls of evaluations */
    const void *primary;          /* an optimizer's address; never dereferenced */
    int32_t tid;                  /* the thread that steps; 0: not known */
    int64_t alone_from;           /* from this step on no other thread is assumed to run a backward */
    int others;
    uint64_t calls; /* rows of modules before this step */
    /* The optimizer that is in its step, in the thread that steps. */
    int64_t optimizer_begun, optimizer_inside;
    int64_t inside_until; /* the end of the last phase in its closure */
    uint32_t inside_backwards;
    int has_memory;
    struct pb_torch_memory memory;             /* before the step of the optimizer */
    pb_pyobject *optimizer_event, *step_event; /* in the GPU's stream, where they began; NULL: none */
    /* Of the present outermost call: they count once it was part of a training, or of an inference. */
    int64_t samples, tokens;
    uint32_t batches_read;
    /* A gradient scaler calls the optimizers, and skips steps whose gradients overflowed. */
    int scaled, looks;
    uint32_t accumulated; /* backwards of the last whole step */
    uint32_t as_before;   /* steps in a row with the same number */
    uint32_t skipped;     /* skipped steps in a row */
} s;

/* A phase begins, or ends (stage -1): for the watchdog. */
static void mark(int stage, int64_t now)
{
    __atomic_store_n(&pb_torch.in_phase, (uint32_t)(stage + 1), __ATOMIC_RELAXED);
    __atomic_store_n(&pb_torch.alive, now, __ATOMIC_RELAXED);
}

static int is_ours(int32_t tid)
{
    return !s.tid || s.tid == tid;
}

int pb_torch_is_stepping(int32_t tid)
{
    return s.tid == tid;
}

int32_t pb_torch_stepping_thread(void)
{
    return __atomic_load_n(&s.tid, __ATOMIC_RELAXED);
}

/* Every rank chooses the same steps, by their numbers. */
static int is_chosen(int64_t step)
{
    double before = (double)step * pb_torch.rate, after = (double)(step + 1) * pb_torch.rate;
    return (int64_t)before != (int64_t)after;
}

static void begin_step(int64_t now, int64_t step)
{
    s.now = (struct pb_torch_step_row){
        .begun = now, .step = step, .sampled = is_chosen(step) && pb_torch_cost_allows(step)};
    s.begun = 1;
    s.numbered = 0;
    s.outside = 0;
    pb_torch_eval_step_began();
    s.calls = pb_torch.calls;
    pb_torch.step = step;
    pb_torch.modules = (uint32_t)s.now.sampled;
    pb_torch.shapes = pb_torch_is_occasion(&pb_torch_shapes_occasion, step) && s.now.sampled;
    pb_torch.memory = pb_torch_memory_wants(step) && s.now.sampled;
    pb_torch.gpu = s.now.sampled ? pb_torch_gpu_wants(step) : PB_TORCH_GPU_NOTHING;
    pb_torch.exact = s.now.sampled && s.training && step >= s.alone_from && pb_torch_backward_wants(step);
    if (pb_torch.exact)
        pb_torch_backward_begin();
}

/* In a scaled training: it was skipped if another forward begins now, after the usual number of backwards. */
static int step_was_skipped(void)
{
    return s.scaled && s.begun && s.as_before >= SAME_STEPS && s.now.micro_batches == s.accumulated &&
           s.skipped < MOST_SKIPPED;
}

static void write_row(struct pb_torch_step_row *row)
{
    pb_torch_write_step(row);
    s.last_ended = row->ended;
    if (row->kind == PB_TORCH_EVALUATION)
        return;
    pb_torch_cost_of_step(row);
    int64_t took = row->ended - row->begun;
    __atomic_store_n(&pb_torch.usual, pb_torch.usual ? pb_torch.usual + (took - pb_torch.usual) / 8 : took,
                     __ATOMIC_RELAXED);
}

static void end_step(int32_t tid, int64_t now, int skipped)
{
    int64_t next = s.now.step + (s.begun ? 1 : 0);

    if (!skipped && s.now.micro_batches) {
        s.as_before = s.accumulated == s.now.micro_batches ? s.as_before + 1 : 0;
        s.accumulated = s.now.micro_batches;
    }
    s.skipped = skipped ? s.skipped + 1 : 0;
    s.batches_read = 0;
    if (pb_torch.exact)
        pb_torch_backward_end();
    if (pb_torch.shapes)
        pb_torch_occasion_ended(&pb_torch_shapes_occasion);
    if (pb_torch.memory)
        pb_torch_memory_ended();
    s.unseen |= !s.begun;
    if (s.begun) {
        s.now.ended = now - s.outside;
        s.now.skipped = skipped;
        s.now.tid = tid;
        s.now.calls = (uint32_t)(pb_torch.calls - s.calls);
        write_row(&s.now);
        s.last_ended = now;
    }
    begin_step(now, next);
}

void pb_torch_steps_reset(int64_t now)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *events[] = {s.optimizer_event, s.step_event};

    (void)now;
    memset(&s, 0, sizeof(s));
    pb_torch_finite_reset();
    pb_torch_eval_reset();
    __atomic_store_n(&pb_torch.training, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        if (events[i])
            py->decref(events[i]);
    pb_torch.step = 0;
    pb_torch.usual = pb_torch.alive = 0;
    pb_torch.in_phase = pb_torch.shapes = pb_torch.memory = pb_torch.gpu = pb_torch.exact = 0;
    pb_torch.modules = 1; /* until the first boundary: it is not known yet whose calls they are */
}

/* The end of an event in the GPU's stream. Runs torch code, during which the probe may be stopped. */
static void end_on_gpu(const struct pb_python *py, pb_pyobject **event, const char *stage, int64_t begun)
{
    pb_pyobject *taken = *event;

    *event = NULL;
    if (taken)
        pb_torch_gpu_end(py, taken, stage, stage, strlen(stage), begun);
}

/* before: its memory, where that is read; NULL: not. That may run torch code. */
static void write_phase(enum pb_torch_stage stage, uint32_t name, const struct pb_torch_memory *before,
                        int64_t begun, int64_t took)
{
    uint32_t place = pb_torch.modules && name ? pb_torch_place(stage, name, 0, pb_thread_id(), 0, 0) : 0;
    const struct pb_torch_call_row row = {.place = place, .begun = begun, .took = took, .own = took};

    if (place && before)
        pb_torch_memory_write(pb_python_here(), &row, before);
    else if (place)
        pb_torch_write_call(&row);
}

/* Numbering starts over if calls without training came before these steps. */
static void is_training(void)
{
    if (s.training)
        return;
    s.training = 1;
    __atomic_store_n(&pb_torch.training, 1, __ATOMIC_RELAXED);
    if (s.begun)
        s.now = (struct pb_torch_step_row){0};
    s.begun = 0;
    pb_torch.step = 0;
}

/* In a training loop without a known optimizer, whatever follows a backward is the next step. */
static void end_by_backward(int32_t tid, int64_t now)
{
    if (!s.by_backward || !s.now.micro_batches)
        return;
    const struct pb_python *py = pb_python_here();
    int64_t step = s.now.step + s.unseen, samples = s.now.samples, took = s.begun ? now - s.now.begun : 0;
    uint32_t run = pb_torch_run();
    s.tid = tid;
    end_step(tid, now, 0);
    pb_torch_track_step(py, py->none, step, samples, took);
    if (run == pb_torch_run())
        pb_torch_at_step(py, 1);
}

static void begin_evaluation(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords,
                             struct pb_torch_outermost *call)
{
    call->stage = PB_TORCH_EVAL;
    call->calls = pb_torch.calls;
    call->data = s.batch_data;
    s.batch_data = 0;
    pb_torch.modules = is_chosen((int64_t)s.evaluated) && pb_torch_cost_allows((int64_t)s.evaluated);
    s.evaluated++;
    pb_torch_batch(py, args, keywords, &call->samples, &call->tokens);
}

static void end_evaluation(const struct pb_torch_outermost *call)
{
    int64_t begun = pb_torch_eval_ended(call->begun);
    struct pb_torch_step_row row = {.kind = PB_TORCH_EVALUATION,
                                    .begun = begun,
                                    .ended = call->ended,
                                    .step = s.now.step,
                                    .before = s.last_ended ? begun - s.last_ended : -1,
                                    .data = call->data,
                                    .forward = call->ended - call->begun,
                                    .calls = (uint32_t)(pb_torch.calls - call->calls),
                                    .samples = call->samples,
                                    .tokens = call->tokens,
                                    .tid = call->tid,
                                    .sampled = (int)pb_torch.modules};
    pb_torch.modules = (uint32_t)s.now.sampled;
    s.calls += row.calls;
    s.now.data = s.now.data > call->data ? s.now.data - call->data : 0;
    if (s.now.micro_batches)
        s.outside += call->ended - begun;
    write_row(&row);
}

/* By now the framework has counted the step before. */
static void number_step(const struct pb_python *py)
{
    if (s.begun && !s.numbered)
        pb_torch_number_begin(py, s.now.step);
    s.numbered = 1;
}

/* The step begins here if an evaluation or the end of an epoch came before. */
static void resume_step(int64_t now)
{
    int64_t from = pb_torch_eval_resumed(now);

    if (!from || s.now.micro_batches)
        return;
    s.now.begun = from;
    s.now.before = s.last_ended ? from - s.last_ended : -1;
    s.now.data = s.batch_data;
    s.now.forward = 0;
}

void pb_torch_forward_begins(const struct pb_python *py, pb_pyobject *module, pb_pyobject *args,
                             pb_pyobject *keywords, struct pb_torch_outermost *call)
{
    call->stage = PB_TORCH_FORWARD;
    if (pb_torch_in_backward()) {
        call->stage = PB_TORCH_RECOMPUTE;
        call->node = pb_torch_backward_inside(pb_clock_mono());
        return;
    }
    if (!is_ours(call->tid))
        return;
    int64_t now = pb_clock_mono();
    mark(PB_TORCH_FORWARD, now);
    if (!s.training) {
        call->in_flight = pb_torch_open_calls();
        call->calls = pb_torch.calls;
        if (s.batches_read < BATCHES_READ || s.forwards >= ENOUGH_FORWARDS)
            pb_torch_batch(py, args, keywords, &call->samples, &call->tokens);
        s.batches_read++;
        s.samples = call->samples; /* where it turns out to be a training */
        s.tokens = call->tokens;
        return;
    }
    if (step_was_skipped()) {
        uint32_t run = pb_torch_run();
        end_step(call->tid, now, 1);
        pb_torch_track_skipped(py);
        if (run != pb_torch_run())
            return;
    }
    end_by_backward(call->tid, now);
    number_step(py);
    if (pb_torch_is_eval(py, module)) {
        begin_evaluation(py, args, keywords, call);
        return;
    }
    resume_step(now);
    s.batch_data = 0;
    if (s.batches_read >= BATCHES_READ) /* a program that calls many small modules one by one */
        return;
    s.batches_read++;
    pb_torch_batch(py, args, keywords, &s.samples, &s.tokens);
}

/* Adds the arguments of the outermost calls, which were now processed. */
static void count_batch(void)
{
    s.now.samples += s.samples;
    s.now.tokens += s.tokens;
    s.samples = s.tokens = 0;
    s.batches_read = 0;
}

static void end_inference(const struct pb_torch_outermost *call)
{
    if (s.forwards < ENOUGH_FORWARDS) { /* a training may begin so */
        s.forwards++;
        return;
    }
    int64_t next = s.now.step + 1;
    struct pb_torch_step_row row = {.kind = PB_TORCH_INFERENCE,
                                    .begun = call->begun,
                                    .ended = call->ended,
                                    .step = s.now.step,
                                    .before = -1,
                                    .forward = call->ended - call->begun,
                                    .calls = (uint32_t)(pb_torch.calls - call->calls),
                                    .samples = call->samples,
                                    .tokens = call->tokens,
                                    .tid = call->tid,
                                    .in_flight = call->in_flight,
                                    .sampled = s.begun ? s.now.sampled : (int)pb_torch.modules};
    if (pb_torch.shapes)
        pb_torch_occasion_ended(&pb_torch_shapes_occasion);
    if (pb_torch.memory)
        pb_torch_memory_ended();
    write_row(&row);
    begin_step(call->ended, next);
}

void pb_torch_forward_ended(const struct pb_torch_outermost *call)
{
    if (call->stage == PB_TORCH_RECOMPUTE) {
        s.now.recompute += call->ended - call->begun;
        pb_torch_backward_inside_ended(call->node, call->ended);
        return;
    }
    if (!is_ours(call->tid))
        return;
    mark(-1, call->ended);
    if (call->stage == PB_TORCH_EVAL) {
        end_evaluation(call);
        return;
    }
    s.now.forward += call->ended - call->begun;
    if (s.optimizer_begun) {
        s.optimizer_inside += call->ended - call->begun;
        s.inside_until = call->ended;
    }
    if (!s.training)
        end_inference(call);
}

/* --- backward -------------------------------------------------------------------------------------- */

/* Another thread runs a backward too: its nodes may have the same numbers. */
static void leave_backward_out(void)
{
    s.alone_from = s.now.step + ALONE_STEPS;
    if (pb_torch.exact)
        pb_torch_backward_cancel();
    pb_torch.exact = 0;
}

/* A backward in the closure of an optimizer: the optimizer's own work, on the CPU and on the GPU, begins
 * after it. */
static void ended_in_closure(const struct pb_python *py, int64_t took, int64_t ended)
{
    s.optimizer_inside += took;
    s.inside_until = ended;
    s.inside_backwards++;
    s.has_memory = 0;
    if (s.optimizer_event) {
        pb_pyobject *event = s.optimizer_event;
        s.optimizer_event = NULL;
        py->decref(event);
    }
}

pb_pyobject *pb_torch_run_backward(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords)
{
    uint32_t run = pb_torch_run();
    if (run && pb_torch_in_backward()) { /* a backward in a backward (a checkpoint's) is a part of that */
        pb_torch_backward_nests();
        run = 0;
    }
    int64_t begun = run ? pb_clock_mono() : 0;
    struct pb_torch_memory memory;

    if (run && is_ours(pb_thread_id()))
        mark(PB_TORCH_BACKWARD, begun);
    else if (run)
        leave_backward_out();
    pb_pyobject *event =
        run && pb_torch.gpu == PB_TORCH_GPU_PHASES ? pb_torch_gpu_begin(pb_python_here()) : NULL;
    if (run && is_ours(pb_thread_id()))
        pb_torch_finite_loss(pb_python_here(), args, &s.now);
    int has_memory = run && pb_torch.memory && pb_torch_memory_read(pb_python_here(), &memory);
    begun = has_memory ? pb_clock_mono() : begun;
    pb_pyobject *result = pb_torch.original_backward(self, args, keywords);
    if (event && result && run == pb_torch_run())
        end_on_gpu(pb_python_here(), &event, "backward", begun);
    else if (event)
        pb_python_here()->decref(event);
    if (!run || run != pb_torch_run())
        return result;
    const struct pb_python *py = pb_python_here();
    int64_t took = pb_clock_mono() - begun;
    int32_t tid = pb_thread_id();
    if (is_ours(tid)) {
        mark(-1, begun + took);
        is_training();
        pb_torch_eval_backward();
        count_batch();
        s.now.backward += took;
        s.now.micro_batches++;
        s.by_backward |= ++s.backwards_alone >= ENOUGH_ALONE;
        if (s.optimizer_begun)
            ended_in_closure(py, took, begun + took);
    }
    write_phase(PB_TORCH_BACKWARD, pb_torch_name_of_backward(), has_memory && result ? &memory : NULL, begun,
                took);
    if (result && is_ours(tid) && run == pb_torch_run() && step_was_skipped())
        pb_torch_track_keep(py, s.now.step + s.unseen);
    return result;
}

/* --- optimizers ------------------------------------------------------------------------------------ */

static pb_pyobject *give_none(void)
{
    const struct pb_python *py = pb_python_here();

    py->incref(py->none);
    return py->none;
}

static int has_name(const struct pb_python *py, pb_pyobject *frame, const char *name)
{
    pb_pyobject *code = py->get_attr(frame, "f_code");
    pb_pyobject *text = code ? py->get_attr(code, "co_name") : NULL;
    const char *found = text ? py->utf8_of(text) : NULL;
    int is = found && strcmp(found, name) == 0;

    if (text)
        py->decref(text);
    if (code)
        py->decref(code);
    py->err_clear();
    return is;
}

int pb_torch_called_by(const struct pb_python *py, const char *function, int levels)
{
    pb_pyobject *frame = py->eval_frame(); /* borrowed */
    int found = 0;

    if (frame)
        py->incref(frame);
    for (int i = 0; i < levels && frame && frame != py->none && !found; i++) {
        found = has_name(py, frame, function);
        pb_pyobject *back = py->get_attr(frame, "f_back");
        py->err_clear();
        py->decref(frame);
        frame = back;
    }
    if (frame)
        py->decref(frame);
    return found;
}

static pb_pyobject *before_step(pb_pyobject *self, pb_pyobject *args)
{
    (void)self;
    (void)args;
    if (pb_torch_run() && s.looks < LOOKS) {
        s.looks++;
        /* If torch.amp's scaler steps this optimizer, it is a few frames up. */
        s.scaled |= pb_torch_called_by(pb_python_here(), "_maybe_opt_step", 4);
    }
    if (pb_torch_run() && is_ours(pb_thread_id())) {
        struct pb_torch_memory memory;
        uint32_t at = pb_torch_run();
        int read = pb_torch.memory && pb_torch_memory_read(pb_python_here(), &memory);
        if (pb_torch_run() != at)
            return give_none();
        s.has_memory = read;
        if (read)
            s.memory = memory;
        s.optimizer_begun = pb_clock_mono();
        s.optimizer_inside = s.inside_until = 0;
        s.inside_backwards = 0;
        mark(PB_TORCH_OPTIMIZER, s.optimizer_begun);
        if (pb_torch.gpu == PB_TORCH_GPU_PHASES && !s.optimizer_event) {
            uint32_t run = pb_torch_run();
            pb_pyobject *event = pb_torch_gpu_begin(pb_python_here());
            if (run == pb_torch_run() && !s.optimizer_event)
                s.optimizer_event = event;
            else if (event)
                pb_python_here()->decref(event);
        }
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

/* Puts the first event of the new step into the stream, if its GPU time is measured, and writes rows of
 * earlier ones. */
static void follow_on_gpu(const struct pb_python *py)
{
    uint32_t run = pb_torch_run();
    pb_pyobject *event = run && pb_torch.gpu == PB_TORCH_GPU_PHASES ? pb_torch_gpu_begin(py) : NULL;

    if (event && run == pb_torch_run() && !s.step_event)
        s.step_event = event;
    else if (event)
        py->decref(event);
    if (run == pb_torch_run())
        pb_torch_gpu_collect(py);
}

static pb_pyobject *after_step(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    int32_t tid = pb_thread_id();
    (void)self;

    pb_pyobject *optimizer = pb_torch_run() ? py->tuple_get(args, 0) : NULL;
    if (!optimizer) {
        py->err_clear();
        pb_torch_at_step(py, -1);
        return give_none();
    }
    int64_t now = pb_clock_mono();
    if (is_ours(tid))
        mark(-1, now);
    if (is_ours(tid) && s.optimizer_begun && s.optimizer_event)
        end_on_gpu(py, &s.optimizer_event, "optimizer", s.optimizer_begun);
    if (!pb_torch_run())
        return give_none();
    if (is_ours(tid) && s.optimizer_begun) {
        /* A closure is called first; if it was called more than once (LBFGS), in between. */
        int once = s.inside_backwards == 1;
        int64_t begun = once ? s.inside_until : s.optimizer_begun;
        int64_t took = now - begun - (once ? 0 : s.optimizer_inside);
        s.now.optimizer += took;
        const struct pb_torch_memory before = s.memory; /* a stop meanwhile clears it */
        int has_memory = s.has_memory;
        s.optimizer_begun = s.has_memory = 0;
        write_phase(PB_TORCH_OPTIMIZER, pb_torch_name_of_class(py, optimizer), has_memory ? &before : NULL,
                    begun, took);
        if (!pb_torch_run())
            return give_none();
    }
    is_training();
    s.backwards_alone = 0;
    s.by_backward = 0;
    int counted = counts(optimizer, tid);
    if (counted) {
        end_on_gpu(py, &s.step_event, "step", s.now.begun);
        if (!pb_torch_run())
            return give_none();
        int64_t step = s.now.step + s.unseen, samples = s.now.samples, took = s.begun ? now - s.now.begun : 0;
        int64_t seen = s.now.step - !s.begun;
        end_step(tid, now, 0);
        pb_torch_number_end(py, seen, optimizer);
        if (!pb_torch_run())
            return give_none();
        pb_torch_track_step(py, optimizer, step, samples, took);
        follow_on_gpu(py);
    }
    pb_torch_each_optimizer(py, optimizer, counted);
    pb_torch_at_step(py, counted);
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
    int32_t tid = run ? pb_thread_id() : 0;
    struct pb_torch_loader batch;

    if (run)
        pb_torch_loader_look(pb_python_here(), self, &batch);
    int64_t begun = run ? pb_clock_mono() : 0;
    if (run && is_ours(tid)) {
        end_by_backward(tid, begun);
        number_step(pb_python_here());
        mark(PB_TORCH_LOADER, begun);
    }
    pb_pyobject *result = pb_torch.original_next(self);
    if (!run || run != pb_torch_run())
        return result;
    int64_t took = pb_clock_mono() - begun;
    if (is_ours(tid)) {
        mark(-1, begun + took);
        s.now.data += took;
        s.batch_data += took;
        if (result && pb_torch_eval_batch(begun, batch.is_new))
            s.batch_data = took;
    }
    if (!result) /* no more batches, or an exception */
        return result;
    pb_torch_loader_write(&batch, tid, begun, took);
    write_phase(PB_TORCH_LOADER, pb_torch_name_of_class(pb_python_here(), self), NULL, begun, took);
    return result;
}
