/* place: the agent's bytes, and where the target can open them.
 *
 * First choice is a memfd made by the target, which leaves no file. Where that is refused (seccomp,
 * vm.memfd_noexec, no /proc in its root): a file in a 0700 directory of the target's owner, under the
 * target's root, removed as soon as it is loaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "remote/procinfo.h"

struct pb_err;

struct pb_agent_file {
    void *data;
    size_t len;
    char name[40]; /* "probing-agent-" and a hash of the content: the same name is the same build */
};

/* Reads the library for this libc from dir. */
int pb_agent_file_open(const char *dir, enum pb_libc libc, struct pb_agent_file *ret, struct pb_err *err);
void pb_agent_file_done(struct pb_agent_file *a);

struct pb_place {
    char path[160]; /* as the target opens it; "": not placed yet */
    int dir, root;  /* descriptors of ours: the file's directory and its parent; -1: not a file */
    char folder[32], file[48];
};

/* True when the target has /proc, through which a memfd is opened. */
bool pb_place_has_proc(pid_t pid);

/* Writes the agent into descriptor fd, a memfd created by thread tid of the target. That thread may have a
 * descriptor table of its own, and opens the path. -ESTALE: it is no such memfd. */
int pb_place_fill(const struct pb_procinfo *info, pid_t tid, int fd, const struct pb_agent_file *a,
                  struct pb_place *ret, struct pb_err *err);

/* Writes the agent into a file. err names each directory that cannot be used, and why. */
int pb_place_file(const struct pb_procinfo *info, const struct pb_agent_file *a, struct pb_place *ret,
                  struct pb_err *err);

/* Writes another file beside it, readable by the target's owner only. */
int pb_place_add(const struct pb_procinfo *info, const struct pb_place *p, const char *name, const void *data,
                 size_t len);

/* The first directory where a file could be written, or "" with the reasons in why. */
const char *pb_place_where(pid_t pid, uid_t uid, char *why, size_t size);

/* Removes the file and its directory, if there are any. */
void pb_place_done(struct pb_place *p);
