/* probing-serve: answers HTTP requests about the processes of a node. `probing serve` starts it.
 *
 * probing-serve [OPTIONS] [ADDRESS] (serve_options.h)
 * probing-serve --as UID GID COMMAND ... (it starts itself so, for another user: credentials.h) */
#include "ask/tool_settings.h"
#include "base/children.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_port.h"
#include "base/limits.h"
#include "base/null.h"
#include "base/process.h"
#include "base/program.h"
#include "cluster/link/own_service.h"
#include "engine/caller/broker.h"
#include "print/outlet.h"
#include "serve/autorecord.h"
#include "serve/credentials.h"
#include "serve/events.h"
#include "serve/jobs.h"
#include "serve/lookout.h"
#include "serve/serve_options.h"
#include "serve/service.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BIND_TRIES = 40, BIND_AGAIN_MS = 50 };

struct options {
    const char *address, *token_file, *cert, *key;
    const char *shared; /* a socket for all users of the machine; NULL: none */
    bool background;
    struct pb_autorecord_plan watch;
    const char *diagnose; /* how often; NULL: never */
};

static bool is_wildcard(const struct sockaddr_storage *at)
{
    const struct sockaddr_in *v4 = (const void *)at;
    const struct sockaddr_in6 *v6 = (const void *)at;

    return at->ss_family == AF_INET ? v4->sin_addr.s_addr == INADDR_ANY
                                    : IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

static void add_name(struct pb_service *s, const char *name)
{
    for (size_t i = 0; i < PB_GATE_NAMES - 1; i++)
        if (!s->gate.names[i]) {
            s->gate.names[i] = name;
            return;
        }
}

/* The address of a killed service stays in use until the commands that it started have ended. */
static int bind_and_listen(int fd, const struct sockaddr_storage *at, socklen_t n)
{
    for (int tries = 0;; tries++) {
        int r = bind(fd, (const struct sockaddr *)at, n) < 0 || listen(fd, PB_SERVE_WAITING) < 0 ? -errno : 0;
        if (r != -EADDRINUSE || tries == BIND_TRIES)
            return r;
        usleep(BIND_AGAIN_MS * 1000);
    }
}

static int listen_tcp(const struct options *o, struct pb_service *s, char *ret_url, size_t size,
                      struct pb_err *err)
{
    struct sockaddr_storage at = {0};
    socklen_t n;
    char host[64], port[16];
    static char bound[64], name[65];
    const int on = 1;

    int r = pb_service_resolve(o->address, &at, &n, err);
    if (r < 0)
        return r;
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = fd < 0 ? -errno : 0;
    if (r == 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (r == 0)
        r = bind_and_listen(fd, &at, n);
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        return pb_fail(err, r, "cannot listen at %s: %s", o->address ? o->address : "127.0.0.1",
                       strerror(-r));
    }
    n = sizeof(at);
    getsockname(fd, (struct sockaddr *)&at, &n);
    getnameinfo((struct sockaddr *)&at, n, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(bound, sizeof(bound), "%s", host);
    add_name(s, bound);
    /* Listening at all addresses: other machines use this one's name. */
    bool named = is_wildcard(&at) && gethostname(name, sizeof(name) - 1) == 0;
    if (named)
        add_name(s, name);
    snprintf(ret_url, size, at.ss_family == AF_INET6 && !named ? "%s://[%s]:%s" : "%s://%s:%s",
             o->cert ? "https" : "http", named ? name : host, port);
    if (!pb_is_loopback((const struct sockaddr *)&at) && !o->cert)
        fprintf(stderr,
                "probing: serve: other machines reach this address without TLS, so the token can be read on "
                "the network (use --cert and --key, or ssh -L)\n");
    return fd;
}

static int listen_unix(const struct pb_service *s, struct pb_err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    _cleanup_close_ int folder = open(s->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);

    /* By the folder's descriptor: a socket's name has room for 107 characters only. */
    snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/socket", folder);
    unlinkat(folder, "socket", 0); /* we hold the lock: the service that made it has ended */
    int fd = folder < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, PB_SERVE_WAITING) < 0)
        return pb_fail(err, -errno, "cannot create %s/socket: %s", s->folder, strerror(errno));
    return fd;
}

