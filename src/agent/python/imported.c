/* imported: see imported.h. */
#include "agent/python/imported.h"

#include <string.h>

#define NAME_SIZE 128

/* Borrowed; NULL: there is no such module, or something else in its place. */
static pb_pyobject *find_names(const struct pb_python *py, const char *module)
{
    pb_pyobject *found = py->dict_get(py->modules_dict(), module);
    pb_pyobject *names = found ? py->module_dict(found) : NULL;

    py->err_clear();
    return names;
}

/* Its import has finished. Python marks a running import in the module's spec. */
static int has_ended(const struct pb_python *py, pb_pyobject *names)
{
    pb_pyobject *spec = py->dict_get(names, "__spec__");
    pb_pyobject *initializing = spec ? pb_own_field(py, spec, "_initializing") : NULL;
    int ended = initializing != py->true_object;

    if (initializing)
        py->decref(initializing);
    return ended;
}

int pb_is_imported(const struct pb_python *py, const char *module)
{
    char package[NAME_SIZE];
    size_t length = strcspn(module, ".");

    pb_pyobject *names = find_names(py, module);
    if (!names || !has_ended(py, names))
        return 0;
    if (!module[length] || length >= sizeof(package))
        return 1;
    memcpy(package, module, length);
    package[length] = '\0';
    return pb_is_imported(py, package);
}

pb_pyobject *pb_imported(const struct pb_python *py, const char *module, const char *name)
{
    pb_pyobject *names = pb_is_imported(py, module) ? find_names(py, module) : NULL;
    pb_pyobject *found = names ? py->dict_get(names, name) : NULL;

    if (found)
        py->incref(found);
    return found;
}

pb_pyobject *pb_own_fields(const struct pb_python *py, pb_pyobject *object)
{
    pb_pyobject *fields = py->instance_dict(object, NULL);

    py->err_clear();
    return fields;
}

pb_pyobject *pb_own_field(const struct pb_python *py, pb_pyobject *object, const char *name)
{
    pb_pyobject *fields = pb_own_fields(py, object);
    pb_pyobject *found = fields ? py->dict_get(fields, name) : NULL;

    if (found)
        py->incref(found);
    if (fields)
        py->decref(fields);
    return found;
}
