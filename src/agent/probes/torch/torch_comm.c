/* torch_comm: collectives and transfers of torch.distributed: a row when one is issued, its end filled in
 * when it is over, so that one that hangs can be read while it hangs.
 *
 * The Python part (_comm.py) reports each one with its data and issuer; torch's own marks for profilers
 * (RecordFunction) report its begin and end, in threads of the backend that have no GIL. A group executes
 * its operations in the order in which they were issued, so a mark that begins belongs to the first
 * operation of a group that has none yet; of several groups, to the one issued last. A mark without a
 * report (of a backend of its own, say) makes a row by itself. These marks are reached by C++ functions
 * of libtorch, by name and for the versions with a known layout; without them rows have no end. For nccl
 * the mark ends when the operation was given to the GPU: its end comes from torch's Flight Recorder
 * (torch_flight.c).
 *
 * The rows of the torch probe are in python.comm_collective. Operations issued while a block of
 * probing.trace("collective_ops") is open are rows of the table collective_ops, also if the probe is off:
 * the first block installs the Python part's kernels, and they stay until the probe stops or the agent
 * detaches, since installing them takes longer than many a block. */
#include "agent/core/recorder.h"
#include "agent/core/thread_start.h"
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"
#include "agent/python/job.h"
#include "control/tables.def"
#include "table/clock.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PENDING  256
#define ENTRY_NS (20 * (int64_t)1000000) /* from a mark of nccl to its entry in the Flight Recorder */

/* The table of blocks has one column more, before those that came later. */
#define BLOCK_ID(id, ...) BLOCK_##id,
enum { PB_IDS_OF(PB_TABLE_COMM_COLLECTIVE) COLUMNS };
enum { PB_TABLE_COLLECTIVE_OPS(PB_NOTHING, BLOCK_ID) BLOCK_COLUMNS };
static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_COMM_COLLECTIVE)};
static const struct pb_column block_columns[] = {PB_COLUMNS_OF(PB_TABLE_COLLECTIVE_OPS)};
enum { OF_PROBE, OF_BLOCKS, TABLES };
static const unsigned late[TABLES][PB_TORCH_COMM_LATE] = {
    [OF_PROBE] = {DONE, DURATION_MS, COLLECTIVE_SEQ, STARTED, END_UNKNOWN},
    [OF_BLOCKS] = {BLOCK_DONE, BLOCK_DURATION_MS, BLOCK_COLLECTIVE_SEQ, BLOCK_STARTED, BLOCK_END_UNKNOWN}};

/* Operations in progress. Places are taken with the GIL, or without it by a mark without a report. */
static struct pending {
    const void *mark;   /* torch's object; NULL: not started */
    uint32_t taken;     /* FREE, ISSUED or BEGUN */
    uint32_t group;     /* its name, hashed */
    uint64_t order;     /* order of issue */
    char operation[24]; /* letters only */
    struct pb_torch_rows rows;
    int64_t begun;
    int64_t issued; /* as torch's Flight Recorder has it; 0: its end comes by a mark */
} pending[PENDING];
enum { FREE, ISSUED, BEGUN };
static uint32_t next_place, ongoing;
static uint64_t orders;
static uint64_t handle; /* of the observer; 0: none */
static int installed;   /* the Python part has installed its kernels */
static int changing;    /* a thread is installing or removing them; with the GIL */
static int blocks;      /* of probing.trace("collective_ops") that are open */

/* --- rows ------------------------------------------------------------------------------------------ */

/* NULL: no rows are wanted there, or it cannot be made. */
static struct pb_table *comm_table(struct pb_arena *arena, int which)
{
    static struct pb_known_table known[TABLES];
    const struct pb_table_spec specs[TABLES] = {
        [OF_PROBE] = {.name = PB_NAME_OF(PB_TABLE_COMM_COLLECTIVE),
                      .comment = PB_COMMENT_OF(PB_TABLE_COMM_COLLECTIVE),
                      .columns = columns,
                      .ncolumns = COLUMNS,
                      .share = 2},
        [OF_BLOCKS] = {.name = PB_NAME_OF(PB_TABLE_COLLECTIVE_OPS),
                       .comment = PB_COMMENT_OF(PB_TABLE_COLLECTIVE_OPS),
                       .columns = block_columns,
                       .ncolumns = BLOCK_COLUMNS}};

