/* eval, execute: run Python code inside the target and show what it prints. */
#include "ask/parts.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/stop.h"
#include "control/message.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ANSWER_GRACE_MS                                                                                      \
    6000 /* longer than the agent's own deadline: after it the agent itself does not answer */

static volatile sig_atomic_t interrupts;

static void count_interrupt(int signal)
{
    (void)signal;
    interrupts++;
}

static void print_output(const struct pb_frame *frame)
{
    uint64_t stream = pb_field_u64(frame, PB_TAG_STREAM, PB_STREAM_OUT);
    FILE *to = stream == PB_STREAM_OUT || stream == PB_STREAM_VALUE ? stdout : stderr;
    struct pb_field text;

    if (pb_field_find(frame, PB_TAG_TEXT, &text) < 0)
        return;
    fwrite(text.data, 1, text.size, to);
    fflush(to);
}

static int print_result(pid_t pid, const struct pb_frame *frame, struct pb_err *err)
{
    int r = pb_reply_end(pid, 0, frame, err);
    return r == 0 && pb_field_u64(frame, PB_TAG_STATUS, 0) ? PB_FAILED : r;
}

/* Prints output until the result comes. The first Ctrl-C interrupts the code, the second leaves it
 * running. */
static int print_until_result(struct pb_client *client, pid_t pid, uint32_t id, unsigned timeout_ms,
                              struct pb_err *err)
{
    uint64_t end = timeout_ms ? pb_now_ns() + (timeout_ms + (uint64_t)ANSWER_GRACE_MS) * PB_NS_PER_MS : 0;
    struct pb_frame frame;
    int handled = 0;

    pb_client_limit(client, timeout_ms ? timeout_ms + ANSWER_GRACE_MS : 0);
    for (;;) {
        if (interrupts > handled) {
            handled = interrupts;
            if (handled > 1)
                return pb_fail(
                    err, -EINTR,
                    "gave up waiting; the code was interrupted, but may still be running in the process");
            pb_client_signal(client, PB_MSG_CANCEL, id);
        }
        int r = pb_client_next(client, &frame, 500);
        if (r == -ETIMEDOUT && end && pb_now_ns() > end)
            return pb_fail(err, r, "the agent does not answer (is the process stopped?)");
        if (r == -ETIMEDOUT || r == -EINTR)
            continue;
        if (r < 0)
            return pb_fail(err, r, "the process ended, or its agent was detached, before the code was done");
        if (frame.id != id)
            continue;
        if (frame.type == PB_MSG_OUTPUT)
            print_output(&frame);
        else
            return print_result(pid, &frame, err);
    }
}

/* With --thread the file's name is followed by the thread and the time for it (python/probing/_elsewhere.py).
 *  */
static int name_code(const struct pb_call *call, const char *filename, char *ret, size_t size,
                     struct pb_err *err)
{
    const char *thread = pb_call_option(call, "thread");
    int n = thread ? snprintf(ret, size, "%s\n%s\n%u", filename, thread, call->timeout_ms)
                   : snprintf(ret, size, "%s", filename);

    if (thread && (!thread[0] || strchr(thread, '\n')))
        return pb_fail(err, PB_USAGE, "--thread takes main, or the name or number of a thread");
    return !thread || (size_t)n < size
               ? 0
               : pb_fail(err, -ENAMETOOLONG, "the names of the file and the thread are too long");
}

static int run_code(const struct pb_call *call, const char *code, size_t size, const char *filename,
                    enum pb_run_mode mode, struct pb_err *err)
{
    char name[256];
    _cleanup_free_ uint8_t *buf = malloc(PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD);
    struct pb_frame_writer w;
    struct pb_session session;

