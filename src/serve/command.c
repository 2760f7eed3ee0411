/* command: a command line of a tool on another machine, run here (control/relay.h).
 *
 * The service runs its own `probing` with the words that came, so that output and exit status are those of
 * the node. Files that the tool named were sent along, and what the command writes goes back: nothing stays
 * here. At a terminal the command gets one of its own. A thread a command: it waits for socket and child, and
 * ends both. */
#include "base/cleanup.h"
#include "base/time.h"
#include "control/relay.h"
#include "serve/child.h"
#include "serve/request.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMANDS = 16, PATIENCE_MS = 30000, LOOK_MS = 100 };

/* The commands that run now. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place {
    bool taken;
    int socket; /* for the end; -1: the client is gone, and its child could not be reaped yet: */
    pid_t lost;
    uid_t uid; /* another user; 0: the service's own */
} places[COMMANDS];
static bool ending;

/* -EBUSY: too many commands run. */
static int take_place(int socket, const struct pb_as *as)
{
    unsigned taken = 0, own = 0;
    struct place *free = NULL;
    int status;

    pthread_mutex_lock(&lock);
    for (struct place *p = places; p < places + COMMANDS; p++) {
        if (p->lost && pb_child_reap(p->lost, &status))
            *p = (struct place){0};
        free = p->taken ? free : p;
        taken += p->taken;
        own += p->taken && p->uid == as->uid;
    }
    int r = ending || !free || !pb_as_may_take(as->uid, COMMANDS, taken, own) ? -EBUSY : 0;
    if (r == 0)
        *free = (struct place){.taken = true, .socket = socket, .uid = as->uid};
    pthread_mutex_unlock(&lock);
    return r;
}

/* lost: a child that could not be reaped yet; the place is free when it can be. 0: none. */
static void give_place(int socket, pid_t lost)
{
    pthread_mutex_lock(&lock);
    for (struct place *p = places; p < places + COMMANDS; p++)
        if (p->taken && p->socket == socket)
            *p = lost ? (struct place){true, -1, lost, p->uid} : (struct place){0};
    pthread_mutex_unlock(&lock);
}

static bool is_ending(void)
{
    pthread_mutex_lock(&lock);
    bool r = ending;
    pthread_mutex_unlock(&lock);
    return r;
}

void pb_commands_end(void)
{
    enum { PATIENCE = 500 }; /* twice as long as pb_child_end takes */

    for (int i = 0; i < PATIENCE; i++) {
        pthread_mutex_lock(&lock);
        bool done = ending = true;
        for (struct place *p = places; p < places + COMMANDS; p++)
            if (p->taken && p->socket >= 0) {
                shutdown(p->socket, SHUT_RDWR);
                done = false;
            }
        pthread_mutex_unlock(&lock);
        if (done)
            return;
        pb_sleep_ns(10 * PB_NS_PER_MS);
    }
}

struct command {
    struct pb_service *s;
    struct MHD_UpgradeResponseHandle *handle;
    struct pb_relay relay;
    char folder[PB_SERVE_PATH + 32];
    char term[64];
    char served[128];                /* PROBING_SERVED=TARGET: the service's own target; "": none */
    char *words[PB_RELAY_WORDS + 2]; /* into text; the first is the program */
    struct pb_as as;
    size_t nwords, uploaded;
    char *text;
    struct winsize size;
    bool terminal, begun, gone, lost;
    char peer[PB_AUDIT_PEER];
    pid_t pid;
    int pidfd, in, out, errors;        /* of the child; with a terminal one for all */
    unsigned char early[PB_RELAY_MAX]; /* what came with the request's headers */
};

/* --- frames --- */

static bool wait_for(int fd, short events, int ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, ms) > 0;
}

static int send_frame(struct command *c, enum pb_relay_kind kind, const void *bytes, size_t n)
{
    int r = pb_relay_send(&c->relay, kind, bytes, n);

    c->gone = c->gone || r < 0;
    return r;
}

/* --- what comes --- */

static int take_arguments(struct command *c, const char *bytes, size_t n)
{
    if (c->text || n == 0 || bytes[n - 1] != '\0')
        return -EPROTO;
    c->text = malloc(n);
    if (!c->text)
        return -ENOMEM;
    memcpy(c->text, bytes, n);
    snprintf(c->term, sizeof(c->term), "TERM=%s", c->text);
    c->words[c->nwords++] = c->s->program;
    for (size_t at = strlen(c->text) + 1; at < n; at += strlen(c->text + at) + 1) {
        if (c->nwords > PB_RELAY_WORDS)
            return -E2BIG;
        c->words[c->nwords++] = c->text + at;
    }
    return 0;
}

