/* as: see as.h. */
#include "serve/as.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

char *const *pb_as_command(const struct pb_as *as, char *const *argv, char *words[PB_AS_WORDS],
                           struct pb_as_text *text)
{
    static char self[] = "/proc/self/exe", name[] = "--as";
    size_t n = 0;

    if (!as->uid)
        return argv;
    snprintf(text->uid, sizeof(text->uid), "%u", (unsigned)as->uid);
    snprintf(text->gid, sizeof(text->gid), "%u", (unsigned)as->gid);
    words[n++] = self;
    words[n++] = name;
    words[n++] = text->uid;
    words[n++] = text->gid;
    for (; *argv && n < PB_AS_WORDS - 1; argv++)
        words[n++] = *argv;
    words[n] = NULL;
    return words;
}

/* Of root's environment only what says how texts look. */
static void clear_environment(const struct passwd *user, uid_t uid)
{
    static const char *const kept[] = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM"};
    char *values[sizeof(kept) / sizeof(kept[0])] = {0};
    char runtime[32];
    struct stat st;

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (getenv(kept[i]))
            values[i] = strdup(getenv(kept[i]));
    clearenv();
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (values[i])
            setenv(kept[i], values[i], 1);
    setenv("HOME", user && user->pw_dir ? user->pw_dir : "/", 1);
    if (user)
        setenv("USER", user->pw_name, 1);
    snprintf(runtime, sizeof(runtime), "/run/user/%u", (unsigned)uid);
    if (stat(runtime, &st) == 0 && st.st_uid == uid)
        setenv("XDG_RUNTIME_DIR", runtime, 1);
}

int pb_as_become(int argc, char **argv)
{
    char *end;

    if (argc < 5)
        return 2;
    uid_t uid = (uid_t)strtoul(argv[2], &end, 10);
    gid_t gid = (gid_t)strtoul(argv[3], &end, 10);
    const struct passwd *user = getpwuid(uid);
    if (!uid || geteuid() != 0)
        return 126;
    int r = user ? initgroups(user->pw_name, gid) : setgroups(0, NULL);
    if (r < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0 || setuid(0) == 0) {
        fprintf(stderr, "probing: cannot become user %u: %s\n", (unsigned)uid, strerror(errno));
        return 126;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* which a change of the user takes back */
    clear_environment(user, uid);
    execv(argv[4], argv + 4);
    fprintf(stderr, "probing: %s cannot be run by user %u: %s\n", argv[4], (unsigned)uid, strerror(errno));
    return 127;
}

int pb_as_give(const struct pb_as *as, int folder, const char *name)
{
    return as->uid ? fchownat(folder, name, as->uid, as->gid, AT_SYMLINK_NOFOLLOW) : 0;
}

int pb_as_open(const struct pb_as *as, int folder, const char *name)
{
    struct stat st;
    _cleanup_close_ int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || (as->uid && st.st_uid != as->uid))
        return -EACCES;
    return pb_take_fd(fd);
}
