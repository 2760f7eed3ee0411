/* place: the agent's bytes, and where the target can open them.
 *
 * First choice is a memfd of the target's own, which leaves no file and needs no place; where that is refused
 * (seccomp, vm.memfd_noexec, no /proc in its root) a file in a 0700 directory of the target's owner, under
 * the target's root, removed as soon as it is loaded. */
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
    char path[160]; /* as the target opens it; "": nowhere yet */
    int dir, root;  /* descriptors of ours for a file's directory and the one above; -1: not a file */
    char folder[32], file[48];
};

/* True when the target sees a /proc, which a memfd is opened through. */
bool pb_place_has_proc(pid_t pid);

/* Writes the agent into descriptor fd of a thread of the target, which created it as a memfd. The thread may
 * have a descriptor table of its own, and is the one that opens the path. */
int pb_place_fill(pid_t pid, pid_t tid, int fd, const struct pb_agent_file *a, struct pb_place *ret,
                  struct pb_err *err);

/* Puts the agent into a file. err names each directory that would not do. */
int pb_place_file(const struct pb_procinfo *info, const struct pb_agent_file *a, struct pb_place *ret,
                  struct pb_err *err);

/* Writes another file beside it, readable by the target's owner only. */
int pb_place_add(const struct pb_procinfo *info, const struct pb_place *p, const char *name, const void *data,
                 size_t len);

/* Where a file could be put: the first directory that would do, or "" with the reasons in why. */
const char *pb_place_where(pid_t pid, uid_t uid, char *why, size_t size);

/* Removes the file and its directory, if there are any. */
void pb_place_done(struct pb_place *p);