/* A name that leads nowhere else. */
static bool is_plain_name(const char *name, size_t n)
{
    return n && n < 128 && name[0] != '.' && !memchr(name, '/', n);
}

static int take_file(struct command *c, const char *bytes, size_t n)
{
    const char *nul = memchr(bytes, '\0', n);
    char path[sizeof(c->folder) + 160];

    if (!nul || !is_plain_name(bytes, (size_t)(nul - bytes)))
        return -EPROTO;
    size_t length = n - (size_t)(nul + 1 - bytes);
    if (length > PB_RELAY_UPLOAD - c->uploaded)
        return -EFBIG;
    c->uploaded += length;
    snprintf(path, sizeof(path), "%s/%s", c->folder, bytes);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || pb_as_give(&c->as, AT_FDCWD, path) < 0)
        return -errno;
    return write(fd, nul + 1, length) == (ssize_t)length ? 0 : -EIO;
}

static int take_size(struct command *c, const unsigned char *bytes, size_t n)
{
    if (n != 4)
        return -EPROTO;
    c->size = (struct winsize){.ws_row = (unsigned short)(bytes[0] | bytes[1] << 8),
                               .ws_col = (unsigned short)(bytes[2] | bytes[3] << 8)};
    c->terminal = true;
    if (c->pid)
        ioctl(c->in, TIOCSWINSZ, &c->size);
    return 0;
}

static int take_input(struct command *c, const char *bytes, size_t n)
{
    if (c->in < 0)
        return 0;
    if (n == 0 && !c->terminal) {
        close(pb_take_fd(c->in));
        return 0;
    }
    uint64_t deadline = pb_now_ns() + PATIENCE_MS * PB_NS_PER_MS;
    for (size_t at = 0; at < n;) {
        ssize_t more = write(c->in, bytes + at, n - at);
        if (more < 0 && errno == EAGAIN && !is_ending() && pb_now_ns() < deadline) {
            wait_for(c->in, POLLOUT, LOOK_MS);
            continue;
        }
        if (more <= 0)
            return 0; /* it reads no more */
        at += (size_t)more;
    }
    return 0;
}

static int take_frame(struct command *c)
{
    char bytes[PB_RELAY_MAX];
    size_t n;

    int kind = pb_relay_receive(&c->relay, bytes, &n);
    c->gone = c->gone || kind == -EPIPE;
    if (kind < 0)
        return kind;
    bool early = !c->begun;
    if (early && kind == PB_RELAY_ARGUMENTS)
        return take_arguments(c, bytes, n);
    if (early && kind == PB_RELAY_FILE)
        return take_file(c, bytes, n);
    if (early && kind == PB_RELAY_BEGIN && c->text) {
        c->begun = true;
        return 0;
    }
    if (kind == PB_RELAY_TERMINAL)
        return take_size(c, (unsigned char *)bytes, n);
    if (!early && kind == PB_RELAY_INPUT)
        return take_input(c, bytes, n);
    if (!early && kind == PB_RELAY_SIGNAL && n == 1 && (bytes[0] == SIGINT || bytes[0] == SIGTERM)) {
        pb_child_signal(c->pid, bytes[0]);
        return 0;
    }
    return -EPROTO;
}

/* --- the child --- */

/* The service's environment with the terminal of the client. NULL: out of memory. */
static char **make_environment(struct command *c)
{
    size_t n = 0;

    while (environ[n])
        n++;
    char **ret = calloc(n + 3, sizeof(*ret)), **to = ret;
    if (!ret)
        return NULL;
    *to++ = c->term;
    if (c->served[0])
        *to++ = c->served;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "TERM=", 5) != 0 &&
            strncmp(environ[i], PB_RELAY_SERVED "=", sizeof(PB_RELAY_SERVED)) != 0)
            *to++ = environ[i];
    return ret;
}

static int open_terminal(struct command *c, int *ret_theirs)
{
    char name[64];

    c->in = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (c->in < 0 || grantpt(c->in) < 0 || unlockpt(c->in) < 0 || ptsname_r(c->in, name, sizeof(name)) != 0)
        return -errno;
    *ret_theirs = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    c->out = fcntl(c->in, F_DUPFD_CLOEXEC, 3);
    ioctl(c->in, TIOCSWINSZ, &c->size);
    return *ret_theirs < 0 || c->out < 0 ? -errno : 0;
}

