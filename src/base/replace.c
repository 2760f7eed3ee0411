/* replace: see replace.h. */
#include "base/replace.h"

#include "base/cleanup.h"
#include "base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Neither made nor cut: it may have become another file since it was looked at. */
static int open_device(const char *path, struct pb_replace *ret)
{
    struct stat st;

    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || S_ISREG(st.st_mode))
        return -EAGAIN;
    *ret = (struct pb_replace){.out = fdopen(fd, "w"), .path = path};
    if (!ret->out)
        return -errno;
    fd = -1;
    return 0;
}

/* Whether it is a link that the caller may follow: no other user but root has made it. */
bool pb_replace_follows(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && (st.st_uid == geteuid() || st.st_uid == 0);
}

static bool is_device(const char *path)
{
    struct stat st;

    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && !pb_replace_follows(path))
        return false;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

int pb_replace_begin(const char *path, struct pb_replace *ret)
{
    enum { TRIES = 4 };

    *ret = (struct pb_replace){.path = path};
    if (is_device(path))
        return open_device(path, ret);
    for (int i = 0; i < TRIES; i++) {
        _cleanup_free_ char *part = NULL;
        /* A name that somebody has taken is not used; the next ones cannot be guessed. */
        int n = i ? asprintf(&part, "%s.%d-%llx.part", path, (int)getpid(), (unsigned long long)pb_now_ns())
                  : asprintf(&part, "%s.%d.part", path, (int)getpid());
        if (n < 0)
            return -ENOMEM;
        ret->out = fopen(part, "wxe");
        if (ret->out) {
            ret->part = pb_take_ptr(part);
            return 0;
        }
        if (errno != EEXIST)
            break;
    }
    return -errno;
}

/* Why a stream has its error mark, which does not keep the number: one more byte of the file that is given up
 * fails in the same way. */
static int find_reason(FILE *out)
{
    return write(fileno(out), "", 1) < 0 ? -errno : -EIO;
}

int pb_replace_end(struct pb_replace *r, int result)
{
    _cleanup_free_ char *part = r->part;

    if (ferror(r->out) && (result >= 0 || result == -EIO))
        result = part ? find_reason(r->out) : -EIO;
    if (fclose(r->out) != 0 && result >= 0)
        result = -errno;
    if (part && result >= 0 && rename(part, r->path) < 0)
        result = -errno;
    if (part && result < 0)
        unlink(part);
    *r = (struct pb_replace){0};
    return result;
}
