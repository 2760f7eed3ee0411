/* store_read: a profile from a recording; see store.h. The file is not trusted: columns are found by name and
 * type, numbers are checked, and a missing stack is shown as lost. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/intern.h"
#include "base/time.h"
#include "control/rundir.h"
#include "profile/store.h"
#include "profile/store_columns.h"
#include "remote/openin.h"
#include "remote/runs.h"
#include "table/reader.h"

#define STACKS_BYTES ((size_t)512 << 20)

/* A node of the recording, and its node in the profile. */
struct stored_stack {
    int64_t id, parent; /* the upper half tells recordings and epochs apart; the root is 0 */
    uint32_t frame, node;
};

struct store_reading {
    struct pb_reader *reader;
    struct pb_profile *p;
    struct pb_keys ids; /* of stacks: where they are in the array */
    struct stored_stack *stacks;
    size_t nstacks, stacks_cap;
    struct pb_budget budget;
    int64_t since, until, first, last;
    uint64_t lost;
    struct pb_profile_clocks clocks; /* when it began; 0: not known */
};

static void reading_done(struct store_reading *r)
{
    pb_reader_close(r->reader);
    pb_keys_done(&r->ids);
    free(r->stacks);
}

/* A line of the description; "": not found. */
static const char *about_line(const char *about, const char *name, char *ret, size_t size)
{
    char key[32];
    int len = snprintf(key, sizeof(key), "\n%s=", name);
    const char *line = strstr(about, key);

    snprintf(ret, size, "%.*s", line ? (int)strcspn(line + len, "\n") : 0, line ? line + len : "");
    return ret;
}

/* Reads the recording's description. Its clocks are those of its machine when it began; without them only UTC
 * is known. */
static void read_about(struct store_reading *r, const char *about)
{
    struct pb_profile_facts *f = pb_profile_facts(r->p);
    char text[64];

    about_line(about, "command", f->title, sizeof(f->title));
    f->rate = strtod(about_line(about, "rate", text, sizeof(text)), NULL);
    if (!(f->rate > 0 && f->rate < 1e9))
        f->rate = 0;
    f->clock = pb_profile_clock_named(about_line(about, "clock", text, sizeof(text)));
    r->clocks.monotonic_ns = strtoull(about_line(about, "clock_monotonic", text, sizeof(text)), NULL, 10);
    r->clocks.boot_ns = strtoull(about_line(about, "clock_boot", text, sizeof(text)), NULL, 10);
    r->clocks.utc_ns = strtoll(about_line(about, "clock_utc", text, sizeof(text)), NULL, 10);
    if (!r->clocks.monotonic_ns || r->clocks.utc_ns <= 0)
        r->clocks = (struct pb_profile_clocks){0};
}

static int open_folder(struct store_reading *r, const char *path, struct pb_err *err)
{
    char text[8193] = "\n";

    _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return pb_fail(err, -errno, "there is no recording %s: %s", path, strerror(errno));
    _cleanup_close_ int about = pb_open_regular(dir, "about", 0);
    ssize_t n = about < 0 ? 0 : read(about, text + 1, sizeof(text) - 2);
    text[n > 0 ? n + 1 : 1] = '\0';
    read_about(r, text);
    int fd = pb_open_regular(dir, "arena", 0);
    return fd < 0 ? pb_fail(err, fd, "%s holds no tables: %s", path, strerror(-fd)) : fd;
}

static bool lists_pid(const char *list, const char *pid)
{
    size_t len = strlen(pid);

    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == len && strncmp(at, pid, len) == 0)
            return true;
    return false;
}

/* Whether a run is a recording of that process. The folder's name has the start of the first one recorded. */
static bool is_recording_of(const struct pb_run_info *run, const struct pb_run_id *id)
{
    char text[4096], pid[24], of[64];

    snprintf(pid, sizeof(pid), "%d", (int)id->pid);
    snprintf(of, sizeof(of), PB_RUNDIR_OF "%d-%" PRIu64, (int)id->pid, id->start_time);
    if (id->start_time && !strstr(run->path, of))
        return false;
    return strcmp(pb_run_get(run, "recorded_pid", text, sizeof(text)), pid) == 0 ||
           lists_pid(pb_run_get(run, "recorded_pids", text, sizeof(text)), pid);
}

/* The newest recording of that process. */
static int find_recording(const struct pb_run_id *id, char *ret, size_t size, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};

    int r = pb_runs_scan(&runs, err);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (is_recording_of(&runs.at[i], id)) {
            snprintf(ret, size, "%s", runs.at[i].path);
            return 0;
        }
    return r < 0 ? r : pb_fail(err, -ENOENT, "there is no recording of process %d", (int)id->pid);
}

