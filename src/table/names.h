/* names: the one rule for names of tables and columns. Recorder, catalog and archive all go by it: a name
 * that one of them accepts, all accept. */
#pragma once

#include <stdbool.h>

#define PB_NAME_SIZE 64 /* of one part of a table's name, with NUL */

/* The archive's own records lie under this name, beside the tables. */
#define PB_NAME_ARCHIVE "_probing"

/* NAME or SCHEMA.NAME, each of ASCII letters, digits and underscores, up to 63 bytes, not beginning with a
 * digit; no schema of the database's own, and not the archive's own name. */
bool pb_name_is_table(const char *full);

/* A name for a column that a program makes: as one part of a table's name, up to 47 bytes. (Columns in an
 * arena may have any name; the readers show and keep what is UTF-8.) */
bool pb_name_is_column(const char *name);
