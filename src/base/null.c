/* null: see null.h. */
#include "base/null.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int pb_null_over(int first, int last)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC), r = 0;

    if (fd < 0)
        fd = open("/", O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (int i = first; i <= last; i++)
        if ((i == fd ? fcntl(fd, F_SETFD, 0) : dup2(fd, i)) < 0)
            r = -errno;
    if (fd < first || fd > last)
        close(fd);
    return r;
}
