/* target: facts about a process that an injection needs before it touches the process.
 *
 * Functions of its C library, two pieces of existing code (`syscall; ret` and the signal restorer), the code
 * that a borrowed thread must not be in, and whether the agent is there already. All read from outside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "inject/image.h"
#include "inject/spans.h"
#include "remote/maps.h"
#include "remote/procinfo.h"

struct pb_err;

struct pb_inject_target {
    struct pb_procinfo info;
    const struct pb_image *image; /* everything below holds for this image only */
    struct pb_maps maps;
    struct pb_spans spans;
    uint64_t syscall_code, restorer;
    uint64_t errno_location, dlopen, dlsym, dlclose;
    uint64_t dlerror; /* 0: only the C library's private dlopen is there */
    uint64_t pthread_create, attr_init, attr_setdetachstate; /* 0: it has no threads of the C library's */
    uint64_t attr_setstacksize, get_minstack; /* 0: threads are started with the default stack */
    uint32_t flags;                           /* dlopen's */
    int signal; /* one the process ignores: the stub sends it to stop for its tracer */
};

/* info: the result of pb_procinfo; the image, opened before that, must outlive the target. On failure err
 * names what the process lacks; -ESTALE: its loader is still loading its C library. */
int pb_inject_target_open(const struct pb_procinfo *info, const struct pb_image *image,
                          struct pb_inject_target *ret, struct pb_err *err);
void pb_inject_target_done(struct pb_inject_target *t);

/* A free address where the kernel is unlikely to map anything: somewhere in the middle half of the largest
 * gap. -ENOMEM: there is no such gap. */
int pb_inject_target_free_place(const struct pb_inject_target *t, size_t size, uint64_t *ret);

/* True where a loader is mapped: a C library that is missing will then be loaded soon. */
bool pb_inject_target_has_loader(pid_t pid);

/* The entry point of an agent with this name (the memfd's or file's) that is there already. If a tool that
 * died left another copy, that of the running agent. -ENOENT: none. */
int pb_inject_target_find_agent(const struct pb_inject_target *t, const char *name, uint64_t *ret_entry);
