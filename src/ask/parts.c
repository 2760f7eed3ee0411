/* parts: see parts.h. */
#include "ask/parts.h"

#include "ask/targets.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_SIZE = 512,
    LOADING_MS = 700 * 1000 /* longer than an injection waits for a library that loads (inject/follow.c) */
};

/* The folder of the agents. */
static int find_agents(char ret[PATH_SIZE + 32], struct pb_err *err)
{
    char top[PATH_SIZE] = "";

    int r = pb_program_prefix(top, sizeof(top));
    snprintf(ret, PATH_SIZE + 32, "%s/lib/probing", top);
    if (r == 0)
        r = access(ret, R_OK | X_OK) < 0 ? -errno : 0;
    return r < 0 ? pb_fail(
                       err, r,
                       "the agents were not found in %s (this installation is incomplete; install it again)",
                       ret)
                 : 0;
}

/* Whether top is build/<preset> below the sources. Only there code from outside the installation is used. */
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

/* Whether only our user or root can have written it. */
static bool is_trusted(const char *path, mode_t kind)
{
    struct stat st;
    return lstat(path, &st) == 0 && (st.st_mode & S_IFMT) == kind && !(st.st_mode & (S_IWGRP | S_IWOTH)) &&
           (st.st_uid == geteuid() || st.st_uid == 0);
}

/* The folder of the Python part, in a development tree that only we or root can write to. */
static bool find_python(char ret[PATH_SIZE + 64])
{
    char top[PATH_SIZE], file[PATH_SIZE + 96];

    if (pb_program_prefix(top, sizeof(top)) < 0 || !is_build_tree(top))
        return false;
    snprintf(ret, PATH_SIZE + 64, "%s/../../python/probing", top);
    snprintf(file, sizeof(file), "%s/_remote.py", ret);
    return is_trusted(ret, S_IFDIR) && is_trusted(file, S_IFREG) && access(file, R_OK) == 0;
}

int pb_parts_launch(char *ret, size_t size, struct pb_err *err)
{
    char top[PATH_SIZE], file[PATH_SIZE + 96];

    int r = pb_program_prefix(top, sizeof(top));
    if (r == 0) {
        snprintf(ret, size, is_build_tree(top) ? "%s/../../python/launch" : "%s/lib/probing/python/launch",
                 top);
        snprintf(file, sizeof(file), "%s/sitecustomize.py", ret);
        r = access(file, R_OK) < 0 ? -errno : 0;
    }
    if (r < 0)
        return pb_fail(err, r,
                       "the Python part was not found (this installation is incomplete; install it again)");
    return 0;
}

/* --- a session, opened in a child --- */

struct opening {
    pid_t pid;
    bool no_inject;
    unsigned timeout_ms;
};

/* The child's answer, beside the connection. */
struct opened {
    uint32_t last_id;
    bool injected;
    uint64_t stopped_ns;
    char run_dir[sizeof(((struct pb_session *)NULL)->run_dir)];
};

struct teller {
    const struct pb_ask *ask;
    const struct pb_room *room;
};

/* Called when the library begins to load: that is not interrupted, so the deadline is extended. */
static void tell_of_loading(const char *sentence, void *arg)
{
    const struct teller *t = arg;

    pb_ask_note(t->ask, "%s", sentence);
    pb_task_extend(t->room, LOADING_MS);
}

/* Runs in a child. */
static int open_session(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct opening *what = arg;
    char agents[PATH_SIZE + 32], python[PATH_SIZE + 64];
    struct teller teller = {ask, room};
    struct pb_session_options options = {.no_inject = what->no_inject,
                                         .timeout_ms = what->timeout_ms,
                                         .agent_dir = agents,
                                         .python_dir = find_python(python) ? python : NULL,
                                         .say = tell_of_loading,
                                         .say_arg = &teller};
    struct opened *answer = pb_room_alloc(room, sizeof(*answer));
    struct pb_session session;

    int r = answer ? find_agents(agents, err) : -ENOMEM;
    if (r == 0)
        r = pb_session_open(what->pid, &options, &session, err);
    if (r < 0)
        return r;
    *answer = (struct opened){
        .last_id = session.client.last_id, .injected = session.injected, .stopped_ns = session.stopped_ns};
    memcpy(answer->run_dir, session.run_dir, sizeof(answer->run_dir));
    pb_task_answer(room, answer);
    r = pb_task_give_fd(room, session.client.fd);
    session.client.fd = -1;
    pb_session_done(&session);
    return r;
}

