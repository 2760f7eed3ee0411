/* runs: see runs.h. */
#include "remote/runs.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "control/client.h"
#include "control/rundir.h"
#include "control/settings.h"
#include "remote/openin.h"
#include "remote/procinfo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { USER_SIZE = 896 }; /* of the path of a user's folder; a run's name fits behind it */

static const char *const usual_roots[] = {"/dev/shm", "/tmp", "/var/tmp"};

/* Opens below dir_fd without following any symbolic link: the target controls the path. */
static int open_below(int dir_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW),
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH};

    int fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* before 5.6: only the last component is guarded */
        fd = openat(dir_fd, path, flags | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

/* A run that cannot be opened is skipped, unless descriptors ran out: it might be the wanted one. */
static int skip_unless_out_of_fds(int r)
{
    return r == -EMFILE || r == -ENFILE ? r : 0;
}

/* The parent of a user's folder. It may be reached by links, as the target reaches it, inside the root
 * top_fd. */
static int open_root(int top_fd, const char *path)
{
    return pb_open_below(top_fd, path, O_RDONLY | O_DIRECTORY);
}

/* Its owner, one of the two, and its type are looked at before it is opened: opening a pipe or a device has
 * effects. */
static int open_file_of(int dir_fd, const char *path, uid_t uid, uid_t or_uid)
{
    struct stat st;

    _cleanup_close_ int fd = open_below(dir_fd, path, O_PATH);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0 || (st.st_uid != uid && st.st_uid != or_uid))
        return -EPERM;
    int r = pb_reopen_regular(fd, 0);
    return r == -ENXIO ? -EPERM : r;
}

static int open_file(const struct pb_run_info *run, const char *name)
{
    return open_file_of(run->dir_fd, name, run->uid, run->uid);
}

static int read_file(const struct pb_run_info *run, const char *name, char *buf, size_t size)
{
    _cleanup_close_ int fd = open_file(run, name);
    if (fd < 0)
        return fd;
    ssize_t n = read(fd, buf, size - 1);
    buf[n > 0 ? n : 0] = '\0';
    return n < 0 ? -errno : (int)n;
}

static bool is_alive(const struct pb_run_info *run)
{
    _cleanup_close_ int fd = open_file(run, "about");
    return fd >= 0 && pb_rundir_locked(fd);
}

void pb_run_done(struct pb_run_info *run)
{
    if (run->dir_fd >= 0)
        close(run->dir_fd);
    run->dir_fd = -1;
}

const char *pb_run_id_text(const struct pb_run_id *id, char ret[PB_RUN_ID_SIZE])
{
    char digits[16], *p = digits + sizeof(digits) - 1;
    uint64_t rest = id->start_time;

    *p = '\0';
    do
        *--p = "0123456789abcdefghijklmnopqrstuvwxyz"[rest % 36];
    while (rest /= 36);
    int n = snprintf(ret, PB_RUN_ID_SIZE, "%d@%s", (int)id->pid, p);
    if (id->program && id->program != PB_RUN_ANY_PROGRAM)
        snprintf(ret + n, PB_RUN_ID_SIZE - (size_t)n, ".%u", id->program);
    return ret;
}

int pb_run_id_parse(const char *text, struct pb_run_id *ret)
{
    struct pb_run_id id = {0};
    char *end;

    if (*text < '0' || *text > '9')
        return -EINVAL;
    long pid = strtol(text, &end, 10);
    if (pid <= 0 || pid > INT_MAX || end[0] != '@' ||
        strspn(end + 1, "0123456789abcdefghijklmnopqrstuvwxyz") == 0)
        return -EINVAL;
    id.pid = (pid_t)pid;
    id.start_time = strtoull(end + 1, &end, 36);
    if (end[0] == '.' && end[1] >= '1' && end[1] <= '9')
        id.program = (unsigned)strtoul(end + 1, &end, 10);
    if (*end)
        return -EINVAL;
    *ret = id;
    return 0;
}

/* Parses "NS-PID-START", and ".N" of a later program of that process; recordings have more after it. */
static void read_name(const char *name, struct pb_run_id *ret)
{
    const char *dash = strchr(name, '-');
    char *end;

    if (!dash)
        return;
    ret->pid = (pid_t)strtol(dash + 1, &end, 10);
    if (*end == '-')
        ret->start_time = strtoull(end + 1, &end, 10);
    if (*end == '.')
        ret->program = (unsigned)strtoul(end + 1, NULL, 10);
}

