/* enter: what a thread of ours does before it can run Python code: find the API, and see that there is a GIL
 * to wait for. */
#pragma once

#include "agent/python.h"

#include <stddef.h>

/* -errno with a sentence in why: no Python here, one that lacks something, one that starts or ends. May wait
 * for the loader. */
int pb_enter_find(struct pb_python *ret, char *why, size_t why_size);

/* Up to 3.6 there is no GIL until somebody starts a thread: has the main thread make it, and waits for that
 * as long as wanted says so. 1: PyGILState_Ensure may be called; 0: nobody wants it any more. */
int pb_enter_await_gil(const struct pb_python *py, int (*wanted)(const void *), const void *argument);
