/* torch_memory: memory before and after calls of modules and phases, in one step of 64 or more.
 *
 * A row of python.torch_trace has no room for it, and reading it takes some microseconds: of the process, a
 * file of the kernel's; of a GPU, the counters of torch's allocator, which wait for nothing. So it is read in
 * few steps, whose rows are in a table of their own; python.torch_trace is both of them in SQL
 * (engine/worker/derived.c). With the GIL. */
#include "agent/files.h"
#include "agent/probes/torch.h"
#include "agent/recorder.h"
#include "table/clock.h"

#include <stdio.h>
#include <unistd.h>

#define MOST_CALLS 1024 /* of such a step */

enum {
    MEMORY_TIMESTAMP,
    MEMORY_PLACE,
    MEMORY_TOOK,
    MEMORY_OWN,
    MEMORY_HOST,
    MEMORY_HOST_DELTA,
    MEMORY_ALLOCATED,
    MEMORY_ALLOCATED_DELTA,
    MEMORY_CACHED,
    MEMORY_MAX_ALLOCATED,
    MEMORY_MAX_ALLOCATED_DELTA,
    MEMORY_MAX_CACHED,
    MEMORY_COLUMNS,
};
/* The same columns as in src/engine/shared/known.c. */
static const struct pb_column columns[MEMORY_COLUMNS] = {
    [MEMORY_TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    [MEMORY_PLACE] = {"place", PB_STRING, 0, NULL, "as in python.torch_trace"},
    [MEMORY_TOOK] = {"took_ms", PB_F32, 0, "ms", "how long it took"},
    [MEMORY_OWN] = {"own_share", PB_U16, 0, "1/65535", "of that, outside of the modules that it called"},
    [MEMORY_HOST] = {"host_mb", PB_F32, 0, "MB", "resident memory of the process at its end"},
    [MEMORY_HOST_DELTA] = {"host_delta_mb", PB_F32, 0, "MB", "by how much that grew"},
    [MEMORY_ALLOCATED] = {"allocated_mb", PB_F32, 0, "MB", "GPU memory of tensors at its end"},
    [MEMORY_ALLOCATED_DELTA] = {"allocated_delta_mb", PB_F32, 0, "MB", "by how much that grew"},
    [MEMORY_CACHED] = {"cached_mb", PB_F32, 0, "MB", "memory that torch has from the GPU"},
    [MEMORY_MAX_ALLOCATED] = {"max_allocated_mb", PB_F32, 0, "MB", "the most that was allocated so far"},
    [MEMORY_MAX_ALLOCATED_DELTA] = {"max_allocated_delta_mb", PB_F32, 0, "MB", "by how much that grew"},
    [MEMORY_MAX_CACHED] = {"max_cached_mb", PB_F32, 0, "MB", "the most that torch had from the GPU"},
};
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
    const struct pb_table_spec spec = {.name = "python.torch_memory",
                                       .comment = "rows of python.torch_trace with memory, of some steps",
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
