/* transfer: see transfer.h. Signal-safe throughout. This file: which calls, which descriptors, and what is
 * left of a call. The kernel's side: fs/pipe.c, fs/read_write.c (MAX_RW_COUNT), fs/splice.c, net/socket.c
 * (sendmmsg and recvmmsg), net/unix/af_unix.c, net/ipv4/tcp.c, drivers/char/random.c, drivers/char/mem.c,
 * drivers/tty/n_tty.c, io_uring/io_uring.c, fs/aio.c. */
#include "remote/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include "base/plain_text.h"
#include "remote/interrupted.h"
#include "table/system_calls.h"

enum {
    COUNT_MAX = 0x7ffff000, /* more is never moved by one call: a count that is no stop's doing */
    RING_GETEVENTS = 1,
    NO_ARGUMENT = -1,
    HEADER_SIZE = 64, /* of struct mmsghdr */
    EVENT_SIZE = 32,  /* of struct io_event */
    MEMORY_MAJOR = 1, /* /dev/zero, /dev/urandom */
};

/* How a call says what is left. */
enum transfer_form {
    FORM_BYTES,   /* an address and a length */
    FORM_LENGTH,  /* a length: the kernel moves the positions */
    FORM_VECTOR,  /* iovecs and their number */
    FORM_MESSAGE, /* a struct msghdr */
    FORM_UNITS,   /* struct mmsghdrs and their number */
    FORM_EVENTS,  /* the least number of events, the most, and where they go */
    FORM_RING,    /* all is submitted, and the wait for completions was cut */
    FORM_OTHER,   /* seen from outside, a thread there is left alone; cut all the same, it is not finished */
};

/* What its descriptor must be for a stop to cut it. */
enum kind {
    KIND_SINK,    /* a pipe, a stream socket, a terminal */
    KIND_SEND,    /* a stream socket */
    KIND_SOURCE,  /* what gives more than its first bytes: see read_least; a device that makes data */
    KIND_PACKETS, /* a socket of messages: several of them in one call */
    KIND_SOCKET,
    KIND_ANY,
};

static const struct transfer {
    int number;
    enum transfer_form form;
    enum kind kind;
    int fd, at, length, flags; /* which arguments; NO_ARGUMENT */
} transfers[] = {
    {SYS_write, FORM_BYTES, KIND_SINK, 0, 1, 2, NO_ARGUMENT},
    {SYS_writev, FORM_VECTOR, KIND_SINK, 0, 1, 2, NO_ARGUMENT},
    {SYS_sendto, FORM_BYTES, KIND_SEND, 0, 1, 2, 3},
    {SYS_sendmsg, FORM_MESSAGE, KIND_SEND, 0, 1, NO_ARGUMENT, 2},
    {SYS_sendmmsg, FORM_UNITS, KIND_PACKETS, 0, 1, 2, 3},
    {SYS_sendfile, FORM_LENGTH, KIND_SEND, 0, NO_ARGUMENT, 3, NO_ARGUMENT},
    {SYS_recvfrom, FORM_BYTES, KIND_SOURCE, 0, 1, 2, 3},
    {SYS_recvmsg, FORM_MESSAGE, KIND_SOURCE, 0, 1, NO_ARGUMENT, 2},
    {SYS_recvmmsg, FORM_UNITS, KIND_PACKETS, 0, 1, 2, 3},
    {SYS_read, FORM_BYTES, KIND_SOURCE, 0, 1, 2, NO_ARGUMENT},
    {SYS_readv, FORM_VECTOR, KIND_SOURCE, 0, 1, 2, NO_ARGUMENT},
    {SYS_preadv2, FORM_OTHER, KIND_SOURCE, 0, 1, 2, NO_ARGUMENT},
    {SYS_io_getevents, FORM_EVENTS, KIND_ANY, NO_ARGUMENT, 3, 1, NO_ARGUMENT},
    {SYS_io_pgetevents, FORM_EVENTS, KIND_ANY, NO_ARGUMENT, 3, 1, NO_ARGUMENT},
    {SYS_getrandom, FORM_BYTES, KIND_ANY, NO_ARGUMENT, 0, 1, NO_ARGUMENT},
    {SYS_io_uring_enter, FORM_RING, KIND_ANY, NO_ARGUMENT, NO_ARGUMENT, NO_ARGUMENT, NO_ARGUMENT},
    {SYS_splice, FORM_OTHER, KIND_SOCKET, 2, NO_ARGUMENT, 4, NO_ARGUMENT},
    {SYS_pwritev2, FORM_OTHER, KIND_SINK, 0, NO_ARGUMENT, NO_ARGUMENT, NO_ARGUMENT},
    {SYS_ioctl, FORM_OTHER, KIND_ANY, NO_ARGUMENT, NO_ARGUMENT, NO_ARGUMENT, NO_ARGUMENT},
};

