/* stacks_print: the stacks of a process (ask/stacks.h) in the forms that commands print, all to stdout. */
#pragma once

#include "ask/stacks.h"

struct pb_call;

/* cmd_backtrace.c: the command, for targets that need not be processes. */
int pb_backtrace(const struct pb_call *call, struct pb_err *err);

/* since: s was added to it last; threads that do what they did are counted only (NULL: all are
 * shown). */
void pb_stacks_print(const struct pb_stacks *s, struct pb_sources *sources, const struct pb_history *since);
/* One native frame, a line: function [module] (file:line). */
void pb_stacks_put_native(const struct pb_native_frame *f);
/* Before frame i of a merged stack: says, once, that the Python frames which begin there are not where they
 * were called. */
void pb_stacks_put_apart(const struct pb_shown_thread *t, size_t i, bool *said);
void pb_stacks_print_json(const struct pb_stacks *const *all, size_t n);
int pb_stacks_print_merged(const struct pb_stacks *const *all, size_t n, struct pb_err *err);
