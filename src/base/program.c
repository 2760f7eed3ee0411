/* program: see program.h. */
#include "base/program.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int pb_program_path(char *ret, size_t size)
{
    ssize_t n = readlink(PB_PROGRAM_SELF, ret, size);

    if (n <= 0 || (size_t)n == size)
        return n < 0 ? -errno : n == 0 ? -ENOENT : -ENAMETOOLONG;
    ret[n] = '\0';
    return 0;
}

int pb_program_beside(const char *name, char *ret, size_t size)
{
    int r = pb_program_path(ret, size);
    char *slash = r < 0 ? NULL : strrchr(ret, '/');

    if (!slash)
        return r < 0 ? r : -ENOENT;
    if ((size_t)(slash + 1 - ret) + strlen(name) >= size)
        return -ENAMETOOLONG;
    strcpy(slash + 1, name);
    return 0;
}

int pb_program_prefix(char *ret, size_t size)
{
    int r = pb_program_path(ret, size);

    for (int up = 0; r == 0 && up < 2; up++) {
        char *slash = strrchr(ret, '/');
        if (!slash)
            return -ENOENT;
        *slash = '\0';
    }
    return r;
}
