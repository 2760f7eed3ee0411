/* answer_rows: rows of a node's ranks, for a statement over all ranks of a cluster; see answer.h. */
#include "ask/rows.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cluster/answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of the time that the asking side waits: for the way there and back. */
enum { MARGIN_MS = 200 };

static ssize_t pass_on(void *cookie, const char *bytes, size_t n)
{
    const struct pb_answering *a = cookie;

    pb_answer_bytes(a->out, false, bytes, n);
    return a->out->failed ? 0 : (ssize_t)n;
}

int pb_answer_rows(const struct pb_answering *a, struct pb_err *err)
{
    size_t n = a->members->n;
    _cleanup_free_ struct pb_target *targets = calloc(n + 1, sizeof(*targets));
    FILE *out = fopencookie((void *)(uintptr_t)a, "w", (cookie_io_functions_t){.write = pass_on});
    uint64_t now = pb_now_ns();

    if (!targets || !out) {
        if (out)
            fclose(out);
        return pb_fail(err, -ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        targets[i] = (struct pb_target){.pid = a->members->at[i].pid};
        pb_target_set_rank(&targets[i], a->members->at[i].rank);
    }
    pb_answer_ranks(a);
    struct pb_rows_request request = {.statements = a->question->words + 1, .n = a->question->nwords - 1};
    request.timeout_ms = a->deadline_ns > now + 2 * MARGIN_MS * PB_NS_PER_MS
                             ? (unsigned)((a->deadline_ns - now) / PB_NS_PER_MS) - MARGIN_MS
                             : MARGIN_MS;
    if (a->ask.archive_node)
        n = 0; /* the runs of the archive, and no process */
    int r = pb_rows_answer(&a->ask, &(struct pb_targets){.at = targets, .n = n}, &request, out, err);
    if (fclose(out) != 0 && r == 0)
        r = pb_fail(err, -EIO, "the answer could not be written");
    return r;
}
