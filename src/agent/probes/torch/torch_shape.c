/* torch_shape: the shapes and types of a module's arguments, as a text: "float32[8,16,64]".
 *
 * Tensors are read by layout (tensor.h): asking one for its shape has side effects, since torch.jit.trace
 * records it into the graph, and a mode of torch functions or a subclass may run any code. */
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/tensor.h"
#include "table/clock.h"

#include <stdio.h>
#include <string.h>

#define MOST_TENSORS 3
#define MOST_DIMS    8

struct pb_torch_occasion pb_torch_shapes_occasion = {.least = 16, .most = 256, .first = 16};

static int read_tensor(const struct pb_python *py, pb_pyobject *object, struct pb_tensor *ret)
{
    return pb_tensor_read(py, object, ret) > 0 && ret->dims <= MOST_DIMS;
}

static size_t put_tensor(const struct pb_tensor *t, char *ret, size_t size)
{
    size_t len = (size_t)snprintf(ret, size, "%s[", t->dtype);

    for (int i = 0; i < t->dims && len < size; i++)
        len += (size_t)snprintf(ret + len, size - len, "%s%lld", i ? "," : "", (long long)t->sizes[i]);
    len += len < size ? (size_t)snprintf(ret + len, size - len, "]") : 0;
    return len < size ? len : 0;
}

/* The nth argument, by position and then by name: borrowed; NULL: there is none. keys: of the latter. */
static pb_pyobject *argument(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords,
                             pb_pyobject *keys, long n)
{
    long given = py->size_of(args);

    if (n < given)
        return py->tuple_get(args, n);
    n -= given;
    pb_pyobject *key = keys && n < py->list_size(keys) ? py->list_get(keys, n) : NULL;
    return key ? py->dict_get_object(keywords, key) : NULL;
}

static size_t put_shapes(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords, char *ret,
                         size_t size)
{
    size_t len = 0;
    int tensors = 0;
    struct pb_tensor t;

    ret[0] = '\0';
    pb_pyobject *keys = keywords ? py->mapping_keys(keywords) : NULL, *object;
    for (long i = 0; tensors < MOST_TENSORS && (object = argument(py, args, keywords, keys, i)); i++) {
        if (len + 100 > size || !read_tensor(py, object, &t))
            continue;
        size_t comma = len ? 1 : 0;
        size_t n = put_tensor(&t, ret + len + comma, size - len - comma);
        if (n == 0)
            continue;
        if (comma)
            ret[len] = ',';
        len += comma + n;
        tensors++;
    }
    if (keys)
        py->decref(keys);
    py->err_clear();
    ret[len] = '\0';
    return len;
}

size_t pb_torch_shapes(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords, char *ret,
                       size_t size)
{
    int64_t begun = pb_clock_mono();
    size_t length = put_shapes(py, args, keywords, ret, size);

    pb_torch_shapes_occasion.spent += pb_clock_mono() - begun;
    return length;
}

void pb_torch_batch(const struct pb_python *py, pb_pyobject *args, pb_pyobject *keywords, int64_t *samples,
                    int64_t *tokens)
{
    struct pb_tensor t;

    *samples = *tokens = 0;
    pb_pyobject *keys = keywords ? py->mapping_keys(keywords) : NULL, *object;
    for (long i = 0; (object = argument(py, args, keywords, keys, i)); i++) {
        if (!read_tensor(py, object, &t) || t.dims < 1)
            continue;
        *samples = t.sizes[0];
        pb_torch_finite_batch(py, object);
        if (t.dims == 2 && (strncmp(t.dtype, "int", 3) == 0 || strncmp(t.dtype, "uint", 4) == 0))
            *tokens = t.sizes[0] * t.sizes[1];
        break;
    }
    if (keys)
        py->decref(keys);
    py->err_clear();
}
