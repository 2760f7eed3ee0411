/* source_agent: see source_agent.h. */
#include "remote/source_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/time.h"
#include "control/client.h"
#include "control/message.h"
#include "remote/maps.h"
#include "remote/moment.h"
#include "remote/openin.h"
#include "remote/procinfo.h"
#include "remote/rights.h"
#include "remote/runs.h"
#include "remote/source.h"

#define TIMEOUT_MS  5000
#define MAPS_MAX    (16u << 20)
#define ERRNO_END   4096
#define SLOW_NS     (10 * PB_NS_PER_MS) /* an answer takes 50 us, and longer on a busy machine */
#define SPIN_NS     (PB_NS_PER_MS / 2)
#define PATIENCE_NS (20 * PB_NS_PER_S)
#define MAPS_TRIES  3

/* The state of an agent. It is part of the target, and may answer as slowly as it likes. */
struct agent {
    struct pb_client client;
    uint64_t waited_ns; /* for its slow answers, all together */
    int gone;           /* why it is not used any more; 0: it is */
};

/* Polls for a short while if wanted, then sleeps. */
static int wait_for_answer(struct agent *a, bool spin, struct pb_frame *ret)
{
    uint64_t until = pb_now_ns() + SPIN_NS;
    int r = -ETIMEDOUT;

    while (spin && r == -ETIMEDOUT && pb_now_ns() < until)
        r = pb_client_next(&a->client, ret, 0);
    return r == -ETIMEDOUT ? pb_client_next(&a->client, ret, TIMEOUT_MS) : r;
}

static int ask_once(struct agent *a, bool spin, struct pb_frame_writer *w, uint16_t type,
                    struct pb_frame *ret)
{
    int64_t id = pb_client_request(&a->client, w, type);
    if (id < 0)
        return id == -EPIPE || id == -ECONNRESET ? -ESRCH : (int)id;
    int r = wait_for_answer(a, spin, ret);
    if (r < 0)
        return r == -ECONNRESET ? -ESRCH : r;
    if (ret->id != (uint32_t)id || (ret->type != PB_MSG_DONE && ret->type != PB_MSG_ERROR))
        return -EPROTO;
    return 0;
}

/* Sends a request and waits for its one answer; *ret lives until the next. An agent that fails to answer once
 * is not used again, nor one whose answers together took too long. */
static int ask_agent(struct pb_source *s, struct pb_frame_writer *w, uint16_t type, struct pb_frame *ret)
{
    struct agent *a = s->extra;
    uint64_t began = pb_now_ns();

    if (a->gone)
        return a->gone;
    int r = ask_once(a, s->spin, w, type, ret);
    uint64_t took = pb_now_ns() - began;
    a->waited_ns += took > SLOW_NS ? took : 0;
    if (r == 0 && a->waited_ns > PATIENCE_NS)
        r = -ETIMEDOUT;
    if (r < 0) {
        a->gone = r;
        return r;
    }
    if (ret->type == PB_MSG_DONE)
        return 0;
    uint64_t number = pb_field_u64(ret, PB_TAG_ERRNO, EPROTO);
    return number && number < ERRNO_END ? -(int)number : -EPROTO;
}

/* Reads at most as many pieces and bytes as one answer holds. Returns the bytes read, scattered to the
 * pieces. */
static ssize_t read_pieces(struct pb_source *s, const struct pb_piece *pieces, size_t n)
{
    uint8_t buf[PB_PEEK_PIECES * 16 + 64];
    uint64_t wanted[PB_PEEK_PIECES][2];
    struct pb_frame_writer w;
    struct pb_frame reply;
    struct pb_field got;

    for (size_t i = 0; i < n; i++) {
        wanted[i][0] = pieces[i].addr;
        wanted[i][1] = pieces[i].len;
    }
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put(&w, PB_TAG_PIECES, wanted, n * sizeof(wanted[0]));
    int r = ask_agent(s, &w, PB_MSG_READ, &reply);
    if (r < 0)
        return r;
    if (pb_field_find(&reply, PB_TAG_DATA, &got) < 0)
        return -EPROTO;
    size_t at = 0;
    for (size_t i = 0; i < n && at < got.size; i++) {
        size_t part = got.size - at < pieces[i].len ? got.size - at : pieces[i].len;
        memcpy(pieces[i].buf, got.data + at, part);
        at += part;
    }
    return (ssize_t)at;
}

