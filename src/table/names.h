/* names: the one rule for names of tables and columns, used by recorder, catalog and archive: a name that one
 * of them accepts, all accept. */
#pragma once

#include <stdbool.h>

#define PB_NAME_SIZE 64 /* of a table's whole name, with NUL: as an arena has it */

/* The archive's own records lie under this name, beside the tables. */
#define PB_NAME_ARCHIVE "_probing"

/* NAME or SCHEMA.NAME, of ASCII letters, digits and underscores, up to 63 bytes in all, not beginning with a
 * digit; no schema of the database's own, and not the archive's own name. */
bool pb_name_is_table(const char *full);

/* A name for a column that a program makes: as a part of a table's name, up to 47 bytes. (Columns in an
 * arena may have any name; the readers show and keep what is UTF-8.) */
bool pb_name_is_column(const char *name);

/* Whether two names are the same: as in SQL, case does not count. Not strcasecmp, which depends on the
 * program's locale. Signal-safe. */
static inline bool pb_name_same(const char *a, const char *b)
{
    for (;; a++, b++) {
        char x = *a, y = *b;
        x = (char)(x >= 'A' && x <= 'Z' ? x + ('a' - 'A') : x);
        y = (char)(y >= 'A' && y <= 'Z' ? y + ('a' - 'A') : y);
        if (x != y)
            return false;
        if (!x)
            return true;
    }
}
