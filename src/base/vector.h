/* vector: arrays that grow: they double, so that n elements cost n copies. Tools only. */
#pragma once

#include <stddef.h>

/* Bytes that several arrays may take together. */
struct pb_budget {
    size_t left;
};

/* -ENOSPC: not so many are left. budget NULL: there is no bound. */
int pb_budget_take(struct pb_budget *budget, size_t bytes);

enum { PB_VECTOR_FIRST = 16 };

/* Doubles it; what pb_grow does where there is no room. */
int pb_vector_double(void **at, size_t *cap, size_t size, struct pb_budget *budget);

/* Room for one more element of size bytes behind n; *cap: for how many there is room. *at is as it was after
 * -ENOMEM and -ENOSPC. */
static inline int pb_grow(void **at, size_t *cap, size_t n, size_t size, struct pb_budget *budget)
{
    return n < *cap ? 0 : pb_vector_double(at, cap, size, budget);
}

/* The same where no capacity is kept: an array is full at each power of two from PB_VECTOR_FIRST on. */
static inline int pb_grow_full(void **at, size_t n, size_t size)
{
    size_t cap = n;

    return n & (n - 1) || (n && n < PB_VECTOR_FIRST) ? 0 : pb_vector_double(at, &cap, size, NULL);
}
