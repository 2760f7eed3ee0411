/* bpf: see bpf.h. */
#include "remote/bpf.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOCKED_MAX (64u << 20) /* of locked memory: far more than the maps of all processes take */

static int call(int command, union bpf_attr *attr)
{
    long r = syscall(SYS_bpf, command, attr, sizeof(*attr));
    return r < 0 ? -errno : (int)r;
}

/* Before Linux 5.11 maps count as locked memory, of which a shell allows 64 KB. True: the limit was
 * raised. */
static bool allow_locked_memory(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= LOCKED_MAX)
        return false;
    struct rlimit more = {.rlim_cur = LOCKED_MAX, .rlim_max = limit.rlim_max};
    if (more.rlim_max != RLIM_INFINITY && more.rlim_max < LOCKED_MAX)
        more.rlim_max = LOCKED_MAX; /* root may */
    if (setrlimit(RLIMIT_MEMLOCK, &more) == 0)
        return true;
    more = (struct rlimit){limit.rlim_max, limit.rlim_max};
    return limit.rlim_max > limit.rlim_cur && setrlimit(RLIMIT_MEMLOCK, &more) == 0;
}

int pb_bpf_memory_new(size_t size, struct pb_bpf_memory *ret)
{
    union bpf_attr attr;

    if (size > UINT32_MAX)
        return -EINVAL;
    memset(&attr, 0, sizeof(attr));
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = sizeof(uint32_t);
    attr.value_size = (uint32_t)size;
    attr.max_entries = 1;
    attr.map_flags = BPF_F_MMAPABLE;
    int fd = call(BPF_MAP_CREATE, &attr);
    if ((fd == -EPERM || fd == -ENOMEM) && allow_locked_memory())
        fd = call(BPF_MAP_CREATE, &attr);
    if (fd < 0)
        return fd;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        int r = -errno;
        close(fd);
        return r;
    }
    *ret = (struct pb_bpf_memory){fd, at, size};
    return 0;
}

void pb_bpf_memory_done(struct pb_bpf_memory *m)
{
    if (!m->at)
        return;
    munmap(m->at, m->size);
    close(m->fd);
    m->at = NULL;
}

int pb_bpf_load(const struct bpf_insn *program, size_t n)
{
    union bpf_attr attr;

    memset(&attr, 0, sizeof(attr));
    attr.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT; /* the one kind that can be run on another CPU */
    attr.insns = (uintptr_t)program;
    attr.insn_cnt = (uint32_t)n;
    attr.license = (uintptr_t) "Dual BSD/GPL"; /* required by the helpers that it calls */
    return call(BPF_PROG_LOAD, &attr);
}

int pb_bpf_run_on(int fd, int cpu)
{
    union bpf_attr attr;

    memset(&attr, 0, sizeof(attr));
    attr.test.prog_fd = (uint32_t)fd;
    attr.test.flags = BPF_F_TEST_RUN_ON_CPU;
    attr.test.cpu = (uint32_t)cpu;
    int r = call(BPF_PROG_TEST_RUN, &attr);
    return r < 0 ? r : attr.test.retval > INT_MAX ? -EPROTO : (int)attr.test.retval;
}
