/* run_program: what another program (squeue, kubectl) prints, with an end in time and in memory. */
#pragma once

#include <stddef.h>

struct pb_err;

/* words: ends with NULL. *ret: on the heap, a NUL behind it. It fails where the program does, with its last
 * line. */
int pb_run_program(const char *const *words, size_t most, unsigned limit_ms, char **ret, size_t *ret_length,
                   struct pb_err *err);
