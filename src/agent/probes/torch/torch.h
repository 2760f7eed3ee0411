/* torch: what the files of the torch probe share (docs/torch.md).
 *
 *   torch.c        the probe: start, stop, and the thread that puts our functions in and takes them out
 *   torch_call.c   what a module's call passes through: the hot path
 *   torch_names.c  modules by address, their names in the model, and the texts that rows name them by
 *   torch_step.c   phases of a step (data loader, forward, backward, optimizer) and where it ends
 *   torch_cost.c   what recording costs, and the budget
 *   torch_comm.c   collectives and transfers
 *   torch_flight.c when those of NCCL begin and end on the GPU
 *   torch_timing.c the switch of torch that has them timed
 *   torch_observe.c   observers of what torch tells profilers
 *   torch_backward.c  backward by module
 *   torch_track.c  expressions that are looked at when a step ends
 *   torch_gpu.c    GPU time of modules and phases
 *   torch_memory.c memory before and after modules and phases
 *   torch_shape.c  shapes of what modules are called with
 *   torch_finite.c whether batches and losses are finite
 *   torch_loader.c data loaders: their workers, and how many batches are ready
 *   torch_mode.c   what a call is part of: gradients, a backward around it, evaluation; wrappers of models
 *   torch_eval.c   evaluations between the steps of a training, and the breaks they make
 *   torch_rows.c   the tables
 *
 * All of it but what torch.c says otherwise runs in threads of the program that hold the GIL, which is the
 * lock of everything here: builds without a GIL are refused. */
#pragma once

#include "agent/python/python.h"
#include "table/arena.h"

#include <stdint.h>

typedef pb_pyobject *(*pb_torch_call)(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords);
typedef pb_pyobject *(*pb_torch_next)(pb_pyobject *self);

/* The place of a row: stage, module, calling module, depth, thread, and the shapes of the arguments. */
struct pb_torch_place {
    uint32_t name;   /* of the module: a text */
    uint32_t parent; /* a place; 0: none */
    uint32_t shapes; /* a text; 0: not recorded */
    uint32_t text;   /* the text of the row's cell */
    int32_t tid;
    uint32_t next; /* in its list of the hash table */
    uint16_t depth;
    uint8_t stage;
    uint64_t generation; /* of the arena that stored was of */
    struct pb_string_place stored;
};

enum pb_torch_stage {
    PB_TORCH_FORWARD,
    PB_TORCH_BACKWARD,
    PB_TORCH_OPTIMIZER,
    PB_TORCH_LOADER,
    PB_TORCH_STEP,
    PB_TORCH_EVAL,     /* a forward pass that is no part of a step */
    PB_TORCH_RECOMPUTE /* one in a backward: gradient checkpointing */
};
static inline int pb_torch_is_call(enum pb_torch_stage stage)
{
    return stage == PB_TORCH_FORWARD || stage == PB_TORCH_EVAL || stage == PB_TORCH_RECOMPUTE;
}

/* Events around every module take the CPU a good part of a short step, and the GPU then waits: so the times
 * of a step and its phases are taken in other steps. */
enum pb_torch_gpu { PB_TORCH_GPU_NOTHING, PB_TORCH_GPU_PHASES, PB_TORCH_GPU_MODULES };

/* State from start to stop. */
struct pb_torch {
    uint32_t run;          /* counts starts; 0: off. Set by the resident thread, read by all */
    uint32_t modules;      /* whether calls of modules make rows in this step */
    uint32_t shapes;       /* whether those have shapes in this step */
    uint32_t gpu;          /* enum pb_torch_gpu: of what the GPU time is taken in this step */
    uint32_t memory;       /* whether memory is read around each call of this step */
    uint32_t exact;        /* whether the backward of each is timed in this step */
    uint32_t thin;         /* rows in every Nth step, for the budget */
    double rate;           /* share of steps in which modules make rows */
    double budget;         /* percent of a step; 0: none */
    uint64_t calls;        /* rows of module calls ever */
    uint64_t lost;         /* calls without a row: no room for a name, thread or level */
    int64_t step;          /* number of the present step, as seen by us */
    int64_t number_offset; /* what the framework's own number is above that */
    /* For the resident thread, which watches the job's progress. CLOCK_MONOTONIC ns. */
    int64_t alive;     /* when a phase began or ended last */
    int64_t usual;     /* duration of a step, smoothed; 0: none yet */
    uint32_t in_phase; /* enum pb_torch_stage + 1 of the present phase; 0: none */
    uint32_t training; /* a backward or an optimizer was seen */
    /* From the resident thread. */
    int64_t host_bytes;          /* resident memory */
    pb_torch_call original_call; /* what was in the slots; NULL: not installed */
    pb_torch_next original_next;
    pb_torch_call original_backward;
};
extern struct pb_torch pb_torch;

