/* torch_loader: what a data loader with worker processes stands at when a batch is asked of it: how many
 * batches are ready, and which worker has the one that comes next. The wait is then that worker's.
 *
 * Read from the iterator's own fields, of torch's class alone. No Python code runs: the length of the queue
 * between processes is what its semaphore says. */
#include "agent/core/recorder.h"
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"
#include "control/tables.def"

#include <stddef.h>

enum { PB_IDS_OF(PB_TABLE_TORCH_LOADER) COLUMNS };
static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_TORCH_LOADER)};
static const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TORCH_LOADER),
                                          .comment = PB_COMMENT_OF(PB_TABLE_TORCH_LOADER),
                                          .columns = columns,
                                          .ncolumns = COLUMNS,
                                          .share = 2};
static struct pb_known_table table;
static pb_pyobject *iterator_type; /* kept for good: a class of torch's */

static int int_of(const struct pb_python *py, pb_pyobject *number, int otherwise)
{
    if (!number || pb_type_of(number, pb_module_header(py)) != py->int_type)
        return otherwise;
    long value = py->int_as(number);
    return value >= 0 && value <= INT32_MAX ? (int)value : otherwise;
}

static int is_of_class(const struct pb_python *py, pb_pyobject *object, const char *name)
{
    return object &&
           strcmp(pb_type_name(pb_type_of(object, pb_module_header(py)), pb_module_header(py)), name) == 0;
}

/* How many places of a queue between processes are free: sem is its own C class. -1: not known. */
static int free_places(const struct pb_python *py, pb_pyobject *semaphore)
{
    pb_pyobject *sem = semaphore ? pb_own_field(py, semaphore, "_semlock") : NULL;
    pb_pyobject *get =
        is_of_class(py, sem, "_multiprocessing.SemLock") ? py->get_attr(sem, "_get_value") : NULL;
    pb_pyobject *left = get ? py->call(get, (void *)NULL) : NULL;
    int n = int_of(py, left, -1);
    pb_pyobject *held[] = {sem, get, left};

    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        if (held[i])
            py->decref(held[i]);
    py->err_clear();
    return n;
}

/* Of a queue in this process (its thread pins memory), or of one between processes. -1: not known. */
static int length_of(const struct pb_python *py, pb_pyobject *queue)
{
    pb_pyobject *waiting = pb_own_field(py, queue, "queue"), *sem = pb_own_field(py, queue, "_sem");
    pb_pyobject *most = pb_own_field(py, queue, "_maxsize");
    int length = -1, places = int_of(py, most, -1), left = free_places(py, sem);

    if (is_of_class(py, waiting, "collections.deque"))
        length = (int)py->size_of(waiting);
    else if (places >= 0 && left >= 0)
        length = places - left;
    pb_pyobject *held[] = {waiting, sem, most};
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        if (held[i])
            py->decref(held[i]);
    return length;
}

/* Tasks by their number: (worker,), or with its batch where that came out of turn. */
static void read_tasks(const struct pb_python *py, pb_pyobject *tasks, int next, struct pb_torch_loader *ret)
{
    pb_pyobject *key, *task;
    long at = 0;

    for (int n = 0; n < 1000 && py->dict_next(tasks, &at, &key, &task); n++) {
        if (pb_type_of(task, pb_module_header(py)) != py->tuple_type)
            continue;
        ret->ready += ret->ready >= 0 && py->size_of(task) == 2;
        if (int_of(py, key, -1) == next)
            ret->worker = int_of(py, py->tuple_get(task, 0), -1);
    }
}

void pb_torch_loader_look(const struct pb_python *py, pb_pyobject *iterator, struct pb_torch_loader *ret)
{
    *ret = (struct pb_torch_loader){.workers = 0, .worker = -1, .ready = -1};
    pb_pyobject *given = pb_own_field(py, iterator, "_num_yielded");
    ret->is_new = int_of(py, given, -1) == 0;
    if (given)
        py->decref(given);
    py->err_clear();
    if (!iterator_type)
        iterator_type = pb_imported(py, "torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter");
    if (pb_type_of(iterator, pb_module_header(py)) != iterator_type)
        return;
    pb_pyobject *fields = pb_own_fields(py, iterator);
    pb_pyobject *queue = fields ? py->dict_get(fields, "_data_queue") : NULL;
    pb_pyobject *tasks = fields ? py->dict_get(fields, "_task_info") : NULL;
    if (queue && tasks) {
        ret->workers = int_of(py, py->dict_get(fields, "_num_workers"), 0);
        ret->ready = length_of(py, queue);
        read_tasks(py, tasks, int_of(py, py->dict_get(fields, "_rcvd_idx"), -1), ret);
        /* With batches in the order of completion, the next worker is unknown. */
        if (py->dict_get(fields, "_in_order") == py->false_object)
            ret->worker = -1;
    }
    py->err_clear();
    if (fields)
        py->decref(fields);
}

void pb_torch_loader_write(const struct pb_torch_loader *batch, int32_t tid, int64_t begun, int64_t took)
{
    struct pb_row row;
    uint32_t inside;

    if (pb_recorder_begin_row(&spec, &table, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, TIMESTAMP, begun);
    pb_set_i64(&row, STEP, pb_torch_number(pb_torch.step));
    pb_set_i32(&row, WORKERS, batch->workers);
    if (batch->worker >= 0)
        pb_set_i32(&row, WORKER, batch->worker);
    if (batch->ready >= 0)
        pb_set_i32(&row, READY, batch->ready);
    pb_set_f32(&row, WAIT, (float)((double)took / 1e6));
    pb_set_i32(&row, THREAD, tid);
    pb_recorder_end_row(&row, inside);
}
