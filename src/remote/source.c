/* source: see source.h. */
#include "remote/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/procfs.h"
#include "remote/maps.h"
#include "remote/mem.h"
#include "remote/moment.h"
#include "remote/threads.h"

enum {
    BATCH = 64,
    PAGE = 4096,
    SETS = 8,
    WAYS = 4,
    SMALL = 512, /* a longer read is as good on its own */
};

static ssize_t count_whole(const struct pb_piece *pieces, size_t n, size_t bytes)
{
    size_t whole = 0;
    while (whole < n && bytes >= pieces[whole].len)
        bytes -= pieces[whole++].len;
    return (ssize_t)whole;
}

static ssize_t vm_readv(struct pb_source *s, const struct pb_piece *pieces, size_t n)
{
    struct iovec local[BATCH], remote[BATCH];
    size_t done = 0;

    while (done < n) {
        size_t batch = n - done < BATCH ? n - done : BATCH;
        for (size_t i = 0; i < batch; i++) {
            const struct pb_piece *p = &pieces[done + i];
            local[i] = (struct iovec){p->buf, p->len};
            remote[i] = (struct iovec){(void *)(uintptr_t)p->addr, p->len};
        }
        ssize_t got = process_vm_readv(s->pid, local, batch, remote, batch, 0);
        if (got < 0 && errno != EFAULT)
            return -errno;
        size_t whole = (size_t)count_whole(pieces + done, batch, got < 0 ? 0 : (size_t)got);
        done += whole;
        if (whole < batch)
            break;
    }
    return (ssize_t)done;
}

static ssize_t vm_read(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    struct iovec local = {buf, len}, remote = {(void *)(uintptr_t)addr, len};

    ssize_t got = process_vm_readv(s->pid, &local, 1, &remote, 1, 0);
    return got < 0 ? -errno : got;
}

static ssize_t file_read(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    ssize_t got = pread(s->fd, buf, len, (off_t)addr);
    if (got < 0)
        return errno == EIO ? -EFAULT : -errno;
    /* When the address space is gone the file reads as empty. */
    return got == 0 && len ? -ESRCH : got;
}

static ssize_t mem_read(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    return pb_mem_read_some(s->pid, addr, buf, len);
}

static void close_file(struct pb_source *s)
{
    close(s->fd);
}

static const struct pb_source_ops by_call = {.name = "process_vm_readv", .read = vm_read, .readv = vm_readv};
static const struct pb_source_ops by_file = {.name = "/proc/PID/mem", .read = file_read, .close = close_file};
static const struct pb_source_ops by_either = {.name = "the process", .read = mem_read};

struct pb_source pb_source_of(pid_t pid)
{
    return (struct pb_source){.ops = &by_either, .pid = pid, .main = pid, .fd = -1};
}

/* Whether the call is allowed at all: some containers' filters forbid it and allow the file. Nothing is
 * mapped at the address, so an allowed call fails with EFAULT. */
static int try_call(pid_t pid)
{
    char byte;
    struct iovec local = {&byte, 1}, remote = {(void *)8, 1};

    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) >= 0 || errno == EFAULT)
        return 0;
    return -errno;
}

static int refused(pid_t pid, int r, struct pb_err *err)
{
    if (r == -ESRCH)
        return pb_fail(err, r, "there is no process %d", (int)pid);
    return pb_fail(err, r,
                   "the memory of process %d may not be read: %s (be its owner with ptrace allowed, or root)",
                   (int)pid, strerror(-r));
}

int pb_source_process(pid_t pid, struct pb_source *ret, struct pb_err *err)
{
    char path[32];

    pid = pb_proc_living(pid);
    int r = try_call(pid);
    if (r == 0) {
        *ret = (struct pb_source){.ops = &by_call, .pid = pid, .main = pid, .fd = -1};
        return 0;
    }
    if (r != -EPERM && r != -ENOSYS)
        return refused(pid, r, err);
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refused(pid, errno == ENOENT ? -ESRCH : -errno, err);
    *ret = (struct pb_source){.ops = &by_file, .pid = pid, .main = pid, .fd = fd};
    return 0;
}

