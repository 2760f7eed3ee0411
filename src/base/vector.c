/* vector: see vector.h. */
#include "base/vector.h"

#include <errno.h>
#include <stdlib.h>

int pb_budget_take(struct pb_budget *budget, size_t bytes)
{
    if (!budget)
        return 0;
    if (bytes > budget->left)
        return -ENOSPC;
    budget->left -= bytes;
    return 0;
}

int pb_vector_double(void **at, size_t *cap, size_t size, struct pb_budget *budget)
{
    size_t more = *cap ? 2 * *cap : PB_VECTOR_FIRST;
    int r = pb_budget_take(budget, (more - *cap) * size);

    if (r < 0)
        return r;
    void *grown = reallocarray(*at, more, size);
    if (!grown)
        return -ENOMEM;
    *at = grown;
    *cap = more;
    return 0;
}
