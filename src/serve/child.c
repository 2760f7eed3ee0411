/* child: see child.h. */
#include "serve/child.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

void pb_child_signal(pid_t pid, int signal)
{
    kill(-pid, signal);
    if (getpgid(pid) != pid) /* it has left its group; twice would be another signal */
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
    /* Kill the group before the child is reaped, while its id cannot be reused: leftover processes hold pipes
     * open. */
    kill(-pid, SIGKILL);
    if (waitpid(pid, &status, WNOHANG) != pid)
        return false;
    *ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}
