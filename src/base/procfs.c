/* procfs: see procfs.h. */
#include "base/procfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* A list of 250,000 mappings has 30 MB; a process can make it as long as it likes. */
#define SLURP_MAX (128u << 20)

static int path_of(pid_t pid, const char *name, char *buf, size_t size)
{
    int n = pid ? snprintf(buf, size, "/proc/%d/%s", pid, name) : snprintf(buf, size, "/proc/self/%s", name);
    return n < (int)size ? 0 : -ENAMETOOLONG;
}

static int open_proc(pid_t pid, const char *name)
{
    char path[128];
    int r = path_of(pid, name, path, sizeof(path));
    if (r < 0)
        return r;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    return fd;
}

/* As many bytes as there are, up to size: procfs gives a page at a time. */
static ssize_t read_up_to(int fd, char *buf, size_t size)
{
    size_t have = 0;
    while (have < size) {
        ssize_t n = read(fd, buf + have, size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

int pb_proc_slurp(pid_t pid, const char *name, char **ret, size_t *ret_len)
{
    _cleanup_close_ int fd = open_proc(pid, name);
    if (fd < 0)
        return fd;

    _cleanup_free_ char *text = NULL;
    size_t len = 0, room = 0;
    for (;;) {
        if (room - len < 4096) {
            if (room >= SLURP_MAX)
                return -EFBIG;
            room = room ? room * 2 : 32768;
            char *more = realloc(text, room);
            if (!more)
                return -ENOMEM;
            text = more;
        }
        ssize_t n = read_up_to(fd, text + len, room - len - 1);
        if (n < 0)
            return (int)n;
        len += (size_t)n;
        if (len < room - 1)
            break;
    }
    text[len] = '\0';
    if (ret_len)
        *ret_len = len;
    *ret = pb_take_ptr(text);
    return 0;
}

int pb_proc_read(pid_t pid, const char *name, char *buf, size_t size)
{
    _cleanup_close_ int fd = open_proc(pid, name);
    if (fd < 0)
        return fd;
    ssize_t n = read_up_to(fd, buf, size - 1);
    if (n < 0)
        return (int)n;
    buf[n] = '\0';
    return (int)n;
}

int pb_proc_link(pid_t pid, const char *name, char *buf, size_t size)
{
    char path[128];
    int r = path_of(pid, name, path, sizeof(path));
    if (r < 0)
        return r;
    ssize_t n = readlink(path, buf, size - 1);
    if (n < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    buf[n] = '\0';
    return (int)n;
}

const char *pb_proc_field(const char *text, const char *key)
{
    size_t len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, key, len) == 0 && line[len] == ':')
            return line + len + 1 + strspn(line + len + 1, " \t");
    }
    return NULL;
}

uint64_t pb_proc_number(const char *text, const char *key, int base)
{
    const char *value = pb_proc_field(text, key);
    return value ? strtoull(value, NULL, base) : 0;
}

static char state_of(pid_t pid)
{
    char text[1024];
    const char *close = pb_proc_read(pid, "stat", text, sizeof(text)) < 0 ? NULL : strrchr(text, ')');
    return close && close[1] ? close[2] : 'X';
}

bool pb_proc_is_worker(const char *stat)
{
    const unsigned long io_worker = 0x10; /* PF_IO_WORKER */
    const char *at = strrchr(stat, ')');  /* field 2; the flags are field 9 */
    for (int field = 2; at && field < 9; field++)
        at = strchr(at + 1, ' ');
    return at && strtoul(at + 1, NULL, 10) & io_worker;
}

pid_t pb_proc_living(pid_t pid)
{
    char path[32];
    pid_t found = pid;
    if (state_of(pid) != 'Z')
        return pid;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *d; dir && found == pid && (d = readdir(dir));) {
        pid_t tid = (pid_t)atoi(d->d_name);
        if (tid > 0 && !strchr("ZX", state_of(tid)))
            found = tid;
    }
    if (dir)
        closedir(dir);
    return found;
}

bool pb_proc_is_zombie(pid_t pid)
{
    return state_of(pid) == 'Z' && pb_proc_living(pid) == pid;
}

int64_t pb_proc_rss(pid_t pid)
{
    char text[128];
    long total, resident;

    if (pb_proc_read(pb_proc_living(pid), "statm", text, sizeof(text)) <= 0 ||
        sscanf(text, "%ld %ld", &total, &resident) != 2 || !total)
        return -1;
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}
