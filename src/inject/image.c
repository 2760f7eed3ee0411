/* image: see image.h. */
#include "inject/image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/procfs.h"
#include "base/retry.h"
#include "remote/mem.h"

/* -ESTALE: the list is empty, since the kernel fills it in towards the end of an exec. */
static int find_random(pid_t pid, uint64_t *ret)
{
    _Alignas(uint64_t) char buf[1024];
    uint64_t pair[2] = {~0ull};

    int n = pb_proc_read(pid, "auxv", buf, sizeof(buf));
    if (n <= 0)
        return n < 0 ? n : -ESRCH;
    for (size_t i = 0; i + sizeof(pair) <= (size_t)n; i += sizeof(pair)) {
        memcpy(pair, buf + i, sizeof(pair));
        if (pair[0] == AT_RANDOM) {
            *ret = pair[1];
            return 0;
        }
    }
    return pair[0] == AT_NULL && n == sizeof(pair) ? -ESTALE : -ENOEXEC; /* a 32-bit process */
}

int pb_image_open(pid_t pid, struct pb_image *ret)
{
    struct pb_image image;
    char path[32];

    snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
    image.mem = open(path, O_RDWR | O_CLOEXEC);
    if (image.mem < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    int r = find_random(pid, &image.at);
    /* Read through the descriptor, so that both belong to the same image even if the process execs in
     * between. */
    if (r == 0 && pread(image.mem, image.token, sizeof(image.token), (off_t)image.at) != sizeof(image.token))
        r = -ESTALE;
    if (r < 0) {
        close(image.mem);
        return r;
    }
    *ret = image;
    return 0;
}

void pb_image_done(struct pb_image *image)
{
    if (image->mem >= 0)
        close(image->mem);
    image->mem = -1;
}

int pb_image_lock(const struct pb_image *image, uint64_t deadline)
{
    struct pb_retry again = pb_retry_until(deadline, PB_NS_PER_MS / 4, PB_NS_PER_MS / 4);

    while (flock(image->mem, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return -errno;
        if (!pb_retry_wait(&again))
            return -ETIMEDOUT;
    }
    return 0;
}

int pb_image_check(const struct pb_image *image, pid_t pid)
{
    unsigned char token[sizeof(image->token)];
    uint64_t at;

    int r = find_random(pid, &at);
    if (r == 0 && at != image->at)
        r = -ESTALE;
    if (r == 0)
        r = pb_mem_read(pid, at, token, sizeof(token));
    if (r == -EFAULT) /* unmapped between the two reads */
        r = -ESTALE;
    if (r == 0 && memcmp(token, image->token, sizeof(token)) != 0)
        r = -ESTALE;
    return r;
}

int pb_image_write(const struct pb_image *image, uint64_t addr, const void *buf, size_t len)
{
    ssize_t n = pwrite(image->mem, buf, len, (off_t)addr);
    if (n < 0)
        return errno == EIO ? -EFAULT : -errno;
    return n == 0 ? -ESTALE : (size_t)n == len ? 0 : -EFAULT;
}

bool pb_image_is_borrowed(pid_t pid, pid_t parent)
{
    return parent > 0 && syscall(SYS_kcmp, pid, parent, KCMP_VM, 0, 0) == 0;
}
