/* Any bytes at all as an environment block: it comes from the memory of a process we know nothing of. */
#include "control/identity.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_identity id;

    pb_identity_read((const char *)data, size, &id);
    for (int i = 0; i < PB_ID_FIELDS; i++)
        if (strnlen(id.value[i], sizeof(id.value[i])) == sizeof(id.value[i]))
            abort();
    return id.launcher == NULL;
}
