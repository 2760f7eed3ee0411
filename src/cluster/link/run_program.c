/* run_program: see run_program.h. */
#include "cluster/link/run_program.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/link/link.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct program_stream {
    char *at;
    size_t n;
};

/* False: it has ended, or there is more than may be. */
static bool take(int fd, struct program_stream *s, size_t most)
{
    char *more = realloc(s->at, s->n + 16385);

    if (!more || s->n > most)
        return false;
    s->at = more;
    ssize_t n = read(fd, s->at + s->n, 16384);
    s->n += n > 0 ? (size_t)n : 0;
    s->at[s->n] = '\0';
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static int follow(struct pb_launched *l, struct program_stream s[2], size_t most, uint64_t end)
{
    struct pollfd p[2] = {{l->out, POLLIN, 0}, {l->errors, POLLIN, 0}};

    while (p[0].fd >= 0 || p[1].fd >= 0) {
        uint64_t now = pb_now_ns();
        if (now >= end)
            return -ETIMEDOUT;
        if (poll(p, 2, (int)((end - now) / PB_NS_PER_MS) + 1) < 0 && errno != EINTR)
            return -errno;
        for (int i = 0; i < 2; i++)
            if (p[i].fd >= 0 && p[i].revents && !take(p[i].fd, &s[i], most))
                p[i].fd = -1;
    }
    return s[0].n > most ? -EMSGSIZE : 0;
}

static const char *last_line(struct program_stream *s)
{
    while (s->n && strchr(" \r\n", s->at[s->n - 1]))
        s->at[--s->n] = '\0';
    const char *newline = s->n ? strrchr(s->at, '\n') : NULL;
    return newline ? newline + 1 : s->n ? s->at : "no error message";
}

int pb_run_program(const char *const *words, size_t most, unsigned limit_ms, char **ret, size_t *ret_length,
                   struct pb_err *err)
{
    struct pb_launched l;
    struct program_stream s[2] = {{0}, {0}};
    unsigned patience = 1000;

    int r = pb_launch_words(words, NULL, &l);
    if (r < 0)
        return pb_fail(err, r, "%s cannot be started: %s", words[0], strerror(-r));
    shutdown(l.out, SHUT_WR); /* it gets no input */
    r = follow(&l, s, most, pb_now_ns() + limit_ms * PB_NS_PER_MS);
    if (r < 0)
        kill(-l.pid, SIGTERM);
    close(l.out);
    close(l.errors);
    int status = pb_link_end(l.pid, &patience);
    if (r == 0 && status == 0 && !s[0].at)
        r = (s[0].at = calloc(1, 1)) ? 0 : -ENOMEM;
    if (r < 0)
        pb_fail(err, r, "%s: %s", words[0], strerror(-r));
    else if (status != 0)
        r = pb_fail(err, -EIO, "%s failed: %s", words[0], last_line(&s[1]));
    if (r == 0) {
        *ret = pb_take_ptr(s[0].at);
        *ret_length = s[0].n;
    }
    free(s[0].at);
    free(s[1].at);
    return r;
}