/* Describes the run in directory `name` below user_fd. -EPERM: another owner. */
static int describe_run(int user_fd, const char *user_path, const char *name, struct pb_run_info *ret)
{
    struct pb_run_info run = {0};
    struct stat st;

    run.dir_fd = open_below(user_fd, name, O_RDONLY | O_DIRECTORY);
    if (run.dir_fd < 0)
        return run.dir_fd;
    int r = fstat(run.dir_fd, &st) < 0 ? -errno : 0;
    if (r == 0 && snprintf(run.path, sizeof(run.path), "%s/%s", user_path, name) >= (int)sizeof(run.path))
        r = -ENAMETOOLONG;
    run.uid = st.st_uid;
    if (r == 0)
        r = read_file(&run, "about", run.about, sizeof(run.about));
    if (r < 0) {
        pb_run_done(&run);
        return r;
    }
    run.alive = is_alive(&run);
    read_name(name, &run.id);
    run.changed = st.st_mtime;
    run.detached = !run.alive && faccessat(run.dir_fd, "secret", F_OK, AT_SYMLINK_NOFOLLOW) < 0;
    if (fstatat(run.dir_fd, "arena", &st, AT_SYMLINK_NOFOLLOW) == 0) {
        run.bytes = (uint64_t)st.st_blocks * 512;
        run.changed = st.st_mtime;
    }
    *ret = run;
    return 0;
}

struct visitor {
    int (*visit)(struct visitor *v, int user_fd, const char *user_path, const char *name);
    const char *wanted; /* only runs whose names begin so */
    const char *folder; /* only in folders of this name; NULL: in every user's */
    uid_t uid;          /* only of this owner, unless any */
    bool any_uid;
    bool collect;  /* first remove runs beyond the limits */
    bool detached; /* the run that a detach has left, and not that of an agent that is there */
    void *result;
};

static int visit_user_dir(struct visitor *v, int root_fd, const char *root_path, const char *name)
{
    char path[USER_SIZE];
    struct stat st;

    int fd = open_below(root_fd, name, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return skip_unless_out_of_fds(fd);
    if (snprintf(path, sizeof(path), "%s/%s", root_path, name) >= (int)sizeof(path) || fstat(fd, &st) < 0 ||
        (!v->any_uid && st.st_uid != v->uid)) {
        close(fd);
        return 0;
    }
    if (v->collect && st.st_uid == geteuid()) /* root removes no runs of other users */
        pb_rundir_collect(fd, PB_RUNDIR_KEEP_BYTES, PB_RUNDIR_KEEP_S);
    int dup_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir = fdopendir(fd);
    int r = 0;
    for (struct dirent *e; dir && r == 0 && (e = readdir(dir));)
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' &&
            strncmp(e->d_name, v->wanted, strlen(v->wanted)) == 0)
            r = v->visit(v, dup_fd, path, e->d_name);
    closedir(dir);
    close(dup_fd);
    return r;
}

static int visit_root(struct visitor *v, int top_fd, const char *root)
{
    int fd = open_root(top_fd, root);
    if (fd < 0)
        return skip_unless_out_of_fds(fd);
    if (v->folder) {
        int r = visit_user_dir(v, fd, root, v->folder);
        close(fd);
        return r;
    }
    int dup_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir = fdopendir(fd);
    int r = 0;
    for (struct dirent *e; dir && r == 0 && (e = readdir(dir));)
        if (strncmp(e->d_name, "probing-", 8) == 0)
            r = visit_user_dir(v, dup_fd, root, e->d_name);
    closedir(dir);
    close(dup_fd);
    return r;
}

/* Visits every run below the usual places of that view, and below PROBING_DIR. */
static int visit_all(struct visitor *v, const char *top)
{
    const char *own = getenv("PROBING_DIR");

    _cleanup_close_ int top_fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top_fd < 0)
        return -errno;
    int r = own && *own == '/' ? visit_root(v, top_fd, own) : 0;
    for (size_t i = 0; r == 0 && i < sizeof(usual_roots) / sizeof(usual_roots[0]); i++)
        r = visit_root(v, top_fd, usual_roots[i]);
    return r;
}

