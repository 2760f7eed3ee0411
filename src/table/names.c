/* names: see names.h. */
#include "table/names.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#define COLUMN_SIZE 48

static size_t plain_length(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    return text[0] >= '0' && text[0] <= '9' ? 0 : strspn(text, letters);
}

bool pb_name_is_table(const char *full)
{
    static const char *const reserved[] = {"information_schema", "pg_catalog", "temp", "memory", "main"};
    size_t n = plain_length(full), schema = 0;

    if (strcmp(full, PB_NAME_ARCHIVE) == 0)
        return false;
    if (n && full[n] == '.') {
        schema = n;
        n = plain_length(full + schema + 1);
        for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
            if (strlen(reserved[i]) == schema && strncasecmp(full, reserved[i], schema) == 0)
                return false;
        full += schema + 1;
    }
    return n && !full[n] && n + (schema ? schema + 1 : 0) < PB_NAME_SIZE;
}

bool pb_name_is_column(const char *name)
{
    size_t n = plain_length(name);
    return n && !name[n] && n < COLUMN_SIZE;
}
