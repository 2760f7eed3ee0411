/* live_flight: rows of torch's Flight Recorder, read from outside at the time of the query.
 *
 * Needs no agent. A process without torch, or in which no group was made, has no rows; one that has a
 * recorder that cannot be read is an error that says why. */
#include "engine/caller/live.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "control/tables.def"
#include "remote/flight_recorder.h"
#include "remote/source.h"
#include "table/arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_GROUPS 4096

#define FR_ID(id, ...) FR_##id,
enum { PB_TABLE_TORCH_NCCL_FLIGHT_RECORD(PB_NOTHING, FR_ID) FR_COLUMNS };
#define PG_ID(id, ...) PG_##id,
enum { PB_TABLE_TORCH_NCCL_PG_STATUS(PB_NOTHING, PG_ID) PG_COLUMNS };

struct flight_reading {
    struct pb_flight flight;
    struct pb_flight_head head;
    struct pb_flight_group *groups;
    size_t ngroups;
    bool gpu;
};

/* Rows of a recorder on their way into a table. */
struct adding_entries {
    struct pb_table *t;
    const struct flight_reading *r;
};

static void put_text(struct pb_row *row, unsigned column, const char *text)
{
    if (text[0])
        pb_set_string(row, column, text, strlen(text));
}

static const struct pb_flight_group *find_group(const struct flight_reading *r, uint64_t id)
{
    for (size_t i = 0; i < r->ngroups; i++)
        if (r->groups[i].id == id)
            return &r->groups[i];
    return NULL;
}

static void add_entry(void *arg, const struct pb_flight_entry *e)
{
    const struct flight_reading *r = ((struct adding_entries *)arg)->r;
    char text[4096];
    struct pb_row row;

    if (!e->created || pb_row_begin(((struct adding_entries *)arg)->t, &row) < 0)
        return;
    pb_live_set_time(&row, FR_TIMESTAMP, e->created);
    pb_set_i64(&row, FR_RECORD_ID, (int64_t)e->id);
    pb_set_i64(&row, FR_PG_ID, (int64_t)e->group_id);
    pb_flight_text(&r->flight, e->group, e->group_length, text, sizeof(text));
    put_text(&row, FR_PG_NAME, text);
    pb_flight_text(&r->flight, e->description, e->description_length, text, sizeof(text));
    put_text(&row, FR_PG_DESC, text);
    pb_set_i64(&row, FR_COLLECTIVE_SEQ, (int64_t)e->sequence);
    pb_set_i64(&row, FR_P2P_SEQ, (int64_t)e->p2p_sequence);
    pb_set_i64(&row, FR_OP_ID, (int64_t)e->operation);
    pb_flight_text(&r->flight, e->name, e->name_length, text, sizeof(text));
    put_text(&row, FR_PROFILING_NAME, text);
    /* Others than NCCL have no events: they retire an entry when it is over. */
    enum pb_flight_state state = pb_flight_state_of(e, find_group(r, e->group_id));
    put_text(&row, FR_STATE, pb_flight_state_name(!r->gpu && e->retired ? PB_FLIGHT_COMPLETED : state));
    pb_flight_sizes(&r->flight, e, 0, text, sizeof(text));
    put_text(&row, FR_INPUT_SIZES, text);
    pb_flight_types(&r->flight, e, 0, text, sizeof(text));
    put_text(&row, FR_INPUT_DTYPES, text);
    pb_flight_sizes(&r->flight, e, 1, text, sizeof(text));
    put_text(&row, FR_OUTPUT_SIZES, text);
    pb_flight_types(&r->flight, e, 1, text, sizeof(text));
    put_text(&row, FR_OUTPUT_DTYPES, text);
    pb_set_i64(&row, FR_CREATED_NS, e->created);
    if (e->started)
        pb_set_i64(&row, FR_STARTED_NS, e->started);
    if (e->completed)
        pb_set_i64(&row, FR_COMPLETED_NS, e->completed);
    if (e->duration_ms >= 0)
        pb_set_i64(&row, FR_DURATION_NS, (int64_t)(e->duration_ms * 1e6));
    pb_set_i64(&row, FR_TIMEOUT_MS, e->timeout_ms);
    pb_set_bool(&row, FR_RETIRED, e->retired != 0);
    pb_set_bool(&row, FR_IS_P2P, e->is_p2p != 0);
    put_text(&row, FR_BACKEND, r->gpu ? "nccl" : "cpu");
    pb_row_commit(&row);
}

