/* torch_finite: the loss of each backward, whether the batch was finite, and of the first loss that is not,
 * where it comes from.
 *
 * Values are read by layout (tensor.h), of tensors in the CPU's memory: those on a GPU would have to be
 * waited for. Once, when the loss stops being finite, the graph below it is walked by the attributes of its
 * nodes, which are torch's own C code: a division by zero and an overflow show in what the nodes keep for the
 * backward. */
#include "agent/probes/torch/torch.h"
#include "agent/python/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ALL_UP_TO = 1 << 16, /* elements of a batch: more are looked at by samples */
    SAMPLES = 4096,
    NODES = 64,
    FRAMES = 64,
};

static struct {
    int batch_is_bad, was_bad;
} f;

/* Of a floating type its bits: those of the exponent, and all but the sign. */
struct float_bits {
    const char *dtype;
    int size;
    uint64_t exponent, magnitude;
};

static const struct float_bits *bits_of(const struct pb_tensor *t)
{
    static const struct float_bits types[] = {
        {"float32", 4, 0x7f800000u, 0x7fffffffu},
        {"float64", 8, UINT64_C(0x7ff0000000000000), UINT64_C(0x7fffffffffffffff)},
        {"bfloat16", 2, 0x7f80u, 0x7fffu},
        {"float16", 2, 0x7c00u, 0x7fffu},
    };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (t->size == types[i].size && strcmp(t->dtype, types[i].dtype) == 0)
            return &types[i];
    return NULL;
}

/* Whether the elements stand one behind the other. */
static int is_contiguous(const struct pb_tensor *t)
{
    int64_t step = 1;

    for (int i = t->dims - 1; i >= 0; i--) {
        if (t->sizes[i] != 1 && t->steps[i] != step)
            return 0;
        step *= t->sizes[i];
    }
    return 1;
}

static uint64_t element(const struct pb_tensor *t, int64_t i)
{
    uint64_t bits = 0;

    memcpy(&bits, t->data + i * t->size, (size_t)t->size); /* little-endian, as all that torch runs on */
    return bits;
}

struct kinds_of_values {
    int nan, infinite, zero;
};

/* 0: its values cannot be read. */
static int look_at_values(const struct pb_tensor *t, struct kinds_of_values *ret)
{
    const struct float_bits *bits = t->data && t->is_dense ? bits_of(t) : NULL;

    *ret = (struct kinds_of_values){0};
    if (!bits || t->count < 1 || !is_contiguous(t))
        return 0;
    int64_t step = t->count <= ALL_UP_TO ? 1 : t->count / SAMPLES;
    for (int64_t i = 0; i < t->count; i += step) {
        uint64_t value = element(t, i) & bits->magnitude;
        ret->zero |= value == 0;
        if ((value & bits->exponent) != bits->exponent)
            continue;
        ret->infinite |= value == bits->exponent;
        ret->nan |= value != bits->exponent;
    }
    return 1;
}

static double value_of(const struct pb_tensor *t)
{
    uint64_t bits = element(t, 0);
    double d;
    float s;

    if (t->size == 8) {
        memcpy(&d, &bits, sizeof(d));
        return d;
    }
    uint32_t narrow = (uint32_t)bits;
    memcpy(&s, &narrow, sizeof(s));
    return (double)s;
}

void pb_torch_finite_batch(const struct pb_python *py, pb_pyobject *object)
{
    struct kinds_of_values kinds;
    struct pb_tensor t;

    if (pb_tensor_read(py, object, &t) > 0 && look_at_values(&t, &kinds))
        f.batch_is_bad |= kinds.nan || kinds.infinite;
}

/* --- where it comes from --- */

/* Whether the tensor that a node keeps under that name has such a value. */
static int keeps(const struct pb_python *py, pb_pyobject *node, const char *name, int zero)
{
    struct kinds_of_values kinds = {0};
    struct pb_tensor t;

    pb_pyobject *kept = py->get_attr(node, name);
    int is = kept && pb_tensor_read(py, kept, &t) > 0 && look_at_values(&t, &kinds) &&
             (zero ? kinds.zero : kinds.infinite);
    if (kept)
        py->decref(kept);
    py->err_clear();
    return is;
}

static int is_named(const struct pb_python *py, pb_pyobject *node, const char *name)
{
    pb_pyobject *text = py->get_attr(node, "__class__");
    pb_pyobject *own = text ? py->get_attr(text, "__name__") : NULL;
    const char *found = own ? py->utf8_of(own) : NULL;
    int is = found && strncmp(found, name, strlen(name)) == 0;

    if (own)
        py->decref(own);
    if (text)
        py->decref(text);
    py->err_clear();
    return is;
}

