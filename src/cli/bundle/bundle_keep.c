/* bundle_keep: incidents' files that nobody asks for: one for each new finding of `diagnose --every`. Their
 * number is bounded, since nobody may look for weeks. */
#include "base/err.h"
#include "base/null.h"
#include "base/process.h"
#include "base/program.h"
#include "cli/bundle/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 10 }; /* that stay in the folder */

/* incident-20261119T234500Z-KIND-PID.probing. What a person made there stays: `bundle` names it otherwise. */
static int is_kept(const struct dirent *e)
{
    static const char digits[] = "0123456789";
    const char *when = e->d_name + 9, *last = strrchr(e->d_name, '-');

    if (strncmp(e->d_name, "incident-", 9) != 0 || strspn(when, digits) != 8 || when[8] != 'T' ||
        strspn(when + 9, digits) != 6 || strncmp(when + 15, "Z-", 2) != 0 || last <= when + 16)
        return 0;
    size_t n = strspn(last + 1, digits);
    return n && strcmp(last + 1 + n, ".probing") == 0;
}

/* Names begin with the time. */
static void remove_oldest_files(const char *folder)
{
    struct dirent **names = NULL;
    char path[PATH_MAX + 256];

    int n = scandir(folder, &names, is_kept, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);
        if (i < n - FILES)
            unlink(path);
        free(names[i]);
    }
    free(names);
}

int pb_bundle_keep(const char *folder, pid_t pid, const char *kind, char ret[PATH_MAX], struct pb_err *err)
{
    char number[16], when[32];
    time_t now = time(NULL);
    struct tm tm;

    strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    snprintf(number, sizeof(number), "%d", (int)pid);
    if (snprintf(ret, PATH_MAX, "%s/incident-%s-%.40s-%d.probing", folder, when, kind, (int)pid) >= PATH_MAX)
        return pb_fail(err, -ENAMETOOLONG, "the path of the folder for incidents is too long");
    const char *const words[] = {PB_PROGRAM_SELF, "-t", number, "--all", "bundle", "-o", ret, NULL};
    /* In a child: the file is made by children with deadlines, of which none may stay with us. */
    pid_t child = pb_process_fork(SIGTERM);
    if (child == 0) {
        umask(077);
        pb_null_over(STDIN_FILENO, STDOUT_FILENO);
        execv(words[0], (char *const *)words);
        _exit(127);
    }
    int status = child < 0 ? child : pb_process_wait(child);
    if (status != 0)
        return pb_fail(err, status < 0 ? status : -EIO, "%.300s was not made%s", ret,
                       status < 0 ? ": no process can be started" : "");
    remove_oldest_files(folder);
    return 0;
}
