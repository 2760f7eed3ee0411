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

static int unpack(const char *path, char ret[PATH_MAX], struct pb_err *err)
{
    int r = pb_bundle_folder_make(ret, err);
    if (r < 0)
        return r;
    _cleanup_close_ int folder = open(ret, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = folder < 0 ? pb_fail(err, -errno, "%s cannot be opened: %s", ret, strerror(errno))
                   : pb_zip_unpack(path, folder, err);
    if (r < 0)
        pb_bundle_folder_remove(ret);
    return r;
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

int pb_bundle_wait(pid_t pid)
{
    const struct sigaction pass = {.sa_handler = pass_signal, .sa_flags = SA_RESTART};

    passed_to = pid;
    sigaction(SIGTERM, &pass, NULL);
    sigaction(SIGHUP, &pass, NULL);
    signal(SIGINT, SIG_IGN); /* a terminal sends it to both */
    signal(SIGQUIT, SIG_IGN);
    int status = pb_process_wait(pid);
    passed_to = 0;
    return status < 0 ? 1 : status;
}

int pb_bundle_run(struct pb_call *call, int (*run)(struct pb_call *call), struct pb_err *err)
{
    const char *path = call->target;
    char folder[PATH_MAX];

    if (is_folder(path)) {
        if (!realpath(path, folder))
            return pb_fail(err, -errno, "%.200s cannot be opened: %s", path, strerror(errno));
        return run_about(call, folder, path, NULL, run, err);
    }
    int r = unpack(path, folder, err);
    if (r < 0)
        return r;
    pid_t pid = pb_process_fork(SIGTERM);
    if (pid == 0) {
        r = run_about(call, folder, path, NULL, run, err);
        exit(pb_call_status(call, r, err));
    }
    int status =
        pid < 0 ? pb_fail(err, pid, "cannot start a process: %s", strerror(-pid)) : pb_bundle_wait(pid);
    pb_bundle_folder_remove(folder);
    return status < 0 ? status : PB_EXITED(status);
}

int pb_bundle_with(const struct pb_call *call, const char *const *args, int n,
                   int (*work)(const struct pb_call *call, const char folders[PB_BUNDLE_FILES][PATH_MAX],
                               struct pb_err *err),
                   struct pb_err *err)
{
    char folders[PB_BUNDLE_FILES][PATH_MAX] = {"", ""};
    bool any = false, made[PB_BUNDLE_FILES] = {false};
    int r = 0;

    for (int i = 0; r == 0 && i < n && i < PB_BUNDLE_FILES; i++) {
        if (!pb_bundle_is(args[i]))
            continue;
        if (is_folder(args[i])) {
            r = realpath(args[i], folders[i]) ? 0 : pb_fail(err, -errno, "%.200s cannot be opened", args[i]);
            continue;
        }
        r = unpack(args[i], folders[i], err);
        made[i] = r == 0;
        any |= made[i];
    }
    if (r == 0 && !any)
        return work(call, (const char(*)[PATH_MAX])folders, err);
    pid_t pid = r == 0 ? pb_process_fork(SIGTERM) : 0;
    if (r == 0 && pid == 0)
        exit(pb_call_status(call, work(call, (const char(*)[PATH_MAX])folders, err), err));
    if (r == 0)
        r = pid < 0 ? pb_fail(err, pid, "cannot start a process: %s", strerror(-pid)) : pb_bundle_wait(pid);
    for (int i = 0; i < PB_BUNDLE_FILES; i++)
        if (made[i])
            pb_bundle_folder_remove(folders[i]);
    return r < 0 ? r : PB_EXITED(r);
}

int pb_bundle_serve(const char *path, int (*become)(void *arg, struct pb_err *err), void *arg,
                    struct pb_err *err)
{
    struct pb_bundle b = {0};
    char folder[PATH_MAX], runtime[PATH_MAX + 16];

    int r = unpack(path, folder, err);
    if (r < 0)
        return r;
    r = pb_bundle_read(folder, path, &b, err);
    pb_bundle_done(&b);
    pid_t pid = r == 0 ? pb_process_fork(SIGTERM) : 0;
    if (r == 0 && pid == 0) {
        /* A service of its own, beside the one for processes. */
        snprintf(runtime, sizeof(runtime), "%s/.service", folder);
        mkdir(runtime, 0700);
        setenv("XDG_RUNTIME_DIR", runtime, 1);
        setenv(PB_BUNDLE_VARIABLE, folder, 1);
        r = become(arg, err);
        fprintf(stderr, PB_ERR_LEADS "serve: %s\n", pb_err_text(err, r));
        _exit(1);
    }
    if (r == 0)
        r = pid < 0 ? pb_fail(err, pid, "cannot start a process: %s", strerror(-pid)) : pb_bundle_wait(pid);
    pb_bundle_folder_remove(folder);
    return r <= 0 ? r : PB_EXITED(r);
}
