/* archive_write: writes segments of an arena to Parquet files, in a process of its own.
 *
 * This one has files, and runs no SQL of anybody else's. For each REQUEST with an arena, a table and serials
 * it writes what can be written: PREFIX.1, PREFIX.2, ..., a file for each day. It answers DONE with what went
 * in, or ERROR; files that it began are the caller's to remove. */
#pragma once

/* Until the socket is closed. Returns an exit status. */
int pb_archive_write(int socket);
