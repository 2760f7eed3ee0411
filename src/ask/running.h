/* running: probed processes, and Python processes that could be probed, with the columns of `list`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_ask;
struct pb_err;

struct pb_running {
    pid_t pid;
    bool probed;
    char python[32]; /* "3.11.7" from the agent, "3.11" from its files, "?"; "": no Python */
    char rank[32];   /* "": none */
    uint64_t start_time;
    double memory_mb; /* in RAM; negative: not known */
    char *command;    /* secrets masked, control characters unchanged */
};

struct pb_running_list {
    struct pb_running *at;
    size_t n;
};

/* Sorted by pid. Each process is read in a child (task.h): a note names those that hang in the kernel and
 * are left out. */
int pb_running_read(const struct pb_ask *ask, struct pb_running_list *ret, struct pb_err *err);
void pb_running_done(struct pb_running_list *list);
