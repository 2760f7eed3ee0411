/* duck: see duck.h. */
#include "engine/worker/duck.h"

#include "base/err.h"
#include "base/program.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATH_SIZE 512

struct pb_duck duck;

/* The library of PREFIX/bin/probing-sql is PREFIX/lib/probing/libduckdb.so. */
static int own_library(char ret[PATH_SIZE])
{
    char prefix[PATH_SIZE - 64];

    int r = pb_program_prefix(prefix, sizeof(prefix));
    if (r < 0)
        return r;
    snprintf(ret, PATH_SIZE, "%s/lib/probing/libduckdb.so", prefix);
    return access(ret, R_OK) < 0 ? -errno : 0;
}

static int resolve_functions(void *library, struct pb_err *err)
{
#define RESOLVE(name)                                                                                        \
    *(void **)&duck.name = dlsym(library, "duckdb_" #name);                                                  \
    if (!duck.name)                                                                                          \
        return pb_fail(err, -EPROTONOSUPPORT, "libduckdb.so has no duckdb_" #name);
    PB_DUCK_FUNCTIONS(RESOLVE)
    return 0;
}

int pb_duck_load(struct pb_err *err)
{
    char path[PATH_SIZE];

    void *library = dlopen(own_library(path) == 0 ? path : "libduckdb.so", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return pb_fail(err, -ENOENT, "DuckDB cannot be loaded: %s (this installation is incomplete)",
                       dlerror());
    int r = resolve_functions(library, err);
    if (r < 0)
        return r;
    const char *version = duck.library_version();
    if (strncmp(version, "v1.5.", 5) != 0)
        return pb_fail(err, -EPROTONOSUPPORT, "libduckdb.so is version %s; 1.5 is needed", version);
    return 0;
}