static inline uint32_t pb_torch_run(void)
{
    return __atomic_load_n(&pb_torch.run, __ATOMIC_ACQUIRE);
}

/* The number that a step has in rows and messages: the framework's own, if it has one. Any thread. */
static inline int64_t pb_torch_number(int64_t seen)
{
    return seen + __atomic_load_n(&pb_torch.number_offset, __ATOMIC_RELAXED);
}

/* torch_number.c: with the GIL. The number of a step is set once, so that all of its rows have the same.
 * begin: when its first batch is asked for, or its first forward begins; end: when its optimizer has stepped
 * and its row is written: for the next one. seen: its number by our count. end runs Python code of ours in
 * the first steps, so the probe may be stopped meanwhile. */
void pb_torch_number_put(const struct pb_python *py);
void pb_torch_number_take(const struct pb_python *py);
void pb_torch_number_forget(void); /* in a child of fork */
void pb_torch_number_begin(const struct pb_python *py, int64_t seen);
void pb_torch_number_end(const struct pb_python *py, int64_t seen, const void *optimizer);

/* torch_call.c */
pb_pyobject *pb_torch_call_module(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords);
void pb_torch_calls_reset(void);
/* When the oldest call that runs began, and its thread; 0: none runs. Any thread. */
int64_t pb_torch_oldest_call(int32_t *tid);
unsigned pb_torch_open_calls(void); /* in how many threads one runs */

/* torch_names.c: its memory exists from begin to end. -EBUSY: another thread is looking up a name. */
int pb_torch_names_begin(const struct pb_python *py);
int pb_torch_names_end(const struct pb_python *py);
/* The name of a called module: known, or found in the model around it. 0: no room. is_root: it is not called
 * by another module. Leaves no exception. */
uint32_t pb_torch_name(const struct pb_python *py, pb_pyobject *module, int is_root, uint32_t parent_place);
/* A name for an object that is not a module (an optimizer, a data loader): its class. */
uint32_t pb_torch_name_of_class(const struct pb_python *py, pb_pyobject *object);
uint32_t pb_torch_name_of_backward(void);
/* 0: there is no room. shapes: a text, or 0. */
uint32_t pb_torch_place(enum pb_torch_stage stage, uint32_t name, uint32_t parent, int32_t tid,
                        unsigned depth, uint32_t shapes);
/* A text of shapes for a call of the last named module; 0: none, or the module had too many different
 * ones. */
uint32_t pb_torch_shapes_text(const char *text, size_t length);
struct pb_torch_place *pb_torch_place_at(uint32_t place);
const char *pb_torch_text(uint32_t text, size_t *length);
/* The path of a name. */
const char *pb_torch_path(uint32_t name, size_t *length);
unsigned pb_torch_names_count(void);
/* The path of a module that was seen in a call: its length, 0 where it was not. With the GIL. */
int pb_torch_name_seen(const pb_pyobject *module, const char **ret);

/* torch_step.c. Times are those of pb_clock_mono. */
pb_pyobject *pb_torch_next_batch(pb_pyobject *self);
pb_pyobject *pb_torch_run_backward(pb_pyobject *self, pb_pyobject *args, pb_pyobject *keywords);
extern struct pb_py_method pb_torch_before_step, pb_torch_after_step; /* hooks of optimizers */
/* The outermost call of a module. */
struct pb_torch_outermost {
    enum pb_torch_stage stage;
    int32_t tid;
    uint32_t in_flight;         /* calls of other threads that ran when it began */
    int64_t samples, tokens;    /* of an evaluation or a call without training; 0: not known */
    uint64_t calls;             /* rows before it */
    uint32_t node;              /* of a forward pass inside a backward */
    int64_t begun, ended, data; /* ns; data: waited for its batch */
};
void pb_torch_forward_begins(const struct pb_python *py, pb_pyobject *module, pb_pyobject *args,
                             pb_pyobject *keywords, struct pb_torch_outermost *call);
