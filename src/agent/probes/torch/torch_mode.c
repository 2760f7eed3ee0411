/* torch_mode: what a call of a module is part of: whether autograd records it, whether a backward runs around
 * it, whether the module is in training, and which module is within wrappers such as DistributedDataParallel.
 *
 * The first two are words of the thread in torch's own libraries, read by plain functions of C++ that take
 * nothing and return a number. Fields of modules are read from their dicts: no code of the program runs. */
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#define MOST_WRAPPERS 8

static bool (*grad_is_enabled)(void);
static int (*graph_task)(void);

static void find(const char *library, const char *symbol, void *ret, size_t size)
{
    void *object = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *found = object ? dlsym(object, symbol) : NULL;

    memcpy(ret, &found, size);
    if (object)
        dlclose(object);
}

void pb_torch_mode_put(const struct pb_python *py)
{
    (void)py;
    if (!grad_is_enabled)
        find("libc10.so", "_ZN3c108GradMode10is_enabledEv", &grad_is_enabled, sizeof(grad_is_enabled));
    if (!graph_task)
        find("libtorch_cpu.so", "_ZN5torch8autograd25get_current_graph_task_idEv", &graph_task,
             sizeof(graph_task));
}

int pb_torch_is_recorded(void)
{
    return !grad_is_enabled || grad_is_enabled();
}

int pb_torch_in_backward(void)
{
    return graph_task && graph_task() >= 0;
}

int pb_torch_trains(const struct pb_python *py, pb_pyobject *module)
{
    pb_pyobject *flag = pb_own_field(py, module, "training");
    int trains = flag == py->true_object ? 1 : flag == py->false_object ? 0 : -1;

    py->err_clear();
    if (flag)
        py->decref(flag);
    return trains;
}

/* --- wrappers -------------------------------------------------------------------------------------- */

/* A class whose name begins so keeps the program's module under that name; `then`: under that one within
 * it. */
static const struct {
    const char *class, *child, *then;
} wrappers[] = {
    {"DistributedDataParallel", "module", NULL},
    {"DataParallel", "module", NULL},
    {"DeepSpeedEngine", "module", NULL},
    {"OptimizedModule", "_orig_mod", NULL},
    {"FullyShardedDataParallel", "_fsdp_wrapped_module", NULL},
    {"CheckpointWrapper", "_checkpoint_wrapped_module", NULL},
    {"_FabricModule", "_forward_module", NULL},
    {"PeftModel", "base_model", "model"},
};

static const char *class_of(const struct pb_python *py, pb_pyobject *module)
{
    const unsigned header = pb_module_header(py);

    return pb_class_name(pb_type_of(module, header), header);
}

const char *pb_torch_wrapped(const struct pb_python *py, pb_pyobject *module, const char **then)
{
    const char *name = class_of(py, module);

    *then = NULL;
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++)
        if (strncmp(name, wrappers[i].class, strlen(wrappers[i].class)) == 0) {
            *then = wrappers[i].then;
            return wrappers[i].child;
        }
    return NULL;
}

/* Borrowed: it lives as long as the module around it. NULL: there is none. */
static pb_pyobject *child_of(const struct pb_python *py, pb_pyobject *module, const char *name)
{
    pb_pyobject *children = pb_own_field(py, module, "_modules");
    pb_pyobject *child = children ? py->dict_get(children, name) : NULL;

    py->err_clear();
    if (children)
        py->decref(children);
    return child == py->none ? NULL : child;
}

pb_pyobject *pb_torch_unwrap(const struct pb_python *py, pb_pyobject *module)
{
    for (int i = 0; i < MOST_WRAPPERS; i++) {
        const char *then, *name = pb_torch_wrapped(py, module, &then);
        pb_pyobject *inner = name ? child_of(py, module, name) : NULL;
        if (inner && then)
            inner = child_of(py, inner, then);
        if (!inner)
            break;
        module = inner;
    }
    return module;
}
