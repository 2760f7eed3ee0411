/* torch_memory: memory before and after calls of modules and phases, in one step of 64 or more.
 *
 * A row of python.torch_trace has no room for it, and reading it takes some microseconds: of the process, a
 * file of the kernel's; of a GPU, the counters of torch's allocator, which wait for nothing. So it is read in
 * few steps, whose rows are in a table of their own; python.torch_trace is both of them in SQL
 * (engine/worker/derived.c). With the GIL. */
#include "agent/core/recorder.h"
#include "agent/core/small_files.h"
#include "agent/probes/torch/torch.h"
#include "control/tables.def"
#include "table/clock.h"

#include <stdio.h>
#include <unistd.h>

#define MOST_CALLS 1024 /* of such a step */

#define MEMORY_ID(id, ...) MEMORY_##id,
enum { PB_TABLE_TORCH_MEMORY(PB_NOTHING, MEMORY_ID) MEMORY_COLUMNS };
static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_TORCH_MEMORY)};
static struct pb_known_table known_table;
static int64_t looked_at; /* the step that was looked at last */
static unsigned calls;    /* in it */
/* Not a step in which anything else is looked at. */
static struct pb_torch_occasion occasion = {.least = 64, .most = 4096, .first = 64, .at = 20};

int pb_torch_memory_wants(int64_t step)
{
    return pb_torch_is_occasion(&occasion, step);
}

void pb_torch_memory_ended(void)
{
    pb_torch_occasion_ended(&occasion);
}

int pb_torch_memory_read(const struct pb_python *py, struct pb_torch_memory *ret)
{
    char statm[128];
    long total, resident;

    if (looked_at != pb_torch.step)
        calls = 0;
    looked_at = pb_torch.step;
    if (calls >= MOST_CALLS)
        return 0;
    calls++;
    int64_t begun = pb_clock_mono();
    *ret = (struct pb_torch_memory){.host = -1, .gpu = {-1, -1, -1, -1}};
    pb_file_read("/proc/self/statm", statm, sizeof(statm));
    if (sscanf(statm, "%ld %ld", &total, &resident) == 2)
        ret->host = (int64_t)resident * sysconf(_SC_PAGESIZE);
    pb_torch_gpu_memory(py, ret->gpu);
    occasion.spent += pb_clock_mono() - begun;
    return 1;
}

/* column: of the value; delta: of its growth, 0 for none. */
static void set_value(struct pb_row *row, unsigned column, unsigned delta, int64_t before, int64_t after)
{
    if (after < 0)
        return;
    pb_set_f32(row, column, (float)((double)after / (1 << 20)));
    if (delta && before >= 0)
        pb_set_f32(row, delta, (float)((double)(after - before) / (1 << 20)));
}

void pb_torch_memory_write(const struct pb_python *py, const struct pb_torch_call_row *call,
                           const struct pb_torch_memory *before)
{
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TORCH_MEMORY),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TORCH_MEMORY),
                                       .columns = columns,
                                       .ncolumns = MEMORY_COLUMNS,
                                       .share = 4};
    uint32_t run = pb_torch_run(), inside;
    struct pb_torch_memory after;
    struct pb_row row;
    size_t length;

    int read = pb_torch_memory_read(py, &after);
    if (pb_torch_run() != run)
        return;
    if (!read || pb_recorder_begin_row(&spec, &known_table, &row, &inside) < 0) {
        pb_torch_write_call(call);
        return;
    }
    const char *text = pb_torch_text(pb_torch_place_at(call->place)->text, &length);
    pb_set_timestamp(&row, MEMORY_TIMESTAMP, call->begun);
    pb_set_string(&row, MEMORY_PLACE, text, length);
    pb_set_f32(&row, MEMORY_TOOK, (float)((double)call->took / 1e6));
    pb_set_u16(&row, MEMORY_OWN, pb_torch_own_share(call));
    set_value(&row, MEMORY_HOST, MEMORY_HOST_DELTA, before->host, after.host);
    set_value(&row, MEMORY_ALLOCATED, MEMORY_ALLOCATED_DELTA, before->gpu[0], after.gpu[0]);
    set_value(&row, MEMORY_CACHED, 0, 0, after.gpu[1]);
    set_value(&row, MEMORY_MAX_ALLOCATED, MEMORY_MAX_ALLOCATED_DELTA, before->gpu[2], after.gpu[2]);
    set_value(&row, MEMORY_MAX_CACHED, 0, 0, after.gpu[3]);
    pb_recorder_end_row(&row, inside);
    pb_torch.calls++;
}
