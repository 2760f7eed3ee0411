/* credentials: see credentials.h. */
#include "serve/credentials.h"

#include "base/cleanup.h"
#include "base/program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

char *const *pb_credentials_command(const struct pb_credentials *credentials, char *const *argv,
                                    char *words[PB_CREDENTIALS_WORDS], struct pb_credentials_text *text)
{
    static char self[] = PB_PROGRAM_SELF, name[] = "--as";
    size_t n = 0;

    if (!credentials->uid)
        return argv;
    snprintf(text->uid, sizeof(text->uid), "%u", (unsigned)credentials->uid);
    snprintf(text->gid, sizeof(text->gid), "%u", (unsigned)credentials->gid);
    words[n++] = self;
    words[n++] = name;
    words[n++] = text->uid;
    words[n++] = text->gid;
    for (; *argv && n < PB_CREDENTIALS_WORDS - 1; argv++)
        words[n++] = *argv;
    words[n] = NULL;
    return words;
}

bool pb_credentials_of_peer(int socket, struct pb_credentials *ret)
{
    struct ucred peer;
    socklen_t n = sizeof(peer);

    *ret = (struct pb_credentials){0};
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
        return false;
    if (peer.uid == geteuid() || peer.uid == 0)
        return true;
    *ret = (struct pb_credentials){peer.uid, peer.gid};
    return geteuid() == 0;
}

bool pb_credentials_may_take(uid_t uid, unsigned places, unsigned taken, unsigned own)
{
    unsigned kept = uid ? (places + 3) / 4 : 0;

    return taken + kept < places && (!uid || own < places - kept - taken);
}

/* --- what a process inherits --- */

struct becoming {
    const struct passwd *user; /* NULL: nobody has that uid */
    uid_t uid;
    gid_t gid;
};

/* Leaves root's controlling terminal, into which the user could type with TIOCSTI. A command with a session
 * of its own stays in it: the service opened that terminal. */
static int leave_session(const struct becoming *b)
{
    (void)b;
    if (getsid(0) == getpid() || setsid() >= 0)
        return 0;
    return -errno;
}

/* A process keeps the keys of its session keyring after a change of user. Without keyctl (kernel option,
 * seccomp filter of a container) the command cannot use them either. */
static int leave_keyring(const struct becoming *b)
{
    (void)b;
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0)
        return 0;
    int e = errno;
    bool none = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) < 0 &&
                (errno == ENOSYS || errno == EPERM);
    return none ? 0 : -e;
}

static int close_descriptors(const struct becoming *b)
{
    (void)b;
    if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0) == 0)
        return 0;
    DIR *dir = opendir("/proc/self/fd"); /* before Linux 5.9 */
    if (!dir)
        return -errno;
    for (struct dirent *e; (e = readdir(dir));) {
        int fd = atoi(e->d_name);
        if (fd > STDERR_FILENO && fd != dirfd(dir))
            close(fd);
    }
    closedir(dir);
    return 0;
}

/* By the system call: glibc's sigaction refuses two signals that it reserves, and these too may be
 * ignored. */
static int reset_signals(const struct becoming *b)
{
    static const uint64_t defaults[4]; /* the kernel's struct sigaction: SIG_DFL, no flags, no mask */
    sigset_t none;

    (void)b;
    for (int i = 1; i < NSIG; i++)
        syscall(SYS_rt_sigaction, i, defaults, NULL, sizeof(uint64_t));
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, NULL) < 0 ? -errno : 0;
}

/* Limits that root may have raised above the kernel's defaults. */
static int lower_limits(const struct becoming *b)
{
    static const struct {
        int which;
        rlim_t soft, hard;
    } most[] = {{RLIMIT_CORE, 0, 0},
                {RLIMIT_NICE, 0, 0},
                {RLIMIT_RTPRIO, 0, 0},
                {RLIMIT_MEMLOCK, 8 << 20, 8 << 20},
                {RLIMIT_MSGQUEUE, 819200, 819200},
                {RLIMIT_NOFILE, 1024, 262144}}; /* commands raise the soft limit where they need more */
    struct rlimit now;

    (void)b;
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        if (getrlimit(most[i].which, &now) < 0)
            return -errno;
        now.rlim_max = now.rlim_max < most[i].hard ? now.rlim_max : most[i].hard;
        now.rlim_cur = now.rlim_cur < most[i].soft ? now.rlim_cur : most[i].soft;
        if (setrlimit(most[i].which, &now) < 0)
            return -errno;
    }
    return 0;
}