    if (!buf)
        return -ENOMEM;
    int r = name_code(call, filename, name, sizeof(name), err);
    if (r < 0)
        return r;
    pb_frame_begin(&w, buf, PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD);
    pb_frame_put(&w, PB_TAG_CODE, code, size);
    pb_frame_put_str(&w, PB_TAG_FILENAME, name);
    pb_frame_put_u64(&w, PB_TAG_MODE, mode);
    pb_frame_put_u64(&w, PB_TAG_TIMEOUT_MS, call->timeout_ms);
    r = pb_parts_session(&call->ask, call->targets.at[0].pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    pb_signal_take(SIGINT, count_interrupt);
    int64_t id = pb_client_request(&session.client, &w, PB_MSG_RUN);
    if (id == -EMSGSIZE)
        r = pb_fail(err, -EMSGSIZE,
                    "the code is larger than 1 MB (put it into a file that the target can import)");
    else if (id < 0)
        r = pb_fail(err, (int)id, "the agent does not take the code: %s", strerror((int)-id));
    else
        r = print_until_result(&session.client, call->targets.at[0].pid, (uint32_t)id, call->timeout_ms, err);
    pb_session_done(&session);
    return r;
}

static int run_eval(const struct pb_call *call, struct pb_err *err)
{
    return run_code(call, call->args[0], strlen(call->args[0]), "<eval>", PB_RUN_EVAL, err);
}

static int read_all(int fd, char **ret, size_t *ret_size)
{
    _cleanup_free_ char *text = NULL;
    size_t size = 0, cap = 0;
    ssize_t n;

    do {
        if (cap - size < 65536) {
            char *more = realloc(text, cap += 1u << 18);
            if (!more)
                return -ENOMEM;
            text = more;
        }
        n = read(fd, text + size, cap - size);
        if (n < 0)
            return -errno;
        size += (size_t)n;
    } while (n > 0 && size <= PB_FRAME_MAX_PAYLOAD);
    *ret = pb_take_ptr(text);
    *ret_size = size;
    return 0;
}

/* The argument is a file if one has that name, "-" is stdin, otherwise it is the code. */
static int run_execute(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;
    const char *given = call->args[0];
    size_t size;
    struct stat st;

    if (strcmp(given, "-") == 0) {
        int r = read_all(STDIN_FILENO, &text, &size);
        return r < 0 ? pb_fail(err, r, "stdin cannot be read: %s", strerror(-r))
                     : run_code(call, text, size, "<stdin>", PB_RUN_SCRIPT, err);
    }
    size_t len = strlen(given);
    bool named_like_a_file = len > 3 && strcmp(given + len - 3, ".py") == 0 && !strchr(given, '\n');
    if (stat(given, &st) < 0 && !named_like_a_file)
        return run_code(call, given, len, "<execute>", PB_RUN_EVAL, err);
    _cleanup_close_ int fd = open(given, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return pb_fail(err, -errno, "%s cannot be read: %s", given, strerror(errno));
    int r = read_all(fd, &text, &size);
    return r < 0 ? pb_fail(err, r, "%s cannot be read: %s", given, strerror(-r))
                 : run_code(call, text, size, given, PB_RUN_SCRIPT, err);
}

const struct pb_command pb_cmd_eval = {
    .name = "eval",
    .summary = "run Python code in the process and show what it prints",
    .synopsis = "CODE",
    .text = "Names are looked up in __main__, then in the locals of the main thread's user code "
            "(innermost first), then gc, sys, and torch if the program has imported it. "
            "Assignments go to __main__.\n\n"
            "Prints the value of a last expression. An exception is printed with its traceback, "
            "and the exit status is 1. Ctrl-C and --timeout stop the code in the process "
            "(KeyboardInterrupt).",
    .example = "probing -t 4711 eval \"print(loss.item())\"\nprobing -t 4711 eval \"len(gc.get_objects())\"",
    .min_args = 1,
    .max_args = 1,
    .flags = PB_CMD_BYTES | PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_eval,
};

static const struct pb_option execute_options[] = {
    {0, "thread", PB_TEXT("THREAD"), "run it in that thread of the program, between two bytecodes: main"},
    {0},
};

const struct pb_command pb_cmd_execute = {
    .name = "execute",
    .alias = "exec",
    .summary = "run a Python file in the process",
    .synopsis = "FILE.py | - | CODE",
    .text = "As eval, with code from a file, from stdin (-), or from the argument if no file has "
            "that name.\n\n"
            "The code runs in a thread of ours, so traceback.print_stack() alone shows the main "
            "thread's stack instead. With --thread main, the main thread runs it as soon as it is "
            "between two bytecodes (an error after 5 s). Then the code sees what the thread has of "
            "its own, such as its CUDA device, and the program waits.",
    .options = execute_options,
    .example = "probing -t 4711 execute script.py\nprobing -t 4711 execute \"import traceback; "
               "traceback.print_stack()\"",
    .min_args = 1,
    .max_args = 1,
    .flags = PB_CMD_BYTES | PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run_execute,
};
