/* python_cells: converts Python values to cells of a row.
 *
 * Values are converted before the row begins: conversion may call Python code (__index__, __float__), raise,
 * or let another thread run, and none of that may happen inside the recorder (recorder.h). */
#pragma once

#include "agent/python/python.h"
#include "table/arena.h"

struct pb_cell_value {
    uint8_t type; /* enum pb_type; 0: NULL */
    union {
        int64_t i;
        uint64_t u;
        double d;
        struct {
            const char *text; /* of the object, which the caller's arguments keep alive */
            size_t length;
        };
    };
};

/* Objects made by a conversion, released after the row. */
struct pb_value_temps {
    pb_pyobject *at[8];
    unsigned n;
};

/* Converts to the type of a column. Timestamps are given as ints (ns since 1970) or floats (s since 1970).
 * -1: it does not fit; pb_value_refuse sets the exception, which names the column. */
int pb_value_from(const struct pb_python *py, pb_pyobject *object, enum pb_type type,
                  struct pb_cell_value *ret, struct pb_value_temps *temps);
/* A time for a column of timestamps, as ns since 1970. -1: not a time. */
int pb_value_epoch(const struct pb_python *py, pb_pyobject *object, int64_t *ret);
int pb_value_refuse(const struct pb_python *py, const char *column, enum pb_type type, pb_pyobject *object);
void pb_value_temps_done(const struct pb_python *py, struct pb_value_temps *temps);

/* Puts a value into its cell. */
void pb_value_set(struct pb_row *row, unsigned column, const struct pb_cell_value *value);
