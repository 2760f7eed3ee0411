/* openin: see openin.h. */
#include "remote/openin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "remote/rights.h"
#include "table/system_calls.h"

/* Not in the kernel headers of every build machine. */
#ifndef CONFIGFS_MAGIC
#define CONFIGFS_MAGIC 0x62656570
#endif
#ifndef MQUEUE_MAGIC
#define MQUEUE_MAGIC 0x19800202
#endif
#ifndef FUSECTL_MAGIC
#define FUSECTL_MAGIC 0x65735543
#endif
#ifndef RDTGROUP_SUPER_MAGIC
#define RDTGROUP_SUPER_MAGIC 0x7655821
#endif
#ifndef XENFS_SUPER_MAGIC
#define XENFS_SUPER_MAGIC 0xabba1974
#endif

/* File systems whose files are made by the kernel as they are read: what they show is the reader's, reading
 * may change something or wait. */
static bool is_of_kernel(int fd)
{
    static const long kinds[] = {
        PROC_SUPER_MAGIC,   SYSFS_MAGIC,         DEBUGFS_MAGIC,        TRACEFS_MAGIC,  SECURITYFS_MAGIC,
        CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, BPF_FS_MAGIC,         EFIVARFS_MAGIC, PSTOREFS_MAGIC,
        BINFMTFS_MAGIC,     SELINUX_MAGIC,       SMACK_MAGIC,          NSFS_MAGIC,     CONFIGFS_MAGIC,
        MQUEUE_MAGIC,       DEVPTS_SUPER_MAGIC,  RDTGROUP_SUPER_MAGIC, FUSECTL_MAGIC,  XENFS_SUPER_MAGIC,
    };
    struct statfs fs;

    if (fstatfs(fd, &fs) < 0)
        return errno != ENOSYS; /* a FUSE file system need not have it */
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if ((long)fs.f_type == kinds[i])
            return true;
    return false;
}

