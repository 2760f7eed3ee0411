/* place: see place.h. */
#include "inject/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "remote/openin.h"

#define MAX_AGENT (64u << 20)

static const char *const folders[] = {"/tmp", "/var/tmp", "/dev/shm", "/run"};

/* Not cryptographic: only gives a changed library another name. */
static uint64_t hash_content(const unsigned char *data, size_t len)
{
    uint64_t h = PB_HASH_START, word;
    for (; len >= 8; data += 8, len -= 8) {
        memcpy(&word, data, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return pb_hash_bytes(h, data, len);
}

static int read_all(int fd, void *buf, size_t len)
{
    for (size_t have = 0; have < len;) {
        ssize_t n = read(fd, (char *)buf + have, len - have);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        have += (size_t)n;
    }
    return 0;
}

static int write_all(int fd, const void *buf, size_t len)
{
    for (size_t have = 0; have < len;) {
        ssize_t n = write(fd, (const char *)buf + have, len - have);
        if (n < 0)
            return -errno;
        have += (size_t)n;
    }
    return 0;
}

int pb_agent_file_open(const char *dir, enum pb_libc libc, struct pb_agent_file *ret, struct pb_err *err)
{
    char path[4096];
    struct stat st;
    if (snprintf(path, sizeof(path), "%s/libprobing-%s.so", dir, pb_libc_name(libc)) >= (int)sizeof(path))
        return pb_fail(err, -ENAMETOOLONG, "the path of the agent is too long");
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pb_fail(err, -errno, "cannot open the agent %s: %s", path, strerror(errno));
    if (st.st_size <= 0 || st.st_size > MAX_AGENT)
        return pb_fail(err, -ENOEXEC, "the agent %s has an odd size", path);
    struct pb_agent_file a = {.len = (size_t)st.st_size, .data = malloc((size_t)st.st_size)};
    if (!a.data)
        return -ENOMEM;
    int r = read_all(fd, a.data, a.len);
    if (r < 0) {
        free(a.data);
        return pb_fail(err, r, "cannot read the agent %s: %s", path, strerror(-r));
    }
    snprintf(a.name, sizeof(a.name), "probing-agent-%016llx",
             (unsigned long long)hash_content(a.data, a.len));
    *ret = a;
    return 0;
}

void pb_agent_file_done(struct pb_agent_file *a)
{
    free(a->data);
}

bool pb_place_has_proc(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/root/proc/uptime", pid);
    return access(path, F_OK) == 0;
}

/* getrandom() is newer than the oldest glibc we build for; its kernels have the system call. */
static int random_bytes(void *buf, size_t len)
{
    long n = syscall(SYS_getrandom, buf, len, 0);
    return n < 0 ? -errno : (size_t)n == len ? 0 : -EIO;
}

/* glibc recognises a library by the name it was opened with, before it looks at the file: a descriptor number
 * used before would give the earlier library. Extra slashes and dots make a path that was never used. */
static void unique_path(int fd, char *buf, size_t size)
{
    uint32_t noise = 0;
    char dots[64];
    size_t n = 0;
    if (random_bytes(&noise, sizeof(noise)) < 0)
        noise = (uint32_t)getpid();
    for (int bit = 0; bit < 20; bit++) {
        dots[n++] = noise >> bit & 1 ? '.' : '/';
        if (dots[n - 1] == '.')
            dots[n++] = '/';
    }
    dots[n] = '\0';
    snprintf(buf, size, "/proc/thread-self/fd/%s%d", dots, fd);
}

/* The target tells the number, and after an exec it may be that of any file, which must not be opened for
 * writing. The name identifies our memfd, except in a mount namespace of the target's own: there any file can
 * be mounted at that name. A memfd has no link, and is its user's. */
static int open_memfd(const struct pb_procinfo *info, pid_t tid, int fd, const char *name)
{
    char path[64], found[128], wanted[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", info->pid, tid, fd);
    _cleanup_close_ int there = open(path, O_PATH | O_CLOEXEC);
    if (there < 0)
        return -errno;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", there);
    ssize_t n = readlink(path, found, sizeof(found) - 1);
    found[n > 0 ? n : 0] = '\0';
    snprintf(wanted, sizeof(wanted), "/memfd:%s (deleted)", name);
    if (strcmp(found, wanted) != 0 || fstat(there, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink ||
        st.st_uid != info->euid)
        return -ESTALE;
    int writable = open(path, O_WRONLY | O_CLOEXEC);
    return writable < 0 ? -errno : writable;
}

int pb_place_fill(const struct pb_procinfo *info, pid_t tid, int fd, const struct pb_agent_file *a,
                  struct pb_place *ret, struct pb_err *err)
{
    _cleanup_close_ int there = open_memfd(info, tid, fd, a->name);
    int r = there < 0 ? there : write_all(there, a->data, a->len);
    if (r < 0)
        return pb_fail(err, r, "cannot write the agent into process %d: %s", info->pid, strerror(-r));
    *ret = (struct pb_place){.dir = -1, .root = -1};
    unique_path(fd, ret->path, sizeof(ret->path));
    return 0;
}

/* Symbolic links inside the target's root stay inside it, never lead into ours. */
static int open_in_root(pid_t pid, const char *path)
{
    char root[32];
    snprintf(root, sizeof(root), "/proc/%d/root", pid);
    _cleanup_close_ int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return pb_open_below(fd, path, O_RDONLY | O_DIRECTORY);
}

/* Why this directory cannot be used, or NULL with it open in *ret. */
static const char *try_folder(pid_t pid, uid_t uid, const char *path, int *ret)
{
    struct statvfs fs;
    struct stat st;
    _cleanup_close_ int fd = open_in_root(pid, path);
    if (fd < 0)
        return "missing";
    if (fstatvfs(fd, &fs) < 0 || fstat(fd, &st) < 0)
        return "unreadable";
    if (fs.f_flag & ST_RDONLY)
        return "read-only";
    if (fs.f_flag & ST_NOEXEC)
        return "noexec";
    if (!(st.st_mode & S_IXOTH) && st.st_uid != uid)
        return "closed to its owner";
    if (faccessat(fd, ".", W_OK, AT_EACCESS) < 0)
        return "not writable";
    if (ret)
        *ret = pb_take_fd(fd);
    return NULL;
}

const char *pb_place_where(pid_t pid, uid_t uid, char *why, size_t size)
{
    size_t used = 0;
    why[0] = '\0';
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        const char *reason = try_folder(pid, uid, folders[i], NULL);
        if (!reason)
            return folders[i];
        int n = snprintf(why + used, size - used, "%s%s is %s", used ? ", " : "", folders[i], reason);
        used = used + (size_t)n < size ? used + (size_t)n : size - 1;
    }
    return "";
}

int pb_place_add(const struct pb_procinfo *info, const struct pb_place *p, const char *name, const void *data,
                 size_t len)
{
    _cleanup_close_ int fd = openat(p->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0500);
    if (fd < 0)
        return -errno;
    int r = write_all(fd, data, len);
    if (r < 0)
        return r;
    return geteuid() == info->euid || fchown(fd, info->euid, info->gid) == 0 ? 0 : -errno;
}

static int fill_folder(const struct pb_procinfo *info, const struct pb_agent_file *a, struct pb_place *p)
{
    uint64_t token;
    int r = random_bytes(&token, sizeof(token));
    if (r < 0)
        return r;
    snprintf(p->folder, sizeof(p->folder), ".probing-%016llx", (unsigned long long)token);
    if (mkdirat(p->root, p->folder, 0700) < 0)
        return -errno;
    p->dir = openat(p->root, p->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (p->dir < 0)
        return -errno;
    r = pb_place_add(info, p, p->file, a->data, a->len);
    if (r < 0)
        return r;
    return geteuid() == info->euid || fchown(p->dir, info->euid, info->gid) == 0 ? 0 : -errno;
}

int pb_place_file(const struct pb_procinfo *info, const struct pb_agent_file *a, struct pb_place *ret,
                  struct pb_err *err)
{
    char why[256];
    const char *folder = pb_place_where(info->pid, info->euid, why, sizeof(why));
    if (!*folder)
        return pb_fail(err, -EROFS, "no place for the agent in the root of process %d: %s", info->pid, why);
    struct pb_place p = {.dir = -1, .root = -1};
    if (try_folder(info->pid, info->euid, folder, &p.root))
        return pb_fail(err, -EROFS, "%s of process %d was changed meanwhile (try again)", folder, info->pid);
    snprintf(p.file, sizeof(p.file), "%s.so", a->name);
    int r = fill_folder(info, a, &p);
    if (r < 0) {
        pb_place_done(&p);
        return pb_fail(err, r, "cannot put the agent into %s of process %d: %s", folder, info->pid,
                       strerror(-r));
    }
    snprintf(p.path, sizeof(p.path), "%s/%s/%s", folder, p.folder, p.file);
    *ret = p;
    return 0;
}

/* The directory holds only our files, and perhaps what the target wrote there for us. */
static void empty_folder(int dir)
{
    int copy = dup(dir);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(dir, e->d_name, 0);
    closedir(d);
}

void pb_place_done(struct pb_place *p)
{
    if (p->dir >= 0) {
        empty_folder(p->dir);
        close(p->dir);
    }
    if (p->root >= 0) {
        if (p->folder[0])
            unlinkat(p->root, p->folder, AT_REMOVEDIR);
        close(p->root);
    }
    p->dir = p->root = -1;
}
