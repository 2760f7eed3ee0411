/* fanout: see fanout.h. */
#include "cli/fanout.h"

#include "base/process.h"
#include "print/outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096

/* One output stream of a child, buffered up to the next newline. */
struct stream {
    int fd; /* -1: ended */
    FILE *to;
    const char *label;
    char line[LINE_MAX_BYTES];
    size_t len;
};

static void put_line(struct stream *s)
{
    pb_put_between(s->to, "[", s->label, "] ");
    fprintf(s->to, "%.*s\n", (int)s->len, s->line);
    s->len = 0;
}

/* False at the end of the stream. */
static bool forward_lines(struct stream *s)
{
    char buf[LINE_MAX_BYTES];

    ssize_t n = read(s->fd, buf, sizeof(buf));
    for (ssize_t i = 0; i < n; i++) {
        if (buf[i] == '\n' || s->len == sizeof(s->line))
            put_line(s);
        if (buf[i] != '\n')
            s->line[s->len++] = buf[i];
    }
    fflush(s->to);
    if (n > 0 || (n < 0 && errno == EINTR))
        return true;
    if (s->len)
        put_line(s);
    close(s->fd);
    s->fd = -1;
    return false;
}

static pid_t start_child(const struct pb_call *call, size_t i, struct stream out[2])
{
    int fds[2];

    pid_t pid = pb_process_fork_piped(fds);
    if (pid == 0) {
        struct pb_call one = *call;
        one.targets = (struct pb_targets){.at = &call->targets.at[i], .n = 1};
        setvbuf(stdout, NULL, _IOLBF, 0);
        int status = pb_run_one(&one);
        fflush(NULL);
        _exit(status);
    }
    for (int k = 0; k < 2; k++)
        out[k] = (struct stream){.fd = fds[k], .to = k ? stderr : stdout, .label = call->targets.at[i].label};
    return pid;
}

static void forward_all(struct stream *streams, size_t n, struct pollfd *waited)
{
    for (size_t open = n; open > 0;) {
        for (size_t i = 0; i < n; i++)
            waited[i] = (struct pollfd){.fd = streams[i].fd, .events = POLLIN};
        if (poll(waited, (nfds_t)n, -1) < 0 && errno != EINTR)
            return;
        for (size_t i = 0; i < n; i++)
            if (streams[i].fd >= 0 && waited[i].revents && !forward_lines(&streams[i]))
                open--;
    }
}

int pb_fanout(const struct pb_call *call, struct pb_err *err)
{
    size_t n = call->targets.n;
    struct stream *streams = calloc(2 * n, sizeof(*streams));
    struct pollfd *waited = calloc(2 * n, sizeof(*waited));
    pid_t *pids = calloc(n, sizeof(*pids));
    int r = streams && waited && pids ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    size_t started = 0;

    for (; r == 0 && started < n; started++) {
        pids[started] = start_child(call, started, &streams[2 * started]);
        if (pids[started] < 0) {
            r = pb_fail(err, pids[started], "cannot start a process for %s: %s",
                        call->targets.at[started].label, strerror(-pids[started]));
            break;
        }
    }
    if (started)
        forward_all(streams, 2 * started, waited);
    bool failed = false;
    for (size_t i = 0; i < started; i++)
        failed = pb_process_wait(pids[i]) != 0 || failed;
    free(streams);
    free(waited);
    free(pids);
    return r < 0 ? r : failed ? PB_FAILED : 0;
}

int pb_target_failed(const struct pb_call *call, const struct pb_target *target, int r, struct pb_err *err)
{
    if (call->targets.n == 1)
        return r;
    pb_put_between(stderr, "[", target->label, "] probing: ");
    fprintf(stderr, "%s: ", call->command->name);
    pb_put_sentence(stderr, pb_err_text(err, r));
    err->text[0] = '\0'; /* printed already: it must not be reported for the next target */
    return PB_FAILED;
}

void pb_target_path(const struct pb_target *target, const char *given, size_t n, char *ret, size_t size)
{
    const char *dot = strrchr(given, '.'), *slash = strrchr(given, '/');
    char label[PB_LABEL_MAX];

    snprintf(label, sizeof(label), "%s", target->label);
    for (char *at = label; *at; at++)
        *at = *at == ' ' || *at == '/' ? '-' : *at;
    if (!dot || (slash && dot < slash))
        dot = given + strlen(given);
    snprintf(ret, size, "%.*s%s%s%s", (int)(dot - given), given, n > 1 ? "-" : "", n > 1 ? label : "", dot);
}