int pb_reopen_regular(int path_fd, uint64_t inode)
{
    struct stat st;
    char path[32];
    if (fstat(path_fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || is_of_kernel(path_fd))
        return -ENXIO;
    if (inode && st.st_ino != inode)
        return -ESTALE;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static atomic_bool without_openat2;

bool pb_open_without_openat2(void)
{
    return without_openat2;
}

#define LINKS_MAX 40 /* as the kernel */

/* A path that is being followed. The part already followed has no links, so its names lead to the same folder
 * again. */
struct path_walk {
    const struct pb_rights *rights; /* folders that these may not search are not entered; NULL: no matter */
    int root_fd, fd;
    char done[PATH_MAX], todo[PATH_MAX];
    int links;
};

static int step_into(struct path_walk *w, const char *name, int flags)
{
    int fd = openat(w->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC | flags);

    if (fd < 0)
        return -errno;
    close(w->fd);
    w->fd = fd;
    return 0;
}

/* Goes back to the root, and from there to the folder `done`. None of its names is "..", which the kernel
 * would follow out of a folder that was moved meanwhile. */
static int start_over(struct path_walk *w)
{
    char names[PATH_MAX], *save;
    int fd = openat(w->root_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC), r = 0;

    if (fd < 0)
        return -errno;
    if (w->fd >= 0)
        close(w->fd);
    w->fd = fd;
    memcpy(names, w->done, sizeof(names));
    for (char *name = strtok_r(names, "/", &save); name && r == 0; name = strtok_r(NULL, "/", &save))
        r = step_into(w, name, O_DIRECTORY);
    return r;
}

/* Puts the link's target (w->fd is the link) in front of the rest of the path. */
static int follow_link(struct path_walk *w, const char *rest)
{
    char link[PATH_MAX], joined[PATH_MAX];

    ssize_t n = readlinkat(w->fd, "", link, sizeof(link) - 1);
    if (n < 0)
        return -errno;
    link[n] = '\0';
    if (++w->links > LINKS_MAX)
        return -ELOOP;
    if (snprintf(joined, sizeof(joined), "%s/%s", link, rest) >= (int)sizeof(joined))
        return -ENAMETOOLONG;
    memcpy(w->todo, joined, sizeof(joined));
    if (link[0] == '/')
        w->done[0] = '\0';
    return start_over(w);
}

static int follow_name(struct path_walk *w, const char *name, const char *rest)
{
    struct stat st;
    size_t len = strlen(w->done);

    if (strcmp(name, "..") == 0) {
        char *last = strrchr(w->done, '/');
        *(last ? last : w->done) = '\0';
        memmove(w->todo, rest, strlen(rest) + 1);
        return start_over(w);
    }
    int r = strcmp(name, ".") == 0 ? 0 : step_into(w, name, 0);
    if (r < 0)
        return r;
    if (fstat(w->fd, &st) < 0)
        return -errno;
    if (S_ISLNK(st.st_mode))
        return follow_link(w, rest);
    if (w->rights && !pb_rights_allow(w->rights, &st, S_ISDIR(st.st_mode) ? 1 : 4))
        return -EACCES;
    if (strcmp(name, ".") != 0 &&
        snprintf(w->done + len, sizeof(w->done) - len, "/%s", name) >= (int)(sizeof(w->done) - len))
        return -ENAMETOOLONG;
    memmove(w->todo, rest, strlen(rest) + 1);
    return 0;
}

static int open_by_steps(const struct pb_rights *rights, int root_fd, const char *path, int flags)
{
    struct path_walk w = {.rights = rights, .root_fd = root_fd, .fd = -1};
    char link[32];

    if (snprintf(w.todo, sizeof(w.todo), "%s", path) >= (int)sizeof(w.todo))
        return -ENAMETOOLONG;
    int r = start_over(&w);
    for (char *p; r == 0 && *(p = w.todo + strspn(w.todo, "/"));) {
        char name[NAME_MAX + 1];
        size_t len = strcspn(p, "/");
        if (len > NAME_MAX) {
            r = -ENAMETOOLONG;
            break;
        }
        memcpy(name, p, len);
        name[len] = '\0';
        r = follow_name(&w, name, p + len + strspn(p + len, "/"));
    }
    if (r == 0 && !(flags & O_PATH)) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", w.fd);
        r = open(link, flags | O_CLOEXEC);
        r = r < 0 ? -errno : r;
    } else if (r == 0) {
        return w.fd;
    }
    if (w.fd >= 0)
        close(w.fd);
    return r;
}

int pb_open_below(int root_fd, const char *path, int flags)
{
    struct open_how how = {
        .flags = (uint64_t)(flags | O_CLOEXEC),
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, root_fd, path, &how, sizeof(how));

    /* Older container filters answer EPERM to calls they do not know. */
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
        return fd < 0 ? -errno : fd;
    without_openat2 = true;
    return open_by_steps(NULL, root_fd, path, flags);
}

int pb_open_regular(int root_fd, const char *path, uint64_t inode)
{
    _cleanup_close_ int fd = pb_open_below(root_fd, path, O_PATH);
    return fd < 0 ? fd : pb_reopen_regular(fd, inode);
}

int pb_open_named(const struct pb_rights *rights, int root_fd, const char *path, uint64_t inode)
{
    struct pb_rights_before before;

    int r = pb_rights_begin(rights, &before);
    int fd = r < 0 ? open_by_steps(rights, root_fd, path, O_PATH) : pb_open_below(root_fd, path, O_PATH);
    r = fd < 0 ? fd : pb_reopen_regular(fd, inode);
    pb_rights_end(&before);
    if (fd >= 0)
        close(fd);
    return r;
}

static int open_link(const char *path)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    return fd < 0 ? -errno : pb_reopen_regular(fd, 0);
}

int pb_open_mapped(pid_t pid, uint64_t start, uint64_t end)
{
    char path[80];
    snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)pid, start, end);
    return open_link(path);
}

int pb_open_program(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return open_link(path);
}

int pb_open_in_root(pid_t pid, const char *path, uint64_t inode)
{
    struct pb_rights rights;
    char name[32];
    int r = pb_rights_of(pid, &rights);
    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "/proc/%d/root", (int)pid);
    _cleanup_close_ int root = open(pid ? name : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? -errno : pb_open_named(&rights, root, path, inode);
}
