/* stacks_print: the stacks of a process (ask/stacks.h) in the forms that commands print, all to stdout. */
#pragma once

#include "ask/stacks.h"

#include <stdio.h>

struct pb_call;
struct pb_set_stack;
struct pb_stackset;

/* backtrace, also for targets that are no processes (core files); in cmd_backtrace.c. */
int pb_backtrace(const struct pb_call *call, struct pb_err *err);

/* since: the history to which s was added last; unchanged threads are only counted (NULL: all are shown). */
void pb_stacks_print(const struct pb_stacks *s, struct pb_sources *sources, const struct pb_history *since);
/* The asyncio tasks of all threads as a tree: a task awaits the tasks below it. */
void pb_stacks_print_tasks(const struct pb_stacks *s);
/* One native frame, a line: function [module] (file:line). */
void pb_stacks_put_native(const struct pb_native_frame *f);
/* Prints that the position of the following Python frames among the native ones is unknown. */
void pb_stacks_put_unplaced(void);
/* A target whose stacks could not be read. */
struct pb_stacks_failure {
    pid_t pid;
    const char *label, *why;
};
/* One array: an object a process, then one with "error" for each failure. */
void pb_stacks_print_json(FILE *to, const struct pb_stacks *const *all, size_t n,
                          const struct pb_stacks_failure *failures, size_t nfailures);
/* The same of the set: an object a stack, the rarest first. */
void pb_stacks_print_merged_json(struct pb_stackset *set, const struct pb_stacks_failure *failures,
                                 size_t nfailures);
/* The members of the object of one stack, with its ranks as ranges: [[0, 2], [5, 5]]. */
struct pb_json_writer;
void pb_stacks_put_set_stack(struct pb_json_writer *w, struct pb_stackset *set, const struct pb_set_stack *s);
void pb_stacks_put_range(struct pb_json_writer *w, uint32_t first, uint32_t last);
/* Prints the set, preceded by what each process waits for. */
void pb_stacks_print_merged(struct pb_stackset *set, const struct pb_stacks *const *all, size_t n);
/* The frames of one stack of a set, a line each. */
void pb_stacks_put_frames(const struct pb_stackset *set, const struct pb_set_stack *s);