void pb_source_close(struct pb_source *s)
{
    free(s->pages);
    if (s->tasks)
        close(s->tasks - 1);
    if (s->ops && s->ops->close)
        s->ops->close(s);
    *s = (struct pb_source){.fd = -1};
}

ssize_t pb_source_readv(struct pb_source *s, const struct pb_piece *pieces, size_t n)
{
    if (s->ops->readv)
        return s->ops->readv(s, pieces, n);
    for (size_t i = 0; i < n; i++) {
        ssize_t got = s->ops->read(s, pieces[i].addr, pieces[i].buf, pieces[i].len);
        if (got < 0 && got != -EFAULT)
            return got;
        if (got < 0 || (size_t)got < pieces[i].len)
            return (ssize_t)i;
    }
    return (ssize_t)n;
}

ssize_t pb_source_read_some(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    return s->ops->read(s, addr, buf, len);
}

/* A page may be in any slot of its set; the one filled first is replaced. */
struct pb_pages {
    uint64_t rounds; /* given out */
    struct page_set {
        struct {
            uint64_t addr, round;
        } slot[WAYS];
        unsigned next;
    } set[SETS];
    uint8_t data[SETS][WAYS][PAGE];
};

uint64_t pb_source_keep(struct pb_source *s, uint64_t round)
{
    if (!s->pages && s->pid && !s->ops->maps)
        s->pages = calloc(1, sizeof(*s->pages));
    if (s->pages)
        s->round = round ? round : ++s->pages->rounds;
    return s->round;
}

void pb_source_forget(struct pb_source *s)
{
    s->round = 0;
}

/* A page is kept whole or not at all: reading a part of it reads all of it. */
static int find_page(struct pb_source *s, uint64_t page, const uint8_t **ret)
{
    size_t hash = (page * 0x9e3779b97f4a7c15ull) >> 32, i = hash % SETS;
    struct page_set *set = &s->pages->set[i];

    for (unsigned k = 0; k < WAYS; k++)
        if (set->slot[k].addr == page && set->slot[k].round == s->round) {
            *ret = s->pages->data[i][k];
            return 0;
        }
    unsigned k = set->next++ % WAYS;
    set->slot[k].round = 0;
    ssize_t got = s->ops->read(s, page, s->pages->data[i][k], PAGE);
    if (got != PAGE)
        return got < 0 ? (int)got : -EFAULT;
    set->slot[k].addr = page;
    set->slot[k].round = s->round;
    *ret = s->pages->data[i][k];
    return 0;
}

static int read_kept(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    const uint8_t *page = NULL;

    for (size_t done = 0, n; done < len; done += n) {
        size_t in = (addr + done) % PAGE;
        n = len - done < PAGE - in ? len - done : PAGE - in;
        int r = find_page(s, addr + done - in, &page);
        if (r < 0)
            return r;
        memcpy((uint8_t *)buf + done, page + in, n);
    }
    return 0;
}

int pb_source_read(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    if (s->round && len <= SMALL)
        return read_kept(s, addr, buf, len);
    ssize_t got = s->ops->read(s, addr, buf, len);
    return got < 0 ? (int)got : (size_t)got == len ? 0 : -EFAULT;
}

int pb_source_maps(struct pb_source *s, struct pb_maps *ret, struct pb_err *err)
{
    return s->ops->maps ? s->ops->maps(s, ret, err) : pb_maps_read(s->pid, ret, err);
}

int pb_source_threads(struct pb_source *s, struct pb_native_threads *ret, struct pb_err *err)
{
    return s->ops->threads ? s->ops->threads(s, ret, err) : pb_native_threads_read(s->pid, ret, err);
}

int pb_source_moment(struct pb_source *s, pid_t tid, struct pb_moment *ret)
{
    char path[32];

    if (s->ops->moment)
        return s->ops->moment(s, tid, ret);
    if (!s->tasks) {
        snprintf(path, sizeof(path), "/proc/%d/task", (int)s->pid);
        s->tasks = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) + 1;
    }
    return pb_moment_open_in(s->tasks - 1, s->pid, tid, ret);
}

int pb_source_exe(struct pb_source *s, char *ret, size_t size)
{
    return s->ops->exe ? s->ops->exe(s, ret, size) : pb_proc_link(s->pid, "exe", ret, size);
}
