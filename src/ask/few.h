/* few: the answer of a small query of our own, as text: a few rows of a few cells. */
#pragma once

#include <stdint.h>

struct pb_err;
struct pb_query_sources;

enum { PB_FEW_ROWS = 60, PB_FEW_CELLS = 9 };

/* NULL is "". Longer texts are cut. */
struct pb_few {
    char cells[PB_FEW_ROWS][PB_FEW_CELLS][160];
    unsigned n;
};

int pb_few_ask(const struct pb_query_sources *sources, const char *sql, struct pb_few *ret,
               struct pb_err *err);

/* NaN: NULL, or no such row. */
double pb_few_number(const struct pb_few *few, unsigned row, unsigned cell);
/* -1 (PB_UNKNOWN): NULL, or no such row. */
int64_t pb_few_count(const struct pb_few *few, unsigned row, unsigned cell);
