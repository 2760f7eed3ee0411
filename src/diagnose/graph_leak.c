/* graph_leak: see graph_leak.h. A training has a bounded number of results with a gradient at any moment, and
 * drops them after each step. So some dozens of one shape, and more of them with every look, are kept. */
#include "diagnose/graph_leak.h"

#include "ask/few.h"
#include "ask/sources.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/time.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS = 3, BETWEEN_MS = 1000, LIMIT_MS = 15000, SHAPES = 8 };

/* Parameters have a class of their own. */
static const char count_sql[] = "SELECT shape, count(*) FROM python.tensors WHERE class = 'Tensor' AND "
                                "requires_grad AND NOT is_view GROUP BY shape ORDER BY 2 DESC LIMIT 8";
static const char line_sql[] =
    "SELECT regexp_replace(caller, ':[0-9]+$', ''), regexp_extract(caller, ':([0-9]+)$', 1),"
    " any_value(function_name) FROM memory_allocations"
    " WHERE freed IS NULL AND followed AND caller IS NOT NULL GROUP BY caller ORDER BY sum(allocated_bytes) "
    "DESC LIMIT 1";

/* The count of a shape; 0: not among the most frequent. */
static long count_of(const struct pb_few *few, const char *shape)
{
    for (unsigned i = 0; i < few->n; i++)
        if (strcmp(few->cells[i][0], shape) == 0)
            return (long)pb_few_count(few, i, 1);
    return 0;
}

/* Counts of the shapes of the first look, as long as one of them grows. */
static int count(const struct pb_query_sources *sources, struct pb_few *few, struct pb_graph_leak *ret,
                 struct pb_err *err)
{
    char shapes[SHAPES][sizeof(ret->shape)] = {{0}};
    long counts[SHAPES][LOOKS] = {{0}};
    unsigned n = 0;
    uint64_t from = pb_now_ns();

    for (int look = 0; look < LOOKS; look++) {
        if (look)
            pb_sleep_ns(BETWEEN_MS * PB_NS_PER_MS);
        int r = pb_few_ask(sources, count_sql, few, err);
        if (r < 0)
            return r;
        for (; !look && n < few->n && n < SHAPES; n++)
            snprintf(shapes[n], sizeof(shapes[n]), "%s", few->cells[n][0]);
        bool any = false;
        for (unsigned i = 0; i < n; i++) {
            counts[i][look] = count_of(few, shapes[i]);
            any |= pb_graph_leak_grows(counts[i], look + 1);
        }
        if (!any)
            return -ENODATA;
    }
    ret->seconds = (double)(pb_now_ns() - from) / 1e9;
    for (unsigned i = 0; i < n; i++) {
        if (!pb_graph_leak_grows(counts[i], LOOKS) ||
            counts[i][LOOKS - 1] - counts[i][0] <= ret->after - ret->before)
            continue;
        snprintf(ret->shape, sizeof(ret->shape), "%s", shapes[i]);
        ret->before = counts[i][0];
        ret->after = counts[i][LOOKS - 1];
    }
    return ret->after ? 0 : -ENODATA;
}

/* Runs in a child. */
static int answer(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    _cleanup_free_ struct pb_few *few = calloc(1, sizeof(*few));
    struct pb_graph_leak found = {0};
    struct pb_target target = *(const struct pb_target *)arg;

    int r = few ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = pb_sources_open(ask, &(struct pb_targets){.at = &target, .n = 1}, &sources, err);
    if (r == 0)
        r = count(&sources, few, &found, err);
    if (r == 0 && pb_few_ask(&sources, line_sql, few, err) == 0 && few->n) {
        snprintf(found.file, sizeof(found.file), "%s", few->cells[0][0]);
        found.line = atoi(few->cells[0][1]);
        snprintf(found.function, sizeof(found.function), "%.95s", few->cells[0][2]);
    }
    if (r < 0)
        return r;
    struct pb_graph_leak *copy = pb_room_copy(room, &found, sizeof(found));
    pb_task_answer(room, copy);
    return copy ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_diag_graph_leak(const struct pb_ask *ask, const struct pb_target *target, struct pb_graph_leak *ret,
                       struct pb_err *err)
{
    struct pb_target copy = *target;
    struct pb_task task = {.work = answer, .arg = &copy, .pid = target->pid, .limit_ms = LIMIT_MS};

    return pb_task_fetch(ask, &task, ret, sizeof(*ret), err);
}
