/* torch_finite: the loss of each backward, whether the batch was finite, and of the first loss that is not,
 * where it comes from.
 *
 * Values are read by layout (tensor.h), of tensors in the CPU's memory: those on a GPU would have to be
 * waited for. Once, when the loss stops being finite, the graph below it is walked by the attributes of its
 * nodes, which are torch's own C code: a division by zero and an overflow show in what the nodes keep for the
 * backward. What they keep is read by layout too: torch would call hooks of the program, and checkpointing
 * would compute its forward again. */
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"
#include "agent/python/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ALL_UP_TO = 1 << 14, /* elements of a batch or of what a node keeps: more are looked at by samples */
    SAMPLES = 1024,
    NODES = 64,
    FRAMES = 64,
};

static struct {
    enum pb_torch_batch batch; /* of the step so far: the worst that was seen */
    int was_bad;
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

/* A loop for each size: it runs in each step. */
#define LOOK(bits_type)                                                                                      \
    do {                                                                                                     \
        const bits_type *p = (const bits_type *)(const void *)t->data;                                       \
        const bits_type exponent = (bits_type)bits->exponent;                                                \
        for (int64_t i = 0; i < n; i++)                                                                      \
            bad |= (p[i * step] & exponent) == exponent;                                                     \
    } while (0)

static enum pb_torch_batch judge_batch(const struct pb_tensor *t)
{
    const struct float_bits *bits = bits_of(t);
    int bad = 0;

