/* attributes: named values of Python as a JSON object, in bounded memory. */
#pragma once

#include "agent/python/python.h"

#define PB_ATTRIBUTES_SIZE 2048

struct pb_attributes {
    unsigned used;
    int cut; /* something did not fit and was left out: "_cut": true */
    char text[PB_ATTRIBUTES_SIZE];
};

void pb_attributes_begin(struct pb_attributes *a);

/* Numbers, texts, booleans and None are written as such, all else as its repr. If a repr raises, the
 * exception and the attribute are dropped. */
void pb_attributes_add(struct pb_attributes *a, const struct pb_python *py, const char *name,
                       pb_pyobject *value);

/* A new str; NULL without an exception where there are none. */
pb_pyobject *pb_attributes_end(struct pb_attributes *a, const struct pb_python *py);
