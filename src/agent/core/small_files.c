/* small_files: see small_files.h. */
#include "agent/core/small_files.h"
#include "table/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLURP_MAX (4u << 20)

long pb_file_read(const char *path, char *buf, size_t size)
{
    size_t len = 0;
    ssize_t n = 0;

    buf[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while (len + 1 < size && (n = read(fd, buf + len, size - 1 - len)) > 0)
        len += (size_t)n;
    int r = n < 0 ? -errno : 0;
    close(fd);
    buf[len] = '\0';
    return r < 0 ? r : (long)len;
}

void pb_file_slurp(const char *path, struct pb_block *ret)
{
    static char nothing[1];

    *ret = (struct pb_block){.data = nothing};
    char *memory = pb_pages_map(SLURP_MAX);
    if (!memory)
        return;
    long n = pb_file_read(path, memory, SLURP_MAX);
    size_t size = n > 0 ? (size_t)n : 0, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t mapped = (size + page) / page * page; /* with the NUL after it */
    if (mapped < SLURP_MAX)
        munmap(memory + mapped, SLURP_MAX - mapped);
    *ret = (struct pb_block){.data = memory, .size = size, .mapped = mapped};
}

void pb_block_done(struct pb_block *block)
{
    if (block->mapped)
        munmap(block->data, block->mapped);
    *block = (struct pb_block){0};
}
