/* Any bytes at all as an environment block, from which rank, job and settings of a process are read: it comes
 * from the memory of an unknown process. */
#include "control/identity.h"
#include "control/settings.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The same bytes as a block, and as the file that an agent kept. What comes of them can be kept again. */
static void try_settings(const char *data, size_t size)
{
    char file[PB_SETTINGS_FILE_SIZE], text[PB_SETTINGS_FILE_SIZE];
    struct pb_settings s, back;

    pb_settings_init(&s, data, size);
    size_t n = size < sizeof(file) ? size : sizeof(file) - 1;
    memcpy(file, data, n);
    file[n] = '\0';
    pb_settings_read(&s, file);
    if (pb_settings_write(&s, text, sizeof(text)) >= sizeof(text))
        abort();
    pb_settings_init(&back, "", 0);
    pb_settings_read(&back, text);
    for (int i = 0; i < PB_SETTINGS; i++)
        if (strcmp(s.at[i].text, back.at[i].text) != 0 || s.at[i].number != back.at[i].number)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_identity id;

    pb_identity_read((const char *)data, size, &id);
    for (int i = 0; i < PB_ID_FIELDS; i++)
        if (strnlen(id.value[i], sizeof(id.value[i])) == sizeof(id.value[i]))
            abort();
    try_settings((const char *)data, size);
    return id.launcher == NULL;
}
