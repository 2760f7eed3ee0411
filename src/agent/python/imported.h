/* imported: what the program's modules and objects have, read without code of the program.
 *
 * An attribute that a module lacks is asked of its own __getattr__, and a class may have a __getattribute__:
 * both would run in our thread, perhaps in the middle of an import that holds locks. So the dicts are read.
 * With the GIL; no exception is left. */
#pragma once

#include "agent/python/python.h"

/* Whether the module is there and no import of it, or of the package it is in, is under way. */
int pb_is_imported(const struct pb_python *py, const char *module);

/* Its attribute, if it is imported like this: a new reference, or NULL. Imports nothing. */
pb_pyobject *pb_imported(const struct pb_python *py, const char *module, const char *name);

/* The dict of an object's own attributes: a new reference, or NULL. */
pb_pyobject *pb_own_fields(const struct pb_python *py, pb_pyobject *object);

/* One of them: a new reference, or NULL. */
pb_pyobject *pb_own_field(const struct pb_python *py, pb_pyobject *object, const char *name);
