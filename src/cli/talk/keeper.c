/* keeper: see keeper.h.
 *
 * The keeper holds one connection to the agent and waits. Its readers are opened and their caches filled at
 * the start, since the failing thread waits two seconds at most. The stacks that it reads go to the agent as
 * rows: the tables outlive the process. */
#include "cli/talk/keeper.h"

#include "ask/parts.h"
#include "ask/stacks.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/null.h"
#include "base/process.h"
#include "cli/cli.h"
#include "control/message.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS   10000
#define READ_MS     1500  /* less than the two seconds that the failing thread waits */
#define HANG_MS     10000 /* no thread waits while the stacks of a hang are read */
#define FRAMES_MAX  200   /* per thread */
#define TEXT_MAX    3500  /* bytes of the locals, and of the stack as text */
#define MESSAGE_MAX 16384

struct keeper {
    const struct pb_call *call;
    const struct pb_target *target;
    enum pb_msg message; /* PB_MSG_CRASH, or PB_MSG_HANG */
    struct pb_session session;
    struct pb_stacks stacks;
    struct pb_stacks_options options;
    bool readable;
    bool has_python;    /* in the process */
    char left_out[384]; /* which signals are not caught, and why: lines */
    pid_t failed_tid;   /* as the process's pid namespace numbers it */
};

/* The stack of one thread, as rows and as text. */
struct scene {
    struct keeper *keeper;
    const struct pb_shown_thread *thread;
    bool failed;
    unsigned depth;
    char text[TEXT_MAX];
    size_t len;
    const char *function, *file; /* of the innermost Python frame, or native frame where there is none */
    int line;
    bool python;
};

static int send_request(struct keeper *k, struct pb_frame_writer *w)
{
    int64_t id = pb_client_request(&k->session.client, w, k->message);

    return id < 0 ? (int)id : 0;
}

static void put_text(struct pb_frame_writer *w, uint16_t tag, const char *text)
{
    size_t n = text ? strlen(text) : 0;

    if (n > 0)
        pb_frame_put(w, tag, text, n < TEXT_MAX ? n : TEXT_MAX);
}

static const char *thread_name(const struct pb_shown_thread *t)
{
    return t->name[0] ? t->name : t->native.name;
}

static int send_frame(struct scene *s, const char *language, const char *function, const char *file, int line,
                      const char *locals)
{
    uint8_t buf[MESSAGE_MAX];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_MODE, PB_CRASH_FRAME);
    pb_frame_put_u64(&w, PB_TAG_TID, (uint64_t)s->thread->native.ns_tid);
    put_text(&w, PB_TAG_DATA, thread_name(s->thread));
    pb_frame_put_u64(&w, PB_TAG_STATUS, s->failed);
    pb_frame_put_u64(&w, PB_TAG_OFFSET, s->depth);
    put_text(&w, PB_TAG_NAME, language);
    put_text(&w, PB_TAG_CODE, function);
    put_text(&w, PB_TAG_FILENAME, file);
    pb_frame_put_u64(&w, PB_TAG_VALUE, line > 0 ? (uint64_t)line : 0);
    put_text(&w, PB_TAG_TEXT, locals);
    return send_request(s->keeper, &w);
}

static int add_frame(struct scene *s, bool python, const char *function, const char *file, int line,
                     const char *locals)
{
    if (s->depth >= FRAMES_MAX)
        return 0;
    if (s->len < sizeof(s->text))
        s->len += (size_t)snprintf(s->text + s->len, sizeof(s->text) - s->len,
                                   line > 0 ? "%s (%s:%d)\n" : "%s (%s)\n", function ? function : "?",
                                   file ? file : "?", line);
    if (!s->function || (python && !s->python)) {
        s->function = function;
        s->file = file;
        s->line = line;
        s->python = python;
    }
    int r = send_frame(s, python ? "python" : "native", function, file, line, locals);
    s->depth++;
    return r;
}

static int add_python(struct scene *s, const struct pb_shown_frame *f)
{
    _cleanup_free_ char *locals = pb_py_locals_lines(f->locals);

    return add_frame(s, true, f->code->qualname, f->code->file, f->line, locals);
}