static ssize_t read_agent(struct pb_source *s, uint64_t addr, void *buf, size_t len)
{
    size_t done = 0;

    while (done < len) {
        size_t part = len - done < PB_PEEK_MAX ? len - done : PB_PEEK_MAX;
        struct pb_piece piece = {addr + done, (char *)buf + done, part};
        ssize_t n = read_pieces(s, &piece, 1);
        if (n < 0)
            return n;
        done += (size_t)n;
        if ((size_t)n < part)
            break;
    }
    return done || !len ? (ssize_t)done : -EFAULT;
}

/* Puts as many pieces into one request as fit; a piece too large for any goes alone. */
static ssize_t readv_agent(struct pb_source *s, const struct pb_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t count = 0, bytes = 0;
        while (i + count < n && count < PB_PEEK_PIECES && pieces[i + count].len <= PB_PEEK_MAX - bytes)
            bytes += pieces[i + count++].len;
        ssize_t got = count ? read_pieces(s, pieces + i, count)
                            : read_agent(s, pieces[i].addr, pieces[i].buf, pieces[i].len);
        if (got < 0 && got != -EFAULT)
            return got;
        if (!count)
            bytes = pieces[i].len, count = 1;
        if (got < (ssize_t)bytes) {
            for (; got > 0 && (size_t)got >= pieces[i].len; i++)
                got -= (ssize_t)pieces[i].len;
            return (ssize_t)i;
        }
        i += count;
    }
    return (ssize_t)n;
}

static int slurp_maps(struct pb_source *s, char **ret)
{
    _cleanup_free_ char *text = NULL;
    size_t len = 0;

    for (;;) {
        uint8_t buf[64];
        struct pb_frame_writer w;
        struct pb_frame reply;
        struct pb_field got;
        pb_frame_begin(&w, buf, sizeof(buf));
        pb_frame_put_u64(&w, PB_TAG_OFFSET, len);
        int r = ask_agent(s, &w, PB_MSG_MAPS, &reply);
        if (r < 0)
            return r;
        if (pb_field_find(&reply, PB_TAG_DATA, &got) < 0 || got.size > MAPS_MAX - len)
            return -EPROTO;
        char *more = realloc(text, len + got.size + 1);
        if (!more)
            return -ENOMEM;
        text = more;
        memcpy(text + len, got.data, got.size);
        len += got.size;
        text[len] = '\0';
        if (got.size < PB_PEEK_MAX)
            break;
    }
    *ret = pb_take_ptr(text);
    return len ? 0 : -EACCES;
}

static bool in_order(const struct pb_maps *m)
{
    for (size_t i = 1; i < m->n; i++)
        if (m->at[i].start < m->at[i - 1].end)
            return false;
    return true;
}

/* A long list comes in several answers, and may have changed between two of them. */
static int maps_agent(struct pb_source *s, struct pb_maps *ret, struct pb_err *err)
{
    struct pb_maps maps;
    char *text;
    int r = -EAGAIN;

    for (int i = 0; i < MAPS_TRIES; i++) {
        r = slurp_maps(s, &text);
        if (r < 0)
            break;
        r = pb_maps_parse(text, &maps, NULL);
        if (r == 0 && in_order(&maps)) {
            *ret = maps;
            return 0;
        }
        if (r == 0)
            pb_maps_done(&maps);
        r = -EAGAIN;
    }
    return pb_fail(err, r, "the agent of process %d cannot list its memory: %s", (int)s->pid, strerror(-r));
}

static int look_agent(struct pb_source *s, pid_t ns_tid, uint64_t *ret_ran_ns, char *ret_call, size_t size)
{
    uint8_t buf[64];
    struct pb_frame_writer w;
    struct pb_frame reply;
    struct pb_field text;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_TID, (uint64_t)ns_tid);
    int r = ask_agent(s, &w, PB_MSG_THREAD, &reply);
    if (r < 0)
        return r;
    *ret_ran_ns = pb_field_u64(&reply, PB_TAG_VALUE, 0);
    ret_call[0] = '\0';
    if (pb_field_find(&reply, PB_TAG_TEXT, &text) == 0 && text.size < size) {
        memcpy(ret_call, text.data, text.size);
        ret_call[text.size] = '\0';
    }
    return 0;
}