static int keep_own(struct visitor *v, int user_fd, const char *user_path, const char *name)
{
    struct pb_run_info run;

    /* Exactly this process, or ".N": a later program of it. What a recorder writes is of another process. */
    const char *rest = name + strlen(v->wanted);
    if ((*rest && *rest != '.') || strncmp(rest, PB_RUNDIR_OF, strlen(PB_RUNDIR_OF)) == 0 ||
        describe_run(user_fd, user_path, name, &run) < 0)
        return 0;
    if (v->detached ? run.alive || !run.detached : !run.alive) {
        pb_run_done(&run);
        return 0;
    }
    *(struct pb_run_info *)v->result = run;
    return 1;
}

/* For a process whose namespace is not known: it is ours, or the process's pid there is not known to be
 * ours. */
static uint64_t our_pid_ns(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) < 0 ? 0 : (uint64_t)st.st_ino;
}

/* Whether user ids mean the same to it as to us. Else its folder is named by another number than its owner's
 * here. */
static bool shares_user_ids(pid_t pid)
{
    struct stat its, ours;
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    return stat(path, &its) == 0 && stat("/proc/self/ns/user", &ours) == 0 && its.st_ino == ours.st_ino;
}

static int find_own(const struct pb_procinfo *p, bool detached, struct pb_run_info *ret)
{
    pid_t living = p->living ? p->living : p->pid;
    char name[96], top[64], folder[32];

    snprintf(name, sizeof(name), "%llu-%d-%llu", (unsigned long long)(p->pid_ns ? p->pid_ns : our_pid_ns()),
             (int)p->ns_pid, (unsigned long long)p->start_time);
    snprintf(top, sizeof(top), "/proc/%d/root", (int)living);
    snprintf(folder, sizeof(folder), "probing-%u", (unsigned)p->euid);
    struct visitor v = {.visit = keep_own,
                        .detached = detached,
                        .wanted = name,
                        .folder = shares_user_ids(living) ? folder : NULL,
                        .uid = p->euid,
                        .result = ret};
    int r = visit_all(&v, top);
    /* Its view may not be entered without the right to trace it; it may be the same as ours. */
    if (r == -EACCES || r == -EPERM)
        r = visit_all(&v, "/");
    return r < 0 ? r : r ? 0 : -ENOENT;
}

int pb_run_of(const struct pb_procinfo *p, struct pb_run_info *ret)
{
    return find_own(p, false, ret);
}

int pb_run_left(const struct pb_procinfo *p, struct pb_run_info *ret)
{
    return find_own(p, true, ret);
}