/* No better CPU, I/O or OOM priority than the user's other processes. */
static int lower_priority(const struct becoming *b)
{
    enum { OF_PROCESS = 1 };
    const struct sched_param none = {0};
    int policy = sched_getscheduler(0), old = 0;
    FILE *file = fopen("/proc/self/oom_score_adj", "r+e");

    (void)b;
    if ((policy == SCHED_FIFO || policy == SCHED_RR) && sched_setscheduler(0, SCHED_OTHER, &none) < 0)
        return -errno;
    if (getpriority(PRIO_PROCESS, 0) < 0 && setpriority(PRIO_PROCESS, 0, 0) < 0)
        return -errno;
    syscall(SYS_ioprio_set, OF_PROCESS, 0, 0);
    if (file && fscanf(file, "%d", &old) == 1 && old < 0) {
        rewind(file);
        fputs("0", file);
    }
    if (file)
        fclose(file);
    return 0;
}

/* A process may use its working directory even if the path to it is closed to its user. The folder made for
 * the command belongs to the user. */
static int leave_folder(const struct becoming *b)
{
    struct stat st;

    umask(022);
    return (stat(".", &st) == 0 && st.st_uid == b->uid) || chdir("/") == 0 ? 0 : -errno;
}

/* Keeps variables of locale and terminal, and wipes the rest of root's environment: the user can read this
 * memory before exec. */
static int clear_environment(const struct becoming *b)
{
    static const char *const kept[] = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM"};
    char *values[sizeof(kept) / sizeof(kept[0])] = {0};
    char runtime[32];
    struct stat st;

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (getenv(kept[i]))
            values[i] = strdup(getenv(kept[i]));
    for (char **e = environ; *e; e++)
        memset(*e, 0, strlen(*e));
    clearenv();
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (values[i])
            setenv(kept[i], values[i], 1);
    setenv("HOME", b->user && b->user->pw_dir ? b->user->pw_dir : "/", 1);
    if (b->user)
        setenv("USER", b->user->pw_name, 1);
    snprintf(runtime, sizeof(runtime), "/run/user/%u", (unsigned)b->uid);
    if (stat(runtime, &st) == 0 && st.st_uid == b->uid)
        setenv("XDG_RUNTIME_DIR", runtime, 1);
    return 0;
}

/* Capabilities go with the user unless securebits say otherwise, and inheritable ones stay in any case. */
static int change_user(const struct becoming *b)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0}, left[_LINUX_CAPABILITY_U32S_3] = {0};

    prctl(PR_SET_SECUREBITS, 0);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if ((b->user ? initgroups(b->user->pw_name, b->gid) : setgroups(0, NULL)) < 0 ||
        setresgid(b->gid, b->gid, b->gid) < 0 || setresuid(b->uid, b->uid, b->uid) < 0 ||
        syscall(SYS_capset, &header, none) < 0 || syscall(SYS_capget, &header, left) < 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    prctl(PR_SET_DUMPABLE, 0); /* as it is already, unless fs.suid_dumpable says otherwise */
    bool any = setuid(0) == 0;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        any = any || left[i].effective || left[i].permitted || left[i].inheritable;
    return any ? -EPERM : 0;
}

/* The list of docs/service.md ("What a command of another user inherits"), in the one place where a process
 * becomes another user's. Descriptors are last, since looking up groups may open some. */
static int leave_root(const struct becoming *b, const char **ret_what)
{
    static const struct {
        const char *what;
        int (*leave)(const struct becoming *b);
    } steps[] = {{"session", leave_session},         {"session keyring", leave_keyring},
                 {"signals", reset_signals},         {"limits", lower_limits},
                 {"priority", lower_priority},       {"working directory", leave_folder},
                 {"environment", clear_environment}, {"user and groups", change_user},
                 {"descriptors", close_descriptors}};
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(steps) / sizeof(steps[0]); i++) {
        *ret_what = steps[i].what;
        r = steps[i].leave(b);
    }
    return r;
}

int pb_credentials_become(int argc, char **argv)
{
    pid_t parent = getppid();
    const char *what = "";
    char *end;

    if (argc < 5)
        return 2;
    uid_t uid = (uid_t)strtoul(argv[2], &end, 10);
    gid_t gid = (gid_t)strtoul(argv[3], &end, 10);
    if (!uid || geteuid() != 0)
        return 126;
    int r = leave_root(&(struct becoming){getpwuid(uid), uid, gid}, &what);
    if (r < 0) {
        fprintf(stderr, "probing: cannot become user %u: %s: %s\n", (unsigned)uid, what, strerror(-r));
        return 126;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* which a change of the user takes back */
    if (getppid() != parent)
        return 126;
    execv(argv[4], argv + 4);
    fprintf(stderr, "probing: %s cannot be run by user %u: %s\n", argv[4], (unsigned)uid, strerror(errno));
    return 127;
}

int pb_credentials_give(const struct pb_credentials *credentials, int folder, const char *name)
{
    return credentials->uid ? fchownat(folder, name, credentials->uid, credentials->gid, AT_SYMLINK_NOFOLLOW)
                            : 0;
}

int pb_credentials_open(const struct pb_credentials *credentials, int folder, const char *name)
{
    struct stat st;
    _cleanup_close_ int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || (credentials->uid && st.st_uid != credentials->uid))
        return -EACCES;
    return pb_take_fd(fd);
}
