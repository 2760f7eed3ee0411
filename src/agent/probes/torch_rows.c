/* torch_rows: the tables of the torch probe. A row of a module's call has 24 bytes, including its commit
 * word: one text describes its place (SQL splits its fields, engine/worker/derived.c), and the step comes
 * from python.torch_step by the time. */
#include "agent/probes/torch.h"
#include "agent/recorder.h"

#define NAME_BYTES 110 /* of a text, about */
#define SEGMENT    (256 << 10)

enum call_column { CALL_TIMESTAMP, CALL_PLACE, CALL_TOOK, CALL_OWN, CALL_COLUMNS };
static const struct pb_column call_columns[CALL_COLUMNS] = {
    [CALL_TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    [CALL_PLACE] = {"place", PB_STRING, 0, NULL,
                    "stage, module, class, parent, depth, thread, model, shapes"},
    [CALL_TOOK] = {"took_ms", PB_F32, 0, "ms", "how long it took"},
    [CALL_OWN] = {"own_share", PB_U16, 0, "1/65535", "of that, outside of the modules that it called"},
};

enum step_column {
    STEP_TIMESTAMP,
    STEP_STEP,
    STEP_DURATION,
    STEP_DATA,
    STEP_FORWARD,
    STEP_BACKWARD,
    STEP_OPTIMIZER,
    STEP_CALLS,
    STEP_MICRO_BATCHES,
    STEP_SAMPLED,
    STEP_THREAD,
    STEP_SAMPLES,
    STEP_TOKENS,
    STEP_MEMORY,
    STEP_SKIPPED,
    STEP_COLUMNS,
};
static const struct pb_column step_columns[STEP_COLUMNS] = {
    [STEP_TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    [STEP_STEP] = {"step", PB_I64, 0, NULL, "number of the step, from when the probe was on"},
    [STEP_DURATION] = {"duration_ms", PB_F64, 0, "ms", "how long it took"},
    [STEP_DATA] = {"data_ms", PB_F32, 0, "ms", "of that, waiting for the data loader"},
    [STEP_FORWARD] = {"forward_ms", PB_F32, 0, "ms", "of that, in the outermost modules"},
    [STEP_BACKWARD] = {"backward_ms", PB_F32, 0, "ms", "of that, in backward"},
    [STEP_OPTIMIZER] = {"optimizer_ms", PB_F32, 0, "ms", "of that, in optimizers"},
    [STEP_CALLS] = {"module_calls", PB_U32, 0, NULL, "rows of it in python.torch_trace"},
    [STEP_MICRO_BATCHES] = {"micro_batches", PB_U32, 0, NULL, "backwards in it; more than 1: accumulated"},
    [STEP_SAMPLED] = {"sampled", PB_BOOL, 0, NULL, "whether its modules made rows"},
    [STEP_THREAD] = {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    [STEP_SAMPLES] = {"samples", PB_U32, 0, NULL,
                      "first size of what the models were given; NULL: not known"},
    [STEP_TOKENS] = {"tokens", PB_U32, 0, NULL, "whole numbers in it, where it is a table of them"},
    [STEP_MEMORY] = {"memory_mb", PB_F32, 0, "MB", "resident memory of the process, at most a second old"},
    [STEP_SKIPPED] = {"skipped", PB_BOOL, 0, NULL, "whether a gradient scaler left out the optimizer's step"},
};

static struct pb_known_table calls, steps;

/* Made with the first row, when the model is known: its names must fit a segment, and take no more of it than
 * needed. */
static struct pb_table *calls_table(struct pb_arena *arena)
{
    if (calls.generation == pb_recorder_generation())
        return calls.table;
    unsigned percent = 3 + pb_torch_names_count() * 2 * NAME_BYTES * 100 / SEGMENT;
    const struct pb_table_spec spec = {.name = "python.torch_trace",
                                       .comment = "modules and phases of torch, with their times",
                                       .columns = call_columns,
                                       .ncolumns = CALL_COLUMNS,
                                       .share = 4,
                                       .heap_percent = percent < 50 ? percent : 50};
    return pb_recorder_table(arena, &spec, &calls);
}

void pb_torch_write_call(const struct pb_torch_call_row *call)
{
    struct pb_torch_place *p = pb_torch_place_at(call->place);
    struct pb_row row;
    uint32_t inside;
    size_t length;

    struct pb_arena *arena = pb_recorder_enter(&inside);
    if (!arena)
        return;
    struct pb_table *table = calls_table(arena);
    if (table && pb_row_begin(table, &row) == 0) {
        if (p->generation != pb_recorder_generation()) {
            p->stored = (struct pb_string_place){0};
            p->generation = pb_recorder_generation();
        }
        const char *text = pb_torch_text(p->text, &length);
        pb_set_timestamp(&row, CALL_TIMESTAMP, call->begun);
        pb_set_string_again(&row, CALL_PLACE, text, length, &p->stored);
        pb_set_f32(&row, CALL_TOOK, (float)((double)call->took / 1e6));
        pb_set_u16(&row, CALL_OWN, pb_torch_own_share(call));
        pb_row_commit(&row);
        pb_torch.calls++;
    }
    pb_recorder_leave(inside);
}

void pb_torch_write_step(const struct pb_torch_step_row *step)
{
    const struct pb_table_spec spec = {.name = "python.torch_step",
                                       .comment =
                                           "steps of a training, or of an inference, with their phases",
                                       .columns = step_columns,
                                       .ncolumns = STEP_COLUMNS,
                                       .share = 8};
    struct pb_row row;
    uint32_t inside;

    if (pb_recorder_begin_row(&spec, &steps, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, STEP_TIMESTAMP, step->begun);
    pb_set_i64(&row, STEP_STEP, step->step);
    pb_set_f64(&row, STEP_DURATION, (double)(step->ended - step->begun) / 1e6);
    pb_set_f32(&row, STEP_DATA, (float)((double)step->data / 1e6));
    pb_set_f32(&row, STEP_FORWARD, (float)((double)step->forward / 1e6));
    pb_set_f32(&row, STEP_BACKWARD, (float)((double)step->backward / 1e6));
    pb_set_f32(&row, STEP_OPTIMIZER, (float)((double)step->optimizer / 1e6));
    pb_set_u32(&row, STEP_CALLS, step->calls);
    pb_set_u32(&row, STEP_MICRO_BATCHES, step->micro_batches);
    pb_set_bool(&row, STEP_SAMPLED, step->sampled);
    pb_set_bool(&row, STEP_SKIPPED, step->skipped);
    pb_set_i32(&row, STEP_THREAD, step->tid);
    if (step->samples > 0)
        pb_set_u32(&row, STEP_SAMPLES, (uint32_t)step->samples);
    if (step->tokens > 0)
        pb_set_u32(&row, STEP_TOKENS, (uint32_t)step->tokens);
    int64_t host = __atomic_load_n(&pb_torch.host_bytes, __ATOMIC_RELAXED);
    if (host > 0)
        pb_set_f32(&row, STEP_MEMORY, (float)((double)host / (1 << 20)));
    pb_recorder_end_row(&row, inside);
}
