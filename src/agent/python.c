/* python: see python.h. */
#include "agent/python.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

/* A libpython that was loaded RTLD_LOCAL (by a plug-in host) is in no global scope: look for it by name. */
static int remember_libpython(struct dl_phdr_info *info, size_t size, void *ret)
{
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "libpython"))
        return 0;
    *(void **)ret = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    return *(void **)ret != NULL;
}

static void *find_library(void)
{
    void *library = NULL;

    if (dlsym(RTLD_DEFAULT, "Py_IsInitialized"))
        return RTLD_DEFAULT;
    dl_iterate_phdr(remember_libpython, &library);
    return library && dlsym(library, "Py_IsInitialized") ? library : NULL;
}

int pb_python_find(struct pb_python *ret, const char **missing)
{
    struct pb_python py = {0};

    py.library = find_library();
    /* RTLD_DEFAULT is a null pointer in both libcs: ask again instead of testing it. */
    if (!dlsym(py.library, "Py_IsInitialized"))
        return -ENOENT;

#define PB_PY_LOAD(type, name, symbol, args)                                                                 \
    *(void **)&py.name = dlsym(py.library, #symbol);                                                         \
    if (!py.name && missing)                                                                                 \
        *missing = #symbol;                                                                                  \
    if (!py.name)                                                                                            \
        return -ENOSYS;
    PB_PY_FUNCTIONS(PB_PY_LOAD)
#undef PB_PY_LOAD

    py.keyboard_interrupt = (pb_pyobject **)dlsym(py.library, "PyExc_KeyboardInterrupt");
    py.none = (pb_pyobject *)dlsym(py.library, "_Py_NoneStruct");
    const char *version = py.get_version();
    if (!py.keyboard_interrupt || !py.none || strncmp(version, "3.", 2) != 0) {
        if (missing)
            *missing = "a Python 3";
        return -ENOSYS;
    }
    py.minor = atoi(version + 2);
    *ret = py;
    return 0;
}

int pb_python_usable(const struct pb_python *py)
{
    if (!py->is_initialized())
        return 0;
    int (*finalizing)(void) = (int (*)(void))dlsym(py->library, "Py_IsFinalizing"); /* 3.13 */
    if (!finalizing)
        finalizing = (int (*)(void))dlsym(py->library, "_Py_IsFinalizing"); /* 3.7 */
    if (finalizing)
        return !finalizing();
    void **tstate = (void **)dlsym(py->library, "_Py_Finalizing"); /* 3.6 */
    return !tstate || !*tstate;
}
