/* jobs_child: how the child of a job is started. See jobs.h. */
#include "base/cleanup.h"
#include "base/process.h"
#include "serve/jobs_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { QUERY_NICE = 10 };

/* --- the child --- */

/* The input as a memfd: nothing has to write it while the child runs. */
static int open_input(const struct pb_serve_job_plan *plan)
{
    if (!plan->input)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = (int)syscall(SYS_memfd_create, "input", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (size_t n = 0; n < plan->input_length;) {
        ssize_t more = pwrite(fd, plan->input + n, plan->input_length - n, (off_t)n);
        if (more <= 0) {
            close(fd);
            return more < 0 ? -errno : -EIO;
        }
        n += (size_t)more;
    }
    return fd;
}

/* The service's end is nonblocking. */
static int open_pipe(int ret[2], int own)
{
    if (pipe2(ret, O_CLOEXEC) < 0) {
        ret[0] = ret[1] = -1;
        return -errno;
    }
    return fcntl(ret[own], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

/* One descriptor of the terminal is the child's input, output and errors. */
static int open_terminal(struct pb_serve_job *job, const struct winsize *size, int theirs[3])
{
    char name[64];

    job->in = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (job->in < 0 || grantpt(job->in) < 0 || unlockpt(job->in) < 0 ||
        ptsname_r(job->in, name, sizeof(name)) != 0)
        return -errno;
    theirs[0] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    job->streams[PB_SERVE_JOB_OUTPUT].fd = fcntl(job->in, F_DUPFD_CLOEXEC, 3);
    ioctl(job->in, TIOCSWINSZ, size);
    return theirs[0] < 0 || job->streams[PB_SERVE_JOB_OUTPUT].fd < 0 ||
                   fcntl(job->in, F_SETFL, fcntl(job->in, F_GETFL) | O_NONBLOCK) < 0
               ? -errno
               : 0;
}

static int open_pipes(struct pb_serve_job *job, const struct pb_serve_job_plan *plan, int theirs[3])
{
    int in[2] = {-1, -1}, r = 0;

    if (plan->dialog) {
        r = open_pipe(in, 1);
        theirs[0] = in[0];
        job->in = in[1];
    } else {
        theirs[0] = open_input(plan);
        r = theirs[0] < 0 ? theirs[0] : 0;
    }
    for (int i = 0; r == 0 && i < 2; i++) {
        int out[2];
        r = open_pipe(out, 0);
        job->streams[i].fd = out[0];
        theirs[1 + i] = out[1];
    }
    return r;
}

/* The calling thread must live as long as the child, which is sent SIGTERM when it ends. */
int pb_serve_job_spawn(struct pb_serve_job *job, const struct pb_serve_job_plan *plan)
{
    const struct pb_serve_job_dialog *dialog = plan->dialog;
    const struct winsize *terminal = dialog ? dialog->terminal : NULL;
    int theirs[3] = {-1, -1, -1};
    struct pb_credentials_text text;
    char *words[PB_CREDENTIALS_WORDS];

    char *const *argv = pb_credentials_command(&job->credentials, plan->argv, words, &text);
    int r = terminal ? open_terminal(job, terminal, theirs) : open_pipes(job, plan, theirs);
    if (r == 0) {
        const struct pb_process_plan child = {.argv = (const char *const *)argv,
                                              .environment = dialog ? dialog->environment : NULL,
                                              .folder = job->folder,
                                              .in = theirs[0],
                                              .out = theirs[terminal ? 0 : 1],
                                              .errors = theirs[terminal ? 0 : 2],
                                              .session = dialog || job->credentials.uid != 0,
                                              .terminal = terminal,
                                              .end_with_caller = SIGTERM};
        job->pid = pb_process_start(&child);
        r = job->pid < 0 ? job->pid : 0;
    }
    for (int i = 0; i < 3; i++)
        if (theirs[i] >= 0)
            close(theirs[i]);
    if (r < 0) {
        job->pid = 0;
        return r;
    }
    /* Many queries must not delay short commands. Set here and not by the child, which delays us until
     * exec. */
    if (job->query)
        setpriority(PRIO_PROCESS, (id_t)job->pid, QUERY_NICE);
    job->pidfd = (int)syscall(SYS_pidfd_open, job->pid, 0);
    return 0;
}

/* --- queued jobs --- */

/* A queued job needs copies: the plan's texts are the caller's. */
int pb_serve_job_copy_plan(struct pb_serve_job *job, const struct pb_serve_job_plan *plan)
{
    size_t n = 0;

    while (plan->argv[n])
        n++;
    char **argv = calloc(n + 1, sizeof(*argv)), *input = NULL;
    bool whole = argv;
    for (size_t i = 0; whole && i < n; i++)
        whole = (argv[i] = strdup(plan->argv[i])) != NULL;
    if (whole && plan->input) {
        input = malloc(plan->input_length + 1);
        whole = input;
        if (input)
            memcpy(input, plan->input, plan->input_length);
    }
    job->plan = (struct pb_serve_job_plan){
        .argv = argv, .input = input, .input_length = plan->input_length, .limit_ms = plan->limit_ms};
    return whole ? 0 : -ENOMEM;
}

void pb_serve_job_free_plan(struct pb_serve_job *job)
{
    for (size_t i = 0; job->plan.argv && job->plan.argv[i]; i++)
        free(job->plan.argv[i]);
    free((char **)(uintptr_t)job->plan.argv);
    free((char *)(uintptr_t)job->plan.input);
    job->plan = (struct pb_serve_job_plan){0};
}