/* A socket for all users: credentials.h has what each may do there. A leftover socket is removed. */
static int listen_shared(const char *path, struct pb_err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;

    if (geteuid() != 0)
        return pb_fail(err, -EPERM, "--socket is for root: only root's service can answer other users");
    if (strlen(path) >= sizeof(at.sun_path))
        return pb_fail(err, -ENAMETOOLONG, "%s is too long for the name of a socket", path);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || chmod(path, 0666) < 0 ||
        listen(fd, PB_SERVE_WAITING) < 0)
        return pb_fail(err, -errno, "cannot create %s: %s", path, strerror(errno));
    return fd;
}

/* `probing`, beside this program. */
static int find_program(struct pb_service *s, struct pb_err *err)
{
    int r = pb_program_beside("probing", s->program, sizeof(s->program));

    if (r < 0)
        return pb_fail(err, r, "cannot find the probing executable: %s", strerror(-r));
    return access(s->program, X_OK) == 0
               ? 0
               : pb_fail(err, -ENOENT, "%s is not there (this installation is incomplete; install it again)",
                         s->program);
}

static void print_address(const char *url, const struct pb_service *s)
{
    printf("%s/?token=%s\n", url, s->gate.token);
    fflush(stdout);
}

/* The address is printed: a reader of our output must see its end. */
static void leave_terminal(int ready)
{
    pb_null_over(0, 2);
    (void)!write(ready, "", 1);
    close(ready);
}

/* The signals that end the service. One that was ignored at the start (nohup, a background job of a shell)
 * stays ignored. */
static void take_end_signals(sigset_t *ret)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;

    sigemptyset(ret);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i] == SIGTERM || sigaction(numbers[i], NULL, &now) < 0 || now.sa_handler != SIG_IGN)
            sigaddset(ret, numbers[i]);
    sigprocmask(SIG_BLOCK, ret, NULL);
}

/* Runs until a signal ends it. */
static int serve(struct pb_service *s, const struct options *o, int ready, struct pb_err *err)
{
    char url[256];
    void *tcp = NULL, *local = NULL, *shared = NULL;
    struct pb_autorecord *watch = NULL;
    struct pb_lookout *lookout = NULL;
    sigset_t signals;

    take_end_signals(&signals); /* before any thread */
    signal(SIGPIPE, SIG_IGN);
    pb_limits_allow_descriptors();
    int r = pb_home_take(s, err);
    if (r == 0)
        r = pb_home_token(s, o->token_file, s->gate.token, err);
    int fd = r < 0 ? r : listen_tcp(o, s, url, sizeof(url), err);
    int unix_fd = fd < 0 ? fd : listen_unix(s, err);
    int shared_fd = unix_fd < 0 || !o->shared ? unix_fd : listen_shared(o->shared, err);
    r = shared_fd < 0 ? shared_fd
                      : pb_serve_jobs_new(s->folder, PB_SERVE_JOBS, pb_sql_workers(), &s->jobs, err);
    if (r == 0)
        r = pb_serve_jobs_new(s->folder, PB_SERVE_COMMANDS, 0, &s->commands, err);
    if (r == 0)
        r = pb_events_new(s, &s->events, err);
    if (r == 0)
        r = pb_http_start(s, &(struct pb_listen){.fd = fd, .cert = o->cert, .key = o->key}, &tcp, err);
    if (r == 0)
        r = pb_http_start(s, &(struct pb_listen){.fd = unix_fd, .is_unix = true}, &local, err);
    if (r == 0 && o->shared)
        r = pb_http_start(s, &(struct pb_listen){.fd = shared_fd, .is_unix = true}, &shared, err);
    if (r == 0)
        r = pb_autorecord_new(s, &o->watch, &watch, err);
    if (r == 0)
        r = pb_lookout_new(s, o->diagnose, &lookout, err);
    if (r == 0) {
        pb_home_set_address(s, url);
        print_address(url, s);
        if (ready >= 0)
            leave_terminal(ready);
        while (sigtimedwait(&signals, NULL, &(struct timespec){.tv_sec = 1}) < 0) {
            pb_http_sweep(tcp);
            pb_http_sweep(local);
            pb_http_sweep(shared);
        }
        pb_home_leave(s);
        if (o->shared)
            unlink(o->shared);
    }
    pb_lookout_free(lookout);
    pb_autorecord_free(watch);
    pb_commands_end();
    if (s->events)
        pb_events_end(s->events);
    if (s->jobs)
        pb_serve_jobs_end(s->jobs);
    if (s->commands)
        pb_serve_jobs_end(s->commands);
    pb_http_stop(tcp);
    pb_http_stop(local);
    pb_http_stop(shared);
    pb_events_free(s->events);
    pb_serve_jobs_free(s->jobs);
    pb_serve_jobs_free(s->commands);
    return r;
}

