/* serve_program: runs probing-serve, which is in the same folder as this program. It links an HTTP library;
 * this program links libc only. */
#pragma once

#include <stddef.h>

struct pb_err;

enum { PB_SERVE_WORDS = 32 };

/* Its path. -ENAMETOOLONG. */
int pb_serve_path(char *ret, size_t size);

/* Replaces this process by the service (exec). words: its argv, ended by NULL. Returns only on failure. */
int pb_serve_become(const char *const *words, struct pb_err *err);

/* Starts the user's service in the background; pid is the process of requests that name none. address NULL: a
 * free port. It prints its address, or that of a service that runs already. */
int pb_serve_start(int pid, const char *address, struct pb_err *err);
