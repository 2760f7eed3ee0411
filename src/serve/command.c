/* command: runs a command line of `probing -t HOST:PORT` on this machine (control/relay.h).
 *
 * The service runs its own `probing` with the words it received; output and exit status go to the client.
 * So do files that the command writes; files that it reads were sent along. If the client is at a
 * terminal, the command gets a pseudo-terminal. Each command has a thread that moves frames between socket
 * and job. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "control/relay.h"
#include "serve/jobs.h"
#include "serve/request.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATIENCE_MS = 30000, LOOK_MS = 100 };

/* The connections of commands, each with a thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pipe_place {
    bool taken;
    int socket; /* shut down when the service ends */
    uid_t uid;  /* another user; 0: the service's own */
} places[PB_SERVE_COMMANDS];
static bool ending;

/* -EBUSY: too many commands run. */
static int take_place(int socket, const struct pb_credentials *credentials)
{
    unsigned taken = 0, own = 0;
    struct pipe_place *free = NULL;

    pthread_mutex_lock(&lock);
    for (struct pipe_place *p = places; p < places + PB_SERVE_COMMANDS; p++) {
        free = p->taken ? free : p;
        taken += p->taken;
        own += p->taken && p->uid == credentials->uid;
    }
    int r = ending || !free || !pb_credentials_may_take(credentials->uid, PB_SERVE_COMMANDS, taken, own)
                ? -EBUSY
                : 0;
    if (r == 0)
        *free = (struct pipe_place){.taken = true, .socket = socket, .uid = credentials->uid};
    pthread_mutex_unlock(&lock);
    return r;
}

