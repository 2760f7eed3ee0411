/* means: see means.h. */
#include "remote/means.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/procfs.h"
#include "remote/bpf.h"
#include "table/system_calls.h"

#define CAP_BIT_SYS_ADMIN 21
#define CAP_BIT_PERFMON   38
#define CAP_BIT_BPF       39
#define KERNEL_ENOTSUPP   524

int pb_means_bpf(void)
{
    static const struct bpf_insn nothing[] = {PB_BPF_SET(0, 0), PB_BPF_EXIT};
    struct pb_bpf_memory memory;

    int r = pb_bpf_memory_new((size_t)sysconf(_SC_PAGESIZE), &memory);
    if (r < 0)
        return r;
    pb_bpf_memory_done(&memory);
    _cleanup_close_ int program = pb_bpf_load(nothing, sizeof(nothing) / sizeof(nothing[0]));
    if (program < 0)
        return program;
    int cpu = sched_getcpu();
    r = pb_bpf_run_on(program, cpu < 0 ? 0 : cpu);
    return r < 0 ? r : 0;
}

static bool has_bpf_rights(void)
{
    char text[8192];

    if (pb_proc_read(0, "status", text, sizeof(text)) < 0)
        return false;
    uint64_t have = (uint64_t)pb_proc_number(text, "CapEff", 16);
    return have >> CAP_BIT_SYS_ADMIN & 1 || (have >> CAP_BIT_BPF & 1 && have >> CAP_BIT_PERFMON & 1);
}

const char *pb_means_why_no_bpf(int error, char *buf, size_t size)
{
    struct rlimit limit = {0};

    switch (error) {
    case -EPERM:
    case -EACCES:
        if (!has_bpf_rights()) {
            snprintf(buf, size, "permission denied: it needs root, or CAP_BPF and CAP_PERFMON");
            break;
        }
        (void)getrlimit(RLIMIT_MEMLOCK, &limit);
        if (limit.rlim_cur != RLIM_INFINITY)
            snprintf(buf, size,
                     "permission denied in spite of the capabilities: a seccomp filter, kernel lockdown, or "
                     "(before Linux 5.11) RLIMIT_MEMLOCK, which is %llu KB (ulimit -l unlimited)",
                     (unsigned long long)limit.rlim_cur / 1024);
        else
            snprintf(buf, size,
                     "permission denied in spite of the capabilities: a seccomp filter or kernel lockdown");
        break;
    case -ENOSYS:
        snprintf(buf, size, "this kernel has no bpf, or a seccomp filter hides it");
        break;
    case -EINVAL:
    case -KERNEL_ENOTSUPP:
        snprintf(buf, size, "this kernel is too old: it needs Linux 5.10");
        break;
    case -ENOTSUP:
        snprintf(buf, size, "not for this build of Python");
        break;
    default:
        snprintf(buf, size, "%s", strerror(-error));
    }
    return buf;
}

bool pb_means_schedstat(void)
{
    char text[96];
    unsigned long long run, wait, slices;

    return pb_proc_read(0, "schedstat", text, sizeof(text)) > 0 &&
           sscanf(text, "%llu %llu %llu", &run, &wait, &slices) == 3 && slices > 0;
}

bool pb_means_openat2(void)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC};
    _cleanup_close_ int fd = (int)syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how));
    return fd >= 0;
}
