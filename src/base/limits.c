/* limits: see limits.h. */
#include "base/limits.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define STEP_BACK 10 /* nice: with another runnable process, a tenth of the CPU; on an idle CPU, all of it */

#define DESCRIPTORS (1u << 18)

/* oom_score_adj, up to 1000: the kernel kills the process with the highest score first. The default is 0. */
#define OOM_SCORE "800"

static bool read_text(const char *path, char *ret, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

    if (fd >= 0)
        close(fd);
    ret[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Reads the number at the beginning of a cgroup file. False: the file has none ("max", -1). */
static bool read_number(const char *folder, const char *name, char *rest, size_t size, uint64_t *ret)
{
    char path[PATH_MAX], text[128], *end;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path) ||
        !read_text(path, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return false;
    *ret = strtoull(text, &end, 10);
    snprintf(rest, size, "%s", end);
    return true;
}

static void lower_memory(struct pb_limits *limits, uint64_t bytes)
{
    if (bytes && bytes < limits->memory)
        limits->memory = bytes;
}

static void lower_cpus(struct pb_limits *limits, uint64_t quota, uint64_t period)
{
    uint64_t n = period ? (quota + period - 1) / period : 0;

    if (n && n < limits->cpus)
        limits->cpus = (unsigned)n;
}

static void read_group(const char *folder, struct pb_limits *limits)
{
    char rest[128];
    uint64_t value, period;

    if (read_number(folder, "memory.max", rest, sizeof(rest), &value) ||
        read_number(folder, "memory.limit_in_bytes", rest, sizeof(rest), &value))
        lower_memory(limits, value);
    /* Above memory.high the kernel slows the whole group down, the job too. */
    if (read_number(folder, "memory.high", rest, sizeof(rest), &value))
        lower_memory(limits, value);
    if (read_number(folder, "cpu.max", rest, sizeof(rest), &value))
        lower_cpus(limits, value, strtoull(rest, NULL, 10));
    if (read_number(folder, "cpu.cfs_quota_us", rest, sizeof(rest), &value) &&
        read_number(folder, "cpu.cfs_period_us", rest, sizeof(rest), &period))
        lower_cpus(limits, value, period);
}

/* Applies the limits of a cgroup and of all its ancestors up to the mount. In a container the path may be one
 * of the host's, of which only the mount itself is visible. */
static void read_groups(const char *mount, const char *path, struct pb_limits *limits)
{
    char folder[PATH_MAX];
    size_t top = strlen(mount);

    if (snprintf(folder, sizeof(folder), "%s%s", mount, path) >= (int)sizeof(folder) || strstr(path, "/../"))
        folder[top] = '\0';
    for (;;) {
        read_group(folder, limits);
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + top)
            break;
        *slash = '\0';
    }
    read_group(mount, limits);
}

void pb_limits_of_groups(const char *membership, const char *root, struct pb_limits *limits)
{
    static const char *const controllers[] = {"memory", "cpu", "cpu,cpuacct"};
    char line[PATH_MAX], mount[PATH_MAX];

    for (const char *p = membership; *p;) {
        size_t n = strcspn(p, "\n");
        snprintf(line, sizeof(line), "%.*s", (int)(n < sizeof(line) ? n : sizeof(line) - 1), p);
        p += n + (p[n] == '\n');
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        names++;
        if (!*names)
            read_groups(root, path, limits);
        for (size_t i = 0; *names && i < sizeof(controllers) / sizeof(controllers[0]); i++)
            if (strcmp(names, controllers[i]) == 0 &&
                snprintf(mount, sizeof(mount), "%s/%s", root, names) < (int)sizeof(mount))
                read_groups(mount, path, limits);
    }
}

void pb_limits_read(struct pb_limits *ret)
{
    char membership[8192];
    struct sysinfo info;
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    ret->memory = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : UINT64_C(1) << 30;
    ret->cpus = online > 0 ? (unsigned)online : 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0 &&
        (unsigned)CPU_COUNT(&set) < ret->cpus)
        ret->cpus = (unsigned)CPU_COUNT(&set);
    if (read_text("/proc/self/cgroup", membership, sizeof(membership)))
        pb_limits_of_groups(membership, "/sys/fs/cgroup", ret);
}

void pb_limits_volunteer(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    /* Raising the score needs no privilege. Without /proc it cannot be raised. */
    if (fd >= 0 && write(fd, OOM_SCORE, strlen(OOM_SCORE)) < 0) {
    }
    if (fd >= 0)
        close(fd);
    struct pb_limits limits;
    pb_limits_read(&limits);
    if (limits.cpus == 1 && getpriority(PRIO_PROCESS, 0) < STEP_BACK)
        (void)setpriority(PRIO_PROCESS, 0, STEP_BACK);
}

void pb_limits_allow_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= DESCRIPTORS)
        return;
    limit.rlim_cur = limit.rlim_max < DESCRIPTORS ? limit.rlim_max : DESCRIPTORS;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}
