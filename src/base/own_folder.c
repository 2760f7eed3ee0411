/* own_folder: see own_folder.h. */
#include "base/own_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void pb_own_folder_path(const char *name, const char *fallback, char *ret, size_t size)
{
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");

    if (runtime && runtime[0] == '/')
        snprintf(ret, size, "%s/%s", runtime, name);
    else
        snprintf(ret, size, "/tmp/%s-%u", fallback, (unsigned)geteuid());
}

int pb_own_folder_open(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077) {
        close(fd);
        return -EPERM;
    }
    return fd;
}
