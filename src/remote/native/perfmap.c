/* perfmap: see perfmap.h. */
#include "remote/native/perfmap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/procfs.h"
#include "base/time.h"
#include "base/vector.h"
#include "remote/openin.h"
#include "remote/procinfo.h"

enum {
    MAX_TEXT = 64 << 20,
    MAX_ENTRIES = 1 << 20,
};

struct pb_perf_map {
    char *text;
    off_t size;
    uint64_t tried;
    struct pb_perf_entry *at;
    size_t n;
};

/* Later lines are newer: of equal starts the last is used. */
static int by_start(const void *a, const void *b)
{
    const struct pb_perf_entry *x = a, *y = b;
    if (x->start != y->start)
        return x->start > y->start ? 1 : -1;
    return (x->name > y->name) - (x->name < y->name);
}

/* "start size name", hexadecimal, the name to the end of the line. */
static int parse_line(char *line, struct pb_perf_entry *ret)
{
    char *stop;
    uint64_t start = strtoull(line, &stop, 16);
    if (stop == line || *stop != ' ')
        return -EBADMSG;
    line = stop + 1;
    uint64_t size = strtoull(line, &stop, 16);
    if (stop == line || *stop != ' ' || !stop[1] || !size || start > UINT64_MAX - size)
        return -EBADMSG;
    *ret = (struct pb_perf_entry){.start = start, .size = size, .name = stop + 1};
    return 0;
}

ssize_t pb_perf_map_parse(char *text, struct pb_perf_entry **ret)
{
    struct pb_perf_entry *at = NULL;
    size_t n = 0;
    for (char *line = text; *line && n < MAX_ENTRIES;) {
        char *end = strchrnul(line, '\n');
        char *next = *end ? end + 1 : end;
        struct pb_perf_entry entry;
        *end = '\0';
        if (parse_line(line, &entry) == 0) {
            if (pb_grow_full((void **)&at, n, sizeof(*at)) < 0) {
                free(at);
                return -ENOMEM;
            }
            at[n++] = entry;
        }
        line = next;
    }
    if (n)
        qsort(at, n, sizeof(*at), by_start);
    *ret = at;
    return (ssize_t)n;
}

/* The pid in the file name: the process's pid in its own namespace. */
static int own_pid(pid_t pid)
{
    char status[2048];
    if (pb_proc_read(pid, "status", status, sizeof(status)) < 0)
        return -ESRCH;
    const char *list = pb_proc_field(status, "NSpid");
    int last = pid;
    while (list && *list && *list != '\n') {
        char *stop;
        long value = strtol(list, &stop, 10);
        if (stop == list)
            break;
        last = (int)value;
        list = stop + strspn(stop, "\t ");
    }
    return last;
}

/* The folder is everybody's: another user may have made a file of that name first. */
static int open_map(pid_t pid, struct stat *ret)
{
    struct pb_procinfo process;
    char path[40];
    snprintf(path, sizeof(path), "/tmp/perf-%d.map", own_pid(pid));
    _cleanup_close_ int fd = pb_open_in_root(pid, path, 0);
    if (fd < 0)
        return fd;
    if (fstat(fd, ret) < 0 || pb_procinfo_identify(pid, &process) < 0)
        return -ESRCH;
    return ret->st_uid == process.euid || ret->st_uid == 0 ? pb_take_fd(fd) : -EPERM;
}

static void load_file(struct pb_perf_map *m, pid_t pid)
{
    struct stat st;
    _cleanup_close_ int fd = open_map(pid, &st);
    if (fd < 0 || st.st_size == m->size || st.st_size > MAX_TEXT)
        return;
    _cleanup_free_ char *text = malloc((size_t)st.st_size + 1);
    if (!text)
        return;
    ssize_t len = pread(fd, text, (size_t)st.st_size, 0);
    if (len < 0)
        return;
    text[len] = '\0';
    struct pb_perf_entry *at;
    ssize_t n = pb_perf_map_parse(text, &at);
    if (n < 0)
        return;
    free(m->text);
    free(m->at);
    m->text = pb_take_ptr(text);
    m->at = at;
    m->n = (size_t)n;
    m->size = st.st_size;
}

static int find_entry(const struct pb_perf_map *m, uint64_t addr, struct pb_perf_entry *ret)
{
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (m->at[mid].start <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0 || addr - m->at[low - 1].start >= m->at[low - 1].size)
        return -ENOENT;
    *ret = m->at[low - 1];
    return 0;
}

int pb_perf_map_find(struct pb_perf_map **map, pid_t pid, uint64_t addr, struct pb_perf_entry *ret)
{
    struct pb_perf_map *m = *map;
    if (!m) {
        m = *map = calloc(1, sizeof(*m));
        if (!m)
            return -ENOMEM;
    }
    if (find_entry(m, addr, ret) == 0)
        return 0;
    /* Many addresses of a process without the file are looked up: it is opened again only now and then. */
    uint64_t now = pb_now_ns();
    if (m->tried && now - m->tried < PB_NS_PER_S / 10)
        return -ENOENT;
    m->tried = now;
    load_file(m, pid);
    return find_entry(m, addr, ret);
}

void pb_perf_map_free(struct pb_perf_map *map)
{
    if (!map)
        return;
    free(map->text);
    free(map->at);
    free(map);
}
