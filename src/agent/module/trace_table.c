/* trace_table: see trace_table.h. */
#include "agent/module/trace_table.h"

#include "agent/core/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_TRACE_EVENT)};

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
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TRACE_EVENT),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TRACE_EVENT),
                                       .columns = columns,
                                       .ncolumns = PB_TRACE_COLUMNS,
                                       .heap_percent = 40};
    return pb_recorder_begin_row(&spec, &known, row, place);
}
