/* parts: see parts.h. */
#include "ask/parts.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_SIZE 512

/* The folder that holds bin/. */
static int prefix(char ret[PATH_SIZE])
{
    ssize_t n = readlink("/proc/self/exe", ret, PATH_SIZE - 1);
    if (n <= 0)
        return -ENOENT;
    ret[n] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(ret, '/');
        if (!slash)
            return -ENOENT;
        *slash = '\0';
    }
    return 0;
}

/* The folder of the agents. */
static int find_agents(char ret[PATH_SIZE + 32], struct pb_err *err)
{
    char top[PATH_SIZE] = "";

    int r = prefix(top);
    snprintf(ret, PATH_SIZE + 32, "%s/lib/probing", top);
    if (r == 0)
        r = access(ret, R_OK | X_OK) < 0 ? -errno : 0;
    return r < 0
               ? pb_fail(err, r,
                         "the agents are not in %s (this installation is incomplete; install it again)", ret)
               : 0;
}

/* build/<preset> below the sources: what is beside any other folder is not ours to run. */
static bool is_build_tree(const char *top)
{
    char path[PATH_SIZE + 32], *end;

    snprintf(path, sizeof(path), "%s/CMakeCache.txt", top);
    if (access(path, F_OK) < 0)
        return false;
    snprintf(path, sizeof(path), "%s", top);
    end = strrchr(path, '/');
    if (!end)
        return false;
    *end = '\0';
    end = strrchr(path, '/');
    return end && strcmp(end, "/build") == 0;
}

/* Only our user and root can have put it there. */
static bool is_trusted(const char *path, mode_t kind)
{
    struct stat st;
    return lstat(path, &st) == 0 && (st.st_mode & S_IFMT) == kind && !(st.st_mode & (S_IWGRP | S_IWOTH)) &&
           (st.st_uid == geteuid() || st.st_uid == 0);
}

/* The folder of the Python part, where this is a development tree that only we or root can write to. */
static bool find_python(char ret[PATH_SIZE + 64])
{
    char top[PATH_SIZE], file[PATH_SIZE + 96];

    if (prefix(top) < 0 || !is_build_tree(top))
        return false;
    snprintf(ret, PATH_SIZE + 64, "%s/../../python/probing", top);
    snprintf(file, sizeof(file), "%s/_remote.py", ret);
    return is_trusted(ret, S_IFDIR) && is_trusted(file, S_IFREG) && access(file, R_OK) == 0;
}

int pb_parts_launch(char *ret, size_t size, struct pb_err *err)
{
    char top[PATH_SIZE], file[PATH_SIZE + 96];

    int r = prefix(top);
    if (r == 0) {
        snprintf(ret, size, is_build_tree(top) ? "%s/../../python/launch" : "%s/lib/probing/python/launch",
                 top);
        snprintf(file, sizeof(file), "%s/sitecustomize.py", ret);
        r = access(file, R_OK) < 0 ? -errno : 0;
    }
    if (r < 0)
        return pb_fail(
            err, r, "the Python part of this installation is not there (it is incomplete; install it again)");
    return 0;
}

int pb_parts_session(pid_t pid, bool no_inject, unsigned timeout_ms, struct pb_session *ret,
                     struct pb_err *err)
{
    char agents[PATH_SIZE + 32], python[PATH_SIZE + 64];
    struct pb_session_options options = {.no_inject = no_inject,
                                         .timeout_ms = timeout_ms,
                                         .agent_dir = agents,
                                         .python_dir = find_python(python) ? python : NULL};

    int r = find_agents(agents, err);
    return r < 0 ? r : pb_session_open(pid, &options, ret, err);
}
