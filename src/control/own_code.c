/* own_code: see own_code.h. */
#include "control/own_code.h"

#include <stddef.h>
#include <string.h>

bool pb_is_library_file(const char *file)
{
    static const char *const folders[] = {"/site-packages/", "/dist-packages/", "/lib/python3",
                                          "/lib64/python3"};

    if (strncmp(file, "<frozen ", 8) == 0 || strncmp(file, "<probing>", 9) == 0)
        return true;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (strstr(file, folders[i]))
            return true;
    return false;
}
