/* trace_table: see trace_table.h. */
#include "agent/trace_table.h"

#include "agent/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

static const struct pb_column columns[PB_TRACE_COLUMNS] = {
    [PB_TRACE_TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    [PB_TRACE_RECORD_TYPE] = {"record_type", PB_STRING, 0, NULL,
                              "span, event, or call: of a function that is traced"},
    [PB_TRACE_TRACE_ID] = {"trace_id", PB_I64, 0, NULL, "the outermost span around it"},
    [PB_TRACE_SPAN_ID] = {"span_id", PB_I64, 0, NULL,
                          "of a span its own; of an event the span that it is in"},
    [PB_TRACE_PARENT_ID] = {"parent_id", PB_I64, 0, NULL, "the span around it; NULL: none"},
    [PB_TRACE_NAME] = {"name", PB_STRING, 0, NULL, "what it was called"},
    [PB_TRACE_PHASE] = {"phase", PB_STRING, 0, NULL,
                        "forward, backward, ...; of the span around it unless given"},
    [PB_TRACE_STEP] = {"step", PB_I64, 0, NULL, "the step that probing.step was last given"},
    [PB_TRACE_THREAD_ID] = {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    [PB_TRACE_LOCATION] = {"location", PB_STRING, 0, NULL,
                           "file:line of a function that is probed or traced"},
    [PB_TRACE_ATTRIBUTES] = {"attributes", PB_STRING, 0, NULL, "what was given with it, JSON"},
    [PB_TRACE_ENDED] = {"ended", PB_TIMESTAMP, PB_COL_LATE, NULL, "when it ended, UTC; NULL: it is open"},
    [PB_TRACE_DURATION_MS] = {"duration_ms", PB_F64, PB_COL_LATE, "ms", "how long it took; NULL: it is open"},
    [PB_TRACE_ERROR] = {"error", PB_STRING, PB_COL_LATE, NULL, "the exception that ended it"},
    [PB_TRACE_ARGUMENTS] = {"arguments", PB_STRING, 0, NULL, "of a traced call, JSON"},
    [PB_TRACE_RESULT] = {"result", PB_STRING, PB_COL_LATE, NULL, "what a traced call returned, JSON"},
    [PB_TRACE_LOCALS] = {"locals", PB_STRING, PB_COL_LATE, NULL, "of a traced call at its end, JSON"},
};

static uint64_t next_id;

uint64_t pb_trace_new_id(void)
{
    if (__builtin_expect(!__atomic_load_n(&next_id, __ATOMIC_RELAXED), 0)) {
        uint64_t none = 0, seed = 0;
        if (syscall(SYS_getrandom, &seed, sizeof(seed), 0) != sizeof(seed))
            seed = (uint64_t)getpid() << 32;
        seed = (seed & UINT64_C(0x7fffffff00000000)) + 1;
        __atomic_compare_exchange_n(&next_id, &none, seed, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    return __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
}

void pb_trace_forget_ids(void)
{
    next_id = 0;
}

int pb_trace_begin_row(struct pb_row *row, uint32_t *place)
{
    static struct pb_known_table known;
    const struct pb_table_spec spec = {
        .name = "python.trace_event",
        .comment = "spans and events that the program tells of itself, and calls that are traced",
        .columns = columns,
        .ncolumns = PB_TRACE_COLUMNS,
        .heap_percent = 40};
    return pb_recorder_begin_row(&spec, &known, row, place);
}
