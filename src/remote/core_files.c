/* core_files: memory that is not in a core because a file has it. See core.h.
 *
 * Only memory that was never written to is left out of a core, so the file has it, if it is still the same
 * file: proved by the build id if the core has one, made likely by size and time if not. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "remote/core_file.h"
#include "remote/native/object.h"
#include "remote/openin.h"
#include "remote/rights.h"
#include "remote/source.h"

enum { OPEN_MAX = 128, PAGE = 4096 };

const struct pb_core_map *pb_core_map_at(const struct pb_core *c, uint64_t addr)
{
    size_t low = 0, high = c->nmaps;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct pb_core_map *m = &c->maps[mid];
        if (addr >= m->end)
            low = mid + 1;
        else if (addr < m->start)
            high = mid;
        else
            return m;
    }
    return NULL;
}

static ssize_t read_dumped(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    return pb_core_dumped(s->extra, addr, buf, len);
}

/* The build id of the object mapped at base, if the core has it; "": it does not. */
static void dumped_build_id(struct pb_core *c, uint64_t base, char ret[65])
{
    static const struct pb_source_ops ops = {.name = "core", .read = read_dumped};
    struct pb_source dumped = {.ops = &ops, .fd = -1, .extra = c};
    struct pb_object o;

    ret[0] = '\0';
    if (pb_object_map(&dumped, base, &o) < 0)
        return;
    memcpy(ret, o.build_id, sizeof(o.build_id));
    pb_object_done(&o);
}

static int check(struct pb_core *c, struct pb_core_file *f, int fd)
{
    char was[65] = "";
    struct pb_object o;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (f->base)
        dumped_build_id(c, f->base, was);
    int copy = was[0] ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (copy >= 0 && pb_object_open(copy, &o) == 0) {
        int same = strcmp(o.build_id, was);
        pb_object_done(&o);
        if (same == 0)
            return 0;
    }
    if (was[0]) {
        pb_core_note(
            c, "%s is not the file that ran (its build id differs): parts that the core lacks are missing",
            f->path);
        return -ESTALE;
    }
    if ((uint64_t)st.st_size + PAGE <= f->mapped) {
        pb_core_note(c, "%s is shorter than the file that ran: parts that the core lacks are missing",
                     f->path);
        return -ESTALE;
    }
    if (st.st_mtime > c->taken)
        pb_core_note(c, "%s is newer than the core, and nothing tells whether it is the same file", f->path);
    return 0;
}

/* Closes a file so that only a few are open: a core may name any number. */
static void make_room(struct pb_core *c)
{
    while (c->nopen >= OPEN_MAX) {
        struct pb_core_file *f = &c->files[c->evict++ % c->nfiles];
        if (f->fd < 0)
            continue;
        close(f->fd);
        f->fd = -1;
        c->nopen--;
    }
}

static int open_file(struct pb_core *c, struct pb_core_file *f)
{
    if (f->fd >= 0)
        return 0;
    if (f->state == PB_CORE_FILE_REFUSED || f->path[0] != '/')
        return -EFAULT;
    make_room(c);
    const struct pb_rights rights = pb_rights_user(c->info.uid, c->info.gid);
    _cleanup_close_ int fd = pb_open_named(&rights, c->root_fd, f->path, 0);
    int r = fd < 0 ? fd : f->state == PB_CORE_FILE_FITS ? 0 : check(c, f, fd);
    if (fd < 0 && strncmp(f->path, "/dev/", 5) != 0 && strncmp(f->path, "/memfd:", 7) != 0)
        pb_core_note(c, "%s cannot be read: %s; parts that the core lacks are missing", f->path,
                     strerror(-fd));
    f->state = r < 0 ? PB_CORE_FILE_REFUSED : PB_CORE_FILE_FITS;
    if (r < 0)
        return -EFAULT;
    f->fd = pb_take_fd(fd);
    c->nopen++;
    return 0;
}

ssize_t pb_core_files_read(struct pb_core *c, uint64_t addr, void *buf, size_t len)
{
    const struct pb_core_map *m = pb_core_map_at(c, addr);

    if (!m || open_file(c, &c->files[m->file]) < 0)
        return -EFAULT;
    uint64_t offset = m->offset + (addr - m->start);
    if (len > m->end - addr)
        len = m->end - addr;
    if (offset > INT64_MAX - len)
        return -EFAULT;
    ssize_t n = pread(c->files[m->file].fd, buf, len, (off_t)offset);
    if (n < 0)
        return -EFAULT;
    /* The rest of the last page is zeros. */
    size_t rest = (PAGE - (offset + (size_t)n) % PAGE) % PAGE;
    if (rest > len - (size_t)n)
        rest = len - (size_t)n;
    memset((char *)buf + n, 0, rest);
    return n + (ssize_t)rest > 0 ? n + (ssize_t)rest : -EFAULT;
}

int pb_core_files_open(struct pb_core *c, uint64_t addr)
{
    const struct pb_core_map *m = pb_core_map_at(c, addr);
    struct pb_core_file *f = m ? &c->files[m->file] : NULL;

    int r = f ? open_file(c, f) : -ENOENT;
    int fd = r < 0 ? r : fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
    return r < 0 || fd >= 0 ? fd : -errno;
}

void pb_core_files_close(struct pb_core *c)
{
    for (size_t i = 0; i < c->nfiles; i++)
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
}
