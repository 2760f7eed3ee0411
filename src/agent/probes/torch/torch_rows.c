/* torch_rows: the tables of the torch probe. A row of a module's call has 24 bytes, including its commit
 * word: one text describes its place (SQL splits its fields, engine/worker/derived.c), and the step comes
 * from python.torch_step by the time. */
#include "agent/core/recorder.h"
#include "agent/probes/torch/torch.h"
#include "control/tables.def"

#include <string.h>

#define NAME_BYTES 110 /* of a text, about */
#define SEGMENT    (256 << 10)

#define CALL_ID(id, ...) CALL_##id,
enum call_column { PB_TABLE_TORCH_TRACE(PB_NOTHING, CALL_ID) CALL_COLUMNS };
static const struct pb_column call_columns[] = {PB_COLUMNS_OF(PB_TABLE_TORCH_TRACE)};

#define STEP_ID(id, ...) STEP_##id,
enum step_column { PB_TABLE_TORCH_STEP(PB_NOTHING, STEP_ID) STEP_COLUMNS };
static const struct pb_column step_columns[] = {PB_COLUMNS_OF(PB_TABLE_TORCH_STEP)};

static struct pb_known_table calls, steps;

/* Made with the first row, when the model is known: its names must fit a segment, and take no more of it than
 * needed. */
static struct pb_table *calls_table(struct pb_arena *arena)
{
    if (calls.generation == pb_recorder_generation())
        return calls.table;
    unsigned percent = 3 + pb_torch_names_count() * 2 * NAME_BYTES * 100 / SEGMENT;
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TORCH_TRACE),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TORCH_TRACE),
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
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TORCH_STEP),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TORCH_STEP),
                                       .columns = step_columns,
                                       .ncolumns = STEP_COLUMNS,
                                       .share = 8};
    struct pb_row row;
    uint32_t inside;

    if (pb_recorder_begin_row(&spec, &steps, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, STEP_TIMESTAMP, step->begun);
    static const char *const kinds[] = {"train", "eval", "call"};
    pb_set_i64(&row, STEP_STEP, pb_torch_number(step->step));
    pb_set_i64(&row, STEP_SEEN, step->step);
    pb_set_string(&row, STEP_KIND, kinds[step->kind], strlen(kinds[step->kind]));
    if (step->before > 0)
        pb_set_f32(&row, STEP_BEFORE, (float)((double)step->before / 1e6));
    if (step->kind == PB_TORCH_INFERENCE)
        pb_set_u32(&row, STEP_IN_FLIGHT, step->in_flight);
    if (step->recompute > 0)
        pb_set_f32(&row, STEP_RECOMPUTE, (float)((double)step->recompute / 1e6));
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
    if (step->has_loss) {
        pb_set_f64(&row, STEP_LOSS, step->loss);
        if (step->batch == PB_TORCH_BATCH_FINITE || step->batch == PB_TORCH_BATCH_BAD)
            pb_set_bool(&row, STEP_BATCH_FINITE, step->batch == PB_TORCH_BATCH_FINITE);
    }
    if (step->loss_cause) {
        pb_set_string(&row, STEP_LOSS_CAUSE, step->loss_cause, strlen(step->loss_cause));
        pb_set_string(&row, STEP_LOSS_PLACE, step->loss_place, strlen(step->loss_place));
    }
    int64_t host = __atomic_load_n(&pb_torch.host_bytes, __ATOMIC_RELAXED);
    if (host > 0)
        pb_set_f32(&row, STEP_MEMORY, (float)((double)host / (1 << 20)));
    pb_recorder_end_row(&row, inside);
}
