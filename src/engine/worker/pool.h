/* pool: views between two uses. Their memory is kept, up to a bound: the kernel takes longer to give pages
 * than we take to fill them. */
#pragma once

#include "table/reader.h"

/* An empty view, with memory of an earlier one where there is some. */
void pb_pool_take(struct pb_view *ret);

/* Takes a view back, which is empty then. Any thread. */
void pb_pool_give(struct pb_view *view);

/* Gives the memory back. */
void pb_pool_clear(void);
