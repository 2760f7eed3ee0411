/* pool: keeps the memory of unused views, up to a limit: getting pages from the kernel takes longer than
 * filling them. */
#pragma once

#include "table/reader.h"

/* An empty view, with the memory of an earlier one if there is some. */
void pb_pool_take(struct pb_view *ret);

/* Takes back a view, which is empty then. Any thread. */
void pb_pool_give(struct pb_view *view);

/* Frees the memory. */
void pb_pool_clear(void);
