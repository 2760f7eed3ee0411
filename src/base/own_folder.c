/* own_folder: see own_folder.h. */
#include "base/own_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void pb_own_folder_path(const char *name, const char *fallback, char *ret, size_t size)
{
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");

    if (runtime && runtime[0] == '/')
        snprintf(ret, size, "%s/%s", runtime, name);
    else
        snprintf(ret, size, "/tmp/%s-%u", fallback, (unsigned)geteuid());
}
