/* threads: see threads.h. */
#include "remote/threads.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/vector.h"

enum { MAX_THREADS = 1 << 20, LISTED_AGAIN = 6 };

static int read_at(int dir_fd, pid_t tid, const char *name, char *buf, size_t size)
{
    char path[48];

    snprintf(path, sizeof(path), "%d/%s", (int)tid, name);
    _cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);
    if (n < 0)
        return -errno;
    buf[n] = '\0';
    return (int)n;
}

/* The name is in parentheses and may contain some itself: the fields begin after the last one. False: it is a
 * kernel thread. */
static bool read_stat(int dir_fd, struct pb_native_thread *t)
{
    char text[1024];

    t->state = '?';
    if (read_at(dir_fd, t->tid, "stat", text, sizeof(text)) < 0)
        return true;
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close < open || close[1] != ' ')
        return true;
    if (pb_proc_is_worker(text))
        return false;
    size_t len = (size_t)(close - open - 1);
    if (len >= sizeof(t->name))
        len = sizeof(t->name) - 1;
    memcpy(t->name, open + 1, len);
    t->name[len] = '\0';
    t->state = close[2];
    for (int field = 2; close && field < 39; field++)
        close = strchr(close + 1, ' ');
    t->cpu = close ? (int)strtol(close, NULL, 10) : -1;
    return true;
}

/* The last number after NSpid is the tid in its own namespace. */
static void read_ns_tid(int dir_fd, struct pb_native_thread *t)
{
    char text[8192], *end;

    const char *p =
        read_at(dir_fd, t->tid, "status", text, sizeof(text)) < 0 ? NULL : pb_proc_field(text, "NSpid");
    while (p && *p != '\n') {
        long number = strtol(p, &end, 10);
        if (end == p)
            return;
        t->ns_tid = (pid_t)number;
        p = end + strspn(end, " \t");
    }
}

static bool is_in_our_namespace(pid_t pid)
{
    char ours[64], its[64];

    /* If the namespace may not be read, the numbers are compared. */
    return pb_proc_link(0, "ns/pid", ours, sizeof(ours)) >= 0 &&
           pb_proc_link(pid, "ns/pid", its, sizeof(its)) >= 0 && strcmp(ours, its) == 0;
}

static int append_thread(struct pb_native_threads *all, const struct pb_native_thread *t)
{
    if (all->n >= MAX_THREADS || pb_grow_full((void **)&all->at, all->n, sizeof(*all->at)) < 0)
        return -ENOMEM;
    all->at[all->n++] = *t;
    return 0;
}

static int by_tid(const void *a, const void *b)
{
    const struct pb_native_thread *x = a, *y = b;
    return (x->tid > y->tid) - (x->tid < y->tid);
}

/* What was in the list, including threads that were dropped. */
struct listed {
    size_t n;
    pid_t last;
};

static int read_listed(DIR *dir, bool ours, struct pb_native_threads *all, struct listed *ret)
{
    struct listed listed = {0};
    int r = 0;

    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        struct pb_native_thread t = {.tid = (pid_t)atoi(e->d_name)};
        t.ns_tid = t.tid;
        listed = (struct listed){listed.n + 1, t.tid};
        if (!read_stat(dirfd(dir), &t))
            continue;
        if (!ours)
            read_ns_tid(dirfd(dir), &t);
        r = append_thread(all, &t);
    }
    *ret = listed;
    return r;
}

/* The kernel ends the list at a thread that ends while it is read, and leaves out those that come after it:
 * then the last one is gone. Of a long list it may skip some, and there are more threads than it had: the
 * links of the directory tell how many. */
static bool is_whole(DIR *dir, const struct listed *listed)
{
    char name[16];
    struct stat st;

    snprintf(name, sizeof(name), "%d", (int)listed->last);
    return faccessat(dirfd(dir), name, F_OK, 0) == 0 &&
           (fstat(dirfd(dir), &st) < 0 || listed->n + 2 >= st.st_nlink);
}

int pb_native_threads_read(pid_t pid, struct pb_native_threads *ret, struct pb_err *err)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads all = {0};
    char path[32];
    struct listed listed;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? pb_fail(err, -ESRCH, "there is no process %d", (int)pid)
                               : pb_fail(err, -errno, "the threads of process %d cannot be listed: %s",
                                         (int)pid, strerror(errno));
    bool ours = is_in_our_namespace(pid);
    int r = read_listed(dir, ours, &all, &listed);
    for (int again = 0; r == 0 && again < LISTED_AGAIN && !is_whole(dir, &listed); again++) {
        pb_native_threads_done(&all);
        rewinddir(dir);
        r = read_listed(dir, ours, &all, &listed);
    }
    closedir(dir);
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    if (all.n == 0)
        return pb_fail(err, -ESRCH, "process %d is gone", (int)pid);
    qsort(all.at, all.n, sizeof(*all.at), by_tid);
    *ret = all;
    all = (struct pb_native_threads){0};
    return 0;
}

void pb_native_threads_done(struct pb_native_threads *t)
{
    free(t->at);
    *t = (struct pb_native_threads){0};
}

struct pb_native_thread *pb_native_threads_find(const struct pb_native_threads *t, pid_t tid)
{
    struct pb_native_thread key = {.tid = tid};
    return t->n ? bsearch(&key, t->at, t->n, sizeof(key), by_tid) : NULL;
}

struct pb_native_thread *pb_native_threads_find_ns(const struct pb_native_threads *t, pid_t ns_tid)
{
    struct pb_native_thread *same = pb_native_threads_find(t, ns_tid);
    if (same && same->ns_tid == ns_tid)
        return same;
    for (size_t i = 0; i < t->n; i++)
        if (t->at[i].ns_tid == ns_tid)
            return &t->at[i];
    return NULL;
}
