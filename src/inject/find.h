/* find: chooses the thread to borrow. Checks one after the other, each held for some microseconds only, until
 * one is at a safe point or the deadline has passed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "inject/hold.h"

/* Leaves h->thread stopped and its registers in h->saved. Errors as pb_hold_begin. */
int pb_find_thread(struct pb_hold *h, uint64_t deadline, struct pb_err *err);
