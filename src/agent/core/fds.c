/* fds: see fds.h. */
#include "agent/core/fds.h"

#include "control/listing.h"
#include "table/system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UNSHARE_RANGE 2u /* CLOSE_RANGE_UNSHARE */

#define KEPT        56 /* 24 clients, 12 plain channels, and the agent's own descriptors */
#define NEEDED      32 /* free at the beginning; later each is checked (pb_fds_room) */
#define LEFT        16 /* descriptors that must be left for the program */
#define OWN_FLOOR   3  /* in our own table: libc writes to 2 when it aborts a program */
#define STDIO       3
#define SHARED_LOW  10
#define SHARED_HIGH 512

#define MOST_NUMBERS  8192 /* numbers tried: half a millisecond */
#define SPARE_NUMBERS 128  /* numbers that the program may begin to use meanwhile */

/* Written by the resident thread; read by probing-wake too, and by a forked child. fd is stored last. */
static struct own_fd {
    int fd; /* number + 1; 0: a free place */
    mode_t type;
    dev_t device;
    ino_t inode;
} kept[KEPT];

static int own_table, lowest = SHARED_LOW;

static long soft_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 1 << 20 ? (long)limit.rlim_cur : 1 << 20;
}

/* From the top, where numbers are free: takes as many calls as `enough`. */
static int count_free(int enough)
{
    int n = 0;

    for (long fd = soft_limit() - 1; fd >= 0 && n < enough; fd--)
        n += fcntl((int)fd, F_GETFD) < 0;
    return n;
}

/* Closes one batch of listed descriptors, from `first` on; returns how many. */
static int close_listed(int dir, int first)
{
    _Alignas(struct pb_listed) char buf[1024];
    int closed = 0;
    long n;

    while ((n = syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0)
        for (long at = 0; at < n;) {
            const struct pb_listed *e = (const struct pb_listed *)(void *)(buf + at);
            int fd = e->name[0] >= '0' && e->name[0] <= '9' ? atoi(e->name) : -1;
            if (fd >= first && fd != dir)
                closed += close(fd) == 0;
            at += e->size;
        }
    return closed;
}

/* Before Linux 5.9 our own table begins as a copy, which keeps the program's pipes and sockets open: it is
 * emptied at once. (Record locks belong to the table in which they were taken, the other one.) */
static void empty_copy(int first)
{
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
        return;
    for (int fd = first; fd < first + 3; fd++) /* makes room for the next open, in a full table */
        close(fd);
    int dir = open("/proc/thread-self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (dir >= 0 && close_listed(dir, first) > 0)
        lseek(dir, 0, SEEK_SET);
    for (int fd = first; dir < 0 && fd < soft_limit(); fd++)
        close(fd);
    if (dir >= 0)
        close(dir);
}

/* Keeps the descriptors below `first`. */
static int leave_table(int first)
{
    if (syscall(SYS_close_range, (unsigned)first, ~0u, UNSHARE_RANGE) == 0)
        return 0;
    if (unshare(CLONE_FILES) < 0)
        return -errno;
    empty_copy(first);
    return 0;
}

int pb_fds_leave_numbers(void)
{
    long limit = soft_limit(), free_from = STDIO;

    if (limit > MOST_NUMBERS)
        limit = MOST_NUMBERS;
    for (int fd = STDIO; fd < limit; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            free_from = fd + 1;
    free_from += SPARE_NUMBERS;
    if (free_from + LEFT > limit)
        return -EMFILE;
    int r = leave_table(STDIO);
    if (r < 0)
        return r;
    /* System calls, not functions: a library of the program that wraps open and counts descriptors would
     * count these too. */
    int taken = (int)syscall(SYS_openat, AT_FDCWD, "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    while (taken >= 0 && taken < free_from - 1)
        taken = (int)syscall(SYS_fcntl, taken, F_DUPFD_CLOEXEC, 0);
    return taken < 0 ? -errno : 0;
}

int pb_fds_begin(char *why, size_t why_size)
{
    memset(kept, 0, sizeof(kept));
    own_table = leave_table(0) == 0;
    if (own_table) {
        lowest = OWN_FLOOR;
        return 0;
    }
    long high = soft_limit() - 2 * NEEDED;
    lowest = high > SHARED_HIGH ? SHARED_HIGH : high > SHARED_LOW ? (int)high : SHARED_LOW;
    if (count_free(NEEDED + LEFT) >= NEEDED + LEFT)
        return 0;
    snprintf(
        why, why_size,
        "the process is almost out of file descriptors: %d must be free, and its limit (RLIMIT_NOFILE) is "
        "%ld; raise it with prlimit --pid PID --nofile=%ld:",
        NEEDED + LEFT, soft_limit(), soft_limit() + NEEDED + LEFT);
    return -EMFILE;
}

int pb_fds_room(void)
{
    return own_table || count_free(LEFT + 2) >= LEFT + 2;
}

static int keep_here(int fd)
{
    struct stat st;

    if (fd < 0 || own_table)
        return fd;
    for (int i = 0; i < KEPT; i++)
        if (!kept[i].fd && fstat(fd, &st) == 0) {
            kept[i] = (struct own_fd){.type = st.st_mode & S_IFMT, .device = st.st_dev, .inode = st.st_ino};
            __atomic_store_n(&kept[i].fd, fd + 1, __ATOMIC_RELEASE);
            return fd;
        }
    close(fd);
    return -EMFILE;
}

int pb_fd_keep(int fd)
{
    if (fd < 0 || fd >= lowest)
        return keep_here(fd);
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest), r = -errno;
    close(fd);
    return moved < 0 ? r : keep_here(moved);
}

static struct own_fd *find_kept(int fd)
{
    for (int i = 0; i < KEPT; i++)
        if (fd >= 0 && __atomic_load_n(&kept[i].fd, __ATOMIC_ACQUIRE) == fd + 1)
            return &kept[i];
    return NULL;
}

static int is_same(const struct own_fd *k, int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == k->type && st.st_dev == k->device &&
           st.st_ino == k->inode;
}

int pb_fd_ours(int fd)
{
    const struct own_fd *k = own_table ? NULL : find_kept(fd);
    return own_table ? fd >= 0 : k && is_same(k, fd);
}

int pb_fds_ours(void)
{
    for (int i = 0; !own_table && i < KEPT; i++)
        if (kept[i].fd && !is_same(&kept[i], kept[i].fd - 1))
            return 0;
    return 1;
}

void pb_fd_close(int fd)
{
    struct own_fd *k = own_table ? NULL : find_kept(fd);

    if (fd < 0)
        return;
    if (own_table || (k && is_same(k, fd)))
        close(fd);
    if (k) /* after closing: a child of fork checks the descriptor before it closes it once more */
        __atomic_store_n(&k->fd, 0, __ATOMIC_RELEASE);
}

void pb_fds_forget(void)
{
    for (int i = 0; !own_table && i < KEPT; i++)
        if (kept[i].fd && is_same(&kept[i], kept[i].fd - 1))
            close(kept[i].fd - 1);
    memset(kept, 0, sizeof(kept));
}
