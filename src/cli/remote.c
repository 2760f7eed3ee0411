/* remote: see remote.h.
 *
 * Plain HTTP up to the upgrade, then frames (control/relay.h). No TLS, which would need a library: use `ssh
 * -L`. */
#include "cli/remote.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/replace.h"
#include "cli/cli.h"
#include "cli/profile/profile_run.h"
#include "cluster/link/own_service.h"
#include "control/relay.h"
#include "print/outlet.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#define TOKEN_FILE "--token-file"
enum { ANSWER_MAX = 8192, FILES = 4 };

/* A file of this machine that the command line names. */
struct file {
    const char *path; /* as given */
    char name[160];   /* its name on the other machine */
    bool written;     /* an output file: it is sent back */
    struct pb_replace part;
};

struct remote {
    struct pb_relay relay;
    char host[256], port[16], id[128];
    char token[PB_SERVICE_TOKEN]; /* "": none is sent */
    bool own;                     /* the user's own service, by its unix socket */
    struct file files[FILES];
    size_t nfiles;
    char named[300]; /* what a file is called that the command line does not name */
    bool terminal, input_ended;
    struct termios before;
};

/* [http://]HOST:PORT[/[PID]][?token=TOKEN]: the parts, and the port as a number. */
struct address {
    const char *host, *port, *id, *token;
    int host_length, id_length;
    unsigned long number;
    bool tls;
};

static bool parse_address(const char *target, struct address *ret)
{
    struct address a = {.tls = strncmp(target, "https://", 8) == 0};

    a.host = target + (a.tls ? 8 : strncmp(target, "http://", 7) == 0 ? 7 : 0);
    size_t n = strcspn(a.host, "/?");
    const char *end = a.host + n, *colon = memrchr(a.host, ':', n);
    if (!colon || colon == a.host || colon + 1 == end ||
        strspn(colon + 1, "0123456789") != (size_t)(end - colon - 1))
        return false;
    a.host_length = (int)(colon - a.host);
    if (a.host[0] == '[' && colon[-1] == ']') {
        a.host++;
        a.host_length -= 2;
    }
    a.port = colon + 1;
    a.number = strtoul(a.port, NULL, 10);
    a.id = *end == '/' ? end + 1 : end;
    const char *mark = strstr(a.id, "?token=");
    a.id_length = (int)(mark ? mark - a.id : (long)strlen(a.id));
    a.token = mark ? mark + strlen("?token=") : "";
    *ret = a;
    return true;
}

bool pb_remote_is(const char *target)
{
    struct address a;
    return parse_address(target, &a);
}

static int split_target(struct remote *r, const char *target, struct pb_err *err)
{
    struct address a;

    if (!parse_address(target, &a) || a.number == 0 || a.number > 65535)
        return pb_fail(err, PB_USAGE, "there is no port %.40s (HOST:PORT has one from 1 to 65535)",
                       strrchr(target, ':') + 1);
    if (a.tls)
        return pb_fail(err, PB_USAGE,
                       "probing -t speaks no TLS: go through ssh -L PORT:SOCKET %.*s and -t localhost:PORT, "
                       "with the socket of serve --status",
                       a.host_length, a.host);
    snprintf(r->host, sizeof(r->host), "%.*s", a.host_length, a.host);
    snprintf(r->port, sizeof(r->port), "%lu", a.number);
    snprintf(r->id, sizeof(r->id), "%.*s", a.id_length, a.id);
    snprintf(r->token, sizeof(r->token), "%.*s", (int)strcspn(a.token, "&"), a.token);
    return 0;
}

/* --- connecting to the service --- */

