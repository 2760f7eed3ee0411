/* memory_print: the memory of a process (ask/memory.h) for people and programs. */
#pragma once

#include "ask/memory.h"
#include "base/json_write.h"

void pb_memory_print(const struct pb_memory *m);
void pb_memory_put_json(struct pb_json_writer *w, const struct pb_memory *m);

/* The same in rows. */
struct pb_rows;
extern const char *const pb_memory_columns[];
extern const size_t pb_memory_ncolumns;
void pb_memory_add_row(struct pb_rows *rows, const struct pb_memory *m);
