/* store: writing a recording; see store.h. */
#include "profile/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/time.h"
#include "profile/store_columns.h"
#include "profile/store_dir.h"
#include "table/arena.h"

#define AGAIN_NS (60 * PB_NS_PER_S) /* a node in use is written again after this long */

struct pb_store {
    struct pb_store_dir dir;
    struct pb_arena *arena;
    struct pb_table *samples, *stacks, *hangs, *sampling;
    struct pb_profile_facts before; /* as they were at the last flush */
    uint64_t *written;              /* when each node was last written; 0: never */
    size_t written_cap;
    int64_t
        base; /* of the ids of its stacks: what sets them apart from those of other recordings and epochs */
};

static const struct pb_column sample_columns[] = {PB_COLUMNS_OF(PB_TABLE_SAMPLES)};

static const struct pb_column stack_columns[] = {PB_COLUMNS_OF(PB_TABLE_STACKS)};

static const struct pb_column hang_columns[] = {PB_COLUMNS_OF(PB_TABLE_HANGS)};

static const struct pb_column sampling_columns[] = {PB_COLUMNS_OF(PB_TABLE_SAMPLING)};

static int make_tables(struct pb_store *s)
{
    const struct pb_table_spec samples = {.name = PB_NAME_OF(PB_TABLE_SAMPLES),
                                          .comment = PB_COMMENT_OF(PB_TABLE_SAMPLES),
                                          .columns = sample_columns,
                                          .ncolumns = PB_SAMPLES_COLUMNS,
                                          .share = 16};
    const struct pb_table_spec stacks = {.name = PB_NAME_OF(PB_TABLE_STACKS),
                                         .comment = PB_COMMENT_OF(PB_TABLE_STACKS),
                                         .columns = stack_columns,
                                         .ncolumns = PB_STACKS_COLUMNS,
                                         .share = 16};
    const struct pb_table_spec hangs = {.name = PB_NAME_OF(PB_TABLE_HANGS),
                                        .comment = PB_COMMENT_OF(PB_TABLE_HANGS),
                                        .columns = hang_columns,
                                        .ncolumns = PB_HANGS_COLUMNS,
                                        .share = 8,
                                        .heap_percent = 75};
    const struct pb_table_spec sampling = {.name = PB_NAME_OF(PB_TABLE_SAMPLING),
                                           .comment = PB_COMMENT_OF(PB_TABLE_SAMPLING),
                                           .columns = sampling_columns,
                                           .ncolumns = PB_SAMPLING_COLUMNS};

    int r = pb_table_new(s->arena, &samples, &s->samples);
    if (r == 0)
        r = pb_table_new(s->arena, &stacks, &s->stacks);
    if (r == 0)
        r = pb_table_new(s->arena, &hangs, &s->hangs);
    return r < 0 ? r : pb_table_new(s->arena, &sampling, &s->sampling);
}

static int64_t draw_base(void)
{
    uint32_t apart;

    if (syscall(SYS_getrandom, &apart, sizeof(apart), 0) != sizeof(apart)) /* no wrapper in glibc 2.17 */
        apart = (uint32_t)pb_now_ns();
    return (int64_t)(apart >> 1 | 1) << 32;
}

void pb_store_begin_epoch(struct pb_store *s)
{
    int64_t before = s->base;

    while (s->base == before)
        s->base = draw_base();
    if (s->written_cap)
        memset(s->written, 0, s->written_cap * sizeof(*s->written));
}

