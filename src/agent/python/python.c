/* python: see python.h. */
#include "agent/python/python.h"

#include "agent/core/fork_gate.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#define PATH_SIZE 1024

/* A libpython that was loaded RTLD_LOCAL (by a plug-in host) is in no global scope: it is found by name. The
 * loader holds a lock during the iteration that dlopen takes after another one, so the library is opened
 * afterwards. */
static int remember_libpython(struct dl_phdr_info *info, size_t size, void *ret)
{
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "libpython") || strlen(info->dlpi_name) >= PATH_SIZE)
        return 0;
    memcpy(ret, info->dlpi_name, strlen(info->dlpi_name) + 1);
    return 1;
}

static void *find_library(void)
{
    char name[PATH_SIZE] = "";

    if (dlsym(RTLD_DEFAULT, "Py_IsInitialized"))
        return RTLD_DEFAULT;
    pb_fork_gate_each_object(remember_libpython, name);
    void *library = name[0] ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return library && dlsym(library, "Py_IsInitialized") ? library : NULL;
}

static int look_up(struct pb_python *ret, const char **missing)
{
    struct pb_python py = {0};
    void *library = find_library();

    /* RTLD_DEFAULT is a null pointer in both libcs: look up again instead of testing it. */
    if (!dlsym(library, "Py_IsInitialized"))
        return -ENOENT;

#define PB_PY_LOAD(type, name, symbol, args)                                                                 \
    *(void **)&py.name = dlsym(library, #symbol);                                                            \
    if (!py.name) {                                                                                          \
        *missing = #symbol;                                                                                  \
        return -ENOSYS;                                                                                      \
    }
    PB_PY_FUNCTIONS(PB_PY_LOAD)
#undef PB_PY_LOAD

    const char *version = py.get_version();
    *missing = "what a Python 3 has";
    if (strncmp(version, "3.", 2) != 0)
        return -ENOSYS;
    char *rest;
    py.minor = (int)strtol(version + 2, &rest, 10);
    py.micro = *rest == '.' ? (int)strtol(rest + 1, NULL, 10) : 0;
    py.free_threaded = strstr(version, "free-threading") != NULL;
#define PB_PY_LOAD_OPTIONAL(type, name, symbol, args, from, to)                                              \
    *(void **)&py.name = py.minor >= (from) && py.minor <= (to) ? dlsym(library, #symbol) : NULL;
    PB_PY_OPTIONAL(PB_PY_LOAD_OPTIONAL)
#undef PB_PY_LOAD_OPTIONAL

    py.keyboard_interrupt = (pb_pyobject **)dlsym(library, "PyExc_KeyboardInterrupt");
    py.key_error = (pb_pyobject **)dlsym(library, "PyExc_KeyError");
    py.type_error = (pb_pyobject **)dlsym(library, "PyExc_TypeError");
    py.value_error = (pb_pyobject **)dlsym(library, "PyExc_ValueError");
    py.import_error = (pb_pyobject **)dlsym(library, "PyExc_ImportError");
    py.runtime_error = (pb_pyobject **)dlsym(library, "PyExc_RuntimeError");
    py.none = (pb_pyobject *)dlsym(library, "_Py_NoneStruct");
    py.true_object = (pb_pyobject *)dlsym(library, "_Py_TrueStruct");
    py.false_object = (pb_pyobject *)dlsym(library, "_Py_FalseStruct");
    py.object_type = (pb_pyobject *)dlsym(library, "PyBaseObject_Type");
    py.int_type = (pb_pyobject *)dlsym(library, "PyLong_Type");
    py.float_type = (pb_pyobject *)dlsym(library, "PyFloat_Type");
    py.str_type = (pb_pyobject *)dlsym(library, "PyUnicode_Type");
    py.bytes_type = (pb_pyobject *)dlsym(library, "PyBytes_Type");
    py.tuple_type = dlsym(library, "PyTuple_Type");
    py.cell_type = dlsym(library, "PyCell_Type");
    py.code_type = dlsym(library, "PyCode_Type");
    py.finalizing_tstate = py.minor <= 6 ? (void **)dlsym(library, "_Py_Finalizing") : NULL;
    py.runtime = py.minor == 8 ? dlsym(library, "_PyRuntime") : NULL;
    if (!py.keyboard_interrupt || !py.key_error || !py.type_error || !py.value_error || !py.import_error ||
        !py.runtime_error || !py.none || !py.true_object || !py.false_object || !py.object_type ||
        !py.int_type || !py.float_type || !py.str_type || !py.bytes_type)
        return -ENOSYS;
    *ret = py;
    return 0;
}

/* Found once: 0 not yet, 1 being written, 2 found. */
static struct pb_python found;
static int found_state;

int pb_python_known(struct pb_python *ret)
{
    if (__atomic_load_n(&found_state, __ATOMIC_ACQUIRE) != 2)
        return -ENOENT;
    *ret = found;
    return 0;
}

const struct pb_python *pb_python_here(void)
{
    return __atomic_load_n(&found_state, __ATOMIC_ACQUIRE) == 2 ? &found : NULL;
}

int pb_python_find(struct pb_python *ret, const char **missing)
{
    const char *ignored;
    struct pb_python py;
    int none = 0;

    if (pb_python_known(ret) == 0)
        return 0;
    int r = look_up(&py, missing ? missing : &ignored);
    if (r < 0)
        return r;
    if (__atomic_compare_exchange_n(&found_state, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        found = py;
        __atomic_store_n(&found_state, 2, __ATOMIC_RELEASE);
    }
    *ret = py;
    return 0;
}

int pb_python_usable(const struct pb_python *py)
{
    if (!py->is_initialized())
        return 0;
    if (py->is_finalizing)
        return !py->is_finalizing();
    if (py->is_finalizing_private)
        return !py->is_finalizing_private();
    return !py->finalizing_tstate || !*py->finalizing_tstate;
}