/* Forks, and returns when the child listens. Until then the child prints to our output. */
static int serve_in_background(struct pb_service *s, const struct options *o, struct pb_err *err)
{
    int ready[2];
    char byte;

    if (pipe2(ready, O_CLOEXEC) < 0)
        return pb_fail(err, -errno, "cannot create a pipe: %s", strerror(errno));
    pid_t pid = pb_process_fork(0);
    if (pid < 0)
        return pb_fail(err, pid, "cannot fork: %s", strerror(-pid));
    if (pid > 0) {
        close(ready[1]);
        return read(ready[0], &byte, 1) == 1 ? 0 : 1; /* the child has printed the error */
    }
    setsid();
    int r = serve(s, o, ready[1], err);
    if (r < 0)
        pb_put_between(stderr, "probing: serve: ", pb_err_text(err, r), "\n");
    _exit(r < 0 ? 1 : 0);
}

static const char *value_of(const char *const values[PB_SERVE_OPTIONS], const char *name)
{
    size_t i = 0;

    while (strcmp(pb_serve_options[i].name, name) != 0)
        i++;
    return values[i];
}

static int read_options(int argc, char **argv, struct options *o, struct pb_service *s, struct pb_err *err)
{
    struct pb_options words = {.argc = argc, .at = 1, .argv = argv, .tables = {pb_serve_options}};
    const char *values[PB_SERVE_OPTIONS] = {NULL};
    struct pb_option_read read;
    int r;

    while ((r = pb_options_next(&words, &read, err)) > 0)
        if (read.option)
            values[read.index] = read.value ? read.value : "";
        else
            o->address = read.value;
    if (r < 0)
        return r == -ENOENT ? pb_fail(err, r, "unknown option %s (probing serve --help)", argv[read.at]) : r;
    if (value_of(values, "status") || value_of(values, "stop"))
        return pb_fail(err, -EINVAL, "usage: probing serve --status | --stop");
    o->background = value_of(values, "background");
    o->token_file = value_of(values, "token-file");
    o->cert = value_of(values, "cert");
    o->key = value_of(values, "key");
    o->shared = value_of(values, "socket");
    o->watch = (struct pb_autorecord_plan){.rate = value_of(values, "record"),
                                           .watchdog = value_of(values, "watchdog"),
                                           .retention = value_of(values, "retention"),
                                           .archive = value_of(values, "archive")};
    o->diagnose = value_of(values, "diagnose");
    if (!o->diagnose)
        o->diagnose = pb_tool_setting_get(PB_TOOL_DIAGNOSE_EVERY);
    s->offer.read_only = value_of(values, "read-only");
    s->offer.target = value_of(values, "open");
    s->offer.cores = value_of(values, "cores");
    s->mcp_changes = value_of(values, "mcp-changes");
    s->gate.names[0] = value_of(values, "host");
    return 0;
}

int main(int argc, char **argv)
{
    struct pb_service s = {.audit = -1,
                           .offer.page = pb_page_is_built(),
                           .gate.body_max = PB_SERVE_BODY_MAX,
                           .unix_gate.body_max = PB_SERVE_BODY_MAX};
    struct options o = {0};
    struct pb_err err = {0};

    pb_children_begin();
    if (argc > 1 && strcmp(argv[1], "--as") == 0)
        return pb_credentials_become(argc, argv);
    int r = read_options(argc, argv, &o, &s, &err);
    if (r == 0)
        r = find_program(&s, &err);
    if (r == 0)
        r = o.background ? serve_in_background(&s, &o, &err) : serve(&s, &o, -1, &err);
    if (r < 0)
        pb_put_between(stderr, "probing: serve: ", pb_err_text(&err, r), "\n");
    return r ? 1 : 0;
}