static int add_native(struct scene *s, const struct pb_native_frame *f)
{
    return add_frame(s, false, f->function, f->file ? f->file : f->module, f->file ? (int)f->line : 0, NULL);
}

/* How many frames to skip: the agent's signal handler, up to the kernel's frame for it. */
static size_t skip_handler(const struct pb_shown_thread *t)
{
    for (size_t i = 0; i < t->nmerged; i++)
        if (!t->merged[i].python && t->natives[t->merged[i].index].flags & PB_NATIVE_SIGNAL)
            return i + 1;
    return 0;
}

static int add_stack(struct scene *s)
{
    const struct pb_shown_thread *t = s->thread;
    int r = 0;

    for (size_t i = s->failed && s->keeper->message == PB_MSG_CRASH ? skip_handler(t) : 0;
         r == 0 && i < t->nmerged; i++)
        r = t->merged[i].python ? add_python(s, &t->frames[t->merged[i].index])
                                : add_native(s, &t->natives[t->merged[i].index]);
    for (size_t i = 0; r == 0 && t->nmerged == 0 && i < t->nframes; i++)
        r = add_python(s, &t->frames[i]);
    return r;
}

static void describe_signal(const struct pb_frame *crash, char *ret, size_t size)
{
    int number = (int)pb_field_u64(crash, PB_TAG_VALUE, 0),
        code = (int)(int32_t)pb_field_u64(crash, PB_TAG_STATUS, 0);
    int sender = (int)pb_field_u64(crash, PB_TAG_ERRNO, 0);
    char name[32];

    pb_stacks_signal(number, name, sizeof(name));
    if (code > 0)
        snprintf(ret, size, "%s at address 0x%llx", strsignal(number),
                 (unsigned long long)pb_field_u64(crash, PB_TAG_OFFSET, 0));
    else
        snprintf(ret, size, "%s, sent by process %d", strsignal(number), sender);
}

static int send_signal(struct keeper *k, const struct pb_frame *crash, const struct scene *s)
{
    uint8_t buf[MESSAGE_MAX];
    struct pb_frame_writer w;
    char why[256], name[32];

    describe_signal(crash, why, sizeof(why));
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_MODE, PB_CRASH_SIGNAL);
    put_text(&w, PB_TAG_NAME,
             pb_stacks_signal((int)pb_field_u64(crash, PB_TAG_VALUE, 0), name, sizeof(name)));
    put_text(&w, PB_TAG_WHY, why);
    pb_frame_put_u64(&w, PB_TAG_TID, (uint64_t)k->failed_tid);
    if (s->thread)
        put_text(&w, PB_TAG_DATA, thread_name(s->thread));
    put_text(&w, PB_TAG_CODE, s->function);
    put_text(&w, PB_TAG_FILENAME, s->file);
    pb_frame_put_u64(&w, PB_TAG_VALUE, s->line > 0 ? (uint64_t)s->line : 0);
    put_text(&w, PB_TAG_TEXT, s->text);
    return send_request(k, &w);
}

/* Send the failing thread and the reason first: the program may not wait long enough for the rest. */
static int send_scene(struct keeper *k, const struct pb_frame *crash)
{
    struct scene failed = {.keeper = k, .failed = true};
    struct pb_err err;
    int r = 0;

    bool taken = k->readable && pb_stacks_take(&k->stacks, &k->options, &err) == 0;
    for (size_t i = 0; taken && !failed.thread && i < k->stacks.n; i++)
        if (k->stacks.threads[i].native.ns_tid == k->failed_tid)
            failed.thread = &k->stacks.threads[i];
    if (failed.thread)
        r = add_stack(&failed);
    if (r == 0 && k->message == PB_MSG_CRASH)
        r = send_signal(k, crash, &failed);
    for (size_t i = 0; taken && r == 0 && i < k->stacks.n; i++) {
        struct scene other = {.keeper = k, .thread = &k->stacks.threads[i]};
        /* The agent's own threads are left out. */
        if (other.thread != failed.thread && strncmp(other.thread->native.name, "probing", 7) != 0)
            r = add_stack(&other);
    }
    return r;
}