static struct pb_task task_of(struct opening *what)
{
    /* Each step has its own limit: this one is for the rest, such as a file of /proc that blocks. */
    unsigned limit_ms = what->timeout_ms ? what->timeout_ms : PB_SESSION_TIMEOUT_MS;

    return (struct pb_task){.work = open_session,
                            .arg = what,
                            .pid = what->pid,
                            .limit_ms = limit_ms + PB_SESSION_HELLO_MS,
                            .gentle = true};
}

/* Takes over the connection that the child opened. */
static int take_session(struct pb_task *task, struct pb_session *ret, struct pb_err *err)
{
    const struct opened *answer = pb_task_answer_of(task);
    struct pb_session s = {0};
    int r = task->result;

    *err = task->err;
    if (r >= 0 && (!answer || task->fd < 0))
        r = pb_fail(err, -EPROTO, "process %d: the connection to its agent was lost", (int)task->pid);
    if (r >= 0) {
        s.injected = answer->injected;
        s.stopped_ns = answer->stopped_ns;
        memcpy(s.run_dir, answer->run_dir, sizeof(s.run_dir));
        r = pb_client_adopt(&s.client, task->fd, answer->last_id);
    }
    pb_room_free(task->room);
    if (r >= 0)
        *ret = s;
    return r < 0 ? r : 0;
}

/* A session's time limit is an argument of the caller, not that of the question. */
static struct pb_ask without_limit(const struct pb_ask *ask)
{
    struct pb_ask ours = *ask;
    ours.limit_ms = 0;
    return ours;
}

int pb_parts_session(const struct pb_ask *ask, pid_t pid, bool no_inject, unsigned timeout_ms,
                     struct pb_session *ret, struct pb_err *err)
{
    struct opening what = {pid, no_inject, timeout_ms};
    struct pb_ask ours = without_limit(ask);
    struct pb_task task = task_of(&what);

    pb_tasks_run(&ours, &task, 1, 1);
    return take_session(&task, ret, err);
}

int pb_parts_sessions(const struct pb_ask *ask, const struct pb_targets *targets, bool no_inject,
                      unsigned timeout_ms, struct pb_parts_session **ret, struct pb_err *err)
{
    struct pb_parts_session *sessions = calloc(targets->n + 1, sizeof(*sessions));
    _cleanup_free_ struct opening *what = calloc(targets->n + 1, sizeof(*what));
    _cleanup_free_ struct pb_task *tasks = calloc(targets->n + 1, sizeof(*tasks));
    struct pb_ask ours = without_limit(ask);
    size_t n = 0;

    if (!sessions || !what || !tasks) {
        free(sessions);
        return pb_fail(err, -ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < targets->n; i++) {
        if (targets->at[i].dead)
            continue;
        what[n] = (struct opening){targets->at[i].pid, no_inject, timeout_ms};
        tasks[n] = task_of(&what[n]);
        n++;
    }
    pb_tasks_run(&ours, tasks, n, 0);
    for (size_t i = 0, k = 0; i < targets->n; i++) {
        struct pb_parts_session *s = &sessions[i];
        s->result = targets->at[i].dead
                        ? pb_fail(&s->err, -ESRCH, "process %d has ended", (int)targets->at[i].pid)
                        : take_session(&tasks[k++], &s->session, &s->err);
    }
    *ret = sessions;
    return 0;
}

void pb_parts_sessions_done(struct pb_parts_session *sessions, size_t n)
{
    for (size_t i = 0; sessions && i < n; i++)
        if (sessions[i].result >= 0)
            pb_session_done(&sessions[i].session);
    free(sessions);
}
