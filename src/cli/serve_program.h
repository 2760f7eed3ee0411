/* serve_program: probing-serve, beside this program, which links an HTTP library while this one links libc
 * only. */
#pragma once

struct pb_err;

enum { PB_SERVE_WORDS = 32 };

/* Becomes it. words: its arguments, the first its name, ended by NULL. Returns only where that fails. */
int pb_serve_become(const char *const *words, struct pb_err *err);

/* Starts the user's service in the background, about a process where a request names none; address NULL: a
 * free port. It prints where it is; where one runs already, that one's address is printed. */
int pb_serve_start(int pid, const char *address, struct pb_err *err);