static void give_place(int socket)
{
    pthread_mutex_lock(&lock);
    for (struct pipe_place *p = places; p < places + PB_SERVE_COMMANDS; p++)
        if (p->taken && p->socket == socket)
            *p = (struct pipe_place){0};
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
    enum { PATIENCE = 500 };

    for (int i = 0; i < PATIENCE; i++) {
        pthread_mutex_lock(&lock);
        bool done = ending = true;
        for (struct pipe_place *p = places; p < places + PB_SERVE_COMMANDS; p++)
            if (p->taken) {
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
    struct pb_credentials credentials;
    size_t nwords, uploaded;
    char *text;
    struct winsize size;
    bool terminal, started, gone;
    char peer[PB_AUDIT_PEER];
    struct pb_serve_job *job;          /* NULL: it does not run yet */
    int wake;                          /* eventfd: the job has output, or has ended */
    unsigned char early[PB_RELAY_MAX]; /* bytes received after the request's headers */
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

/* --- frames of the client --- */

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

/* A name without a path. */
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
    if (fd < 0 || pb_credentials_give(&c->credentials, AT_FDCWD, path) < 0)
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
    if (c->job)
        pb_serve_job_resize(c->job, &c->size);
    return 0;
}

static int take_input(struct command *c, const char *bytes, size_t n)
{
    int in = pb_serve_job_input(c->job);

    if (in < 0)
        return 0;
    if (n == 0 && !c->terminal) {
        pb_serve_job_close_input(c->job);
        return 0;
    }
    uint64_t deadline = pb_now_ns() + PATIENCE_MS * PB_NS_PER_MS;
    for (size_t at = 0; at < n;) {
        ssize_t more = write(in, bytes + at, n - at);
        if (more < 0 && errno == EAGAIN && !is_ending() && pb_now_ns() < deadline) {
            wait_for(in, POLLOUT, LOOK_MS);
            continue;
        }
        if (more <= 0)
            return 0; /* the command reads no more */
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
    bool early = !c->job;
    if (early && kind == PB_RELAY_ARGUMENTS)
        return take_arguments(c, bytes, n);
    if (early && kind == PB_RELAY_FILE)
        return take_file(c, bytes, n);
    if (early && !c->started && kind == PB_RELAY_BEGIN && c->text) {
        c->started = true;
        return 0;
    }
    if (kind == PB_RELAY_TERMINAL)
        return take_size(c, (unsigned char *)bytes, n);
    if (!early && kind == PB_RELAY_INPUT)
        return take_input(c, bytes, n);
    if (!early && kind == PB_RELAY_SIGNAL && n == 1 && (bytes[0] == SIGINT || bytes[0] == SIGTERM)) {
        pb_serve_job_signal(c->job, bytes[0]);
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

static void wake(void *arg)
{
    struct command *c = arg;
    uint64_t one = 1;

    (void)!write(c->wake, &one, sizeof(one));
}

static void ignore(void *arg)
{
    (void)arg;
}

static int start(struct command *c)
{
    _cleanup_free_ char **environment = make_environment(c);
    const struct pb_serve_job_dialog dialog = {environment, c->folder, c->terminal ? &c->size : NULL};
    const struct pb_serve_job_plan plan = {.argv = c->words,
                                           .limit_ms = UINT_MAX,
                                           .dialog = &dialog,
                                           .credentials = c->credentials,
                                           .resume = wake,
                                           .arg = c};
    struct pb_err ignored = {0};

    if (c->credentials.uid && c->nwords > PB_CREDENTIALS_WORDS - 5)
        return -E2BIG;
    return environment ? pb_serve_job_start(c->s->commands, &plan, &c->job, &ignored) : -ENOMEM;
}

/* A piece of a stream. 1: there may be more at once; 0: later; negative: that was all. */
static int pass_on(struct command *c, enum pb_serve_job_stream which)
{
    static const enum pb_relay_kind kinds[] = {PB_RELAY_OUTPUT, PB_RELAY_ERRORS};
    char bytes[16384];
    ssize_t n = pb_serve_job_read_stream(c->job, which, bytes, sizeof(bytes), ignore);

    if (n > 0)
        return send_frame(c, kinds[which], bytes, (size_t)n) < 0 ? -EPIPE : 1;
    return n == -EAGAIN ? 0 : -EPIPE;
}

static void relay(struct command *c)
{
    uint64_t count;

    while (!c->gone) {
        int output = pass_on(c, PB_SERVE_JOB_OUTPUT), errors = pass_on(c, PB_SERVE_JOB_ERRORS);
        if (output < 0 && errors < 0)
            return;
        struct pollfd p[] = {{c->relay.socket, POLLIN, 0}, {c->wake, POLLIN, 0}};
        poll(p, 2, output > 0 || errors > 0 ? 0 : -1);
        if (p[1].revents)
            (void)!read(c->wake, &count, sizeof(count));
        if (p[0].revents && take_frame(c) < 0)
            return;
    }
}

/* --- files that it wrote --- */

static void send_one_file(struct command *c, int folder, const char *name)
{
    char bytes[PB_RELAY_MAX];
    size_t n = strlen(name) + 1;
    _cleanup_close_ int fd = pb_credentials_open(&c->credentials, folder, name);
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

/* Audits every command, since this code does not know which of them change a process. */
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

static void end_audit(struct command *c, uint64_t id, const struct pb_serve_job_result *end)
{
    char text[64] = "ok";

    if (!end->over || c->gone)
        snprintf(text, sizeof(text), "ended: the client disconnected");
    else if (end->status)
        snprintf(text, sizeof(text), "exit status %d", end->status);
    pb_audit_end(c->s, id, text);
}

static void *run_command(void *arg)
{
    struct command *c = arg;
    unsigned char status = 1;
    static const char busy[] = "probing: the service runs too many commands; try again later\n";
    static const char bad[] = "probing: the service could not start the command\n";

    int r = take_place(c->relay.socket, &c->credentials), placed = r == 0;
    snprintf(c->folder, sizeof(c->folder), "%s/job-XXXXXX", c->s->folder);
    if (r == 0 && (!mkdtemp(c->folder) || pb_credentials_give(&c->credentials, AT_FDCWD, c->folder) < 0))
        r = -errno;
    while (r == 0 && !c->started)
        r = take_frame(c);
    uint64_t audit = r == 0 ? begin_audit(c) : 0;
    if (r == 0)
        r = start(c);
    if (r == 0) {
        relay(c);
        struct pb_serve_job_result end = pb_serve_job_result(c->job);
        status = (unsigned char)(end.over ? end.status : 128 + SIGKILL);
        end_audit(c, audit, &end);
    } else {
        send_frame(c, PB_RELAY_ERRORS, r == -EBUSY ? busy : bad, strlen(r == -EBUSY ? busy : bad));
    }
    if (status == 0 && !c->gone)
        send_files(c);
    if (c->job)
        pb_serve_job_release(c->job);
    else if (placed)
        pb_home_remove(c->folder);
    send_frame(c, PB_RELAY_EXIT, &status, 1);
    if (placed)
        give_place(c->relay.socket);
    MHD_upgrade_action(c->handle, MHD_UPGRADE_ACTION_CLOSE);
    close(c->wake);
    free(c->text);
    free(c);
    return NULL;
}

/* Not for other users: they get neither the service's environment nor its target. */
static void set_served(struct command *c, struct MHD_Connection *connection)
{
    const char *at = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, PB_RELAY_AT),
               *target = c->s->offer.target;
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:-_[]%";

    if (!at || c->credentials.uid || strspn(at, plain) != strlen(at) || strlen(at) > PB_SERVE_PATH / 2)
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
        c->credentials = q->credentials;
        c->handle = handle;
        c->relay = (struct pb_relay){socket, PATIENCE_MS, c->early, nearly};
        pb_audit_peer(connection, c->peer);
        set_served(c, connection);
        c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        memcpy(c->early, early, nearly);
        if (c->wake >= 0 && pthread_create(&thread, NULL, run_command, c) == 0) {
            pthread_detach(thread);
            return;
        }
        if (c->wake >= 0)
            close(c->wake);
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
