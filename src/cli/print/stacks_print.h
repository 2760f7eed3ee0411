/* stacks_print: the stacks of a process (ask/stacks.h) in the forms that commands print, all to stdout. */
#pragma once

#include "ask/stacks.h"

struct pb_call;
struct pb_stackset;

/* cmd_backtrace.c: the command, for targets that need not be processes. */
int pb_backtrace(const struct pb_call *call, struct pb_err *err);

/* since: s was added to it last; threads that do what they did are counted only (NULL: all are
 * shown). */
void pb_stacks_print(const struct pb_stacks *s, struct pb_sources *sources, const struct pb_history *since);
/* One native frame, a line: function [module] (file:line). */
void pb_stacks_put_native(const struct pb_native_frame *f);
/* Says that the Python frames which come next are not where they were called. */
void pb_stacks_put_apart(void);
void pb_stacks_print_json(const struct pb_stacks *const *all, size_t n);
/* The set, and ahead of it what each process waits for. */
void pb_stacks_print_merged(struct pb_stackset *set, const struct pb_stacks *const *all, size_t n);