static int connect_service(struct remote *r, struct pb_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;

    int e = getaddrinfo(r->host, r->port, &hints, &found);
    if (e != 0)
        return pb_fail(err, -EHOSTUNREACH, "host not found: %s: %s", r->host, gai_strerror(e));
    int last = EHOSTUNREACH;
    r->relay.socket = -1;
    for (struct addrinfo *a = found; a && r->relay.socket < 0 && !r->token[0]; a = a->ai_next)
        r->relay.socket = pb_own_service_connect(a->ai_addr, a->ai_addrlen, 0);
    r->own = r->relay.socket >= 0;
    for (struct addrinfo *a = found; a && !r->own && r->relay.socket < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            r->relay.socket = fd;
        else
            last = errno;
        if (fd >= 0 && r->relay.socket < 0)
            close(fd);
    }
    freeaddrinfo(found);
    if (r->relay.socket < 0)
        return pb_fail(err, -last, "no service answers at %s:%s: %s (probing serve starts one there)",
                       r->host, r->port, strerror(last));
    return 0;
}

/* Extracts the sentence of an error answer: "message":"..". */
static int report_refusal(const char *text, size_t length, struct pb_err *err)
{
    char message[512];

    if (pb_service_error(text, length, message, sizeof(message)))
        return pb_fail(err, -EACCES, "the service says: %s", message);
    return pb_fail(err, -EPROTO, "the answer is not from a probing service of this release");
}