/* The thread's own tid: the last of NSpid. */
static pid_t own_tid(pid_t pid, pid_t tid)
{
    char path[48], text[8192], *end;

    snprintf(path, sizeof(path), "task/%d/status", (int)tid);
    const char *p = pb_proc_read(pid, path, text, sizeof(text)) < 0 ? NULL : pb_proc_field(text, "NSpid");
    while (p && *p && *p != '\n') {
        long number = strtol(p, &end, 10);
        if (end == p)
            break;
        tid = (pid_t)number;
        p = end + strspn(end, " \t");
    }
    return tid;
}

/* Files of /proc that need no right are read there; only the rest comes from the agent. */
static int moment_agent(struct pb_source *s, pid_t tid, struct pb_moment *ret)
{
    int r = pb_moment_open(s->pid, tid, ret);
    if (r < 0)
        return r;
    ret->ns_tid = own_tid(s->pid, tid);
    ret->through = s;
    return 0;
}

/* In our own view, since that of the process may not be entered. The same inode proves that it is the same
 * file. */
static int open_file_agent(struct pb_source *s, const char *path, uint64_t inode, uint64_t base)
{
    struct pb_rights rights;

    (void)base;
    int r = inode ? pb_rights_of(s->pid, &rights) : -ENOENT;
    if (r < 0)
        return r;
    _cleanup_close_ int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? -errno : pb_open_named(&rights, root, path, inode);
}

static void close_agent(struct pb_source *s)
{
    struct agent *a = s->extra;

    pb_client_done(&a->client);
    free(a);
}

static const struct pb_source_ops ops = {
    .name = "agent",
    .read = read_agent,
    .readv = readv_agent,
    .maps = maps_agent,
    .moment = moment_agent,
    .look = look_agent,
    .open_file = open_file_agent,
    .close = close_agent,
};

static int connect_to(const struct pb_procinfo *process, struct pb_client *ret, struct pb_err *err)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    char secret[40];

    int r = pb_run_of(process, &run);
    if (r < 0)
        return pb_fail(err, -ENOENT, "process %d has no agent that can be reached", (int)process->pid);
    int fd = pb_run_connect(&run, process, secret, TIMEOUT_MS, err);
    if (fd < 0)
        return fd;
    r = pb_client_init(ret, fd, secret, TIMEOUT_MS);
    return r < 0 ? pb_fail(err, r, "the agent of process %d does not answer: %s (is the process stopped?)",
                           (int)process->pid, strerror(-r))
                 : 0;
}

/* -ENOENT: it has no agent that we can reach. */
static int open_through_agent(const struct pb_procinfo *process, struct pb_source *ret, struct pb_err *err)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    struct pb_piece nothing = {0};

    if (!agent)
        return pb_fail(err, -ENOMEM, "out of memory");
    agent->client.fd = -1;
    int r = connect_to(process, &agent->client, err);
    if (r < 0) {
        free(agent);
        return r;
    }
    struct pb_source s = {.ops = &ops, .pid = process->pid, .main = process->pid, .fd = -1, .extra = agent};
    r = (int)read_pieces(&s, &nothing, 0);
    if (r < 0) {
        pb_source_close(&s);
        return pb_fail(err, r, "the agent of process %d cannot read its memory for us: %s%s",
                       (int)process->pid, strerror(-r),
                       r == -ENOSYS ? " (detach it and inject the newer release)" : "");
    }
    *ret = s;
    return 0;
}

int pb_source_open(pid_t pid, struct pb_source *ret, struct pb_err *err)
{
    struct pb_procinfo process;
    struct pb_err why = {0};

    int r = pb_source_process(pid, ret, err);
    if (r != -EPERM && r != -EACCES && r != -ENOSYS)
        return r;
    if (pb_procinfo_read(pid, &process, NULL) < 0)
        return r;
    int through = open_through_agent(&process, ret, &why);
    if (through == 0)
        return 0;
    if (through != -ENOENT)
        return pb_fail(err, through, "%s", pb_err_text(&why, through));
    return pb_fail(
        err, r,
        "the memory of process %d may not be read: %s (be its owner with ptrace allowed, or root; or inject "
        "an agent while that is allowed)",
        (int)pid, strerror(-r));
}