    if (which == OF_PROBE ? !pb_torch_run() : !__atomic_load_n(&blocks, __ATOMIC_RELAXED))
        return NULL;
    return pb_recorder_table(arena, &specs[which], &known[which]);
}

static int is_wanted(void)
{
    return pb_torch_run() || __atomic_load_n(&blocks, __ATOMIC_RELAXED);
}

/* A free place. A place that is never freed (its operation hangs, or its end is not reported) is reused after
 * all the others. */
static int32_t take_place(void)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < PENDING; i++) {
        uint32_t none = FREE;
        at = __atomic_fetch_add(&next_place, 1, __ATOMIC_RELAXED) % PENDING;
        if (__atomic_compare_exchange_n(&pending[at].taken, &none, BEGUN, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            __atomic_fetch_add(&ongoing, 1, __ATOMIC_RELAXED);
            return (int32_t)at;
        }
    }
    return (int32_t)at;
}

static void free_place(struct pending *p)
{
    __atomic_store_n(&p->mark, NULL, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&p->taken, FREE, __ATOMIC_RELEASE))
        __atomic_fetch_sub(&ongoing, 1, __ATOMIC_RELAXED);
}

struct telling {
    const char *op, *group, *dtype, *shape, *location, *ranks; /* NULL: not known */
    long group_rank, group_size, sequence, bytes, asynchronous, sender, receiver,
        rank, /* negative: not known */
        nccl;
    uint64_t span; /* that issued it; 0: none */
};

static void put_text(struct pb_row *row, unsigned column, const char *text)
{
    if (text && text[0])
        pb_set_string(row, column, text, strlen(text));
}

static void put_number(struct pb_row *row, unsigned column, long number)
{
    if (number >= 0)
        pb_set_i32(row, column, (int32_t)number);
}

/* "_allgather_base" and "all_gather": letters only, so that one begins with the other. */
static void letters_of(const char *text, char *ret, size_t size)
{
    size_t n = 0;

    for (; text && *text && n + 1 < size; text++)
        if (isalpha((unsigned char)*text))
            ret[n++] = (char)tolower((unsigned char)*text);
    ret[n] = '\0';
}

