/* usage: the memory_usage table: what the process takes of the machine, a row a second, from the resident
 * thread. */
#pragma once

struct pb_arena;
struct pb_table;

/* Makes the table. 0 or negative errno. */
int pb_usage_init(struct pb_arena *arena, struct pb_table **ret);

/* Appends a row of now. What cannot be read is NULL. */
void pb_usage_record(struct pb_table *table);
