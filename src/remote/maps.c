/* maps: see maps.h. */
#include "remote/maps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/vector.h"

static int append_map(struct pb_maps *m, const struct pb_map *map)
{
    if (pb_grow_full((void **)&m->at, m->n, sizeof(*m->at)) < 0)
        return -ENOMEM;
    m->at[m->n++] = *map;
    return 0;
}

static int parse_number(char **at, int base, char end, uint64_t *ret)
{
    char *stop;
    errno = 0;
    uint64_t value = strtoull(*at, &stop, base);
    if (stop == *at || *stop != end || errno)
        return -EBADMSG;
    *at = stop + 1;
    *ret = value;
    return 0;
}

/* "start-end rwxp offset dev inode    path", the path to the end of the line with its blanks. */
static int parse_line(char *line, struct pb_map *ret)
{
    struct pb_map map = {0};
    if (parse_number(&line, 16, '-', &map.start) < 0 || parse_number(&line, 16, ' ', &map.end) < 0)
        return -EBADMSG;
    if (strnlen(line, 5) < 5 || line[4] != ' ' || map.end < map.start)
        return -EBADMSG;
    map.prot = (line[0] == 'r' ? PROT_READ : 0) | (line[1] == 'w' ? PROT_WRITE : 0) |
               (line[2] == 'x' ? PROT_EXEC : 0);
    line += 5;
    if (parse_number(&line, 16, ' ', &map.offset) < 0)
        return -EBADMSG;
    line += strcspn(line, " ");
    line += strspn(line, " ");
    char *stop;
    map.inode = strtoull(line, &stop, 10);
    if (stop == line)
        return -EBADMSG;
    map.path = stop + strspn(stop, " ");
    *ret = map;
    return 0;
}

int pb_maps_parse(char *text, struct pb_maps *ret, struct pb_err *err)
{
    _cleanup_(pb_maps_done) struct pb_maps m = {.text = text};

    for (char *line = text; *line;) {
        char *end = strchrnul(line, '\n');
        char *next = *end ? end + 1 : end;
        *end = '\0';
        struct pb_map map;
        int r = parse_line(line, &map);
        if (r < 0)
            return pb_fail(err, r, "unexpected line in a list of mappings: %s", line);
        r = append_map(&m, &map);
        if (r < 0)
            return r;
        line = next;
    }
    *ret = m;
    m = (struct pb_maps){0};
    return 0;
}

int pb_maps_read(pid_t pid, struct pb_maps *ret, struct pb_err *err)
{
    char *text;
    int r = pb_proc_slurp(pb_proc_living(pid), "maps", &text, NULL);
    if (r < 0)
        return pb_fail(err, r, "cannot list the memory of process %d: %s", pid, strerror(-r));
    /* A process that exits meanwhile gives a short list, not an error: an empty one means it is gone. */
    if (!*text) {
        free(text);
        return pb_fail(err, -ESRCH, "process %d is gone", pid);
    }
    return pb_maps_parse(text, ret, err);
}

void pb_maps_done(struct pb_maps *m)
{
    free(m->at);
    free(m->text);
}

const struct pb_map *pb_maps_find(const struct pb_maps *m, uint64_t addr)
{
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (addr >= m->at[mid].end)
            low = mid + 1;
        else if (addr < m->at[mid].start)
            high = mid;
        else
            return &m->at[mid];
    }
    return NULL;
}

const char *pb_maps_base(const struct pb_map *map)
{
    const char *slash = strrchr(map->path, '/');
    return slash ? slash + 1 : map->path;
}