uint32_t pb_torch_comm_group(const char *text)
{
    uint32_t h = 2166136261u;

    for (; text && *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

void pb_torch_comm_fill(struct pb_arena *arena, const struct pb_torch_rows *rows, const struct pb_late *cells,
                        unsigned ncells)
{
    struct pb_late placed[PB_TORCH_COMM_LATE];

    for (int i = 0; i < TABLES && rows->generation == pb_recorder_generation(); i++) {
        for (unsigned c = 0; c < ncells; c++) {
            placed[c] = cells[c];
            placed[c].column = late[i][cells[c].column];
        }
        if (rows->has[i])
            pb_fill_all(arena, rows->row[i], placed, ncells);
    }
}

void pb_torch_comm_unknown(struct pb_arena *arena, const struct pb_torch_rows *rows)
{
    static const bool yes = true;
    const struct pb_late cell = {PB_TORCH_COMM_UNKNOWN, PB_BOOL, &yes, sizeof(yes)};

    pb_torch_comm_fill(arena, rows, &cell, 1);
}

/* 1: the row was written. */
static int write_row(struct pb_table *table, const struct telling *t, int which, int64_t now,
                     struct pb_row_ref *ret)
{
    int64_t step = pb_torch_run() ? pb_torch_number(pb_torch.step) : pb_span_step();
    struct pb_row row;

    if (!table || pb_row_begin(table, &row) < 0)
        return 0;
    pb_set_timestamp(&row, TIMESTAMP, now);
    if (step != INT64_MIN)
        pb_set_i64(&row, STEP, step);
    put_text(&row, OP, t->op);
    put_text(&row, GROUP, t->group);
    put_text(&row, DTYPE, t->dtype);
    put_text(&row, SHAPE, t->shape);
    put_text(&row, LOCATION, t->location);
    put_text(&row, RANKS, t->ranks);
    put_number(&row, GROUP_RANK, t->group_rank);
    put_number(&row, GROUP_SIZE, t->group_size);
    put_number(&row, SRC_RANK, t->sender);
    put_number(&row, DST_RANK, t->receiver);
    put_number(&row, RANK, t->rank);
    if (t->sequence >= 0)
        pb_set_i64(&row, SEQUENCE, t->sequence);
    if (t->bytes >= 0)
        pb_set_i64(&row, BYTES, t->bytes);
    if (t->asynchronous >= 0)
        pb_set_bool(&row, ASYNC_OP, t->asynchronous != 0);
    pb_set_i32(&row, THREAD_ID, pb_thread_id());
    if (which == OF_BLOCKS && t->span)
        pb_set_i64(&row, BLOCK_SPAN_ID, (int64_t)t->span);
    *ret = pb_row_ref(&row);
    return pb_row_commit(&row) == 0;
}

/* The place of the operation; -1: nothing records. Also without the GIL. */
static int32_t begin_row(const struct telling *t, int64_t now)
{
    struct pb_row_ref row[TABLES];
    uint32_t inside;
    int32_t place = -1;
    int has[TABLES];

    struct pb_arena *arena = pb_recorder_enter(&inside);
    if (!arena)
        return -1;
    for (int i = 0; i < TABLES; i++)
        has[i] = write_row(comm_table(arena, i), t, i, now, &row[i]);
    if (has[OF_PROBE] || has[OF_BLOCKS]) {
        place = take_place();
        struct pb_torch_rows *rows = &pending[place].rows;
        memcpy(rows->has, has, sizeof(has));
        memcpy(rows->row, row, sizeof(row));
        rows->generation = pb_recorder_generation();
        pending[place].begun = now;
        pending[place].issued = t->nccl ? pb_torch_flight_clock() : 0;
        if (t->nccl ? pb_torch_flight_is_none() : !handle)
            pb_torch_comm_unknown(arena, rows);
        pending[place].group = pb_torch_comm_group(t->group);
        pending[place].order = __atomic_fetch_add(&orders, 1, __ATOMIC_RELAXED);
        letters_of(t->op, pending[place].operation, sizeof(pending[place].operation));
    }
    pb_recorder_leave(inside);
    return place;
}

/* The call that issues an operation of nccl has returned, or ends before `until`. */
static void hand_over(struct pending *p, int64_t until)
{
    const struct pb_torch_issued op = {.rows = p->rows,
                                       .group = p->group,
                                       .from = p->issued,
                                       .to = until,
                                       .thread = (uint64_t)(uintptr_t)pthread_self()};
    uint32_t inside;

    struct pb_arena *arena = pb_recorder_enter(&inside);
    if (arena && !pb_torch_flight_is_none() && !pb_torch_flight_issued(&op))
        pb_torch_comm_unknown(arena, &p->rows);
    if (arena)
        pb_recorder_leave(inside);
    free_place(p);
}

/* --- torch's marks --------------------------------------------------------------------------------- */

#if defined(__x86_64__)
static void end_row(struct pending *p, int64_t now)
{
    uint32_t inside;
    struct pb_arena *arena = pb_recorder_enter(&inside);

    if (!arena)
        return;
    double took = (double)(now - p->begun) / 1e6;
    const struct pb_late end[] = {{PB_TORCH_COMM_DONE, PB_TIMESTAMP, &now, sizeof(now)},
                                  {PB_TORCH_COMM_DURATION, PB_F64, &took, sizeof(took)}};
    pb_torch_comm_fill(arena, &p->rows, end, 2);
    pb_recorder_leave(inside);
}

/* Whether no earlier operation of its group waits to begin. */
static int is_first(const struct pending *p)
{
    for (int i = 0; i < PENDING; i++)
        if (__atomic_load_n(&pending[i].taken, __ATOMIC_ACQUIRE) == ISSUED && pending[i].group == p->group &&
            pending[i].order < p->order)
            return 0;
    return 1;
}

/* gloo has no reduce_scatter: it does an all_reduce, and marks that. */
static int is_same(const char *issued, const char *marked)
{
    static const char scatter[] = "reducescatter";
    size_t a = strlen(issued), b = strlen(marked);

    return strncmp(issued, marked, a < b ? a : b) == 0 ||
           (strncmp(issued, scatter, strlen(scatter)) == 0 && strcmp(marked, "allreduce") == 0);
}

/* A group runs its operations in order: earlier ones have started, with marks that we did not see. */
static void pass_over_earlier(const struct pending *p)
{
    for (int i = 0; i < PENDING; i++)
        if (__atomic_load_n(&pending[i].taken, __ATOMIC_ACQUIRE) == ISSUED && pending[i].group == p->group &&
            pending[i].order < p->order)
            free_place(&pending[i]);
}

/* The place of the operation that begins; -1: it was not reported. */
static int32_t find_issued(const char *operation)
{
    char letters[24];
    int32_t found = -1;
    uint32_t issued = ISSUED;

    letters_of(operation, letters, sizeof(letters));
    for (int32_t i = 0; i < PENDING; i++)
        if (__atomic_load_n(&pending[i].taken, __ATOMIC_ACQUIRE) == ISSUED &&
            is_same(pending[i].operation, letters) && is_first(&pending[i]) &&
            (found < 0 || pending[i].order > pending[found].order))
            found = i;
    for (int32_t i = 0; found < 0 && i < PENDING; i++)
        if (__atomic_load_n(&pending[i].taken, __ATOMIC_ACQUIRE) == ISSUED &&
            is_same(pending[i].operation, letters)) {
            pass_over_earlier(&pending[i]);
            found = i;
        }
    if (found < 0 || !__atomic_compare_exchange_n(&pending[found].taken, &issued, BEGUN, 0, __ATOMIC_ACQ_REL,
                                                  __ATOMIC_RELAXED))
        return -1;
    return found;
}

/* "gloo:all_reduce": the part after the colon; NULL: another kind of mark. "nccl:coalesced" is the end of
 * operations that have marks of their own. */
static const char *operation_of(const char *name)
{
    static const char *const backends[] = {"gloo:", "nccl:", "ucc:", "mpi:"};
    static const char *const names[][2] = {{"coalesced", NULL}, {"all_reduce_barrier", "barrier"}};

    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strncmp(name, backends[i], strlen(backends[i])) != 0)
            continue;
        name += strlen(backends[i]);
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
            if (strcmp(name, names[k][0]) == 0)
                return names[k][1];
        return name;
    }
    return NULL;
}