static int open_pipes(struct command *c, int theirs[3])
{
    int in[2], out[2], errors[2];

    if (pipe2(in, O_CLOEXEC) < 0)
        return -errno;
    theirs[0] = in[0];
    c->in = in[1];
    if (pipe2(out, O_CLOEXEC) < 0)
        return -errno;
    theirs[1] = out[1];
    c->out = out[0];
    if (pipe2(errors, O_CLOEXEC) < 0)
        return -errno;
    theirs[2] = errors[1];
    c->errors = errors[0];
    return 0;
}

static int start(struct command *c)
{
    int theirs[3] = {-1, -1, -1};
    char *other[PB_AS_WORDS];
    struct pb_as_text text;

    if (c->as.uid && c->nwords > PB_AS_WORDS - 5)
        return -E2BIG;
    char *const *words = pb_as_command(&c->as, c->words, other, &text);
    _cleanup_free_ char **environment = make_environment(c);
    _cleanup_free_ char *stack = aligned_alloc(16, PB_CHILD_STACK);
    int r = !environment || !stack ? -ENOMEM
            : c->terminal          ? open_terminal(c, &theirs[0])
                                   : open_pipes(c, theirs);
    if (r == 0) {
        const struct pb_child_plan plan = {.argv = words,
                                           .environment = environment,
                                           .folder = c->folder,
                                           .in = theirs[0],
                                           .out = theirs[c->terminal ? 0 : 1],
                                           .errors = theirs[c->terminal ? 0 : 2],
                                           .session = true,
                                           .terminal = c->terminal};
        c->pid = pb_child_start(&plan, stack);
        r = c->pid < 0 ? c->pid : 0;
    }
    for (int i = 0; i < 3; i++)
        if (theirs[i] >= 0)
            close(theirs[i]);
    if (r < 0) {
        c->pid = 0;
        return r;
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    int own[] = {c->in, c->out, c->errors};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (own[i] >= 0)
            fcntl(own[i], F_SETFL, fcntl(own[i], F_GETFL) | O_NONBLOCK);
    return 0;
}

/* False: that was all. */
static bool pass_on(struct command *c, int fd, enum pb_relay_kind kind)
{
    char bytes[16384];
    ssize_t n = read(fd, bytes, sizeof(bytes));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    return n > 0 && send_frame(c, kind, bytes, (size_t)n) == 0;
}

/* Whether the child has ended; without a pidfd it is asked for every LOOK_MS. */
static bool has_ended(const struct command *c, const struct pollfd *pidfd)
{
    siginfo_t info = {0};

    if (c->pidfd >= 0)
        return pidfd->revents;
    return waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid;
}

static void relay(struct command *c)
{
    bool ended = false;

    while (!c->gone && !(ended && c->out < 0 && c->errors < 0)) {
        struct pollfd p[] = {{c->relay.socket, POLLIN, 0},
                             {c->out, POLLIN, 0},
                             {c->errors, POLLIN, 0},
                             {ended ? -1 : c->pidfd, POLLIN, 0}};
        int n = poll(p, 4, ended || c->pidfd < 0 ? LOOK_MS : -1);
        if (n < 0 && errno != EINTR)
            break;
        /* What it printed was in the pipes when it ended. A process that it has left behind may hold them as
         * long as it likes. */
        if (n == 0 && ended)
            break;
        if (p[1].revents && !pass_on(c, c->out, PB_RELAY_OUTPUT))
            close(pb_take_fd(c->out));
        if (p[2].revents && !pass_on(c, c->errors, PB_RELAY_ERRORS))
            close(pb_take_fd(c->errors));
        if (!ended && has_ended(c, &p[3])) {
            kill(-c->pid, SIGKILL); /* it is not reaped yet, so that its group is its own */
            ended = true;
        }
        if (p[0].revents && take_frame(c) < 0)
            break;
    }
}

/* The exit status. A child that cannot be reaped yet keeps the place, so that its user cannot have more of
 * them. */
static int finish(struct command *c)
{
    int status = 128 + SIGKILL;

    if (!pb_child_end(c->pid, &status))
        c->lost = true;
    return status;
}

/* --- its folder --- */

static void send_one_file(struct command *c, int folder, const char *name)
{
    char bytes[PB_RELAY_MAX];
    size_t n = strlen(name) + 1;
    _cleanup_close_ int fd = pb_as_open(&c->as, folder, name);
    ssize_t more = 1;

    memcpy(bytes, name, n);
    while (fd >= 0 && more > 0 && (more = read(fd, bytes + n, sizeof(bytes) - n)) >= 0)
        if (send_frame(c, PB_RELAY_FILE, bytes, n + (size_t)more) < 0)
            return;
}

static void send_files(struct command *c)
{
    DIR *dir = opendir(c->folder);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (is_plain_name(e->d_name, strlen(e->d_name)))
            send_one_file(c, dirfd(dir), e->d_name);
    if (dir)
        closedir(dir);
}

/* All of them: which change something is not known here. */
static uint64_t begin_audit(struct command *c)
{
    _cleanup_free_ char *line = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&line, &size);

    if (!out)
        return 0;
    for (size_t i = 1; i < c->nwords; i++)
        fprintf(out, i > 1 ? " %s" : "%s", c->words[i]);
    fclose(out);
    return pb_audit_begin(
        c->s,
        &(struct pb_audited){.peer = c->peer, .target = "", .what = "command", .body = line, .length = size});
}

