/* torch_shape: the shapes and types of a module's arguments, as a text: "float32[8,16,64]".
 *
 * Reading a tensor's shape has side effects: torch.jit.trace records it into the graph, and a torch function
 * mode or a subclass may run any code. So only plain tensors and parameters are read, and only without a
 * trace and such modes. Sizes that are not int (symbolic ones) are not read, since that would fix them.
 *
 * The sizes of a batch are read in every step. What can be kept from one to the next is: the names of
 * attributes (a new text is unknown to the interpreter's cache of attributes), and the types. */
#include "agent/imported.h"
#include "agent/module.h"
#include "agent/probes/torch.h"
#include "table/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define MOST_TENSORS 3
#define MOST_DIMS    8
#define TYPES        16

static pb_pyobject *tensor_type, *parameter_type, *tracing_state, *modes;
static pb_pyobject *shape_name, *dtype_name;
/* The same two questions asked of torch's C++ code; NULL: not where its ABI is not known. */
static int64_t (*count_modes)(void);
static void *const *(*tracing_pointer)(void); /* to a std::shared_ptr */
static struct dtype {
    const pb_pyobject *type; /* of torch, which keeps them for good */
    char name[24];
} dtypes[TYPES];

struct pb_torch_occasion pb_torch_shapes_occasion = {.least = 16, .most = 256, .first = 16};

/* Kept for good: types and functions of torch live as long as the process. */
void pb_torch_shapes_begin(const struct pb_python *py)
{
    tensor_type = tensor_type ? tensor_type : pb_imported(py, "torch", "Tensor");
    parameter_type = parameter_type ? parameter_type : pb_imported(py, "torch.nn.parameter", "Parameter");
    tracing_state = tracing_state ? tracing_state : pb_imported(py, "torch._C", "_get_tracing_state");
    modes = modes ? modes : pb_imported(py, "torch._C", "_len_torch_function_stack");
    shape_name = shape_name ? shape_name : py->str_from_utf8("shape", 5, NULL);
    dtype_name = dtype_name ? dtype_name : py->str_from_utf8("dtype", 5, NULL);
    if (count_modes || !pb_torch_observers_known(py))
        return;
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *count = torch ? dlsym(torch, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv") : NULL;
    void *tracing = count ? dlsym(torch, "_ZN5torch3jit6tracer15getTracingStateEv") : NULL;
    if (torch)
        dlclose(torch);
    if (!tracing)
        return;
    memcpy(&tracing_pointer, &tracing, sizeof(tracing));
    memcpy(&count_modes, &count, sizeof(count));
}

static int is_plain(const struct pb_python *py, pb_pyobject *object)
{
    pb_pyobject *type = pb_type_of(object, pb_module_header(py));
    return type == tensor_type || type == parameter_type;
}

static int may_ask(const struct pb_python *py)
{
    if (!tensor_type || !tracing_state || !modes || !shape_name || !dtype_name)
        return 0;
    if (count_modes)
        return !*tracing_pointer() && count_modes() == 0;
    pb_pyobject *state = py->call(tracing_state, (void *)NULL), *n = py->call(modes, (void *)NULL);
    int may = state == py->none && n && py->int_as(n) == 0;
    if (state)
        py->decref(state);
    if (n)
        py->decref(n);
    py->err_clear();
    return may;
}

/* The sizes of a plain tensor; their number, or -1. */
static int read_shape(const struct pb_python *py, pb_pyobject *tensor, int64_t sizes[MOST_DIMS])
{
    pb_pyobject *shape = py->get_attr_object(tensor, shape_name);
    long n = shape ? py->size_of(shape) : -1;

    for (long i = 0; i < n && i < MOST_DIMS; i++) {
        pb_pyobject *size = py->tuple_get(shape, i);
        if (!size || pb_type_of(size, pb_module_header(py)) != py->int_type) {
            n = -1;
            break;
        }
        sizes[i] = (int64_t)py->int64_as(size);
    }
    if (shape)
        py->decref(shape);
    py->err_clear();
    return n > MOST_DIMS ? -1 : (int)n;
}

/* "float32". NULL: it has none. */
static const char *read_type(const struct pb_python *py, pb_pyobject *tensor)
{
    pb_pyobject *type = py->get_attr_object(tensor, dtype_name);
    int i = 0;

    while (i < TYPES - 1 && dtypes[i].type && dtypes[i].type != type)
        i++; /* the last entry is that of all that have no room */
    if (type && dtypes[i].type != type) {
        pb_pyobject *text = py->repr_of(type);
        const char *name = text ? py->utf8_of(text) : NULL;
        name = name && strncmp(name, "torch.", 6) == 0 ? name + 6 : "?";
        dtypes[i].type = type;
        snprintf(dtypes[i].name, sizeof(dtypes[i].name), "%.20s", name);
        if (text)
            py->decref(text);
    }
    if (type)
        py->decref(type);
    py->err_clear();
    return type ? dtypes[i].name : NULL;
}

static size_t put_tensor(const struct pb_python *py, pb_pyobject *tensor, char *ret, size_t size)
{
    int64_t sizes[MOST_DIMS];
    int n = read_shape(py, tensor, sizes);
    const char *type = n < 0 ? NULL : read_type(py, tensor);

    if (!type)
        return 0;
    size_t len = (size_t)snprintf(ret, size, "%s[", type);
    for (int i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(ret + len, size - len, "%s%lld", i ? "," : "", (long long)sizes[i]);
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

    ret[0] = '\0';
    if (!may_ask(py))
        return 0;
    pb_pyobject *keys = keywords ? py->mapping_keys(keywords) : NULL, *object;
    for (long i = 0; tensors < MOST_TENSORS && (object = argument(py, args, keywords, keys, i)); i++) {
        if (!is_plain(py, object) || len + 100 > size)
            continue;
        size_t comma = len ? 1 : 0;
        size_t n = put_tensor(py, object, ret + len + comma, size - len - comma);
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
    int64_t sizes[MOST_DIMS];

    *samples = *tokens = 0;
    if (!may_ask(py))
        return;
    pb_pyobject *keys = keywords ? py->mapping_keys(keywords) : NULL, *object;
    for (long i = 0; (object = argument(py, args, keywords, keys, i)); i++) {
        int n = is_plain(py, object) ? read_shape(py, object, sizes) : -1;
        if (n < 1)
            continue;
        *samples = sizes[0];
        const char *type = n == 2 ? read_type(py, object) : NULL;
        if (type && (strncmp(type, "int", 3) == 0 || strncmp(type, "uint", 4) == 0))
            *tokens = sizes[0] * sizes[1];
        break;
    }
    if (keys)
        py->decref(keys);
    py->err_clear();
}
