/* struct_offsets_table: the rows of layouts.inc as a struct a version; see struct_offsets.h. */
#include "remote/python/struct_offsets.h"

#include <stddef.h>

#include "remote/python/layouts.inc"

/* The words of layouts.inc. */
#define HEAP      PB_PY_FRAMES_HEAP
#define CFRAME    PB_PY_FRAMES_CFRAME
#define TSTATE    PB_PY_FRAMES_TSTATE
#define LNOTAB    PB_PY_LINES_LNOTAB
#define LINETABLE PB_PY_LINES_LINETABLE
#define LOCATIONS PB_PY_LINES_LOCATIONS
#define UNSIGNED  PB_PY_LINES_UNSIGNED

/* One value of a row. */
#define V0(field, v, ...)                                         .field = v,
#define V1(field, a, v, ...)                                      .field = v,
#define V2(field, a, b, v, ...)                                   .field = v,
#define V3(field, a, b, c, v, ...)                                .field = v,
#define V4(field, a, b, c, d, v, ...)                             .field = v,
#define V5(field, a, b, c, d, e, v, ...)                          .field = v,
#define V6(field, a, b, c, d, e, f, v, ...)                       .field = v,
#define V7(field, a, b, c, d, e, f, g, v, ...)                    .field = v,
#define V8(field, a, b, c, d, e, f, g, h, v, ...)                 .field = v,
#define V9(field, a, b, c, d, e, f, g, h, i, v, ...)              .field = v,
#define V10(field, a, b, c, d, e, f, g, h, i, j, v, ...)          .field = v,
#define V11(field, a, b, c, d, e, f, g, h, i, j, k, v, ...)       .field = v,
#define V12(field, a, b, c, d, e, f, g, h, i, j, k, l, v, ...)    .field = v,
#define V13(field, a, b, c, d, e, f, g, h, i, j, k, l, m, v, ...) .field = v,
#define V14(field, a, b, c, d, e, f, g, h, i, j, k, l, m, n, v)   .field = v,
#define COLUMN(pick)                                                                                         \
    {                                                                                                        \
        PB_PY_FIELDS(pick) PB_PY_FIELDS_OF_MACHINE(pick)                                                     \
    }

const struct pb_py_layout pb_py_layouts[] = {
    COLUMN(V0), COLUMN(V1), COLUMN(V2),  COLUMN(V3),  COLUMN(V4),  COLUMN(V5),  COLUMN(V6),  COLUMN(V7),
    COLUMN(V8), COLUMN(V9), COLUMN(V10), COLUMN(V11), COLUMN(V12), COLUMN(V13), COLUMN(V14), {0}};

#define PUBLISHED(field, ...) {offsetof(struct pb_py_layout, field), {__VA_ARGS__}},

const struct pb_py_published pb_py_published[] = {PB_PY_PUBLISHED(PUBLISHED){0}};