    if (!bits)
        return strncmp(t->dtype, "float", 5) == 0 || strncmp(t->dtype, "complex", 7) == 0
                   ? PB_TORCH_BATCH_UNKNOWN
                   : PB_TORCH_BATCH_FINITE;
    if (!t->data || !t->is_dense || !is_contiguous(t) || (uintptr_t)t->data % (unsigned)t->size)
        return PB_TORCH_BATCH_UNKNOWN;
    int64_t step = t->count <= ALL_UP_TO ? 1 : t->count / SAMPLES, n = t->count / step;
    switch (t->size) {
    case 2:
        LOOK(uint16_t);
        break;
    case 4:
        LOOK(uint32_t);
        break;
    default:
        LOOK(uint64_t);
    }
    return bad ? PB_TORCH_BATCH_BAD : step > 1 ? PB_TORCH_BATCH_UNKNOWN : PB_TORCH_BATCH_FINITE;
}

void pb_torch_finite_batch(const struct pb_python *py, pb_pyobject *object)
{
    struct pb_tensor t;
    enum pb_torch_batch found = pb_tensor_read(py, object, &t) > 0 ? judge_batch(&t) : PB_TORCH_BATCH_UNKNOWN;

    if (found > f.batch)
        f.batch = found;
}

/* --- where it comes from --- */

/* Whether the tensor that a node keeps under that name has such a value. */
static int keeps(const struct pb_python *py, pb_pyobject *node, const char *name, int zero)
{
    struct kinds_of_values kinds = {0};
    struct pb_tensor t;

    pb_pyobject *saved = py->get_attr(node, name);
    int is = saved && pb_tensor_saved(py, saved, &t) > 0 && look_at_values(&t, &kinds) &&
             (zero ? kinds.zero : kinds.infinite);
    if (saved)
        py->decref(saved);
    py->err_clear();
    return is;
}

/* What nodes do, by what they keep. */
static const struct {
    const char *node, *name, *cause;
} causes[] = {
    {"DivBackward", "_raw_saved_other", "division"},  {"ExpBackward", "_raw_saved_result", "overflow"},
    {"PowBackward", "_raw_saved_result", "overflow"}, {"PowBackward", "_raw_saved_self", "overflow"},
    {"CoshBackward", "_raw_saved_self", "overflow"},  {"SinhBackward", "_raw_saved_self", "overflow"},
    {"LogBackward", "_raw_saved_self", "overflow"},   {"MulBackward", "_raw_saved_self", "overflow"},
    {"MulBackward", "_raw_saved_other", "overflow"},  {"SqrtBackward", "_raw_saved_result", "overflow"},
};

/* NULL: nothing is known. */
static const char *cause_of_node(const struct pb_python *py, pb_pyobject *node)
{
    pb_pyobject *text =
        py->get_attr((pb_pyobject *)(uintptr_t)pb_type_of(node, pb_module_header(py)), "__name__");
    const char *name = text ? py->utf8_of(text) : NULL, *cause = NULL;

    for (size_t i = 0; name && !cause && i < sizeof(causes) / sizeof(causes[0]); i++)
        if (strncmp(name, causes[i].node, strlen(causes[i].node)) == 0 &&
            keeps(py, node, causes[i].name, causes[i].cause[0] == 'd'))
            cause = causes[i].cause;
    if (text)
        py->decref(text);
    py->err_clear();
    return cause;
}

/* A node of C++; those in Python (torch.autograd.Function) are classes of the program. */
static int is_of_torch(const struct pb_python *py, pb_pyobject *node, pb_pyobject *in_python)
{
    return !py->type_is_subtype(pb_type_of(node, pb_module_header(py)), in_python);
}

/* Adds the nodes below it. Each in `nodes` is a reference of ours. */
static int add_below(const struct pb_python *py, pb_pyobject *in_python, pb_pyobject **nodes, int n, int of)
{
    pb_pyobject *next = py->get_attr(nodes[of], "next_functions");
    long size = next ? py->size_of(next) : 0;

    for (long i = 0; i < size && n < NODES; i++) {
        pb_pyobject *pair = py->tuple_get(next, i), *below = pair ? py->tuple_get(pair, 0) : NULL;
        int again = !below || below == py->none || !is_of_torch(py, below, in_python);
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

/* Calls a method without arguments, or with three None. */
static void call_method(const struct pb_python *py, pb_pyobject *object, const char *name, int with_none)
{
    pb_pyobject *method = py->get_attr(object, name), *none = with_none ? py->none : NULL;
    pb_pyobject *done = method ? py->call(method, none, none, none, (void *)NULL) : NULL;

    if (done)
        py->decref(done);
    if (method)
        py->decref(method);
    py->err_clear();
}

/* The node that made the loss: a new reference. The program's modes of torch functions do not see that it is
 * asked for; torch's guard against them is code in C. */
static pb_pyobject *node_of(const struct pb_python *py, pb_pyobject *loss)
{
    pb_pyobject *kind = pb_imported(py, "torch._C", "DisableTorchFunction");
    pb_pyobject *guard = kind && pb_tensor_is_plain(py, loss) ? py->call(kind, (void *)NULL) : NULL;
    pb_pyobject *node = NULL;

    if (guard) {
        call_method(py, guard, "__enter__", 0);
        node = py->get_attr(loss, "grad_fn");
        py->err_clear();
        call_method(py, guard, "__exit__", 1);
        py->decref(guard);
    }
    if (kind)
        py->decref(kind);
    py->err_clear();
    return node;
}

/* The node nearest to the loss that tells wins, but one that divides by zero: an infinity may come of it. */
static const char *find_cause(const struct pb_python *py, pb_pyobject *loss)
{
    pb_pyobject *nodes[NODES], *in_python = pb_imported(py, "torch._C", "_FunctionBase");
    const char *cause = NULL;
    int n = 0;

    pb_pyobject *first = in_python ? node_of(py, loss) : NULL;
    if (first && first != py->none && is_of_torch(py, first, in_python))
        nodes[n++] = first;
    else if (first)
        py->decref(first);
    for (int i = 0; i < n; i++) {
        const char *found = cause_of_node(py, nodes[i]);
        if (found && (!cause || strcmp(found, "division") == 0))
            cause = found;
        n = add_below(py, in_python, nodes, n, i);
    }
    for (int i = 0; i < n; i++)
        py->decref(nodes[i]);
    if (in_python)
        py->decref(in_python);
    py->err_clear();
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
    row->batch = f.batch;
    f.batch = PB_TORCH_BATCH_NONE;
    int is_bad = !isfinite(row->loss);
    if (is_bad && !f.was_bad) {
        row->loss_cause = row->batch == PB_TORCH_BATCH_BAD ? "data" : find_cause(py, loss);
        find_place(py, row->loss_place, sizeof(row->loss_place));
    }
    f.was_bad = is_bad;
}

void pb_torch_finite_reset(void)
{
    memset(&f, 0, sizeof(f));
}
