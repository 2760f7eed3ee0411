/* rights: opens files with the rights of another user, for names that a target chose.
 *
 * Root may read every file, so a process could name one that its own user may not read, and see it quoted.
 * The calling thread takes the user's file rights (setfsuid) for the time of the call; only this thread, and
 * nothing but files. Where that is not possible, the walk along the path (openin.c) compares mode bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { PB_RIGHTS_GROUPS = 256 }; /* of more groups the rest is left out: fewer rights, never more */

struct pb_rights {
    bool own; /* as we are */
    uid_t uid;
    gid_t gid;
    unsigned ngroups;
    gid_t groups[PB_RIGHTS_GROUPS];
};

/* The rights of that process's user; 0: our own. An ordinary user cannot have more rights than his own: no
 * change. -ESRCH. */
int pb_rights_of(pid_t pid, struct pb_rights *ret);

/* The same for a user and one group. */
struct pb_rights pb_rights_user(uid_t uid, gid_t gid);

/* Takes the rights, until pb_rights_end. -EPERM: not possible here. */
struct pb_rights_before {
    bool taken;
    uid_t uid;
    gid_t gid;
    int ngroups, dumpable, death_signal;
    gid_t groups[PB_RIGHTS_GROUPS];
};
int pb_rights_begin(const struct pb_rights *rights, struct pb_rights_before *ret);
void pb_rights_end(const struct pb_rights_before *before);

/* Whether mode bits allow it: 4 to read, 1 to search a folder. */
bool pb_rights_allow(const struct pb_rights *rights, const struct stat *st, unsigned bit);
