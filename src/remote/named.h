/* named: files as a target names them: absolute below its root, others below its working directory, each
 * opened with the rights of its user (openin.h). */
#pragma once

#include "remote/rights.h"

#include <limits.h>
#include <sys/types.h>

struct pb_core_info;

struct pb_named_root {
    struct pb_rights rights;
    int root_fd, cwd_fd; /* -1: unknown */
    char cwd[PATH_MAX];  /* below the root; "": unknown */
};

/* *ret may be closed whatever this returns; a view that could not be opened has no files. */
int pb_named_root_open(pid_t pid, struct pb_named_root *ret);

/* root: the folder that holds the process's files, NULL: "/". The working directory of a core is unknown. */
int pb_named_root_of_core(const struct pb_core_info *core, const char *root, struct pb_named_root *ret);

void pb_named_root_close(struct pb_named_root *view);

/* Opens a regular file to read. Errors as of pb_open_named. */
int pb_named_root_file(const struct pb_named_root *view, const char *name);
