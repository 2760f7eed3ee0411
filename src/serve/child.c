/* child: see child.h. */
#include "serve/child.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct start {
    const struct pb_child_plan *plan;
    pid_t parent;
};

/* In the memory of a process with threads: system calls only. */
static int in_child(void *arg)
{
    const struct start *start = arg;
    const struct pb_child_plan *plan = start->plan;
    sigset_t none;

    if (plan->session || plan->terminal)
        setsid();
    else
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != start->parent)
        _exit(127);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (plan->terminal)
        ioctl(plan->in, TIOCSCTTY, 0);
    dup2(plan->in, STDIN_FILENO);
    dup2(plan->out, STDOUT_FILENO);
    dup2(plan->errors, STDERR_FILENO);
    if (!plan->folder[0] || chdir(plan->folder) == 0)
        execve(plan->argv[0], plan->argv, plan->environment);
    _exit(127);
}

/* As vfork: the child borrows our memory until it is another program. To copy the page tables of a service
 * with a crowd of requests takes longer than most commands. No signal gets to a handler meanwhile. */
pid_t pb_child_start(const struct pb_child_plan *plan, char *stack)
{
    struct start start = {plan, getpid()};
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(in_child, stack + PB_CHILD_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
    int failed = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid < 0 ? -failed : pid;
}

void pb_child_signal(pid_t pid, int signal)
{
    kill(-pid, signal);
    kill(pid, signal);
}

bool pb_child_reap(pid_t pid, int *ret_status)
{
    siginfo_t info = {0};
    int status = 0;

    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        return errno == ECHILD;
    if (!info.si_pid)
        return false;
    /* Before it is reaped, while its group id cannot be used again: the rest of the group may hold pipes. */
    kill(-pid, SIGKILL);
    if (waitpid(pid, &status, WNOHANG) != pid)
        return false;
    *ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}