/* The call for the rest, and what it points to: copies, since the program's own must not change. */
struct rest {
    long number;
    uint64_t args[6];
    uint64_t done;
    bool message;
    size_t pieces;
    struct msghdr header;
    struct iovec piece[PB_TRANSFER_PIECES];
};

static const struct transfer *find_transfer(long number)
{
    for (size_t i = 0; i < sizeof(transfers) / sizeof(transfers[0]); i++)
        if (transfers[i].number == number)
            return &transfers[i];
    return NULL;
}

bool pb_transfer_is_known(long number)
{
    const struct transfer *t = find_transfer(number);
    return t && t->form != FORM_OTHER;
}

/* ---- Descriptors ---- */

/* Reads /proc/TID/NAME; the text ends with NUL and is "" where it cannot be read. */
static const char *read_status(pid_t tid, const char *name, char *text, size_t size)
{
    char path[64];

    pb_plain_put(pb_plain_put_number(pb_plain_put(path, "/proc/"), tid), name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

/* Its flags are those of open(); all ones where they cannot be read. */
static uint64_t read_descriptor_flags(pid_t tid, int fd)
{
    static const char key[] = "flags:";
    char name[32], text[512];
    bool found = false;

    pb_plain_put_number(pb_plain_put(name, "/fdinfo/"), fd);
    const char *p = strstr(read_status(tid, name, text, sizeof(text)), key);
    if (!p)
        return ~0ull;
    p += sizeof(key) - 1;
    p += strspn(p, "\t ");
    uint64_t flags = pb_plain_number(&p, 8, &found);
    return found ? flags : ~0ull;
}

/* Our own descriptor of the same file, which keeps it open for the microseconds of a look; -1: none. */
static int take_descriptor(pid_t pid, int number)
{
    int fd = -1;
#ifdef SYS_pidfd_getfd
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);
    if (process >= 0)
        close(process);
#endif
    return fd;
}

/* SO_TYPE, SO_ERROR or SO_RCVLOWAT; 0: not known. */
static int read_socket_option(pid_t pid, int number, int option)
{
    int value = 0, fd = take_descriptor(pid, number);
    socklen_t len = sizeof(value);

    if (fd >= 0 && getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0)
        value = 0;
    if (fd >= 0)
        close(fd);
    return value;
}

/* How many bytes a read waits for. A stop in between ends it with fewer. */
enum {
    LEAST_TIMED = 0, /* it may have a timeout, which a stop would restart */
    LEAST_FIRST = 1, /* it returns the first that come */
};
#define LEAST_ALL UINT64_MAX /* all that it asks for */

/* Of a terminal: its VMIN and VTIME, which do not count where it reads by lines. */
static uint64_t read_terminal_least(pid_t pid, int number)
{
    struct termios t;
    int fd = take_descriptor(pid, number);
    bool known = fd >= 0 && tcgetattr(fd, &t) == 0;

    if (fd >= 0)
        close(fd);
    if (!known || t.c_lflag & ICANON || t.c_cc[VMIN] == 1)
        return LEAST_FIRST;
    if (t.c_cc[VTIME])
        return LEAST_TIMED;
    return t.c_cc[VMIN] ? t.c_cc[VMIN] : LEAST_FIRST;
}

static uint64_t read_socket_least(pid_t pid, int number, bool waits_for_all)
{
    int least = waits_for_all ? 0 : read_socket_option(pid, number, SO_RCVLOWAT);
    return waits_for_all ? LEAST_ALL : least > 1 ? (uint64_t)least : LEAST_FIRST;
}

/* Terminals and serial lines, as Documentation/admin-guide/devices.txt numbers them. */
static bool is_terminal(dev_t device)
{
    unsigned n = major(device);
    return n == 4 || n == 5 || (n >= 136 && n <= 143) || n == 166 || n == 188 || n == 204 || n == 229;
}

static bool begins_with(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether a sleeping thread waits for room in a pipe, by the name of the kernel's function. */
static bool waits_in_pipe(pid_t tid)
{
    char text[64];

    read_status(tid, "/wchan", text, sizeof(text));
    return begins_with(text, "pipe_") || begins_with(text, "anon_pipe_");
}

/* How a descriptor is judged: of a thread seen in a call, of one that may be borrowed there, after a stop. Of
 * a file nothing is asked while the thread may wait for its file system, where we would wait too. */
enum transfer_look { LOOK_ASLEEP, LOOK_ASLEEP_SURE, LOOK_STOPPED };

/* A named pipe or a device. */
static bool is_special_file(pid_t tid, enum transfer_look look, const char *path, const char *link,
                            enum kind kind, bool *ret_terminal)
{
    struct stat st;

    *ret_terminal = false;
    if (look != LOOK_STOPPED && !begins_with(link, "/dev/"))
        return kind == KIND_SINK && waits_in_pipe(tid);
    if (stat(path, &st) < 0)
        return false;
    *ret_terminal = S_ISCHR(st.st_mode) && is_terminal(st.st_rdev);
    if (kind == KIND_SOURCE) /* a device that makes data never waits */
        return *ret_terminal ||
               (look == LOOK_STOPPED && S_ISCHR(st.st_mode) && major(st.st_rdev) == MEMORY_MAJOR);
    return kind == KIND_SINK && (S_ISFIFO(st.st_mode) || *ret_terminal);
}

static bool waits_for_all(const struct transfer *t, const uint64_t args[6])
{
    return t->kind != KIND_SOURCE || (t->flags != NO_ARGUMENT && args[t->flags] & MSG_WAITALL);
}

/* Whether a transfer by that descriptor can be cut; and, but for LOOK_ASLEEP, finished. *ret_least: how much
 * it waits for. */
static bool is_kind(pid_t pid, pid_t tid, enum transfer_look look, const struct transfer *t,
                    const uint64_t args[6], uint64_t *ret_least)
{
    char path[64], link[64];
    bool terminal;

    *ret_least = LEAST_ALL;
    if (t->kind == KIND_ANY)
        return true;
    int fd = (int)args[t->fd];
    char *at = pb_plain_put_number(pb_plain_put(path, "/proc/"), tid);
    pb_plain_put_number(pb_plain_put(at, "/fd/"), fd);
    ssize_t n = fd < 0 ? -1 : readlink(path, link, sizeof(link) - 1);
    link[n > 0 ? n : 0] = '\0';
    if (n <= 0)
        return fd >= 0 && look == LOOK_ASLEEP && waits_for_all(t, args);
    if (begins_with(link, "pipe:["))
        return t->kind == KIND_SINK;
    if (!begins_with(link, "socket:[")) {
        bool is = is_special_file(tid, look, path, link, t->kind, &terminal);
        if (is && terminal && t->kind == KIND_SOURCE)
            *ret_least = read_terminal_least(pid, fd);
        return is && *ret_least != LEAST_FIRST && (*ret_least != LEAST_TIMED || look == LOOK_ASLEEP);
    }
    if (t->kind == KIND_SOCKET)
        return true;
    int type = read_socket_option(pid, fd, SO_TYPE);
    if (t->kind == KIND_SOURCE)
        *ret_least = read_socket_least(pid, fd, waits_for_all(t, args));
    if (*ret_least == LEAST_FIRST)
        return false;
    if (look == LOOK_ASLEEP && (type == 0 || t->kind == KIND_PACKETS))
        return true;
    return type != 0 && (type == SOCK_STREAM) == (t->kind != KIND_PACKETS);
}

/* Whether the arguments ask for a transfer that waits until all of it is done. */
static bool asks_for_all(const struct transfer *t, const uint64_t args[6])
{
    uint64_t flags = t->flags == NO_ARGUMENT ? 0 : args[t->flags];

    if (t->form == FORM_RING)
        return (uint32_t)args[1] > 0 && (uint32_t)args[2] > 0 && args[3] & RING_GETEVENTS;
    if (flags & MSG_DONTWAIT || (t->number == SYS_recvmmsg && flags & MSG_WAITFORONE))
        return false;
    if (t->form == FORM_EVENTS)
        return (int64_t)args[t->length] > 1;
    return t->kind == KIND_SOURCE || t->length == NO_ARGUMENT || t->form == FORM_VECTOR ||
           args[t->length] > 1;
}

bool pb_transfer_waits(pid_t pid, pid_t tid, const struct pb_waiting *w)
{
    const struct transfer *t = w->number < 0 ? NULL : find_transfer(w->number);
    uint64_t least;
    return t && asks_for_all(t, w->args) && is_kind(pid, tid, LOOK_ASLEEP, t, w->args, &least);
}

/* ---- What is left ---- */

/* Of the vector at `at`, the pieces behind the first `done` bytes, up to `end`. -E2BIG: too many; 0: nothing
 * is left. */
static int read_pieces(pid_t tid, uint64_t at, uint64_t count, uint64_t done, uint64_t end, struct rest *ret)
{
    uint64_t total = 0, left = end > done ? end - done : 0;

    ret->pieces = 0;
    for (uint64_t i = 0; i < count; i++, at += sizeof(struct iovec)) {
        struct iovec v;
        if (!pb_transfer_read(tid, at, &v, sizeof(v)))
            return -EFAULT;
        if (v.iov_len > COUNT_MAX - total) /* all of it cannot be moved by one call */
            return -E2BIG;
        total += v.iov_len;
        size_t skip = v.iov_len < done ? v.iov_len : done;
        done -= skip;
        size_t length = v.iov_len - skip < left ? v.iov_len - skip : left;
        if (length == 0)
            continue;
        if (ret->pieces == PB_TRANSFER_PIECES)
            return -E2BIG;
        ret->piece[ret->pieces++] = (struct iovec){(char *)v.iov_base + skip, length};
        left -= length;
    }
    return ret->pieces > 0;
}

/* Whether a seccomp filter decides about the thread's calls. */
static bool is_filtered(pid_t tid)
{
    char text[4096];

    return !strstr(read_status(tid, "/status", text, sizeof(text)), "\nSeccomp:\t0");
}

/* Sending, an error in the rest must not raise a signal: what was moved before it is the result, as it would
 * have been. Sockets alone have a flag for that, so a write to one becomes a send, unless a filter might
 * forbid it. */
static void use_send(struct rest *r, const struct transfer *t)
{
    if (t->number == SYS_write) {
        r->number = SYS_sendto;
        r->args[3] = MSG_NOSIGNAL;
        r->args[4] = r->args[5] = 0;
    } else if (t->number == SYS_writev) {
        r->number = SYS_sendmsg;
        r->message = true;
        r->args[2] = MSG_NOSIGNAL;
    } else if (t->number == SYS_sendto || t->number == SYS_sendmsg || t->number == SYS_sendmmsg) {
        r->args[t->flags] |= MSG_NOSIGNAL;
    }
}

/* Ancillary data was sent with the first part. Where some may be received, the rest is not finished: it would
 * be lost. The room for it is no longer known: the kernel has replaced it by what came. */
static int plan_message(pid_t tid, const struct transfer *t, const struct pb_transfer_call *c, uint64_t least,
                        struct rest *r)
{
    if (!pb_transfer_read(tid, c->args[1], &r->header, sizeof(r->header)) ||
        (t->kind == KIND_SOURCE && r->header.msg_control))
        return 0;
    r->message = true;
    if (t->kind != KIND_SOURCE) { /* it is connected by now */
        r->header.msg_name = NULL;
        r->header.msg_namelen = 0;
    }
    r->header.msg_control = NULL;
    r->header.msg_controllen = 0;
    return read_pieces(tid, (uintptr_t)r->header.msg_iov, r->header.msg_iovlen, (uint64_t)c->result, least,
                       r);
}

/* 1: the call ended early, and r is the call for the rest; 0 or negative: not. least: how much the call waits
 * for, of which the rest is what is missing. */
static int plan_rest(pid_t tid, const struct transfer *t, const struct pb_transfer_call *c, uint64_t least,
                     struct rest *r)
{
    uint64_t moved = (uint64_t)c->result;

    r->number = c->number;
    memcpy(r->args, c->args, sizeof(r->args));
    r->done = moved;
    r->message = false;
    r->pieces = 0;
    /* Looked at again, or beside the data: the rest is not what follows. */
    if (t->flags != NO_ARGUMENT && c->args[t->flags] & (MSG_PEEK | MSG_OOB | MSG_TRUNC | MSG_ERRQUEUE))
        return 0;
    if (t->number == SYS_sendto) { /* the first part has made the connection, if there was none */
        r->args[t->flags] &= ~(uint64_t)MSG_FASTOPEN;
        r->args[4] = r->args[5] = 0;
    } else if (t->number == SYS_sendmsg) {
        r->args[t->flags] &= ~(uint64_t)MSG_FASTOPEN;
    }
    if (t->form == FORM_RING) {
        if (moved != (uint32_t)c->args[1])
            return 0;
        r->args[1] = 0;
        return 1;
    }
    if (t->form == FORM_MESSAGE)
        return plan_message(tid, t, c, least, r);
    if (t->form == FORM_EVENTS) {
        if (moved >= c->args[1] || c->args[4]) /* its time may be over */
            return 0;
        r->args[1] -= moved;
        r->args[2] -= moved;
        r->args[3] += moved * EVENT_SIZE;
        return 1;
    }
    uint64_t all = c->args[t->length];
    if (t->form == FORM_VECTOR) {
        r->header = (struct msghdr){0};
        return all > 1024 ? 0 : read_pieces(tid, c->args[t->at], all, moved, least, r);
    }
    if (t->number == SYS_recvmmsg && c->args[4]) /* its time may be over */
        return 0;
    all = t->form == FORM_UNITS ? (uint32_t)all : all < COUNT_MAX ? all : COUNT_MAX;
    all = all < least ? all : least;
    if (moved >= all)
        return 0;
    r->args[t->length] = all - moved;
    if (t->at != NO_ARGUMENT)
        r->args[t->at] += moved * (t->form == FORM_UNITS ? HEADER_SIZE : 1);
    return 1;
}

static bool is_to_socket(pid_t pid, pid_t tid, const struct transfer *t, const uint64_t args[6])
{
    static const struct transfer to = {.kind = KIND_SOCKET};
    uint64_t least;
    return t->kind == KIND_PACKETS || t->kind == KIND_SEND ||
           (t->kind == KIND_SINK && is_kind(pid, tid, LOOK_STOPPED, &to, args, &least));
}

/* The arguments that point to copies get their addresses. Returns where the pieces lie behind `at`. */
static size_t place_copies(struct rest *r, uint64_t at)
{
    size_t head = r->message ? HEADER_SIZE : 0;

    if (r->message) {
        r->args[1] = at;
        r->header.msg_iov = (struct iovec *)(uintptr_t)(at + head);
        r->header.msg_iovlen = r->pieces;
    } else if (r->pieces) {
        r->args[1] = at;
        r->args[2] = r->pieces;
    }
    return head;
}

static const uint64_t magic[2] = {0x676e69626f7270a7, 0xd1f5c3a98b7e6420};

bool pb_transfer_is_state(const uint64_t words[PB_TRANSFER_WORDS])
{
    return words[0] == magic[0] && words[1] == magic[1];
}

bool pb_transfer_place_of(const uint64_t words[PB_TRANSFER_WORDS], const unsigned char code[PB_TRANSFER_CODE],
                          struct pb_transfer_place *ret)
{
    if (!pb_transfer_is_state(words) || !pb_transfer_is_code(code))
        return false;
    *ret = (struct pb_transfer_place){.sp = words[2], .pc = words[3]};
    return true;
}

static bool is_complete(const struct transfer *t, const struct pb_transfer_call *c)
{
    return t->form <= FORM_LENGTH && (uint64_t)c->result >= c->args[t->length];
}

static bool plan_call(pid_t pid, pid_t tid, enum transfer_look look, const struct pb_transfer_call *c,
                      struct rest *r)
{
    const struct transfer *t = find_transfer(c->number);
    uint64_t least;

    if (!t || t->form == FORM_OTHER || c->result <= 0 || is_complete(t, c) || !asks_for_all(t, c->args) ||
        !is_kind(pid, tid, look, t, c->args, &least) || plan_rest(tid, t, c, least, r) != 1)
        return false;
    bool may_wait = least != LEAST_ALL || waits_for_all(t, c->args);
    if (t->fd != NO_ARGUMENT && may_wait && read_descriptor_flags(tid, (int)c->args[t->fd]) & O_NONBLOCK)
        return false;
    if (is_to_socket(pid, tid, t, c->args) && !is_filtered(tid))
        use_send(r, t);
    return true;
}

static size_t room_for(const struct rest *r)
{
    return PB_TRANSFER_BELOW + sizeof(struct pb_transfer_state) + HEADER_SIZE +
           r->pieces * sizeof(struct iovec) + 16;
}

bool pb_transfer_may_finish(pid_t pid, pid_t tid, const struct pb_waiting *w)
{
    struct pb_transfer_call c = {.number = w->number, .result = 1, .sp = w->sp, .pc = w->pc};
    struct rest r;
    uint64_t code;

    memcpy(c.args, w->args, sizeof(c.args));
    if (w->number == SYS_io_uring_enter)
        c.result = (uint32_t)w->args[1];
    return plan_call(pid, tid, LOOK_ASLEEP_SURE, &c, &r) &&
           pb_transfer_find_code(tid, c.sp, room_for(&r), 0, &c, &code) == 0;
}

/* A thread that is finishing already, and was stopped once more, goes on with what is left by now. */
static struct pb_transfer_state begin_state(pid_t tid, const struct pb_transfer_call *c)
{
    struct pb_transfer_state s;
    struct pb_transfer_place ignored;
    unsigned char code[PB_TRANSFER_CODE];

    if (pb_transfer_read(tid, c->sp, &s, sizeof(s)) &&
        pb_transfer_read(tid, c->pc - PB_TRANSFER_BEFORE, code, sizeof(code)) &&
        pb_transfer_place_of((const uint64_t *)&s, code, &ignored))
        return s;
    s = (struct pb_transfer_state){.sp = c->sp, .pc = c->pc, .number = (uint64_t)c->number};
    memcpy(s.magic, magic, sizeof(magic));
    memcpy(s.args, c->args, sizeof(s.args));
    return s;
}

int pb_transfer_finish(pid_t pid, pid_t tid, const struct pb_transfer_call *call)
{
    struct rest r;
    uint64_t code;

    if (!plan_call(pid, tid, LOOK_STOPPED, call, &r))
        return 0;
    struct pb_transfer_state s = begin_state(tid, call);
    struct pb_transfer_call site = *call;
    site.sp = s.sp;
    site.pc = s.pc;
    site.number = (long)s.number;
    /* The kernel keeps what ended recvmmsg early, even ERESTARTSYS, as the error of the next call. Read, it
     * is gone. */
    if (call->number == SYS_recvmmsg)
        (void)read_socket_option(pid, (int)call->args[0], SO_ERROR);
    size_t room = room_for(&r);
    int found = pb_transfer_find_code(tid, s.sp, room, tid == pid ? 0 : pb_transfer_tls(tid), &site, &code);
    if (found < 0)
        return found;
    uint64_t sp = (s.sp - room) & ~15ull;
    s.done += r.done;
    uint64_t copies = sp + sizeof(s), pieces = copies + place_copies(&r, copies);
    if (!pb_transfer_write(tid, sp, &s, sizeof(s)) ||
        (r.message && !pb_transfer_write(tid, copies, &r.header, sizeof(r.header))) ||
        (r.pieces && !pb_transfer_write(tid, pieces, r.piece, r.pieces * sizeof(r.piece[0]))))
        return -EFAULT;
    found = pb_transfer_run_code(tid, code, &site, r.number, r.args, sp);
    return found < 0 ? found : 1;
}
