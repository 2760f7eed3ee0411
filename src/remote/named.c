/* named: see named.h. */
#include "remote/named.h"

#include "base/procfs.h"
#include "remote/core.h"
#include "remote/openin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The path of the working directory below the process's root. */
static void read_cwd(pid_t pid, char cwd[PATH_MAX])
{
    char root[PATH_MAX];

    int n = pb_proc_link(pid, "root", root, sizeof(root)), len = pb_proc_link(pid, "cwd", cwd, PATH_MAX);
    n = n == 1 ? 0 : n; /* "/" */
    bool inside =
        n >= 0 && len > n && len + 1 < PATH_MAX && strncmp(cwd, root, (size_t)n) == 0 && cwd[n] == '/';
    if (inside)
        memmove(cwd, cwd + n, (size_t)(len - n) + 1);
    else
        cwd[0] = '\0';
}

int pb_named_root_open(pid_t pid, struct pb_named_root *ret)
{
    char path[32];

    *ret = (struct pb_named_root){.root_fd = -1, .cwd_fd = -1};
    int r = pb_rights_of(pid, &ret->rights);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "/proc/%d/cwd", (int)pid);
    ret->cwd_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    read_cwd(pid, ret->cwd);
    snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
    ret->root_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return ret->root_fd < 0 ? -errno : 0;
}

int pb_named_root_of_core(const struct pb_core_info *core, const char *root, struct pb_named_root *ret)
{
    *ret = (struct pb_named_root){.rights = pb_rights_user(core->uid, core->gid), .cwd_fd = -1};
    ret->root_fd = open(root ? root : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return ret->root_fd < 0 ? -errno : 0;
}

void pb_named_root_close(struct pb_named_root *view)
{
    if (view->root_fd >= 0)
        close(view->root_fd);
    if (view->cwd_fd >= 0)
        close(view->cwd_fd);
    view->root_fd = view->cwd_fd = -1;
}

/* A name that leaves the working directory is followed from the root on, where links stay inside it. */
int pb_named_root_file(const struct pb_named_root *view, const char *name)
{
    char path[2 * PATH_MAX];

    if (*name == '/')
        return pb_open_named(&view->rights, view->root_fd, name, 0);
    int fd = strstr(name, "..") ? -ENOENT : pb_open_named(&view->rights, view->cwd_fd, name, 0);
    if (fd >= 0 || !view->cwd[0])
        return fd;
    if (snprintf(path, sizeof(path), "%s/%s", view->cwd, name) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    return pb_open_named(&view->rights, view->root_fd, path, 0);
}