void pb_torch_forward_ended(const struct pb_torch_outermost *call);
void pb_torch_steps_reset(int64_t now);
/* Whether it is the thread that runs the steps. */
int pb_torch_is_stepping(int32_t tid);
int32_t pb_torch_stepping_thread(void); /* 0: not known; any thread */
/* Whether a function of that name is among the callers, up to that many frames. Leaves no exception. */
int pb_torch_called_by(const struct pb_python *py, const char *function, int levels);

/* torch_mode.c: put is with the GIL, as are the others, which do not wait and leave no exception. */
void pb_torch_mode_put(const struct pb_python *py);
int pb_torch_is_recorded(void); /* whether autograd records what this thread does */
int pb_torch_in_backward(void); /* whether this thread runs a node of a backward */
int pb_torch_trains(const struct pb_python *py, pb_pyobject *module); /* train(): 1, eval(): 0; -1: unknown */
/* The module that is within wrappers, borrowed; itself if it is not a wrapper. */
pb_pyobject *pb_torch_unwrap(const struct pb_python *py, pb_pyobject *module);
/* The name of the child that a wrapper is around, NULL: it is none; *then: of the child within that, or
 * NULL. */
const char *pb_torch_wrapped(const struct pb_python *py, pb_pyobject *module, const char **then);

/* torch_eval.c: with the GIL. */
void pb_torch_eval_reset(void);
void pb_torch_eval_step_began(void);
/* Whether this call, of a training, is of an evaluation. Remembers the modules of a training. */
int pb_torch_is_eval(const struct pb_python *py, pb_pyobject *module);
void pb_torch_eval_backward(void); /* a backward has ended */
/* A batch came from an iterator; a new iterator starts an epoch. Whether a step that starts over starts with
 * that wait. */
int pb_torch_eval_batch(int64_t begun, int is_new);
/* When a step that follows an evaluation or begins an epoch begins at `now`, and 0: it goes on since
 * before. */
int64_t pb_torch_eval_resumed(int64_t now);
/* A call of an evaluation ended: it began then, with the wait for its batch. */
int64_t pb_torch_eval_ended(int64_t begun);

/* torch_rows.c */
enum pb_torch_kind { PB_TORCH_TRAIN, PB_TORCH_EVALUATION, PB_TORCH_INFERENCE };
/* The worst last. UNKNOWN: it cannot be read, or only a part was, which was finite. */
enum pb_torch_batch {
    PB_TORCH_BATCH_NONE,
    PB_TORCH_BATCH_FINITE,
    PB_TORCH_BATCH_UNKNOWN,
    PB_TORCH_BATCH_BAD
};
struct pb_torch_step_row {
    enum pb_torch_kind kind;
    int64_t before;    /* ns since the last one, that are part of none; negative: not known */
    int64_t recompute; /* ns, of backward: forward passes again */
    uint32_t in_flight;
    int64_t begun, ended, step;
    int64_t data, forward, backward, optimizer; /* ns */
    uint32_t calls, micro_batches;
    int64_t samples, tokens; /* 0: not known */
    int32_t tid;
    int sampled;
    int skipped; /* a gradient scaler skipped the optimizer's step */
    double loss; /* of its last backward */
    int has_loss;
    enum pb_torch_batch batch; /* what the models were given */
    const char *loss_cause;    /* of the first loss that is not finite; NULL: all are finite */
    char loss_place[448];      /* "FILE:LINE FUNCTION" that called its backward */
};
struct pb_torch_call_row {
    uint32_t place;
    int64_t begun, took, own; /* ns; own: outside of other modules */
};
void pb_torch_write_call(const struct pb_torch_call_row *call);
/* own as a share of took. Valid for calls of up to 78 hours. */
static inline uint16_t pb_torch_own_share(const struct pb_torch_call_row *call)
{
    uint64_t took = (uint64_t)call->took;

    return took ? (uint16_t)(((uint64_t)call->own * UINT16_MAX + took / 2) / took) : UINT16_MAX;
}
void pb_torch_write_step(const struct pb_torch_step_row *step);

/* torch_comm.c: with the GIL; put may be called repeatedly. forget: in a child of fork. */
void pb_torch_comm_put(const struct pb_python *py);
void pb_torch_comm_take(const struct pb_python *py);
void pb_torch_comm_forget(void);
int pb_torch_comm_installed(void); /* whether collectives make rows; any thread */
/* Forgets open blocks of probing.trace("collective_ops"); any thread. */
void pb_torch_comm_end_blocks(void);