/* What a node did, by what it keeps. NULL: nothing is known. */
static const char *cause_of_node(const struct pb_python *py, pb_pyobject *node)
{
    if (is_named(py, node, "DivBackward") && keeps(py, node, "_saved_other", 1))
        return "division";
    if ((is_named(py, node, "ExpBackward") || is_named(py, node, "PowBackward") ||
         is_named(py, node, "CoshBackward") || is_named(py, node, "SinhBackward")) &&
        (keeps(py, node, "_saved_result", 0) || keeps(py, node, "_saved_self", 0)))
        return "overflow";
    if ((is_named(py, node, "LogBackward") || is_named(py, node, "MulBackward") ||
         is_named(py, node, "SqrtBackward")) &&
        (keeps(py, node, "_saved_self", 0) || keeps(py, node, "_saved_other", 0)))
        return "overflow";
    return NULL;
}

/* Adds the nodes below it. Each in `nodes` is a reference of ours. */
static int add_below(const struct pb_python *py, pb_pyobject *node, pb_pyobject **nodes, int n)
{
    pb_pyobject *next = py->get_attr(node, "next_functions");
    long size = next ? py->size_of(next) : 0;

    for (long i = 0; i < size && n < NODES; i++) {
        pb_pyobject *pair = py->tuple_get(next, i), *below = pair ? py->tuple_get(pair, 0) : NULL;
        int again = !below || below == py->none;
        for (int k = 0; k < n && !again; k++)
            again = nodes[k] == below;
        if (again)
            continue;
        py->incref(below);
        nodes[n++] = below;
    }
    if (next)
        py->decref(next);
    py->err_clear();
    return n;
}

/* The node nearest to the loss that tells wins, but one that divides by zero: an infinity may come of it. */
static const char *find_cause(const struct pb_python *py, pb_pyobject *loss)
{
    pb_pyobject *nodes[NODES];
    const char *cause = NULL;
    int n = 0;

    /* A class derived from Tensor may run code of the program for it. */
    pb_pyobject *first = is_named(py, loss, "Tensor") ? py->get_attr(loss, "grad_fn") : NULL;
    py->err_clear();
    if (first)
        nodes[n++] = first;
    for (int i = 0; i < n; i++) {
        const char *found = cause_of_node(py, nodes[i]);
        if (found && (!cause || strcmp(found, "division") == 0))
            cause = found;
        n = add_below(py, nodes[i], nodes, n);
    }
    for (int i = 0; i < n; i++)
        py->decref(nodes[i]);
    return cause ? cause : "unknown";
}

static int is_library(const char *file)
{
    return file[0] == '<' || strstr(file, "/site-packages/") || strstr(file, "/dist-packages/") ||
           strstr(file, "/lib/python3") || strstr(file, "/torch/");
}

/* Takes `of`. */
static pb_pyobject *attribute_of(const struct pb_python *py, pb_pyobject *of, const char *name)
{
    pb_pyobject *found = of ? py->get_attr(of, name) : NULL;

    if (of)
        py->decref(of);
    py->err_clear();
    return found;
}

/* "FILE:LINE FUNCTION" of the program's own code that called backward. */
static void find_place(const struct pb_python *py, char *ret, size_t size)
{
    pb_pyobject *frame = py->eval_frame();

    ret[0] = '\0';
    if (frame)
        py->incref(frame);
    for (int i = 0; frame && frame != py->none && i < FRAMES && !ret[0]; i++) {
        py->incref(frame);
        pb_pyobject *code = attribute_of(py, frame, "f_code");
        pb_pyobject *file = code ? py->get_attr(code, "co_filename") : NULL;
        pb_pyobject *name = code ? py->get_attr(code, "co_name") : NULL;
        pb_pyobject *line = py->get_attr(frame, "f_lineno");
        const char *path = file ? py->utf8_of(file) : NULL, *function = name ? py->utf8_of(name) : NULL;
        if (path && function && line && !is_library(path))
            snprintf(ret, size, "%.300s:%ld %.90s", path, py->int_as(line), function);
        pb_pyobject *all[] = {code, file, name, line};
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            if (all[k])
                py->decref(all[k]);
        py->err_clear();
        frame = attribute_of(py, frame, "f_back");
    }
    if (frame)
        py->decref(frame);
}

void pb_torch_finite_loss(const struct pb_python *py, pb_pyobject *args, struct pb_torch_step_row *row)
{
    struct pb_tensor t;

    pb_pyobject *roots = py->size_of(args) > 0 ? py->tuple_get(args, 0) : NULL;
    pb_pyobject *loss = roots && py->size_of(roots) == 1 ? py->tuple_get(roots, 0) : NULL;
    py->err_clear();
    if (!loss || pb_tensor_read(py, loss, &t) <= 0 || t.count != 1 || !t.data ||
        (strcmp(t.dtype, "float32") != 0 && strcmp(t.dtype, "float64") != 0))
        return;
    row->loss = value_of(&t);
    row->has_loss = 1;
    row->batch_is_bad = f.batch_is_bad;
    f.batch_is_bad = 0;
    int is_bad = !isfinite(row->loss);
    if (is_bad && !f.was_bad) {
        row->loss_cause = row->batch_is_bad ? "data" : find_cause(py, loss);
        find_place(py, row->loss_place, sizeof(row->loss_place));
    }
    f.was_bad = is_bad;
}

void pb_torch_finite_reset(void)
{
    memset(&f, 0, sizeof(f));
}
