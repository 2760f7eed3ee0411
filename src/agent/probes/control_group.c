/* control_group: see control_group.h. Files and their words: Linux, admin-guide/cgroup-v1 and cgroup-v2. */
#include "agent/probes/control_group.h"

#include "agent/core/small_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MB       (1024.0 * 1024.0)
#define NO_LIMIT 0x7000000000000000ll /* version 1 writes the largest multiple of a page */

/* The folder of a group below a mount point. In a container the path may be that of the host, and the mount
 * point the group itself. */
static void find_folder(const char *mount, const char *path, size_t length, const char *probe, char *ret,
                        size_t size)
{
    char file[600];

    int n = snprintf(ret, size, "%s%.*s", mount, (int)length, path);
    if (n < 0 || (size_t)n >= size)
        ret[0] = '\0';
    snprintf(file, sizeof(file), "%s/%s", ret, probe);
    if (ret[0] && access(file, R_OK) == 0)
        return;
    snprintf(ret, size, "%s", mount);
    snprintf(file, sizeof(file), "%s/%s", mount, probe);
    if (access(file, R_OK) < 0)
        ret[0] = '\0';
}

/* Whether a comma-separated list has a word. */
static int has_word(const char *list, const char *end, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; at < end; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t length = (size_t)((comma ? comma : end) - at);
        if (length == n && memcmp(at, word, n) == 0)
            return 1;
        at += length;
    }
    return 0;
}

void pb_control_group_find(struct pb_control_group *ret)
{
    char text[4096];

    *ret = (struct pb_control_group){0};
    pb_file_read("/proc/self/cgroup", text, sizeof(text));
    /* A line is "number:controllers:path"; version 2 has number 0 and no controllers. */
    for (const char *line = text; *line;) {
        const char *end = strchrnul(line, '\n'), *names = memchr(line, ':', (size_t)(end - line));
        const char *path = names ? memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;
        size_t length = path ? (size_t)(end - path - 1) : 0;
        if (path && has_word(names + 1, path, "memory")) {
            ret->version = 1;
            find_folder("/sys/fs/cgroup/memory", path + 1, length, "memory.usage_in_bytes", ret->memory,
                        sizeof(ret->memory));
        }
        if (path && has_word(names + 1, path, "cpu"))
            find_folder("/sys/fs/cgroup/cpu", path + 1, length, "cpu.stat", ret->cpu, sizeof(ret->cpu));
        if (path && path == names + 1 && ret->version == 0) {
            ret->version = 2;
            find_folder("/sys/fs/cgroup", path + 1, length, "cpu.stat", ret->memory, sizeof(ret->memory));
            snprintf(ret->cpu, sizeof(ret->cpu), "%s", ret->memory);
        }
        line = *end ? end + 1 : end;
    }
}

static long read_group_file(const char *folder, const char *name, char *text, size_t size)
{
    char path[600];

    text[0] = '\0';
    if (!folder[0])
        return -1;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return pb_file_read(path, text, size);
}

/* A file that is one number. -1: it cannot be read, or is "max". */
static double read_number(const char *folder, const char *name)
{
    char text[64], *end;

    if (read_group_file(folder, name, text, sizeof(text)) <= 0)
        return -1;
    long long number = strtoll(text, &end, 10);
    return end == text || number < 0 || number >= NO_LIMIT ? -1 : (double)number;
}

/* The number after a word at the beginning of a line ("oom_kill 3"). -1: there is none. */
static double number_after(const char *text, const char *word)
{
    size_t n = strlen(word);

    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, word, n) == 0 && line[n] == ' ')
            return (double)strtoll(line + n, NULL, 10);
    return -1;
}

/* total= of the line "some" or "full" of a pressure file, in seconds. -1: there is none. */
static double read_pressure(const struct pb_control_group *group, const char *name, const char *line)
{
    char text[512], file[64];

    snprintf(file, sizeof(file), "%s.pressure", name);
    if (group->version != 2 || read_group_file(group->memory, file, text, sizeof(text)) <= 0) {
        snprintf(file, sizeof(file), "/proc/pressure/%s", name);
        pb_file_read(file, text, sizeof(text));
    }
    const char *found = strstr(text, line), *total = found ? strstr(found, "total=") : NULL;
    return total ? (double)strtoll(total + strlen("total="), NULL, 10) / 1e6 : -1;
}

static double scaled(double value, double by)
{
    return value < 0 ? -1 : value / by;
}

/* cpu.max is "quota period" or "max period". */
static double read_cpu_max(const char *folder)
{
    char text[64];
    long long quota, period;

    if (read_group_file(folder, "cpu.max", text, sizeof(text)) <= 0 ||
        sscanf(text, "%lld %lld", &quota, &period) != 2 || period <= 0)
        return -1;
    return (double)quota / (double)period;
}

void pb_control_group_read(const struct pb_control_group *group, struct pb_control_group_state *ret)
{
    int two = group->version == 2;
    char text[2048];

    ret->memory_mb = scaled(read_number(group->memory, two ? "memory.current" : "memory.usage_in_bytes"), MB);
    ret->memory_limit_mb =
        scaled(read_number(group->memory, two ? "memory.max" : "memory.limit_in_bytes"), MB);
    read_group_file(group->memory, two ? "memory.events" : "memory.oom_control", text, sizeof(text));
    ret->oom_kills = (int64_t)number_after(text, "oom_kill");
    read_group_file(group->cpu, "cpu.stat", text, sizeof(text));
    ret->throttled_s = two ? scaled(number_after(text, "throttled_usec"), 1e6)
                           : scaled(number_after(text, "throttled_time"), 1e9);
    if (two) {
        ret->cpu_limit = read_cpu_max(group->cpu);
    } else {
        double quota = read_number(group->cpu, "cpu.cfs_quota_us"),
               period = read_number(group->cpu, "cpu.cfs_period_us");
        ret->cpu_limit = quota < 0 || period <= 0 ? -1 : quota / period;
    }
    ret->cpu_pressure_s = read_pressure(group, "cpu", "some ");
    ret->memory_pressure_s = read_pressure(group, "memory", "full ");
    ret->io_pressure_s = read_pressure(group, "io", "full ");
}