/* Rows of one operation: that of the probe, and that of a block of probing.trace("collective_ops"). */
struct pb_torch_rows {
    uint64_t generation; /* of their arena */
    int has[2];
    struct pb_row_ref row[2];
};
/* Columns of python.comm_collective that are filled in later. */
enum pb_torch_comm_late {
    PB_TORCH_COMM_DONE,
    PB_TORCH_COMM_DURATION,
    PB_TORCH_COMM_NUMBER,
    PB_TORCH_COMM_STARTED,
    PB_TORCH_COMM_UNKNOWN,
    PB_TORCH_COMM_LATE
};
/* Fills cells of these columns; inside of the recorder, any thread. unknown: nobody will tell its end. */
void pb_torch_comm_fill(struct pb_arena *arena, const struct pb_torch_rows *rows, const struct pb_late *cells,
                        unsigned ncells);
void pb_torch_comm_unknown(struct pb_arena *arena, const struct pb_torch_rows *rows);
uint32_t pb_torch_comm_group(const char *text); /* as a number */

/* torch_flight.c: an operation of NCCL was issued, by this thread, between two times of that clock; any
 * thread. 0: there is no room. is_none: their ends cannot be known here. The rest is for the resident
 * thread; tick returns after how many ns it is due again. forget: in a child of fork. */
struct pb_torch_issued {
    struct pb_torch_rows rows;
    uint32_t group;   /* 0: not known */
    int64_t from, to; /* CLOCK_REALTIME ns, as torch has it */
    uint64_t thread;  /* pthread_self */
    uint64_t bound;   /* 0 */
};
int pb_torch_flight_issued(const struct pb_torch_issued *op);
int64_t pb_torch_flight_clock(void);
int pb_torch_flight_is_none(void);
uint64_t pb_torch_flight_tick(void);
void pb_torch_flight_stop(void);
void pb_torch_flight_forget(void);
void pb_torch_flight_describe(char *ret, size_t size);

/* torch_timing.c: comm_timing(backend, on), for the Python part. */
pb_pyobject *pb_torch_timing(pb_pyobject *self, pb_pyobject *args);

/* torch_track.c: set is for the resident thread, with the value of probing.torch.profiling; the rest is with
 * the GIL. */
void pb_torch_track_set(const char *setting);
void pb_torch_track_put(const struct pb_python *py);
void pb_torch_track_take(const struct pb_python *py);
void pb_torch_track_forget(void); /* in a child of fork */
/* After each step of an optimizer, also when the probe has stopped: calls the function set by at_step().
 * counted: 1 it ended a step, 0 not, -1 nothing is recorded. */
void pb_torch_at_step(const struct pb_python *py, int counted);
/* After each step of an optimizer that is recorded: calls what torch_each_optimizer() has set. */
void pb_torch_each_optimizer(const struct pb_python *py, pb_pyobject *optimizer, int counted);
void pb_torch_track_step(const struct pb_python *py, pb_pyobject *optimizer, int64_t step, int64_t samples,
                         int64_t took);
/* A gradient scaler may skip the optimizer's step. _keep evaluates the tracked expressions after the last
 * backward; _skipped logs these values if the step was skipped. */
void pb_torch_track_keep(const struct pb_python *py, int64_t step);
void pb_torch_track_skipped(const struct pb_python *py);

/* torch_gpu.c: with the GIL. forget: in a child of fork. begin returns a new reference, NULL if there is no
 * GPU to time; end takes it over. begin, end and collect may run torch code. is_in_use: whether the program
 * uses CUDA by now; imports nothing. */
int pb_torch_gpu_is_in_use(const struct pb_python *py);
void pb_torch_gpu_put(const struct pb_python *py);
void pb_torch_gpu_take(const struct pb_python *py);
void pb_torch_gpu_forget(void);
enum pb_torch_gpu pb_torch_gpu_wants(int64_t step);
pb_pyobject *pb_torch_gpu_begin(const struct pb_python *py);
void pb_torch_gpu_end(const struct pb_python *py, pb_pyobject *event, const char *stage, const char *name,
                      size_t length, int64_t begun);
void pb_torch_gpu_collect(const struct pb_python *py);
/* Bytes of torch's allocator on the current GPU: allocated, reserved, and the most of both so far. Unchanged
 * where no GPU is in use. */
void pb_torch_gpu_memory(const struct pb_python *py, int64_t ret[4]);