/* Where C++ returns a std::unique_ptr: through a pointer that comes first, which is also what is returned. */
static void *mark_begins(void **ret, const void *mark)
{
    *ret = NULL;
    if (!is_wanted())
        return ret;
    const char *name = pb_torch_mark_name(mark), *operation = name ? operation_of(name) : NULL;
    if (!operation)
        return ret;
    int nccl = name[0] == 'n';
    int32_t place = find_issued(operation);
    if (place >= 0 && nccl)
        return ret; /* the call that issues it goes on */
    if (place < 0) {
        const struct telling t = {.op = operation,
                                  .group_rank = -1,
                                  .group_size = -1,
                                  .sequence = -1,
                                  .bytes = -1,
                                  .asynchronous = -1,
                                  .sender = -1,
                                  .receiver = -1,
                                  .rank = -1,
                                  .nccl = nccl};
        place = begin_row(&t, pb_clock_mono());
    }
    if (place >= 0 && !nccl) {
        __atomic_store_n(&pending[place].mark, mark, __ATOMIC_RELEASE);
    } else if (place >= 0) { /* its group is not known: it has the next entry that this thread makes */
        pending[place].group = 0;
        hand_over(&pending[place], pending[place].issued + ENTRY_NS);
    }
    return ret;
}

static void mark_ends(const void *mark, void *unused)
{
    (void)unused;
    if (!__atomic_load_n(&ongoing, __ATOMIC_RELAXED))
        return;
    for (int i = 0; i < PENDING; i++)
        if (__atomic_load_n(&pending[i].mark, __ATOMIC_ACQUIRE) == mark) {
            end_row(&pending[i], pb_clock_mono());
            free_place(&pending[i]);
            return;
        }
}

