/* serve_program: runs probing-serve, which is in the same folder as this program. It links an HTTP library;
 * this program links libc only. */
#pragma once

#include "cluster/link/own_service.h"

#include <stddef.h>

struct pb_err;

enum { PB_SERVE_WORDS = 40 };

/* Its path. -ENAMETOOLONG. */
int pb_serve_path(char *ret, size_t size);

/* Replaces this process by the service (exec). words: its argv, ended by NULL. Returns only on failure. */
int pb_serve_become(const char *const *words, struct pb_err *err);

/* Whether the service can be started at that address: it can be resolved, and no service of the user's runs
 * at another. NULL: any. */
int pb_serve_check(const char *address, struct pb_err *err);

/* Starts the user's service in the background where none runs; pid is the process of requests that name none.
 * address NULL: a free port. */
int pb_serve_start(const char *pid, const char *address, struct pb_own_service *ret, struct pb_err *err);