/* torch_memory.c: both may run torch code, so never where an exception is set. */
struct pb_torch_memory {
    int64_t host, gpu[4]; /* bytes; -1: not known. gpu as in pb_torch_gpu_memory */
};
int pb_torch_memory_wants(int64_t step);
void pb_torch_memory_ended(void); /* that step */
/* 0: too many in this step. */
int pb_torch_memory_read(const struct pb_python *py, struct pb_torch_memory *ret);
/* The end of a call that began with these values; replaces pb_torch_write_call. */
void pb_torch_memory_write(const struct pb_python *py, const struct pb_torch_call_row *call,
                           const struct pb_torch_memory *before);

/* torch_observe.c. Marks come from any thread, without the GIL. A C++ function that returns a std::unique_ptr
 * does so through a pointer that is its first argument, and returns that pointer. */
enum pb_torch_scope { PB_TORCH_BACKWARD_SCOPE = 1, PB_TORCH_USER_SCOPE = 7 };
typedef void *(*pb_torch_mark_begins)(void **ret, const void *mark);
typedef void (*pb_torch_mark_ends)(const void *mark, void *context);
/* Whether observers are possible; with the GIL, before the others. */
int pb_torch_observers_known(const struct pb_python *py);
/* 0: there is none. */
uint64_t pb_torch_observe(enum pb_torch_scope scope, pb_torch_mark_begins begins, pb_torch_mark_ends ends);
void pb_torch_observe_no_more(uint64_t observer);
/* Valid until the mark ends. */
const char *pb_torch_mark_name(const void *mark);

/* torch_backward.c: with the GIL. end writes the rows of the step, cancel drops them; forget is for a child
 * of fork. */
void pb_torch_backward_put(const struct pb_python *py);
int pb_torch_backward_wants(int64_t step);
void pb_torch_backward_begin(void);
void pb_torch_backward_end(void);
void pb_torch_backward_cancel(void);
void pb_torch_backward_forget(void);
/* The number of autograd's next node in this thread. */
uint64_t pb_torch_backward_number(void);
/* A call that began at that number has ended. */
void pb_torch_backward_span(uint32_t place, uint64_t entry, int32_t tid);
/* A forward pass inside a node of the backward: its time is not the node's. Returns its number for the
 * end. */
uint32_t pb_torch_backward_inside(int64_t now);
void pb_torch_backward_nests(void); /* a backward runs inside a node */
void pb_torch_backward_inside_ended(uint32_t at, int64_t now);

/* torch_cost.c */
void pb_torch_cost_reset(void);
/* Adds the ns that a call took in our own code, for the calls for which pb_torch_cost_due returns true. */
static inline int pb_torch_cost_due(void)
{
    return (pb_torch.calls & 63) == 0;
}
void pb_torch_cost_of_call(int64_t ns);
void pb_torch_cost_of_step(const struct pb_torch_step_row *step);
/* What is looked at in one step of so many, a power of two: in as many as take no more than OCCASION_SHARE of
 * the time. Steps of a larger number are among those of a smaller, so that ranks have these in common. */
struct pb_torch_occasion {
    uint32_t least, most, first; /* of `every` */
    uint32_t at;                 /* which of them */
    uint32_t every;
    int64_t spent; /* ns in the present step */
};
int pb_torch_is_occasion(struct pb_torch_occasion *o, int64_t step);
void pb_torch_occasion_ended(struct pb_torch_occasion *o);
/* Whether the budget allows rows of modules in that step. */
int pb_torch_cost_allows(int64_t step);

/* torch_shape.c: before a call. */
extern struct pb_torch_occasion pb_torch_shapes_occasion;
size_t pb_torch_shapes(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords, char *ret,
                       size_t size);
/* The first size of the first tensor, and the number of integers in it if it has two dimensions; else 0. */
void pb_torch_batch(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords, int64_t *samples,
                    int64_t *tokens);

/* torch_finite.c: of an argument of an outermost call; before a backward with these arguments; in a new
 * run. */
void pb_torch_finite_batch(const struct pb_python *py, pb_pyobject *object);
void pb_torch_finite_loss(const struct pb_python *py, pb_pyobject *args, struct pb_torch_step_row *row);
void pb_torch_finite_reset(void);

/* torch_loader.c: before a batch is asked for, and when it has come. -1: not known. */
struct pb_torch_loader {
    int workers, worker, ready, is_new; /* is_new: the iterator has given no batch yet */
};
void pb_torch_loader_look(const struct pb_python *py, pb_pyobject *iterator, struct pb_torch_loader *ret);
void pb_torch_loader_write(const struct pb_torch_loader *batch, int32_t tid, int64_t begun, int64_t took);