static void put_observer(const struct pb_python *py)
{
    if (!handle && pb_torch_observers_known(py))
        handle = pb_torch_observe(PB_TORCH_USER_SCOPE, mark_begins, mark_ends);
}
#else
static void put_observer(const struct pb_python *py)
{
    (void)py; /* how a std::unique_ptr comes back is known for x86-64 only */
}
#endif

static void take_observer(void)
{
    if (handle)
        pb_torch_observe_no_more(handle);
    handle = 0;
}

/* --- the Python part, which has the kernels --------------------------------------------------------- */

/* The Python part's _comm.py; referenced as long as its kernels are installed, since detach drops the
 * part. */
static pb_pyobject *part_module;

/* Whether it returned true. */
static int call_part(const struct pb_python *py, const char *function)
{
    pb_pyobject *method = part_module ? py->get_attr(part_module, function) : NULL;
    pb_pyobject *result = method ? py->call(method, (void *)NULL) : NULL;
    int yes = result == py->true_object;

    if (method)
        py->decref(method);
    if (result)
        py->decref(result);
    py->err_clear();
    return yes;
}

static void put_kernels(const struct pb_python *py, const char *how)
{
    if (installed || changing || !pb_is_imported(py, "torch.distributed.distributed_c10d"))
        return;
    changing = 1; /* the Python part lets other threads run */
    if (!part_module)
        part_module = pb_job_load(py, "_comm");
    if (call_part(py, how)) {
        installed = 1;
        put_observer(py);
    }
    changing = 0;
}

/* --- from the Python part -------------------------------------------------------------------------- */

static pb_pyobject *comm_wanted(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->bool_from(is_wanted() != 0);
}

/* comm_begin(op, group, group_rank, group_size, seq, bytes, dtype, shape, async, sender, receiver, rank,
 * location, ranks, nccl): the number for comm_refused and comm_issued; -1: nothing records. */
static pb_pyobject *comm_begin(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    static const int texts[] = {0, 1, 6, 7, 12, 13}, numbers[] = {2, 3, 4, 5, 8, 9, 10, 11, 14};
    const char *text[6];
    long number[9];
    (void)self;

    for (int i = 0; i < 6; i++) {
        pb_pyobject *each = py->tuple_get(args, texts[i]);
        text[i] = each ? py->utf8_of(each) : NULL;
        if (!text[i])
            return NULL;
    }
    for (int i = 0; i < 9; i++) {
        pb_pyobject *each = py->tuple_get(args, numbers[i]);
        number[i] = each ? py->int_as(each) : -1;
        if (py->err_occurred())
            return NULL;
    }
    struct pb_span_seen around;
    pb_span_around(py, &around);
    const struct telling t = {.op = text[0],
                              .group = text[1],
                              .dtype = text[2],
                              .shape = text[3],
                              .location = text[4],
                              .ranks = text[5],
                              .group_rank = number[0],
                              .group_size = number[1],
                              .sequence = number[2],
                              .bytes = number[3],
                              .asynchronous = number[4],
                              .sender = number[5],
                              .receiver = number[6],
                              .rank = number[7],
                              .nccl = number[8] > 0,
                              .span = around.id};
    int32_t place = begin_row(&t, pb_clock_mono());
    if (place >= 0)
        __atomic_store_n(&pending[place].taken, ISSUED, __ATOMIC_RELEASE);
    return py->int_signed(place);
}