int pb_store_new(const struct pb_store_options *options, struct pb_store **ret, struct pb_err *err)
{
    struct pb_store *s = calloc(1, sizeof(*s));

    if (!s)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_store_dir_make(options, &s->dir, err);
    if (r < 0) {
        free(s);
        return r;
    }
    s->base = draw_base();
    struct pb_arena_options arena = {.bound = s->dir.bound};
    r = pb_arena_create(s->dir.fd, "arena", &arena, &s->arena);
    if (r == 0)
        r = make_tables(s);
    if (r < 0) {
        pb_fail(err, r, "no tables can be made in %s: %s", s->dir.path, strerror(-r));
        pb_store_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

void pb_store_close(struct pb_store *s)
{
    if (!s)
        return;
    pb_arena_close(s->arena);
    pb_store_dir_done(&s->dir);
    free(s->written);
    free(s);
}

const char *pb_store_path(const struct pb_store *s)
{
    return s->dir.path;
}

struct pb_arena *pb_store_arena(struct pb_store *s)
{
    return s->arena;
}

static void set_text(struct pb_row *row, unsigned column, const char *text)
{
    if (text)
        pb_set_string(row, column, text, strlen(text));
}

/* A query sees all recordings as one table, so ids must differ between them. */
static int64_t id_of(const struct pb_store *s, uint32_t node)
{
    return node == PB_PROFILE_ROOT ? 0 : s->base | node;
}

static int write_node(struct pb_store *s, const struct pb_profile *p, uint32_t node)
{
    struct pb_node n = pb_profile_node_at(p, node);
    struct pb_profile_frame frame = pb_profile_frame_at(p, n.frame);
    struct pb_profile_function f = pb_profile_function_at(p, frame.function);
    struct pb_row row;

    int r = pb_row_begin(s->stacks, &row);
    if (r < 0)
        return r;
    pb_set_i64(&row, PB_STACKS_STACK, id_of(s, node));
    pb_set_i64(&row, PB_STACKS_PARENT, id_of(s, n.parent));
    set_text(&row, PB_STACKS_FUNCTION, f.name);
    set_text(&row, PB_STACKS_FILE, f.file);
    if (frame.line)
        pb_set_i32(&row, PB_STACKS_LINE, frame.line);
    pb_set_u8(&row, PB_STACKS_KIND, (uint8_t)f.kind);
    return pb_row_commit(&row);
}

/* Writes the nodes of a stack that a reader may not have, before the samples that need them. */
static int write_stack(struct pb_store *s, const struct pb_profile *p, uint32_t node, uint64_t now)
{
    int r = 0;

    for (; r == 0 && node != PB_PROFILE_ROOT && (!s->written[node] || now - s->written[node] > AGAIN_NS);
         node = pb_profile_node_at(p, node).parent) {
        r = write_node(s, p, node);
        s->written[node] = now;
    }
    return r;
}

static int write_span(struct pb_store *s, const struct pb_profile *p, const struct pb_profile_span *span)
{
    struct pb_profile_thread t = pb_profile_thread_at(p, span->thread);
    struct pb_row row;

    int r = pb_row_begin(s->samples, &row);
    if (r < 0)
        return r;
    pb_set_timestamp(&row, PB_SAMPLES_TIME, (int64_t)span->start);
    pb_set_timestamp(&row, PB_SAMPLES_UNTIL, (int64_t)span->end);
    pb_set_i32(&row, PB_SAMPLES_PID, t.pid);
    pb_set_i32(&row, PB_SAMPLES_TID, t.tid);
    set_text(&row, PB_SAMPLES_THREAD, t.name);
    set_text(&row, PB_SAMPLES_PROCESS, t.process);
    pb_set_i64(&row, PB_SAMPLES_STACK, id_of(s, span->node));
    pb_set_u32(&row, PB_SAMPLES_SAMPLES, span->samples);
    pb_set_bool(&row, PB_SAMPLES_WAITING, span->flags & PB_SAMPLE_WAITING);
    pb_set_bool(&row, PB_SAMPLES_GIL, span->flags & PB_SAMPLE_GIL);
    pb_set_bool(&row, PB_SAMPLES_RAN, t.ran);
    return pb_row_commit(&row);
}

static int write_sampling(struct pb_store *s, const struct pb_profile_facts *now)
{
    const struct pb_profile_facts *b = &s->before;
    struct pb_row row;

    int r = pb_row_begin(s->sampling, &row);
    if (r < 0)
        return r;
    pb_set_i64(&row, PB_SAMPLING_TICKS, (int64_t)(now->ticks - b->ticks));
    pb_set_i64(&row, PB_SAMPLING_ASLEEP, (int64_t)(now->asleep - b->asleep));
    pb_set_i64(&row, PB_SAMPLING_INTERRUPTED, (int64_t)(now->interrupted - b->interrupted));
    pb_set_i64(&row, PB_SAMPLING_PREEMPTED, (int64_t)(now->pinned - b->pinned));
    pb_set_i64(&row, PB_SAMPLING_STOPPED, (int64_t)(now->stopped - b->stopped));
    pb_set_i64(&row, PB_SAMPLING_REFUSED, (int64_t)(now->refused - b->refused));
    pb_set_i64(&row, PB_SAMPLING_FAILED, (int64_t)(now->failed - b->failed));
    pb_set_i64(&row, PB_SAMPLING_TRUNCATED, (int64_t)(now->truncated - b->truncated));
    pb_set_i64(&row, PB_SAMPLING_LATE, (int64_t)(now->late - b->late));
    s->before = *now;
    return pb_row_commit(&row);
}

int pb_store_flush(struct pb_store *s, struct pb_profile *p)
{
    uint64_t now = pb_now_ns();
    size_t nodes = pb_profile_nnodes(p);
    int r = 0;

    if (s->written_cap < nodes) {
        uint64_t *more = reallocarray(s->written, 2 * nodes, sizeof(*more));
        if (!more)
            return -ENOMEM;
        memset(more + s->written_cap, 0, (2 * nodes - s->written_cap) * sizeof(*more));
        s->written = more;
        s->written_cap = 2 * nodes;
    }
    for (size_t i = 0; r == 0 && i < pb_profile_nspans(p); i++) {
        struct pb_profile_span span = pb_profile_span_at(p, i);
        r = write_stack(s, p, span.node, now);
        if (r == 0)
            r = write_span(s, p, &span);
    }
    if (r == 0)
        r = write_sampling(s, pb_profile_facts_of(p));
    pb_profile_forget_samples(p);
    pb_arena_tend(s->arena);
    (void)pb_arena_mirror(s->arena); /* on a full disk the recording goes on; missing rows are copied later */
    return r;
}

int pb_store_hang(struct pb_store *s, const struct pb_hang_frame *f)
{
    struct pb_row row;

    int r = pb_row_begin(s->hangs, &row);
    if (r < 0)
        return r;
    pb_set_i32(&row, PB_HANGS_PID, f->pid);
    pb_set_i32(&row, PB_HANGS_TID, f->tid);
    set_text(&row, PB_HANGS_THREAD, f->thread);
    set_text(&row, PB_HANGS_PROCESS, f->process);
    pb_set_i32(&row, PB_HANGS_DEPTH, f->depth);
    set_text(&row, PB_HANGS_FUNCTION, f->function);
    set_text(&row, PB_HANGS_FILE, f->file);
    if (f->line)
        pb_set_i32(&row, PB_HANGS_LINE, f->line);
    set_text(&row, PB_HANGS_LOCALS, f->locals);
    pb_set_f64(&row, PB_HANGS_SECONDS, f->seconds);
    set_text(&row, PB_HANGS_VERDICT, f->verdict);
    return pb_row_commit(&row);
}
