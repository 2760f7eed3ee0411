/* target: what injection needs to know of a process before it touches it.
 *
 * Functions of its C library, two pieces of existing code (`syscall; ret` and the signal restorer), the code
 * that a borrowed thread must not be in, and whether the agent is there already. All read from outside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "inject/spans.h"
#include "remote/maps.h"
#include "remote/procinfo.h"

struct pb_err;

struct pb_target {
    struct pb_procinfo info;
    struct pb_maps maps;
    struct pb_spans spans;
    uint64_t syscall_code, restorer;
    uint64_t errno_location, dlopen, dlsym, dlclose;
    uint64_t dlerror; /* 0 where only the C library's private dlopen is there */
    uint32_t flags;   /* dlopen's */
    int signal;       /* one the process ignores: how the stub calls its tracer */
};

/* info is what procinfo said. On failure err names what the process lacks. */
int pb_target_open(const struct pb_procinfo *info, struct pb_target *ret, struct pb_err *err);
void pb_target_done(struct pb_target *t);

/* The entry point of an agent with this name (the memfd's or file's) that is mapped already. -ENOENT: none.
 */
int pb_target_find_agent(const struct pb_target *t, const char *name, uint64_t *ret_entry);
