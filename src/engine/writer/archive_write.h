/* archive_write: writes segments of an arena to Parquet files, in a process of its own.
 *
 * It writes files, and runs no SQL of others. For each REQUEST with an arena, a table and serials it writes
 * the segments that are complete: PREFIX.1, PREFIX.2, ..., a file per day. It answers DONE with the list of
 * them, or ERROR; unfinished files are the caller's to remove. */
#pragma once

/* Runs until the socket is closed. Returns an exit status. */
int pb_archive_write(int socket);