static int keep_any(struct visitor *v, int user_fd, const char *user_path, const char *name)
{
    struct pb_runs *runs = v->result;
    struct pb_run_info run;

    if (describe_run(user_fd, user_path, name, &run) < 0)
        return 0;
    pb_run_done(&run); /* there may be more runs than descriptors */
    struct pb_run_info *more = realloc(runs->at, (runs->n + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    runs->at = more;
    runs->at[runs->n++] = run;
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct pb_run_info *x = a, *y = b;
    return x->changed < y->changed ? 1 : x->changed > y->changed ? -1 : 0;
}

/* Parses "NS-PID-START.of-PID-START[.N]": the recorder, and the recorded process. */
static bool is_recording(const char *name, pid_t pid, uint64_t start_time, uint64_t *ret_start)
{
    const char *of = strstr(name, PB_RUNDIR_OF);
    char *end;

    if (!of || strtol(of + strlen(PB_RUNDIR_OF), &end, 10) != pid || *end != '-')
        return false;
    *ret_start = strtoull(end + 1, &end, 10);
    return (*end == '\0' || *end == '.') && (start_time == 0 || *ret_start == start_time);
}

struct recordings {
    pid_t pid;
    uint64_t start_time;
    uid_t uid;
    struct pb_recording at[PB_RUNS_RECORDINGS];
    unsigned n, max;
};

static int keep_recording(struct visitor *v, int user_fd, const char *user_path, const char *name)
{
    struct recordings *all = v->result;
    char path[128];
    struct stat st;
    uint64_t start;

    if (!is_recording(name, all->pid, all->start_time, &start) ||
        snprintf(path, sizeof(path), "%s/about", name) >= (int)sizeof(path))
        return 0;
    /* Checked before the tables are opened: a dead run has written all its rows. */
    _cleanup_close_ int about = open_file_of(user_fd, path, geteuid(), all->uid);
    bool alive = about >= 0 && pb_rundir_locked(about);
    snprintf(path, sizeof(path), "%s/arena", name);
    int fd = open_file_of(user_fd, path, geteuid(), all->uid);
    if (fd < 0)
        return skip_unless_out_of_fds(fd);
    unsigned i = fstat(fd, &st) < 0 ? all->max : all->n;
    while (i > 0 && i <= all->n && all->at[i - 1].changed < st.st_mtime)
        i--;
    if (i == all->max) {
        close(fd);
        return 0;
    }
    if (all->n == all->max)
        close(all->at[--all->n].fd);
    memmove(&all->at[i + 1], &all->at[i], (all->n - i) * sizeof(all->at[0]));
    all->at[i] = (struct pb_recording){.fd = fd, .start_time = start, .alive = alive, .changed = st.st_mtime};
    all->n++;
    return 0;
}

int pb_runs_recordings(pid_t pid, uint64_t start_time, uid_t uid, struct pb_recording *ret, unsigned max)
{
    struct recordings all = {.pid = pid, .start_time = start_time, .uid = uid};
    struct visitor v = {.visit = keep_recording, .wanted = "", .any_uid = true, .result = &all};

    all.max = max < PB_RUNS_RECORDINGS ? max : PB_RUNS_RECORDINGS;
    int r = visit_all(&v, "/");
    for (unsigned i = 0; r < 0 && i < all.n; i++)
        close(all.at[i].fd);
    if (r < 0)
        return r;
    memcpy(ret, all.at, all.n * sizeof(*ret));
    return (int)all.n;
}

int pb_runs_scan(struct pb_runs *ret, struct pb_err *err)
{
    struct pb_runs runs = {0};
    struct visitor v = {.visit = keep_any,
                        .wanted = "",
                        .uid = geteuid(),
                        .any_uid = geteuid() == 0,
                        .collect = true,
                        .result = &runs};

    int r = visit_all(&v, "/");
    if (r < 0) {
        pb_runs_done(&runs);
        return pb_fail(err, r, "cannot look for runs: %s", strerror(-r));
    }
    if (runs.n)
        qsort(runs.at, runs.n, sizeof(*runs.at), newest_first);
    *ret = runs;
    return 0;
}

const struct pb_run_info *pb_runs_find_dead(const struct pb_runs *runs, const struct pb_run_id *id)
{
    for (size_t i = 0; i < runs->n; i++) {
        const struct pb_run_id *is = &runs->at[i].id;
        if (!runs->at[i].alive && is->pid == id->pid &&
            (id->start_time == 0 || (is->start_time == id->start_time &&
                                     (id->program == PB_RUN_ANY_PROGRAM || is->program == id->program))))
            return &runs->at[i];
    }
    return NULL;
}

void pb_runs_done(struct pb_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++)
        pb_run_done(&runs->at[i]);
    free(runs->at);
    *runs = (struct pb_runs){0};
}

const char *pb_run_get(const struct pb_run_info *run, const char *name, char *ret, size_t size)
{
    size_t n = strlen(name), len = 0;

    for (const char *line = run->about; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, name, n) != 0 || line[n] != '=')
            continue;
        for (const char *p = line + n + 1; *p && *p != '\n' && len + 1 < size; p++) {
            bool escaped = *p == '\\' && (p[1] == 'n' || p[1] == '\\');
            p += escaped;
            ret[len++] = escaped && *p == 'n' ? '\n' : *p;
        }
        break;
    }
    ret[len] = '\0';
    return ret;
}

