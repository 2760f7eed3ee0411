/* lineprog: the line number program of a unit: from an address to its file and line. Private to native/. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_unit;
struct pb_line_table;

struct pb_line_row {
    uint64_t file; /* its number in this table */
    unsigned line;
};

/* Reads the table of a unit; its program is run on each lookup. */
int pb_line_table_open(const struct pb_unit *u, struct pb_line_table **ret);
void pb_line_table_free(struct pb_line_table *t);

/* The last row that is not beyond addr, within one sequence. -ENOENT: none. */
int pb_line_table_find(const struct pb_line_table *t, uint64_t addr, struct pb_line_row *ret);

/* The name of a file by its number, with its folder; "" where it is not known. */
void pb_line_table_file(const struct pb_line_table *t, uint64_t file, char *buf, size_t size);
