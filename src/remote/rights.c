/* rights: see rights.h. */
#include "remote/rights.h"

#include "base/cleanup.h"
#include "base/procfs.h"

#include <errno.h>
#include <linux/securebits.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAP_BITS_OF_FILES (1u << 1 | 1u << 2) /* CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH */

/* Whether we may read what our user may not. */
static bool is_privileged(void)
{
    char text[8192];

    return geteuid() == 0 || (pb_proc_read(0, "status", text, sizeof(text)) > 0 &&
                              (pb_proc_number(text, "CapEff", 16) & CAP_BITS_OF_FILES) != 0);
}

struct pb_rights pb_rights_user(uid_t uid, gid_t gid)
{
    return (struct pb_rights){.own = uid == geteuid() || !is_privileged(), .uid = uid, .gid = gid};
}

/* The number in that column of a line of numbers. */
static unsigned long column(const char *line, unsigned i)
{
    char *end = (char *)line;
    unsigned long value = 0;

    for (unsigned k = 0; line && k <= i; k++)
        value = strtoul(end, &end, 10);
    return value;
}

int pb_rights_of(pid_t pid, struct pb_rights *ret)
{
    enum { OF_FILES = 3 }; /* after the real, effective and saved one */
    _cleanup_free_ char *text = NULL;

    *ret = (struct pb_rights){.own = true};
    if (pid == 0 || !is_privileged())
        return 0;
    int r = pb_proc_slurp(pb_proc_living(pid), "status", &text, NULL);
    const char *uid = r < 0 ? NULL : pb_proc_field(text, "Uid"),
               *gid = r < 0 ? NULL : pb_proc_field(text, "Gid"),
               *groups = r < 0 ? NULL : pb_proc_field(text, "Groups");
    if (r < 0 || !uid || !gid)
        return r < 0 ? r : -ESRCH;
    *ret = pb_rights_user((uid_t)column(uid, OF_FILES), (gid_t)column(gid, OF_FILES));
    while (groups && ret->ngroups < PB_RIGHTS_GROUPS) {
        char *end;
        unsigned long value = strtoul(groups, &end, 10);
        const char *line = groups;
        while (line < end && *line != '\n') /* strtoul passes the end of the line */
            line++;
        if (end == groups || line < end)
            break;
        ret->groups[ret->ngroups++] = (gid_t)value;
        groups = end;
    }
    return 0;
}

/* By the system call: that of the C library changes all threads. */
static int set_groups(size_t n, const gid_t *groups)
{
    return syscall(SYS_setgroups, n, groups) < 0 ? -errno : 0;
}

/* What the kernel takes back when these ids change: whether others of our user may trace us, and the signal
 * for our parent's death. */
static void restore_lost(const struct pb_rights_before *before)
{
    if (before->dumpable == 1)
        prctl(PR_SET_DUMPABLE, 1);
    if (before->death_signal)
        prctl(PR_SET_PDEATHSIG, before->death_signal);
}

int pb_rights_begin(const struct pb_rights *rights, struct pb_rights_before *ret)
{
    struct pb_rights_before before = {.uid = geteuid(), .gid = getegid()};

    *ret = before;
    if (rights->own)
        return 0;
    before.ngroups = getgroups(PB_RIGHTS_GROUPS, before.groups);
    before.dumpable = prctl(PR_GET_DUMPABLE);
    prctl(PR_GET_PDEATHSIG, &before.death_signal);
    /* The kernel takes root's capabilities over files away with the user id, unless that is switched off. */
    if (geteuid() != 0 || before.ngroups < 0 || prctl(PR_GET_SECUREBITS) & SECBIT_NO_SETUID_FIXUP ||
        set_groups(rights->ngroups, rights->groups) < 0)
        return -EPERM;
    before.taken = true;
    setfsgid(rights->gid);
    setfsuid(rights->uid);
    *ret = before;
    /* Both return the id before, whether they succeed or not: an invalid id changes nothing. */
    if ((gid_t)setfsgid((gid_t)-1) == rights->gid && (uid_t)setfsuid((uid_t)-1) == rights->uid)
        return 0;
    pb_rights_end(ret);
    ret->taken = false;
    return -EPERM;
}

void pb_rights_end(const struct pb_rights_before *before)
{
    int error = errno;

    if (!before->taken)
        return;
    setfsuid(before->uid);
    setfsgid(before->gid);
    (void)!set_groups((size_t)before->ngroups, before->groups);
    restore_lost(before);
    errno = error;
}

bool pb_rights_allow(const struct pb_rights *rights, const struct stat *st, unsigned bit)
{
    bool member = st->st_gid == rights->gid;

    for (unsigned i = 0; i < rights->ngroups; i++)
        member = member || st->st_gid == rights->groups[i];
    unsigned shift = st->st_uid == rights->uid ? 6 : member ? 3 : 0;
    return rights->uid == 0 || (st->st_mode >> shift & bit);
}