/* Opens the folder of a run that a scan found, by its path and under the same rules. */
static int reopen_folder(const struct pb_run_info *run)
{
    char root[sizeof(run->path)];
    struct stat st;

    snprintf(root, sizeof(root), "%s", run->path);
    char *name = strrchr(root, '/');
    *name++ = '\0';
    char *user = strrchr(root, '/');
    *user++ = '\0';
    _cleanup_close_ int top_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top_fd < 0)
        return -errno;
    _cleanup_close_ int root_fd = open_root(top_fd, *root ? root : "/");
    if (root_fd < 0)
        return root_fd;
    _cleanup_close_ int user_fd = open_below(root_fd, user, O_RDONLY | O_DIRECTORY);
    if (user_fd < 0)
        return user_fd;
    _cleanup_close_ int fd = open_below(user_fd, name, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fd;
    return fstat(fd, &st) < 0 ? -errno : st.st_uid != run->uid ? -EPERM : pb_take_fd(fd);
}

/* Opens a file of a run whose folder may have been closed. */
static int open_again(const struct pb_run_info *run, const char *name)
{
    _cleanup_(pb_run_done) struct pb_run_info again = {.dir_fd = -1, .uid = run->uid};

    if (run->dir_fd >= 0)
        return open_file(run, name);
    again.dir_fd = reopen_folder(run);
    return again.dir_fd < 0 ? again.dir_fd : open_file(&again, name);
}

int pb_run_settings(const struct pb_run_info *run, struct pb_settings *ret)
{
    char text[PB_SETTINGS_FILE_SIZE];

    _cleanup_close_ int fd = open_again(run, PB_SETTINGS_FILE);
    if (fd < 0)
        return fd;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    pb_settings_init(ret, "", 0);
    pb_settings_read(ret, text);
    return 0;
}

int pb_run_open_arena(const struct pb_run_info *run, struct pb_err *err)
{
    int fd = open_again(run, "arena");
    return fd < 0 ? pb_fail(err, fd, "the tables of %s cannot be opened: %s", run->path, strerror(-fd)) : fd;
}

/* Connects within that time: a stopped process accepts no connection, and with a full backlog connect would
 * wait for ever. The limit also holds for each later send. */
static int connect_within(int fd, const struct sockaddr_un *address, int timeout_ms)
{
    if (timeout_ms < 1) /* to the kernel 0 means for ever */
        timeout_ms = 1;
    const struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};

    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
        return -errno;
    int r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
    return r == -EAGAIN ? -ETIMEDOUT : r;
}

/* The control socket itself, not what a link of that name leads to. */
static int open_control(const struct pb_run_info *run)
{
    struct stat st;

    _cleanup_close_ int fd = open_below(run->dir_fd, "control", O_PATH);
    if (fd < 0)
        return fd;
    return fstat(fd, &st) < 0                               ? -errno
           : !S_ISSOCK(st.st_mode) || st.st_uid != run->uid ? -EPERM
                                                            : pb_take_fd(fd);
}

/* Whether that process listens there. Any socket of its user could have been moved to that name, also one of
 * a process with more rights; the kernel keeps the listener's user and pid. */
static bool is_listener(int fd, const struct pb_procinfo *process)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == process->euid &&
           (peer.pid == process->pid || peer.pid == 0); /* 0: not visible in our pid namespace */
}

int pb_run_connect(const struct pb_run_info *run, const struct pb_procinfo *process, char *secret,
                   int timeout_ms, struct pb_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    int r = read_file(run, "secret", secret, 40);
    if (r >= 0 && !pb_secret_valid(secret))
        r = -EBADMSG;
    if (r < 0)
        return pb_fail(err, r, "the secret of %s cannot be read: %s", run->path, strerror(-r));
    _cleanup_close_ int control = open_control(run);
    if (control < 0)
        return pb_fail(err, control, "the control socket of %s cannot be used: %s", run->path,
                       control == -EPERM || control == -ELOOP ? "not a socket of that process's user"
                                                              : strerror(-control));
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return pb_fail(err, -errno, "no socket: %s", strerror(errno));
    /* By descriptor: the path may be in another mount namespace, and longer than an address. */
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d", control);
    r = connect_within(fd, &address, timeout_ms);
    if (r < 0)
        return pb_fail(err, r, "the agent of %s does not answer: %s", run->path, strerror(-r));
    if (!is_listener(fd, process))
        return pb_fail(err, -EPERM, "the control socket of %s is not one of process %d", run->path,
                       (int)process->pid);
    return pb_take_fd(fd);
}