/* Reads the head of the answer byte by byte: frames follow it directly. */
static int upgrade_connection(struct remote *r, struct pb_err *err)
{
    char text[ANSWER_MAX];
    size_t n = 0;

    bool brackets = strchr(r->host, ':');
    int length = snprintf(
        text, sizeof(text),
        "GET /api/v1/command HTTP/1.1\r\nHost: %s:%s\r\nConnection: Upgrade\r\nUpgrade: " PB_RELAY_NAME
        "\r\n" PB_RELAY_AT ": %s%s%s:%s\r\n%s%s%s\r\n",
        r->own || brackets ? "localhost" : r->host, r->port, brackets ? "[" : "", r->host,
        brackets ? "]" : "", r->port, r->token[0] ? "Authorization: Bearer " : "", r->token,
        r->token[0] ? "\r\n" : "");
    int e = pb_relay_put(&r->relay, text, (size_t)length);
    while (e == 0 && n < sizeof(text) - 1) {
        e = pb_relay_take(&r->relay, text + n, 1);
        text[++n] = '\0';
        if (n >= 4 && memcmp(text + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    /* A TLS server answers plain text with an alert, or closes the connection. */
    if (e < 0 && (n <= 1 || text[0] == 0x15))
        return pb_fail(err, e,
                       "%s:%s closed the connection at once (does it use TLS, serve --cert? then go through "
                       "ssh -L PORT:SOCKET %s and -t localhost:PORT, with the socket of serve --status)",
                       r->host, r->port, r->host);
    if (e < 0)
        return pb_fail(err, e, "the service at %s:%s closed the connection", r->host, r->port);
    if (strncmp(text, "HTTP/1.1 101", 12) == 0)
        return 0;
    ssize_t more = recv(r->relay.socket, text, sizeof(text) - 1, 0);
    return report_refusal(text, more > 0 ? (size_t)more : 0, err);
}

/* --- files of this machine --- */

/* The file's name on the other machine: its base name, with a number in front where that is taken or not
 * allowed. */
static struct file *add_file(struct remote *r, const char *path, bool written)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool taken = *name == '.';

    if (r->nfiles == FILES || !*name)
        return NULL;
    for (size_t i = 0; i < r->nfiles; i++)
        taken = taken || strcmp(r->files[i].name, name) == 0;
    struct file *f = &r->files[r->nfiles];
    *f = (struct file){.path = path, .written = written};
    int n = taken ? snprintf(f->name, sizeof(f->name), "%zu-", r->nfiles) : 0;
    snprintf(f->name + n, sizeof(f->name) - (size_t)n - 32, "%s", name);
    r->nfiles++;
    return f;
}

static int send_content(struct remote *r, const struct file *f, struct pb_err *err)
{
    char bytes[PB_RELAY_MAX];
    size_t n = strlen(f->name) + 1;
    _cleanup_close_ int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    ssize_t more = 1;

    if (fd < 0)
        return pb_fail(err, -errno, "%s cannot be opened: %s", f->path, strerror(errno));
    memcpy(bytes, f->name, n);
    while (more > 0 && (more = read(fd, bytes + n, sizeof(bytes) - n)) >= 0) {
        int e = pb_relay_send(&r->relay, PB_RELAY_FILE, bytes, n + (size_t)more);
        if (e < 0)
            return e;
    }
    return more < 0 ? pb_fail(err, -errno, "%s cannot be read: %s", f->path, strerror(errno)) : 0;
}

/* Takes a piece of an output file. The file appears when the command has ended. */
static int take_file(struct remote *r, const char *bytes, size_t n, struct pb_err *err)
{
    const char *nul = memchr(bytes, '\0', n);

    for (size_t i = 0; nul && i < r->nfiles; i++) {
        struct file *f = &r->files[i];
        if (!f->written || strcmp(f->name, bytes) != 0)
            continue;
        int e = f->part.out ? 0 : pb_replace_begin(f->path, &f->part);
        size_t length = n - (size_t)(nul + 1 - bytes);
        if (e == 0 && fwrite(nul + 1, 1, length, f->part.out) != length)
            e = -errno;
        if (e < 0)
            return pb_fail(err, e, "%s cannot be written: %s", f->path, strerror(-e));
    }
    return 0;
}

static int finish_files(struct remote *r, int result, struct pb_err *err)
{
    for (size_t i = 0; i < r->nfiles; i++) {
        struct file *f = &r->files[i];
        if (!f->part.out)
            continue;
        int e = pb_replace_end(&f->part, result == 0 ? 0 : -ECANCELED);
        if (result == 0 && e < 0)
            result = pb_fail(err, e, "%s cannot be written: %s", f->path, strerror(-e));
    }
    return result;
}

/* --- the command line --- */

struct line {
    char bytes[PB_RELAY_MAX];
    size_t n;
    int failed;
};

static void add_word(struct line *l, const char *word)
{
    size_t n = strlen(word) + 1;

    if (n > sizeof(l->bytes) - l->n) {
        l->failed = -E2BIG;
        return;
    }
    memcpy(l->bytes + l->n, word, n);
    l->n += n;
}

/* Options that name a file: output files are sent back, input files are sent along. */
static const struct {
    const char *name;
    char letter;
    bool written;
} file_options[] = {{"--output", 'o', true}, {"--file", 'f', false}};

/* The file named by an option word, or *ret_next where the next word names it. NULL: none. */
static const char *file_in(const char *word, bool *ret_written, bool *ret_next)
{
    for (size_t i = 0; i < sizeof(file_options) / sizeof(file_options[0]); i++) {
        size_t n = strlen(file_options[i].name);
        *ret_written = file_options[i].written;
        *ret_next = strcmp(word, file_options[i].name) == 0 ||
                    (word[0] == '-' && word[1] == file_options[i].letter && !word[2]);
        if (*ret_next)
            return "";
        if (strncmp(word, file_options[i].name, n) == 0 && word[n] == '=')
            return word + n + 1;
        if (word[0] == '-' && word[1] == file_options[i].letter)
            return word + 2;
    }
    return NULL;
}

/* Replaces HOST:PORT/PID by the pid; HOST:PORT alone is removed. */
static bool add_target(struct line *l, const struct remote *r, char **argv, int *at, const char *target)
{
    const char *word = argv[*at];
    bool next = strcmp(word, "-t") == 0 || strcmp(word, "--target") == 0;
    const char *given = next && argv[*at + 1]                ? argv[*at + 1]
                        : strncmp(word, "--target=", 9) == 0 ? word + 9
                        : strncmp(word, "-t", 2) == 0        ? word + 2
                                                             : word;

    if (strcmp(given, target) != 0)
        return false;
    if (r->id[0]) {
        add_word(l, "-t");
        add_word(l, r->id);
    }
    *at += next;
    return true;
}

/* A flame graph for which the command line names no file: it gets its name here, where it is to appear. */
static void name_flamegraph(struct remote *r, const struct pb_call *call, struct line *l)
{
    char of[240];

    if (strcmp(call->command->name, "flamegraph") != 0 || pb_call_option(call, "output"))
        return;
    snprintf(of, sizeof(of), "%.128s-%s%s%.64s-", r->host, r->port, r->id[0] ? "-" : "", r->id);
    for (char *c = of; *c; c++)
        *c = isalnum((unsigned char)*c) || *c == '.' ? *c : '-';
    pb_flamegraph_name(of, r->named, sizeof(r->named));
    struct file *f = add_file(r, r->named, true);
    if (f) {
        add_word(l, "--output");
        add_word(l, f->name);
    }
}

static int make_line(struct remote *r, int argc, char **argv, const struct pb_call *call, struct line *l,
                     struct pb_err *err)
{
    const char *target = call->target;
    bool target_seen = false, executes = false, only_args = false, written, next;

    add_word(l, getenv("TERM") ? getenv("TERM") : "");
    for (int i = 1; i < argc; i++) {
        if (!target_seen && (target_seen = add_target(l, r, argv, &i, target)))
            continue;
        if (strncmp(argv[i], TOKEN_FILE, strlen(TOKEN_FILE)) == 0) { /* for this side only */
            i += argv[i][strlen(TOKEN_FILE)] != '=';
            continue;
        }
        only_args = only_args || strcmp(argv[i], "--") == 0;
        const char *path = only_args ? NULL : file_in(argv[i], &written, &next);
        if (path && next && i + 1 < argc)
            path = argv[++i];
        if (!path && executes && argv[i][0] != '-') {
            executes = false;
            struct file *script = access(argv[i], F_OK) == 0 ? add_file(r, argv[i], false) : NULL;
            add_word(l, script ? script->name : argv[i]); /* else it is code, as cmd_eval.c takes it */
            continue;
        }
        executes = executes || strcmp(argv[i], "execute") == 0 || strcmp(argv[i], "exec") == 0;
        struct file *f = path ? add_file(r, path, written) : NULL;
        if (f) {
            add_word(l, written ? "--output" : "--file");
            add_word(l, f->name);
        } else {
            add_word(l, argv[i]);
        }
    }
    if (!only_args)
        name_flamegraph(r, call, l);
    return l->failed ? pb_fail(err, l->failed, "the command line is too long") : 0;
}

static int send_command(struct remote *r, int argc, char **argv, const struct pb_call *call,
                        struct pb_err *err)
{
    struct line *l = calloc(1, sizeof(*l));
    struct winsize size;

    int e = l ? make_line(r, argc, argv, call, l, err) : -ENOMEM;
    if (e == 0)
        e = pb_relay_send(&r->relay, PB_RELAY_ARGUMENTS, l->bytes, l->n);
    free(l);
    for (size_t i = 0; e == 0 && i < r->nfiles; i++)
        if (!r->files[i].written)
            e = send_content(r, &r->files[i], err);
    r->terminal =
        isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    if (e == 0 && r->terminal) {
        pb_outlet_take_drawn();
        unsigned char bytes[] = {(unsigned char)size.ws_row, (unsigned char)(size.ws_row >> 8),
                                 (unsigned char)size.ws_col, (unsigned char)(size.ws_col >> 8)};
        e = pb_relay_send(&r->relay, PB_RELAY_TERMINAL, bytes, sizeof(bytes));
    }
    return e < 0 ? e : pb_relay_send(&r->relay, PB_RELAY_BEGIN, "", 0);
}

/* --- while the command runs --- */

static int pass_input(struct remote *r)
{
    char bytes[16384];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));

    if (n < 0 && errno == EINTR)
        return 0;
    r->input_ended = n <= 0;
    return pb_relay_send(&r->relay, PB_RELAY_INPUT, bytes, n > 0 ? (size_t)n : 0);
}

