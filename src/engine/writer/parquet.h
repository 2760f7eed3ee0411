/* parquet: writes the rows of a result to a Parquet file, in a process of its own.
 *
 * It writes a file, and is given nothing but rows: it runs no SQL of others. Types are those that other
 * engines read as well: wide integers as decimals, intervals and UUIDs as text. */
#pragma once

/* Takes COLUMNS, ROWS..., DONE from the socket; answers DONE or ERROR. Returns an exit status. */
int pb_parquet_write(int socket, const char *path);
