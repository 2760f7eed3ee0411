/* serve_program: runs probing-serve, which is in the same folder as this program. It links an HTTP library;
 * this program links libc only. */
#pragma once

#include <stddef.h>

struct pb_err;

enum { PB_SERVE_WORDS = 32, PB_SERVE_URL = 1024 };

/* Its path. -ENAMETOOLONG. */
int pb_serve_path(char *ret, size_t size);

/* Replaces this process by the service (exec). words: its argv, ended by NULL. Returns only on failure. */
int pb_serve_become(const char *const *words, struct pb_err *err);

/* Whether the service can be started at that address: it is one, and no service of the user's runs at
 * another. NULL: any. */
int pb_serve_check(const char *address, struct pb_err *err);

/* Starts the user's service in the background where none runs; pid is the process of requests that name none.
 * address NULL: a free port. *ret: its address with its token, and in a second line its socket. */
int pb_serve_start(const char *pid, const char *address, char ret[PB_SERVE_URL], struct pb_err *err);
