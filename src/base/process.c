/* process: see process.h. */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 65536 }; /* of a child until it is another program */

/* Ends the child whose parent has ended before it could ask for the signal. */
static void end_with(int number, pid_t parent)
{
    if (!number)
        return;
    prctl(PR_SET_PDEATHSIG, number);
    if (getppid() != parent)
        _exit(127);
}

pid_t pb_process_fork(int end_with_caller)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        end_with(end_with_caller, parent);
    return pid < 0 ? -errno : pid;
}

pid_t pb_process_fork_piped(int ret_fds[2])
{
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    pid_t pid = -1;

    if (pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0) {
        fflush(NULL);
        /* SIGTERM rather than SIGKILL: an injection under way must be undone. */
        pid = pb_process_fork(SIGTERM);
    } else {
        pid = -errno;
    }
    if (pid == 0) {
        dup2(pipes[0][1], STDOUT_FILENO);
        dup2(pipes[1][1], STDERR_FILENO);
    }
    for (int k = 0; k < 2; k++) {
        ret_fds[k] = pid > 0 ? pipes[k][0] : -1;
        /* Also in the child: a command that stays in the background must not keep them open. */
        if (pid <= 0 && pipes[k][0] >= 0)
            close(pipes[k][0]);
        if (pipes[k][1] >= 0)
            close(pipes[k][1]);
    }
    return pid;
}

int pb_process_orphan(void)
{
    pid_t child = pb_process_fork(0);

    if (child == 0) {
        setsid();
        pid_t orphan = pb_process_fork(0);
        if (orphan == 0)
            return 0;
        _exit(orphan < 0 ? -orphan : 0);
    }
    int status = child < 0 ? 0 : pb_process_wait(child);
    return child < 0 ? child : status < 0 ? status : status ? -status : 1;
}

int pb_process_wait(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct start {
    const struct pb_process_plan *plan;
    pid_t parent;
    int failed; /* errno; 0: it is that program now */
};

/* Before signals are let in: a handler of ours would run in the child, in our memory. */
static void forget_handlers(void)
{
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    struct sigaction found;

    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &found) == 0 && found.sa_handler != SIG_IGN &&
            found.sa_handler != SIG_DFL)
            sigaction(number, &usual, NULL);
}

/* In the memory of a process that may have threads: system calls only. */
static int become_program(void *arg)
{
    struct start *start = arg;
    const struct pb_process_plan *plan = start->plan;
    const int streams[] = {plan->in, plan->out, plan->errors};
    char *const *argv = (char *const *)plan->argv, *const *environment = plan->environment;
    sigset_t none;

    if (plan->session || plan->terminal)
        setsid();
    else
        setpgid(0, 0);
    end_with(plan->end_with_caller, start->parent);
    forget_handlers();
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (plan->terminal)
        ioctl(plan->in, TIOCSCTTY, 0);
    for (int i = 0; i < 3; i++)
        if (streams[i] == i)
            fcntl(i, F_SETFD, 0);
        else
            dup2(streams[i], i);
    if (!plan->folder || !plan->folder[0] || chdir(plan->folder) == 0) {
        if (plan->search)
            execvpe(argv[0], argv, environment ? environment : environ);
        else
            execve(argv[0], argv, environment ? environment : environ);
    }
    start->failed = errno;
    _exit(127);
}

pid_t pb_process_start(const struct pb_process_plan *plan)
{
    struct start start = {.plan = plan, .parent = getpid()};
    sigset_t all, before;

    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        return -errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(become_program, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
    int failed = pid < 0 ? errno : start.failed;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(stack, STACK);
    if (pid > 0 && failed)
        pb_process_wait(pid);
    return failed ? -failed : pid;
}