struct named_flight {
    uint64_t id;
    char name[128], description[128];
};

/* The name of a group, which only its entries have: the newest one's. */
static void find_name(const struct flight_reading *r, uint64_t id, struct named_flight *ret)
{
    static char buffer[64 * PB_FLIGHT_ENTRY_MAX];
    struct pb_flight_entry entries[64];
    uint64_t first, from = 0;
    long n;

    *ret = (struct named_flight){.id = id};
    while ((n = pb_flight_read(&r->flight, &r->head, from, buffer, sizeof(buffer), entries, 64, &first)) >
           0) {
        for (long i = 0; i < n; i++)
            if (entries[i].created && entries[i].group_id == id) {
                pb_flight_text(&r->flight, entries[i].group, entries[i].group_length, ret->name,
                               sizeof(ret->name));
                pb_flight_text(&r->flight, entries[i].description, entries[i].description_length,
                               ret->description, sizeof(ret->description));
                return;
            }
        from = first + (uint64_t)n;
    }
}

static int add_entries(struct pb_table *t, const struct flight_reading *r)
{
    return pb_recorder_each(&r->flight, &r->head, add_entry, &(struct adding_entries){t, r});
}

static int add_groups(struct pb_table *t, const struct flight_reading *r)
{
    char ranks[2048];
    struct named_flight named;
    struct pb_row row;

    for (size_t i = 0; i < r->ngroups; i++) {
        const struct pb_flight_group *g = &r->groups[i];
        if (pb_row_begin(t, &row) < 0)
            continue;
        find_name(r, g->id, &named);
        pb_flight_ranks(&r->flight, &r->head, named.name, ranks, sizeof(ranks));
        pb_set_i64(&row, PG_PG_ID, (int64_t)g->id);
        put_text(&row, PG_PG_NAME, named.name);
        put_text(&row, PG_PG_DESC, named.description);
        put_text(&row, PG_RANKS, ranks);
        pb_set_i64(&row, PG_ENQUEUED, g->enqueued);
        pb_set_i64(&row, PG_STARTED, g->started);
        pb_set_i64(&row, PG_COMPLETED, g->completed);
        put_text(&row, PG_BACKEND, r->gpu ? "nccl" : "cpu");
        pb_row_commit(&row);
    }
    return 0;
}

static int each_recorder(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err,
                         int (*add)(struct pb_table *t, const struct flight_reading *r))
{
    struct pb_source from;
    int result = 0;

    int r = pb_source_process(source->pid, &from, err);
    if (r < 0)
        return r;
    for (int gpu = 0; gpu < 2 && result == 0; gpu++) {
        struct flight_reading reading = {.gpu = gpu != 0};
        r = pb_recorder_find(&from, gpu != 0, &reading.flight, err);
        if (r == -ENOENT || (r == -ENODATA && !gpu)) /* older versions have that of NCCL only */
            continue;
        if (r == 0)
            r = pb_flight_look(&reading.flight, &reading.head);
        if (r == -ENOENT || r == -ENODATA)
            continue; /* nothing was recorded yet, or it is off */
        if (r == -ENOTSUP)
            pb_fail(err, r, "the Flight Recorder of this version of torch is laid out otherwise");
        result = r;
        _cleanup_free_ struct pb_flight_group *groups = r == 0 ? calloc(MOST_GROUPS, sizeof(*groups)) : NULL;
        if (!groups)
            continue;
        reading.groups = groups;
        reading.ngroups = pb_flight_groups(&reading.flight, &reading.head, groups, MOST_GROUPS);
        result = add(t, &reading);
    }
    pb_source_close(&from);
    return result;
}

int pb_live_flight_record(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return each_recorder(t, source, err, add_entries);
}

int pb_live_pg_status(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    return each_recorder(t, source, err, add_groups);
}