/* comm_refused(number): torch refused the operation. */
static pb_pyobject *comm_refused(pb_pyobject *self, pb_pyobject *number)
{
    const struct pb_python *py = pb_python_here();
    long place = py->int_as(number);
    (void)self;

    py->err_clear();
    if (place >= 0 && place < PENDING)
        free_place(&pending[place]);
    py->incref(py->none);
    return py->none;
}

/* comm_issued(number): the call of an operation of nccl has returned. */
static pb_pyobject *comm_issued(pb_pyobject *self, pb_pyobject *number)
{
    const struct pb_python *py = pb_python_here();
    long place = py->int_as(number);
    (void)self;

    py->err_clear();
    if (place >= 0 && place < PENDING && pending[place].issued)
        hand_over(&pending[place], pb_torch_flight_clock());
    py->incref(py->none);
    return py->none;
}

static int32_t count_block(int by)
{
    int open = __atomic_load_n(&blocks, __ATOMIC_RELAXED), now;

    do /* a child of fork, and a detached agent, have forgotten blocks that were open */
        now = open + by > 0 ? open + by : 0;
    while (!__atomic_compare_exchange_n(&blocks, &open, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return now;
}

/* comm_block(1 or -1): a block of probing.trace("collective_ops") begins or ends. "", or the reason why it
 * has no rows. */
static pb_pyobject *comm_block(pb_pyobject *self, pb_pyobject *by)
{
    const struct pb_python *py = pb_python_here();
    const char *why = "";
    uint32_t inside;
    (void)self;

    long value = py->int_as(by);
    if (py->err_occurred())
        return NULL;
    if (py->free_threaded || py->minor < 7) {
        why = "collectives are recorded by Python 3.7 and later with a GIL";
    } else {
        count_block(value > 0 ? 1 : -1);
        struct pb_arena *arena = value > 0 ? pb_recorder_enter(&inside) : NULL;
        if (arena) { /* the table exists from the first block on, even if no collective follows */
            if (!comm_table(arena, OF_BLOCKS))
                why = "there is a table collective_ops with other columns";
            pb_recorder_leave(inside);
            put_kernels(py, "install_now");
        }
    }
    return py->str_from_utf8(why, (long)strlen(why), "strict");
}

struct pb_py_method pb_comm_methods[] = {
    {"comm_wanted", (pb_py_function)comm_wanted, PB_METH_NOARGS, NULL},
    {"comm_begin", (pb_py_function)comm_begin, PB_METH_VARARGS, NULL},
    {"comm_refused", (pb_py_function)comm_refused, PB_METH_O, NULL},
    {"comm_issued", (pb_py_function)comm_issued, PB_METH_O, NULL},
    {"comm_timing", (pb_py_function)pb_torch_timing, PB_METH_VARARGS, NULL},
    {"comm_block", (pb_py_function)comm_block, PB_METH_O, NULL},
    {0},
};

void pb_torch_comm_put(const struct pb_python *py)
{
    put_kernels(py, "install");
}

int pb_torch_comm_installed(void)
{
    return __atomic_load_n(&installed, __ATOMIC_RELAXED);
}

void pb_torch_comm_take(const struct pb_python *py)
{
    if (!installed || changing || __atomic_load_n(&blocks, __ATOMIC_RELAXED))
        return;
    changing = 1;
    installed = 0;
    take_observer();
    call_part(py, "remove");
    if (part_module)
        py->decref(part_module);
    part_module = NULL;
    changing = 0;
}

void pb_torch_comm_end_blocks(void)
{
    __atomic_store_n(&blocks, 0, __ATOMIC_RELAXED);
}

void pb_torch_comm_forget(void)
{
    /* An agent of the child has a part of its own; the kernels find that nothing is wanted. */
    installed = changing = 0;
    part_module = NULL;
    ongoing = 0;
    pb_torch_flight_forget();
    memset(pending, 0, sizeof(pending));
    pb_torch_comm_end_blocks();
}
