/* torch_eval: evaluations of a training, and where the step after one begins.
 *
 * A call is part of an evaluation if autograd does not record it, nothing of the next step has run yet, and
 * either its module is one of the training that eval() was called on, or a second batch was taken from a data
 * loader without a forward pass that is recorded: other modules are evaluated too (an average of the
 * weights), but a teacher's call before that of its student is a part of the step. A call that is recorded is
 * of an evaluation if its module was trained in train() and is in eval() now.
 *
 * A step begins where the one before it ended. After an evaluation, and in a new epoch, it begins with the
 * wait for its first batch: neither the metrics of an evaluation nor the start of workers are a part of
 * it. */
#include "agent/probes/torch/torch.h"

#include <string.h>

#define ROOTS   8
#define BATCHES 2 /* without a forward pass that is recorded: it is an evaluation */

static struct {
    const pb_pyobject *roots[ROOTS]; /* modules of the training; addresses, never dereferenced */
    uint8_t trained[ROOTS];          /* in train() */
    uint32_t nroots;
    int begun;          /* a recorded forward pass since the last boundary or backward */
    uint32_t batches;   /* taken since then */
    int broken;         /* an evaluation or the begin of an epoch: the step starts over */
    int64_t batch_from; /* the wait for the first batch since then; 0: none */
} e;

void pb_torch_eval_reset(void)
{
    memset(&e, 0, sizeof(e));
}

void pb_torch_eval_step_began(void)
{
    e.begun = e.broken = 0;
    e.batches = 0;
    e.batch_from = 0;
}

void pb_torch_eval_backward(void)
{
    e.begun = 0;
    e.batches = 0;
}

/* Its index among the modules of the training; -1: not one of them. */
static int find(const pb_pyobject *module)
{
    for (uint32_t i = 0; i < ROOTS && i < e.nroots; i++)
        if (e.roots[i] == module)
            return (int)i;
    return -1;
}

static void remember(const pb_pyobject *module, int trains)
{
    int at = find(module);

    if (at < 0)
        at = (int)(e.nroots++ % ROOTS);
    e.roots[at] = module;
    e.trained[at] = trains == 1;
}

int pb_torch_is_eval(const struct pb_python *py, pb_pyobject *module)
{
    int recorded = pb_torch_is_recorded();
    pb_pyobject *inner = pb_torch_unwrap(py, module);
    int trains = pb_torch_trains(py, inner), at = find(inner);

    if (!e.begun && !recorded && ((at >= 0 && trains != 1) || e.batches >= BATCHES))
        return 1;
    if (!e.begun && recorded && at >= 0 && trains == 0 && e.trained[at])
        return 1;
    if (recorded) {
        remember(inner, trains);
        e.begun = 1;
    }
    return 0;
}

int pb_torch_eval_batch(int64_t begun, int is_new)
{
    if (is_new && !e.begun) {
        e.broken = 1;
        e.batch_from = 0;
        e.batches = 0;
    }
    e.batches++;
    if (!e.broken || e.batch_from)
        return 0;
    e.batch_from = begun;
    return 1;
}

int64_t pb_torch_eval_resumed(int64_t now)
{
    int64_t from = e.batch_from ? e.batch_from : now;

    if (!e.broken || !e.begun)
        return 0;
    e.broken = 0;
    e.batch_from = 0;
    return from;
}

int64_t pb_torch_eval_ended(int64_t begun)
{
    int64_t from = e.batch_from ? e.batch_from : begun;

    e.broken = 1;
    e.batch_from = 0;
    return from;
}