static int send_mode(struct keeper *k, enum pb_crash_mode mode)
{
    uint8_t buf[64];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_MODE, mode);
    return send_request(k, &w);
}

/* The agent's next message. Returns 1 for a crash or hang, 0 when the handlers are set. */
static int read_agent_message(struct keeper *k, struct pb_frame *ret, int timeout_ms, struct pb_err *err)
{
    struct pb_field text;

    int r = pb_client_next(&k->session.client, ret, timeout_ms);
    if (r < 0)
        return pb_fail(err, r, "the agent does not answer: %s", strerror(-r));
    if (ret->type == PB_MSG_ERROR && pb_field_find(ret, PB_TAG_TEXT, &text) == 0)
        return pb_fail(err, -EIO, "%.*s", (int)(text.size < 300 ? text.size : 300), (const char *)text.data);
    if (ret->type != PB_MSG_OUTPUT)
        return -ENODATA;
    return pb_field_u64(ret, PB_TAG_VALUE, 0) != 0;
}

static void open_stacks(struct keeper *k, unsigned within_ms)
{
    struct pb_err unreadable;

    k->options = (struct pb_stacks_options){.locals = true, .native = true, .within_ms = within_ms};
    k->readable = pb_stacks_open(&k->call->ask, k->target, &k->options, &k->stacks, &unreadable) == 0;
    if (!k->readable) { /* no native frames can be read: try Python frames alone */
        k->options.native = false;
        k->readable = pb_stacks_open(&k->call->ask, k->target, &k->options, &k->stacks, &unreadable) == 0;
    }
}

/* Serves crashes until the agent, the process or a signal ends the keeper. */
static void serve_crashes(struct keeper *k)
{
    struct pb_frame crash;

    while (read_agent_message(k, &crash, -1, NULL) > 0) {
        k->failed_tid = (pid_t)pb_field_u64(&crash, PB_TAG_TID, 0);
        /* Hangs are rare: the readers are opened when one occurs. */
        if (k->message == PB_MSG_HANG && !k->readable)
            open_stacks(k, HANG_MS);
        if (send_scene(k, &crash) < 0 || send_mode(k, PB_CRASH_KEPT) < 0)
            return;
    }
}

static int begin_keeping(struct keeper *k, struct pb_err *err)
{
    struct pb_err unreadable;
    struct pb_frame crash;
    struct pb_field left_out;

    int r = pb_parts_session(&k->call->ask, k->target->pid, true, k->call->timeout_ms, &k->session, err);
    if (r < 0)
        return r;
    pb_client_limit(&k->session.client, 0);
    if (k->message == PB_MSG_CRASH)
        open_stacks(k, READ_MS);
    if (k->readable) /* fills the caches of symbols and code objects now, not while the program waits */
        pb_stacks_take(&k->stacks, &k->options, &unreadable);
    r = send_mode(k, PB_CRASH_KEEP);
    if (r < 0)
        return pb_fail(err, r, "the agent takes no requests: %s", strerror(-r));
    r = read_agent_message(k, &crash, ANSWER_MS, err);
    if (r < 0)
        return r;
    k->has_python = pb_field_u64(&crash, PB_TAG_STATUS, 0) == 1;
    if (pb_field_find(&crash, PB_TAG_TEXT, &left_out) == 0)
        snprintf(k->left_out, sizeof(k->left_out), "%.*s", (int)left_out.size, (const char *)left_out.data);
    return 0;
}

