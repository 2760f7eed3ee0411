/* bundle_folder: the folder in which the parts of an incident's file lie while it is made or read. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/retry.h"
#include "cli/bundle/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH = 24, REMOVE_S = 60 };

void pb_bundle_done(struct pb_bundle *b)
{
    free(b->processes);
    free(b->left_out);
    free(b->notes);
    b->processes = NULL;
    b->left_out = b->notes = NULL;
    b->nprocesses = b->nleft_out = b->nnotes = 0;
}

static int add_note(struct pb_bundle_note **at, size_t *n, const char *name, const char *why)
{
    struct pb_bundle_note *more = realloc(*at, (*n + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    *at = more;
    struct pb_bundle_note *note = &more[(*n)++];
    snprintf(note->name, sizeof(note->name), "%s", name);
    snprintf(note->why, sizeof(note->why), "%s", why);
    return 0;
}

int pb_bundle_leave_out(struct pb_bundle *b, const char *name, const char *why)
{
    return add_note(&b->left_out, &b->nleft_out, name, why);
}

int pb_bundle_note(struct pb_bundle *b, const char *name, const char *why)
{
    return add_note(&b->notes, &b->nnotes, name, why);
}

int pb_bundle_folder_make(char ret[PATH_MAX], struct pb_err *err)
{
    const char *top = getenv("TMPDIR");

    top = top && top[0] == '/' ? top : "/tmp";
    if (snprintf(ret, PATH_MAX, "%s/incident-XXXXXX", top) >= PATH_MAX - 512)
        return pb_fail(err, -ENAMETOOLONG, "the path in TMPDIR is too long");
    if (!mkdtemp(ret))
        return pb_fail(err, -errno, "no folder can be made in %s: %s (TMPDIR names another)", top,
                       strerror(errno));
    return 0;
}

static void remove_below(int folder, unsigned depth)
{
    DIR *dir = fdopendir(folder);

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(dir), e->d_name, 0) == 0 || depth == 0)
            continue;
        int below = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below >= 0)
            remove_below(below, depth - 1);
        unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
    }
    if (dir)
        closedir(dir);
    else
        close(folder);
}

void pb_bundle_folder_remove(const char *path)
{
    struct pb_retry again =
        pb_retry_until(pb_now_ns() + REMOVE_S * PB_NS_PER_S, 10 * PB_NS_PER_MS, 100 * PB_NS_PER_MS);

    /* A child that was ended may still write a part: then the folder is not empty yet. */
    do {
        int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder >= 0)
            remove_below(folder, DEPTH);
    } while (rmdir(path) < 0 && (errno == ENOTEMPTY || errno == EEXIST) && pb_retry_wait(&again));
}

static int each_below(const char *folder, const char *below, unsigned depth,
                      int (*each)(void *arg, const char *name, uint64_t size), void *arg)
{
    char path[2 * PATH_MAX], name[PATH_MAX];
    int r = 0;

    snprintf(path, sizeof(path), "%s/%s", folder, below);
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            snprintf(name, sizeof(name), "%s%s%s", below, *below ? "/" : "", e->d_name) >= PATH_MAX ||
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (S_ISDIR(st.st_mode) && depth)
            r = each_below(folder, name, depth - 1, each, arg);
        else if (S_ISREG(st.st_mode))
            r = each(arg, name, (uint64_t)st.st_size);
    }
    closedir(dir);
    return r;
}

int pb_bundle_each_file(const char *folder, int (*each)(void *arg, const char *name, uint64_t size),
                        void *arg)
{
    return each_below(folder, "", DEPTH, each, arg);
}
