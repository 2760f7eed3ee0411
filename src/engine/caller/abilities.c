/* abilities: see abilities.h. */
#include "engine/caller/abilities.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LANDLOCK_CREATE  444
#define LANDLOCK_VERSION 1u
#define CLOEXEC          1u

static int try_and_close(long fd)
{
    if (fd < 0)
        return -errno;
    close((int)fd);
    return 0;
}

/* The kernel checks the filter's address last: EFAULT means that all else is allowed. */
static int try_filter(void)
{
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL);
    return r < 0 && errno == EFAULT ? 0 : r < 0 ? -errno : -EINVAL;
}

void pb_sql_abilities(struct pb_sql_abilities *ret)
{
    long version = syscall(LANDLOCK_CREATE, NULL, 0, LANDLOCK_VERSION);

    ret->landlock = version > 0 ? 0 : version < 0 ? -errno : -ENOSYS;
    ret->seccomp = try_filter();
    ret->pidfd = try_and_close(syscall(SYS_pidfd_open, getpid(), 0));
    ret->memfd = try_and_close(syscall(SYS_memfd_create, "probing", CLOEXEC));
}
