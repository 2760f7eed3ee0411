/* bundle_open: a command about an incident's file. The file is unpacked into a folder of ours; a child runs
 * the command there, so that the folder is removed however that ends. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/process.h"
#include "base/text.h"
#include "base/zip.h"
#include "cli/bundle/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile sig_atomic_t passed_to;

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool pb_bundle_is(const char *target)
{
    char manifest[PATH_MAX];
    uint32_t first = 0;
    struct stat st;

    if (pb_text_ends_with(target, ".probing"))
        return true;
    if (!strchr(target, '/') || stat(target, &st) < 0)
        return false; /* text of a command line */
    if (S_ISDIR(st.st_mode))
        return snprintf(manifest, sizeof(manifest), "%s/manifest.json", target) < PATH_MAX &&
               access(manifest, R_OK) == 0;
    _cleanup_close_ int fd = S_ISREG(st.st_mode) ? open(target, O_RDONLY | O_CLOEXEC) : -1;
    return fd >= 0 && read(fd, &first, sizeof(first)) == sizeof(first) && first == 0x04034b50u;
}

const char *pb_bundle_served(void)
{
    const char *folder = getenv(PB_BUNDLE_VARIABLE);
    return folder && folder[0] == '/' ? folder : NULL;
}

static int unpack(const char *path, const char *into, struct pb_err *err)
{
    _cleanup_close_ int folder = open(into, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return folder < 0 ? pb_fail(err, -errno, "%s cannot be opened: %s", into, strerror(errno))
                      : pb_zip_unpack(path, folder, err);
}

/* --- in the child, or for a service --- */

/* text: which of its processes; NULL: all. */
static int run_about(struct pb_call *call, const char *folder, const char *path, const char *text,
                     int (*run)(struct pb_call *call), struct pb_err *err)
{
    struct pb_bundle b = {0};
    char rows[PATH_MAX + 8];

    if (!(call->command->flags & PB_CMD_INCIDENT))
        return pb_fail(err, PB_USAGE,
                       "this needs a process that runs; an incident's file answers backtrace, diagnose, "
                       "config, list, query, tables, memory, torch, flamegraph and export");
    int r = pb_bundle_read(folder, path, &b, err);
    if (r < 0)
        return r;
    snprintf(rows, sizeof(rows), "%s/rows", folder);
    mkdir(rows, 0700); /* a file without rows: the archive is empty, not missing */
    call->ask.archive = rows;
    call->ask.only_archive = true;
    r = pb_bundle_targets(&b, text, &call->targets, err);
    if (r == 0 && pb_bundle_replays(call)) {
        r = pb_bundle_replay(call, &b, err);
    } else if (r == 0) {
        call->incident = folder;
        r = run(call);
    }
    pb_bundle_done(&b);
    return r;
}

int pb_bundle_run_served(struct pb_call *call, int (*run)(struct pb_call *call), struct pb_err *err)
{
    const char *folder = pb_bundle_served();
    const char *text = call->target && !pb_bundle_is(call->target) ? call->target : NULL;

    return run_about(call, folder, "the incident's file of this service", text, run, err);
}

/* --- the process that waits --- */

static void pass_signal(int number)
{
    if (passed_to > 0)
        kill(passed_to, number);
}

/* Whether a terminal has asked to end it, of which the child knows nothing yet. */
static bool is_interrupted(void)
{
    sigset_t waiting;

    sigpending(&waiting);
    return sigismember(&waiting, SIGINT) || sigismember(&waiting, SIGQUIT);
}

/* Signals that would end the caller go to the child. */
static int wait_for(pid_t pid, const sigset_t *before)
{
    const struct sigaction pass = {.sa_handler = pass_signal, .sa_flags = SA_RESTART};

    passed_to = pid;
    if (is_interrupted())
        kill(pid, SIGINT);
    sigaction(SIGTERM, &pass, NULL);
    sigaction(SIGHUP, &pass, NULL);
    signal(SIGINT, SIG_IGN); /* a terminal sends it to both */
    signal(SIGQUIT, SIG_IGN);
    sigprocmask(SIG_SETMASK, before, NULL);
    int status = pb_process_wait(pid);
    passed_to = 0;
    return status < 0 ? 1 : status;
}

int pb_bundle_in_child(char *const *folders, int (*work)(void *arg, struct pb_err *err), void *arg,
                       const struct pb_call *call, struct pb_err *err)
{
    sigset_t ends, before;
    pid_t pid = 0;
    size_t n = 0;
    int r = 0;

    /* From here until the child is waited for, no signal may end us: a folder would stay. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGQUIT);
    sigprocmask(SIG_BLOCK, &ends, &before);
    while (r == 0 && folders[n])
        if ((r = pb_bundle_folder_make(folders[n], err)) == 0)
            n++;
    if (r == 0 && (pid = pb_process_fork(SIGTERM)) < 0)
        r = pb_fail(err, pid, "cannot start a process: %s", strerror(-pid));
    if (r == 0 && pid == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        r = work(arg, err);
        exit(pb_call_status(call, r, err));
    }
    if (r == 0)
        r = PB_EXITED(wait_for(pid, &before));
    while (n)
        pb_bundle_folder_remove(folders[--n]);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return r;
}

struct unpacked_run {
    struct pb_call *call;
    const char *path;
    char folder[PATH_MAX];
    int (*run)(struct pb_call *call);
};

static int run_unpacked(void *arg, struct pb_err *err)
{
    const struct unpacked_run *o = arg;
    int r = unpack(o->path, o->folder, err);

    return r < 0 ? r : run_about(o->call, o->folder, o->path, NULL, o->run, err);
}

int pb_bundle_run(struct pb_call *call, int (*run)(struct pb_call *call), struct pb_err *err)
{
    struct unpacked_run o = {.call = call, .path = call->target, .run = run};

    if (!is_folder(o.path))
        return pb_bundle_in_child((char *[]){o.folder, NULL}, run_unpacked, &o, call, err);
    if (!realpath(o.path, o.folder))
        return pb_fail(err, -errno, "%.200s cannot be opened: %s", o.path, strerror(errno));
    return run_about(call, o.folder, o.path, NULL, run, err);
}

struct with {
    const struct pb_call *call;
    const char *paths[PB_BUNDLE_FILES]; /* NULL: nothing is unpacked there */
    char folders[PB_BUNDLE_FILES][PATH_MAX];
    int (*work)(const struct pb_call *call, const char folders[PB_BUNDLE_FILES][PATH_MAX],
                struct pb_err *err);
};

static int work_with(void *arg, struct pb_err *err)
{
    struct with *with = arg;
    int r = 0;

    for (int i = 0; r == 0 && i < PB_BUNDLE_FILES; i++)
        if (with->paths[i])
            r = unpack(with->paths[i], with->folders[i], err);
    return r < 0 ? r : with->work(with->call, (const char(*)[PATH_MAX])with->folders, err);
}

int pb_bundle_with(const struct pb_call *call, const char *const *args, int n,
                   int (*work)(const struct pb_call *call, const char folders[PB_BUNDLE_FILES][PATH_MAX],
                               struct pb_err *err),
                   struct pb_err *err)
{
    struct with with = {.call = call, .work = work};
    char *made[PB_BUNDLE_FILES + 1] = {NULL};
    size_t nmade = 0;

    for (int i = 0; i < n && i < PB_BUNDLE_FILES; i++) {
        if (!pb_bundle_is(args[i]))
            continue;
        if (!is_folder(args[i])) {
            with.paths[i] = args[i];
            made[nmade++] = with.folders[i];
        } else if (!realpath(args[i], with.folders[i])) {
            return pb_fail(err, -errno, "%.200s cannot be opened", args[i]);
        }
    }
    return nmade ? pb_bundle_in_child(made, work_with, &with, call, err) : work_with(&with, err);
}

struct unpacked_service {
    const char *path;
    char folder[PATH_MAX], runtime[PATH_MAX]; /* apart: a part of the file is never taken for one of ours */
    int (*become)(void *arg, struct pb_err *err);
    void *arg;
};

static int serve_unpacked(void *arg, struct pb_err *err)
{
    const struct unpacked_service *o = arg;
    struct pb_bundle b = {0};

    int r = unpack(o->path, o->folder, err);
    if (r == 0)
        r = pb_bundle_read(o->folder, o->path, &b, err);
    pb_bundle_done(&b);
    if (r < 0)
        return r;
    /* A service of its own, beside the one for processes. */
    setenv("XDG_RUNTIME_DIR", o->runtime, 1);
    setenv(PB_BUNDLE_VARIABLE, o->folder, 1);
    return o->become(o->arg, err);
}

int pb_bundle_serve(const struct pb_call *call, const char *path,
                    int (*become)(void *arg, struct pb_err *err), void *arg, struct pb_err *err)
{
    struct unpacked_service o = {.path = path, .become = become, .arg = arg};

    return pb_bundle_in_child((char *[]){o.folder, o.runtime, NULL}, serve_unpacked, &o, call, err);
}