static int column(const struct pb_table_info *t, const char *name, enum pb_type type)
{
    for (unsigned i = 0; i < t->ncolumns; i++)
        if (strcmp(t->columns[i].name, name) == 0 && t->columns[i].type == type)
            return (int)i;
    return -ENOENT;
}

struct wanted_columns {
    const char *name;
    enum pb_type type;
};

#define WANTED(id, name, type, ...) {name, PB_##type},
static const struct wanted_columns sample_wanted[] = {PB_TABLE_SAMPLES(PB_NOTHING, WANTED)};

static const struct wanted_columns stack_wanted[] = {PB_TABLE_STACKS(PB_NOTHING, WANTED)};

static const struct wanted_columns sampling_wanted[] = {PB_TABLE_SAMPLING(PB_NOTHING, WANTED)};

/* One row; a column that the table lacks is NULL. */
struct sample_row {
    const struct pb_view *view;
    const int *columns;
    uint32_t at;
};

static bool is_null(const struct sample_row *r, unsigned c)
{
    return pb_view_is_null(r->view, (unsigned)r->columns[c], r->at);
}

static uint32_t u32(const struct sample_row *r, unsigned c)
{
    return is_null(r, c) ? 0 : ((const uint32_t *)r->view->columns[r->columns[c]].cells)[r->at];
}

static uint8_t u8(const struct sample_row *r, unsigned c)
{
    return is_null(r, c) ? 0 : ((const uint8_t *)r->view->columns[r->columns[c]].cells)[r->at];
}

static int64_t i64(const struct sample_row *r, unsigned c)
{
    return is_null(r, c) ? 0 : ((const int64_t *)r->view->columns[r->columns[c]].cells)[r->at];
}

static const char *text(const struct sample_row *r, unsigned c, char *buf, size_t size)
{
    buf[0] = '\0';
    if (!is_null(r, c)) {
        uint16_t id = ((const uint16_t *)r->view->columns[r->columns[c]].cells)[r->at];
        if (id < r->view->nstrings)
            snprintf(buf, size, "%.*s", (int)r->view->strings[id].length, r->view->strings[id].data);
    }
    return buf;
}

/* Every row of a table, oldest segment first. */
static int each_row(struct store_reading *r, const char *name, const struct wanted_columns *wanted, int n,
                    int (*take)(struct store_reading *r, const struct sample_row *row), struct pb_err *err)
{
    _cleanup_free_ struct pb_segment_info *segments = NULL;
    struct pb_table_info info;
    struct pb_view view = {0};
    int columns[32], result = 0;

    int table = pb_reader_find(r->reader, name);
    if (table < 0 || pb_reader_table(r->reader, (unsigned)table, &info) < 0)
        return pb_fail(err, -ENOENT, "it is no recording, or has no samples yet: there is no table %s", name);
    for (int i = 0; i < n; i++) {
        columns[i] = column(&info, wanted[i].name, wanted[i].type);
        if (columns[i] < 0)
            return pb_fail(err, -EBADMSG, "%s has no column %s of the type it should have", name,
                           wanted[i].name);
    }
    int count = pb_reader_segments(r->reader, (unsigned)table, &segments);
    for (int i = count; result == 0 && i-- > 0;) {
        if (pb_view_load(r->reader, &segments[i], &view) < 0)
            continue; /* recycled meanwhile */
        for (uint32_t k = 0; result == 0 && k < view.nrows; k++)
            result = take(r, &(struct sample_row){&view, columns, k});
    }
    pb_view_done(&view);
    return count < 0 ? count : result;
}

static int take_stack(struct store_reading *r, const struct sample_row *row)
{
    int64_t id = i64(row, PB_STACKS_STACK), parent = i64(row, PB_STACKS_PARENT);
    uint8_t kind = u8(row, PB_STACKS_KIND);
    char name[4096], file[4096];
    uint32_t at;

    /* A parent has a smaller id, in the same epoch. */
    if (id <= 0 || parent < 0 || parent >= id || (parent && parent >> 32 != id >> 32) ||
        kind >= PB_FRAME_KINDS)
        return -EBADMSG;
    if (pb_keys_find(&r->ids, (uint64_t)id, 0, &at) == 0)
        return 0;
    int result = pb_grow((void **)&r->stacks, &r->stacks_cap, r->nstacks, sizeof(*r->stacks), &r->budget);
    if (result == 0)
        result = pb_keys_intern(&r->ids, &r->budget, (uint64_t)id, 0, &at);
    if (result < 0)
        return result;
    uint32_t function =
        pb_profile_function(r->p, (enum pb_frame_kind)kind, text(row, PB_STACKS_FUNCTION, name, sizeof(name)),
                            text(row, PB_STACKS_FILE, file, sizeof(file)));
    uint32_t frame = pb_profile_frame(r->p, function, (int)u32(row, PB_STACKS_LINE));
    r->stacks[r->nstacks++] = (struct stored_stack){id, parent, frame, PB_PROFILE_NONE};
    return frame == PB_PROFILE_NONE ? -ENOSPC : 0;
}

