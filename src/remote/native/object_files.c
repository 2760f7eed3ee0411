/* object_files: see object_files.h. */
#include "remote/native/object_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "remote/native/process_code.h"
#include "remote/openin.h"

static int open_map_file(struct pb_native *n, const struct pb_range *r)
{
    if (n->no_map_files)
        return -EPERM;
    int fd = pb_open_mapped(n->source->pid, r->start, r->end);
    n->no_map_files = fd == -EPERM || fd == -EACCES;
    return fd;
}

int pb_file_open(struct pb_native *n, struct pb_file *f, const struct pb_range *r)
{
    int fd = -ENOENT;
    if (f->path[0] == '/' && n->source->ops->open_file) {
        fd = n->source->ops->open_file(n->source, f->path, f->inode, f->base);
    } else if (f->path[0] == '/') {
        fd = open_map_file(n, r);
        /* A deleted file's path ends in " (deleted)" and names nothing, or another file with another
         * inode. */
        if (fd < 0)
            fd = pb_open_in_root(n->source->pid, f->path, f->inode);
    }
    if (fd >= 0 && pb_object_open(fd, &f->object) == 0)
        return 0;
    return pb_object_map(n->source, f->base, &f->object);
}

int pb_debug_open(struct pb_native *n, struct pb_file *f)
{
    char path[128];
    const char *id = f->object.build_id;
    if (strlen(id) < 8)
        return -ENOENT;
    snprintf(path, sizeof(path), "/usr/lib/debug/.build-id/%.2s/%s.debug", id, id + 2);
    const pid_t roots[] = {n->source->pid, 0};
    for (unsigned i = 0; i < 2; i++) {
        struct pb_object o;
        int fd = pb_open_in_root(roots[i], path, 0);
        if (fd < 0 || pb_object_open(fd, &o) < 0)
            continue;
        if (strcmp(o.build_id, id) == 0 || !o.build_id[0]) {
            f->debug = o;
            return 0;
        }
        pb_object_done(&o);
    }
    return -ENOENT;
}
