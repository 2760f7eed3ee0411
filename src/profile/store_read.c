/* store_read: a profile out of a recording; see store.h. The file may be anybody's: columns are found by name
 * and type, numbers are checked, and a stack that is not there is shown as lost. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "profile/intern.h"
#include "profile/store.h"
#include "profile/store_columns.h"
#include "remote/runs.h"
#include "table/reader.h"

#define STACKS_MAX (16u << 20)

/* A node as the recording has it, and what it is in the profile. */
struct stack {
    uint32_t parent, frame;
    uint32_t node;
    bool known;
};

struct reading {
    struct pb_reader *reader;
    struct pb_profile *p;
    struct stack *stacks;
    size_t nstacks;
    int64_t since, until, first, last;
    uint64_t lost;
};

static void reading_done(struct reading *r)
{
    pb_reader_close(r->reader);
    free(r->stacks);
}

static int open_folder(const char *path, char *command, size_t size, double *ret_rate, struct pb_err *err)
{
    char text[8192], *line;

    _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return pb_fail(err, -errno, "there is no recording %s: %s", path, strerror(errno));
    _cleanup_close_ int about = openat(dir, "about", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = about < 0 ? 0 : read(about, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    line = strstr(text, "\nrate=");
    *ret_rate = line ? strtod(line + 6, NULL) : 0;
    line = strstr(text, "\ncommand=");
    snprintf(command, size, "%.*s", line ? (int)strcspn(line + 9, "\n") : 0, line ? line + 9 : "");
    int fd = openat(dir, "arena", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? pb_fail(err, -errno, "%s holds no tables: %s", path, strerror(errno)) : fd;
}

/* The newest recording of that process. */
static int find_recording(const char *pid, char *ret, size_t size, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    char recorded[32];

    int r = pb_runs_scan(&runs, err);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (strcmp(pb_run_get(&runs.at[i], "recorded_pid", recorded, sizeof(recorded)), pid) == 0) {
            snprintf(ret, size, "%s", runs.at[i].path);
            return 0;
        }
    return r < 0 ? r : pb_fail(err, -ENOENT, "there is no recording of process %s", pid);
}

static int column(const struct pb_table_info *t, const char *name, enum pb_type type)
{
    for (unsigned i = 0; i < t->ncolumns; i++)
        if (strcmp(t->columns[i].name, name) == 0 && t->columns[i].type == type)
            return (int)i;
    return -ENOENT;
}

struct wanted {
    const char *name;
    enum pb_type type;
};

static const struct wanted sample_wanted[PB_SAMPLES_COLUMNS] = {
    [PB_SAMPLES_TIME] = {"timestamp", PB_TIMESTAMP},
    [PB_SAMPLES_UNTIL] = {"until", PB_TIMESTAMP},
    [PB_SAMPLES_PID] = {"pid", PB_I32},
    [PB_SAMPLES_TID] = {"tid", PB_I32},
    [PB_SAMPLES_THREAD] = {"thread", PB_STRING},
    [PB_SAMPLES_PROCESS] = {"process", PB_STRING},
    [PB_SAMPLES_STACK] = {"stack", PB_I64},
    [PB_SAMPLES_SAMPLES] = {"samples", PB_U32},
    [PB_SAMPLES_WAITING] = {"waiting", PB_BOOL},
    [PB_SAMPLES_GIL] = {"gil", PB_BOOL},
    [PB_SAMPLES_RAN] = {"ran", PB_BOOL},
};

static const struct wanted stack_wanted[PB_STACKS_COLUMNS] = {
    [PB_STACKS_TIME] = {"timestamp", PB_TIMESTAMP},
    [PB_STACKS_STACK] = {"stack", PB_I64},
    [PB_STACKS_PARENT] = {"parent", PB_I64},
    [PB_STACKS_FUNCTION] = {"function", PB_STRING},
    [PB_STACKS_FILE] = {"file", PB_STRING},
    [PB_STACKS_LINE] = {"line", PB_I32},
    [PB_STACKS_KIND] = {"kind", PB_U8},
};

static const struct wanted sampling_wanted[PB_SAMPLING_COLUMNS] = {
    [PB_SAMPLING_TIME] = {"timestamp", PB_TIMESTAMP}, [PB_SAMPLING_TICKS] = {"ticks", PB_I64},
    [PB_SAMPLING_ASLEEP] = {"asleep", PB_I64},        [PB_SAMPLING_INTERRUPTED] = {"interrupted", PB_I64},
    [PB_SAMPLING_PREEMPTED] = {"preempted", PB_I64},  [PB_SAMPLING_STOPPED] = {"stopped", PB_I64},
    [PB_SAMPLING_REFUSED] = {"refused", PB_I64},      [PB_SAMPLING_FAILED] = {"failed", PB_I64},
    [PB_SAMPLING_TRUNCATED] = {"truncated", PB_I64},  [PB_SAMPLING_LATE] = {"late", PB_I64},
};

/* One row, its columns where the table has them. */
struct row {
    const struct pb_view *view;
    const int *columns;
    uint32_t at;
};

static bool is_null(const struct row *r, unsigned c)
{
    return pb_view_is_null(r->view, (unsigned)r->columns[c], r->at);
}

static uint32_t u32(const struct row *r, unsigned c)
{
    return is_null(r, c) ? 0 : ((const uint32_t *)r->view->columns[r->columns[c]].cells)[r->at];
}

static uint8_t u8(const struct row *r, unsigned c)
{
    return is_null(r, c) ? 0 : ((const uint8_t *)r->view->columns[r->columns[c]].cells)[r->at];
}

static int64_t i64(const struct row *r, unsigned c)
{
    return is_null(r, c) ? 0 : ((const int64_t *)r->view->columns[r->columns[c]].cells)[r->at];
}

static const char *text(const struct row *r, unsigned c, char *buf, size_t size)
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
static int each_row(struct reading *r, const char *name, const struct wanted *wanted, int n,
                    int (*take)(struct reading *r, const struct row *row), struct pb_err *err)
{
    _cleanup_free_ struct pb_segment_info *segments = NULL;
    struct pb_table_info info;
    struct pb_view view = {0};
    int columns[32], result = 0;

    int table = pb_reader_find(r->reader, name);
    if (table < 0 || pb_reader_table(r->reader, (unsigned)table, &info) < 0)
        return pb_fail(err, -ENOENT, "it is no recording: it has no table %s", name);
    for (int i = 0; i < n; i++) {
        columns[i] = column(&info, wanted[i].name, wanted[i].type);
        if (columns[i] < 0)
            return pb_fail(err, -EBADMSG, "%s has no column %s of the type it should have", name,
                           wanted[i].name);
    }
    int count = pb_reader_segments(r->reader, (unsigned)table, &segments);
    for (int i = count; result == 0 && i-- > 0;) {
        if (pb_view_load(r->reader, &segments[i], &view) < 0)
            continue; /* made room for newer rows meanwhile */
        for (uint32_t k = 0; result == 0 && k < view.nrows; k++)
            result = take(r, &(struct row){&view, columns, k});
    }
    pb_view_done(&view);
    return count < 0 ? count : result;
}

static int take_stack(struct reading *r, const struct row *row)
{
    /* The upper half tells recordings apart; this is one. */
    uint32_t id = (uint32_t)i64(row, PB_STACKS_STACK), parent = (uint32_t)i64(row, PB_STACKS_PARENT);
    uint8_t kind = u8(row, PB_STACKS_KIND);
    char name[4096], file[4096];

    /* Parents were there first. */
    if (id == 0 || id >= STACKS_MAX || parent >= id || kind >= PB_FRAME_KINDS)
        return -EBADMSG;
    if (id >= r->nstacks) {
        size_t n = 2 * (size_t)id + 1;
        struct stack *more = reallocarray(r->stacks, n, sizeof(*more));
        if (!more)
            return -ENOMEM;
        memset(more + r->nstacks, 0, (n - r->nstacks) * sizeof(*more));
        r->stacks = more;
        r->nstacks = n;
    }
    if (r->stacks[id].known)
        return 0;
    uint32_t function =
        pb_profile_function(r->p, (enum pb_frame_kind)kind, text(row, PB_STACKS_FUNCTION, name, sizeof(name)),
                            text(row, PB_STACKS_FILE, file, sizeof(file)));
    uint32_t frame = pb_profile_frame(r->p, function, (int)u32(row, PB_STACKS_LINE));
    r->stacks[id] = (struct stack){parent, frame, PB_PROFILE_ROOT, true};
    return frame == PB_PROFILE_NONE ? -ENOSPC : 0;
}

static uint32_t lost_node(struct reading *r)
{
    uint32_t function = pb_profile_function(r->p, PB_FRAME_NATIVE, "[lost]", "");
    return pb_profile_node(r->p, PB_PROFILE_ROOT, pb_profile_frame(r->p, function, 0));
}

/* Parents have smaller numbers, so theirs are there already. */
static int make_nodes(struct reading *r)
{
    for (size_t i = 1; i < r->nstacks; i++) {
        struct stack *s = &r->stacks[i];
        uint32_t parent = s->parent ? r->stacks[s->parent].node : PB_PROFILE_ROOT;
        if (!s->known)
            continue;
        if (s->parent && !r->stacks[s->parent].known)
            parent = lost_node(r);
        s->node = pb_profile_node(r->p, parent, s->frame);
        if (s->node == PB_PROFILE_NONE)
            return -ENOSPC;
    }
    return 0;
}

static uint32_t node_of(struct reading *r, uint32_t id, uint32_t samples)
{
    if (id < r->nstacks && r->stacks[id].known)
        return r->stacks[id].node;
    r->lost += samples;
    return lost_node(r);
}

/* Samples in a row are evenly apart: those within the range. False: none. */
static bool clip(const struct reading *r, int64_t *start, int64_t *end, uint32_t *n)
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

static int take_sample(struct reading *r, const struct row *row)
{
    int64_t start = i64(row, PB_SAMPLES_TIME), end = i64(row, PB_SAMPLES_UNTIL);
    char name[256], process[256];
    uint32_t n = u32(row, PB_SAMPLES_SAMPLES);

    if (!clip(r, &start, &end, &n))
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
    struct pb_profile_span span = {.start = (uint64_t)start,
                                   .end = (uint64_t)end,
                                   .thread = thread,
                                   .node = node_of(r, (uint32_t)i64(row, PB_SAMPLES_STACK), n),
                                   .flags = (u8(row, PB_SAMPLES_WAITING) ? PB_SAMPLE_WAITING : 0u) |
                                            (u8(row, PB_SAMPLES_GIL) ? PB_SAMPLE_GIL : 0u),
                                   .samples = n};
    return pb_profile_add_span(r->p, &span);
}

/* Rows that end within the range. */
static int take_sampling(struct reading *r, const struct row *row)
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

static int read_tables(struct reading *r, struct pb_err *err)
{
    struct pb_profile_facts *f = pb_profile_facts(r->p);

    int result = each_row(r, "python.stacks", stack_wanted, PB_STACKS_COLUMNS, take_stack, err);
    if (result == 0)
        result = make_nodes(r);
    if (result == 0)
        result = each_row(r, "python.samples", sample_wanted, PB_SAMPLES_COLUMNS, take_sample, err);
    if (result == 0)
        result = each_row(r, "python.sampling", sampling_wanted, PB_SAMPLING_COLUMNS, take_sampling, err);
    f->start_utc_ns = r->first;
    f->start_ns = (uint64_t)r->first;
    f->duration_ns = (uint64_t)(r->last - r->first);
    f->truncated += r->lost;
    f->processes = 1;
    return result;
}

int pb_store_read(const char *name, int64_t since, int64_t until, struct pb_profile *p, struct pb_err *err)
{
    _cleanup_(reading_done) struct reading r = {.p = p, .since = since, .until = until};
    struct pb_profile_facts *f = pb_profile_facts(p);
    char path[256], why[PB_WHY_SIZE];

    snprintf(path, sizeof(path), "%s", name);
    if (strspn(name, "0123456789") == strlen(name)) {
        int found = find_recording(name, path, sizeof(path), err);
        if (found < 0)
            return found;
    }
    _cleanup_close_ int fd = open_folder(path, f->title, sizeof(f->title), &f->rate, err);
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