static int write_out(FILE *to, const char *bytes, size_t n)
{
    return fwrite(bytes, 1, n, to) == n && fflush(to) == 0 ? 0 : -EPIPE;
}

/* Returns 1 when the command has ended, with *ret_status. */
static int take_frame(struct remote *r, int *ret_status, struct pb_err *err)
{
    char bytes[PB_RELAY_MAX];
    size_t n;

    int kind = pb_relay_receive(&r->relay, bytes, &n);
    if (kind < 0)
        return pb_fail(err, kind, "connection lost: the service at %s:%s ended before the command did",
                       r->host, r->port);
    switch (kind) {
    case PB_RELAY_OUTPUT:
        return write_out(stdout, bytes, n);
    case PB_RELAY_ERRORS:
        return write_out(stderr, bytes, n);
    case PB_RELAY_FILE:
        return take_file(r, bytes, n, err);
    case PB_RELAY_EXIT:
        *ret_status = n ? (unsigned char)bytes[0] : 1;
        return 1;
    default:
        return pb_fail(err, -EPROTO, "the service sent an unknown message: it is of another release");
    }
}

static int take_signal(struct remote *r, int signals)
{
    struct signalfd_siginfo info;
    struct winsize size;

    if (read(signals, &info, sizeof(info)) != sizeof(info))
        return 0;
    if (info.ssi_signo != SIGWINCH)
        return pb_relay_send(&r->relay, PB_RELAY_SIGNAL, &(unsigned char){(unsigned char)info.ssi_signo}, 1);
    if (!r->terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        return 0;
    unsigned char bytes[] = {(unsigned char)size.ws_row, (unsigned char)(size.ws_row >> 8),
                             (unsigned char)size.ws_col, (unsigned char)(size.ws_col >> 8)};
    return pb_relay_send(&r->relay, PB_RELAY_TERMINAL, bytes, sizeof(bytes));
}

static int relay_frames(struct remote *r, int signals, int *ret_status, struct pb_err *err)
{
    int e = 0;

    while (e == 0) {
        struct pollfd p[] = {{r->relay.socket, POLLIN, 0},
                             {r->input_ended ? -1 : STDIN_FILENO, POLLIN, 0},
                             {signals, POLLIN, 0}};
        if (poll(p, 3, -1) < 0)
            continue;
        if (p[2].revents)
            e = take_signal(r, signals);
        if (e == 0 && p[1].revents)
            e = pass_input(r);
        if (p[0].revents) /* also when sending fails: the service may have sent the reason */
            e = take_frame(r, ret_status, err);
    }
    return e;
}

int pb_remote_run(int argc, char **argv, const struct pb_call *call, struct pb_err *err)
{
    struct remote r = {.relay = {.socket = -1, .patience_ms = -1}};
    struct termios raw;
    sigset_t wanted;
    int status = 1;

    int e = split_target(&r, call->target, err);
    if (e == 0 && (!r.token[0] || call->token_file))
        e = pb_service_token(call->token_file, r.token, err);
    if (e == 0)
        e = connect_service(&r, err);
    if (e == 0)
        e = upgrade_connection(&r, err);
    if (e == 0)
        e = send_command(&r, argc, argv, call, err);
    if (e == 0) {
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGINT);
        sigaddset(&wanted, SIGTERM);
        sigaddset(&wanted, SIGWINCH);
        sigprocmask(SIG_BLOCK, &wanted, NULL);
        _cleanup_close_ int signals = signalfd(-1, &wanted, SFD_CLOEXEC);
        if (r.terminal && tcgetattr(STDIN_FILENO, &r.before) == 0) {
            raw = r.before;
            cfmakeraw(&raw);
            tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
        }
        e = relay_frames(&r, signals, &status, err);
        if (r.terminal)
            tcsetattr(STDIN_FILENO, TCSADRAIN, &r.before);
    }
    e = finish_files(&r, e == 1 ? status : e < 0 ? e : 1, err);
    if (r.relay.socket >= 0)
        close(r.relay.socket);
    return e;
}