static uint32_t lost_node(struct store_reading *r)
{
    uint32_t function = pb_profile_function(r->p, PB_FRAME_NATIVE, "[lost]", "");
    return pb_profile_node(r->p, PB_PROFILE_ROOT, pb_profile_frame(r->p, function, 0));
}

static int smaller_id_first(const void *a, const void *b)
{
    const struct stored_stack *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The node of a stack; PB_PROFILE_NONE: the recording has lost it. */
static uint32_t known_node(const struct store_reading *r, int64_t id)
{
    uint32_t at;

    if (id == 0)
        return PB_PROFILE_ROOT;
    return pb_keys_find(&r->ids, (uint64_t)id, 0, &at) == 0 ? r->stacks[at].node : PB_PROFILE_NONE;
}

/* In the order of ids, since parents have smaller ones. */
static int make_nodes(struct store_reading *r)
{
    uint32_t at;

    if (!r->nstacks)
        return 0;
    qsort(r->stacks, r->nstacks, sizeof(*r->stacks), smaller_id_first);
    pb_keys_clear(&r->ids);
    for (size_t i = 0; i < r->nstacks; i++) {
        struct stored_stack *s = &r->stacks[i];
        uint32_t parent = known_node(r, s->parent);
        s->node = pb_profile_node(r->p, parent == PB_PROFILE_NONE ? lost_node(r) : parent, s->frame);
        if (s->node == PB_PROFILE_NONE)
            return -ENOSPC;
        int result = pb_keys_intern(&r->ids, &r->budget, (uint64_t)s->id, 0, &at);
        if (result < 0)
            return result;
    }
    return 0;
}

static uint32_t node_of(struct store_reading *r, int64_t id, uint32_t samples)
{
    uint32_t node = id == 0 ? PB_PROFILE_NONE : known_node(r, id);

    if (node != PB_PROFILE_NONE)
        return node;
    r->lost += samples;
    return lost_node(r);
}

/* Samples in a row are evenly spaced: clips them to the range. False: none is in it. */
static bool clip_to_range(const struct store_reading *r, int64_t *start, int64_t *end, uint32_t *n)
{
    if (*end < *start)
        *end = *start;
    if (*start > r->until || *end < r->since || *n == 0)
        return false;
    int64_t from = *start < r->since ? r->since : *start, to = *end > r->until ? r->until : *end;
    if (*end > *start && *n > 1)
        *n = (uint32_t)((double)*n * (double)(to - from) / (double)(*end - *start) + 0.5);
    *start = from;
    *end = to;
    return *n > 0;
}

/* Converts a UTC time of the tables to the machine's monotonic clock; UTC itself where that is not known. */
static uint64_t monotonic_of(const struct store_reading *r, int64_t utc)
{
    int64_t ns = r->clocks.utc_ns ? utc - r->clocks.utc_ns + (int64_t)r->clocks.monotonic_ns : utc;
    return ns > 0 ? (uint64_t)ns : 0;
}

static int take_sample(struct store_reading *r, const struct sample_row *row)
{
    int64_t start = i64(row, PB_SAMPLES_TIME), end = i64(row, PB_SAMPLES_UNTIL);
    char name[256], process[256];
    uint32_t n = u32(row, PB_SAMPLES_SAMPLES);

    if (!clip_to_range(r, &start, &end, &n))
        return 0;
    uint32_t thread =
        pb_profile_thread(r->p, (pid_t)u32(row, PB_SAMPLES_PID), (pid_t)u32(row, PB_SAMPLES_TID),
                          text(row, PB_SAMPLES_THREAD, name, sizeof(name)),
                          text(row, PB_SAMPLES_PROCESS, process, sizeof(process)));
    if (thread == PB_PROFILE_NONE)
        return -ENOSPC;
    pb_profile_name_thread(r->p, thread, name);
    if (u8(row, PB_SAMPLES_RAN))
        pb_profile_mark_ran(r->p, thread);
    r->first = !r->first || start < r->first ? start : r->first;
    r->last = end > r->last ? end : r->last;
    struct pb_profile_span span = {.start = monotonic_of(r, start),
                                   .end = monotonic_of(r, end),
                                   .thread = thread,
                                   .node = node_of(r, i64(row, PB_SAMPLES_STACK), n),
                                   .flags = (u8(row, PB_SAMPLES_WAITING) ? PB_SAMPLE_WAITING : 0u) |
                                            (u8(row, PB_SAMPLES_GIL) ? PB_SAMPLE_GIL : 0u),
                                   .samples = n};
    return pb_profile_add_span(r->p, &span);
}

/* Rows that end within the range. */
static int read_sampling(struct store_reading *r, const struct sample_row *row)
{
    struct pb_profile_facts *f = pb_profile_facts(r->p);
    int64_t when = i64(row, PB_SAMPLING_TIME);

    if (when < r->since || when > r->until)
        return 0;
    f->ticks += (uint64_t)i64(row, PB_SAMPLING_TICKS);
    f->asleep += (uint64_t)i64(row, PB_SAMPLING_ASLEEP);
    f->interrupted += (uint64_t)i64(row, PB_SAMPLING_INTERRUPTED);
    f->pinned += (uint64_t)i64(row, PB_SAMPLING_PREEMPTED);
    f->stopped += (uint64_t)i64(row, PB_SAMPLING_STOPPED);
    f->refused += (uint64_t)i64(row, PB_SAMPLING_REFUSED);
    f->failed += (uint64_t)i64(row, PB_SAMPLING_FAILED);
    f->truncated += (uint64_t)i64(row, PB_SAMPLING_TRUNCATED);
    f->late += (uint64_t)i64(row, PB_SAMPLING_LATE);
    return 0;
}

static int smaller_pid_first(const void *a, const void *b)
{
    const pid_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static int count_processes(const struct pb_profile *p, unsigned *ret)
{
    size_t n = pb_profile_nthreads(p);
    _cleanup_free_ pid_t *pids = malloc((n + 1) * sizeof(*pids));

    if (!pids)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        pids[i] = pb_profile_thread_at(p, (uint32_t)i).pid;
    qsort(pids, n, sizeof(*pids), smaller_pid_first);
    *ret = 0;
    for (size_t i = 0; i < n; i++)
        *ret += i == 0 || pids[i] != pids[i - 1];
    return 0;
}

static int read_tables(struct store_reading *r, struct pb_err *err)
{
    struct pb_profile_facts *f = pb_profile_facts(r->p);

    int result = each_row(r, "python.stacks", stack_wanted, PB_STACKS_COLUMNS, take_stack, err);
    if (result == 0)
        result = make_nodes(r);
    if (result == 0)
        result = each_row(r, "python.samples", sample_wanted, PB_SAMPLES_COLUMNS, take_sample, err);
    if (result == 0)
        result = each_row(r, "python.sampling", sampling_wanted, PB_SAMPLING_COLUMNS, read_sampling, err);
    int64_t boot = r->clocks.boot_ns ? (int64_t)r->clocks.boot_ns + r->first - r->clocks.utc_ns : 0;
    f->start = (struct pb_profile_clocks){monotonic_of(r, r->first), boot > 0 ? (uint64_t)boot : 0, r->first};
    f->duration_ns = (uint64_t)(r->last - r->first);
    f->truncated += r->lost;
    return result < 0 ? result : count_processes(r->p, &f->processes);
}

int pb_store_read(const char *name, int64_t since, int64_t until, struct pb_profile *p, struct pb_err *err)
{
    _cleanup_(reading_done) struct store_reading r = {
        .p = p, .since = since, .until = until, .budget.left = STACKS_BYTES};
    char path[256], why[PB_WHY_SIZE];
    struct pb_run_id id = {0};

    snprintf(path, sizeof(path), "%s", name);
    if (strspn(name, "0123456789") == strlen(name))
        id.pid = (pid_t)strtol(name, NULL, 10);
    if (id.pid || pb_run_id_parse(name, &id) == 0) {
        int found = find_recording(&id, path, sizeof(path), err);
        if (found < 0)
            return found;
    }
    _cleanup_close_ int fd = open_folder(&r, path, err);
    if (fd < 0)
        return fd;
    int result = pb_reader_open(fd, &r.reader, why);
    if (result < 0)
        return pb_fail(err, result, "%s: %s", path, why);
    struct pb_err one = {0};
    result = read_tables(&r, &one);
    if (result == -ENOSPC)
        return pb_fail(err, result,
                       "%s is too large for the memory of one profile: take a part (--since, --until)", path);
    return result < 0 ? pb_fail(err, result, "%s: %s", path, pb_err_text(&one, result)) : 0;
}