/* Detaches from the command: no terminal and none of its descriptors. */
static void leave_caller(void)
{
    pb_null_over(0, 2);
    if (chdir("/") < 0) {
        /* On failure a folder stays busy, no more. */
    }
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

static const char reply_ok[] = "ok ", reply_python[] = "python\n", reply_native[] = "native\n";

/* Reads what the keeper reports to the command: what it watches, or why it did not start. */
static int await_start(int fd, struct pb_keeper_state *ret, struct pb_err *err)
{
    char text[sizeof(err->text)] = "";
    size_t n = 0;
    ssize_t got = 0;

    do {
        got = read(fd, text + n, sizeof(text) - 1 - n);
        n += got > 0 ? (size_t)got : 0;
    } while ((got > 0 && n + 1 < sizeof(text)) || (got < 0 && errno == EINTR));
    if (strncmp(text, reply_ok, strlen(reply_ok)) != 0)
        return pb_fail(err, -EIO, "%s", n ? text : "the keeper of crashes ended before it began");
    const char *rest = text + strlen(reply_ok);
    ret->has_python = strncmp(rest, reply_python, strlen(reply_python)) == 0;
    snprintf(ret->left_out, sizeof(ret->left_out), "%s", rest + strcspn(rest, "\n") + 1);
    return 0;
}

static _Noreturn void run_keeper(const struct keeper *made, int ready_fd)
{
    struct keeper *k = malloc(sizeof(*k));
    struct pb_err err = {0};
    char word[sizeof(err.text)];

    leave_caller();
    if (k)
        *k = *made;
    int r = k ? begin_keeping(k, &err) : -ENOMEM;
    if (r < 0)
        snprintf(word, sizeof(word), "%s", pb_err_text(&err, r));
    else
        snprintf(word, sizeof(word), "%s%s%s", reply_ok, k->has_python ? reply_python : reply_native,
                 k->left_out);
    ssize_t n = write(ready_fd, word, strlen(word));
    close(ready_fd);
    if (r == 0 && n > 0)
        serve_crashes(k);
    _exit(0);
}

static int start_keeper(const struct keeper *k, struct pb_keeper_state *ret, struct pb_err *err)
{
    int ready[2];

    fflush(NULL);
    if (pipe2(ready, O_CLOEXEC) < 0)
        return pb_fail(err, -errno, "no pipe: %s", strerror(errno));
    int r = pb_process_orphan();
    if (r == 0) {
        close(ready[0]);
        run_keeper(k, ready[1]);
    }
    close(ready[1]);
    r = r < 0 ? pb_fail(err, r, "no process for the keeper of crashes can be started: %s", strerror(-r))
              : await_start(ready[0], ret, err);
    close(ready[0]);
    return r;
}

int pb_keeper_start(const struct pb_call *call, struct pb_keeper_state *ret, struct pb_err *err)
{
    const struct keeper k = {.call = call, .target = &call->targets.at[0], .message = PB_MSG_CRASH};

    return start_keeper(&k, ret, err);
}

void pb_keepers_of_hangs_start(const struct pb_call *call)
{
    for (size_t i = 0; i < call->targets.n; i++) {
        const struct keeper k = {.call = call, .target = &call->targets.at[i], .message = PB_MSG_HANG};
        struct pb_keeper_state keeper;
        struct pb_err err = {0};
        int r = k.target->dead ? 0 : start_keeper(&k, &keeper, &err);
        if (r < 0)
            fprintf(stderr, "stacks of hangs in process %d will not be recorded: %s\n", (int)k.target->pid,
                    pb_err_text(&err, r));
    }
}

int pb_keeper_stop(const struct pb_call *call, bool *ret_has_python, struct pb_err *err)
{
    struct keeper k = {.message = PB_MSG_CRASH};
    struct pb_frame reply;

    int r = pb_parts_session(&call->ask, call->targets.at[0].pid, true, call->timeout_ms, &k.session, err);
    if (r < 0)
        return r;
    r = send_mode(&k, PB_CRASH_STOP);
    if (r == 0)
        r = pb_client_next(&k.session.client, &reply, ANSWER_MS);
    uint64_t was = r == 0 ? pb_field_u64(&reply, PB_TAG_STATUS, 0) : 0;
    *ret_has_python = was & PB_CRASH_HAS_PYTHON;
    pb_session_done(&k.session);
    return r < 0 ? pb_fail(err, r, "the agent does not answer: %s", strerror(-r)) : !(was & PB_CRASH_WAS_ON);
}