static void end_audit(struct command *c, uint64_t id, unsigned char status)
{
    char text[64] = "ok";

    if (c->gone)
        snprintf(text, sizeof(text), "ended, since the client left");
    else if (status)
        snprintf(text, sizeof(text), "exit status %d", status);
    pb_audit_end(c->s, id, text);
}

static void *run_command(void *arg)
{
    struct command *c = arg;
    unsigned char status = 1;
    static const char busy[] = "probing: the service runs as many commands as it may: try again\n";
    static const char bad[] = "probing: the service could not start the command\n";

    int r = take_place(c->relay.socket, &c->as), placed = r == 0;
    snprintf(c->folder, sizeof(c->folder), "%s/job-XXXXXX", c->s->folder);
    if (r == 0 && (!mkdtemp(c->folder) || pb_as_give(&c->as, AT_FDCWD, c->folder) < 0))
        r = -errno;
    while (r == 0 && !c->begun)
        r = take_frame(c);
    uint64_t audit = r == 0 ? begin_audit(c) : 0;
    if (r == 0)
        r = start(c);
    if (r == 0) {
        relay(c);
        status = (unsigned char)finish(c);
        end_audit(c, audit, status);
    } else {
        send_frame(c, PB_RELAY_ERRORS, r == -EBUSY ? busy : bad, strlen(r == -EBUSY ? busy : bad));
    }
    if (status == 0 && !c->gone)
        send_files(c);
    if (placed)
        pb_home_remove(c->folder);
    send_frame(c, PB_RELAY_EXIT, &status, 1);
    int fds[] = {c->pidfd, c->in, c->out, c->errors};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (placed)
        give_place(c->relay.socket, c->lost ? c->pid : 0);
    MHD_upgrade_action(c->handle, MHD_UPGRADE_ACTION_CLOSE);
    free(c->text);
    free(c);
    return NULL;
}

/* Other users get nothing of the service's environment, nor its target. */
static void say_served(struct command *c, struct MHD_Connection *connection)
{
    const char *at = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, PB_RELAY_AT),
               *target = c->s->offer.target;
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:-_[]%";

    if (!at || c->as.uid || strspn(at, plain) != strlen(at) || strlen(at) > PB_SERVE_PATH / 2)
        return;
    snprintf(c->served, sizeof(c->served), PB_RELAY_SERVED "=%s%s%s", at, target ? " " : "",
             target ? target : "");
}

static void begin(void *cls, struct MHD_Connection *connection, void *con_cls, const char *early,
                  size_t nearly, int socket, struct MHD_UpgradeResponseHandle *handle)
{
    const struct pb_request *q = con_cls;
    struct command *c = calloc(1, sizeof(*c));
    pthread_t thread;

    if (c && nearly <= sizeof(c->early)) {
        c->s = cls;
        c->as = q->as;
        c->handle = handle;
        c->relay = (struct pb_relay){socket, PATIENCE_MS, c->early, nearly};
        pb_audit_peer(connection, c->peer);
        say_served(c, connection);
        c->pidfd = c->in = c->out = c->errors = -1;
        memcpy(c->early, early, nearly);
        if (pthread_create(&thread, NULL, run_command, c) == 0) {
            pthread_detach(thread);
            return;
        }
    }
    free(c);
    MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
}

struct MHD_Response *pb_command_response(struct pb_service *s)
{
    struct MHD_Response *response = MHD_create_response_for_upgrade(begin, s);
    if (response)
        MHD_add_response_header(response, "Upgrade", PB_RELAY_NAME);
    return response;
}
