/* last_words: see last_words.h. The text is the program's: any of it may be missing, cut or a lie, so it only
 * adds to what is known otherwise. */
#include "diagnose/last_words.h"

#include "ask/stacks.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "remote/openin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL = 64 << 10, KERNEL_LOG = 1 << 20, READ_ALL = 3, PREFIX_MAX = 24 };

/* Where reading stands: in a traceback of Python, in one of faulthandler (innermost frame first), or in
 * none. */
struct words_reader {
    struct pb_diag_ended *ret;
    enum { IN_NONE, IN_TRACEBACK, IN_FATAL } in;
    struct pb_diag_place own, top;
    char thread[48]; /* whose traceback it is; "": the main thread's */
    bool after_own;  /* the last line was a frame of the program's own code */
};

/* Texts of torch and its backends where a peer is gone: what they say is a consequence. */
static bool is_of_lost_peer(const char *text)
{
    static const char *const signs[] = {
        "Connection closed by peer",
        "Connection reset by peer",
        "Connection refused",
        "Broken pipe",
        "ncclRemoteError",
        "remote process exited",
        "communicator was aborted",
        "Socket closed",
        "recvValue failed",
        "sendBytes failed",
        "recvVector failed",
        "Timed out waiting",
        "connection was likely closed",
        "Socket Timeout",
        "wait timeout after",
    };

    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (strstr(text, signs[i]))
            return true;
    return false;
}

/* '  File "PATH", line 12, in NAME', or with faulthandler '  File "PATH", line 12 in NAME'. */
static bool read_frame(const char *line, struct pb_diag_place *ret)
{
    const char *path = strncmp(line, "  File \"", 8) == 0 ? line + 8 : NULL;
    const char *end = path ? strstr(path, "\", line ") : NULL;
    const char *in = end ? strstr(end, " in ") : NULL;

    if (!end)
        return false;
    *ret = (struct pb_diag_place){.line = atoi(end + 8)};
    snprintf(ret->file, sizeof(ret->file), "%.*s", (int)(end - path), path);
    snprintf(ret->function, sizeof(ret->function), "%s", in ? in + 4 : "");
    return ret->line > 0;
}

static void put_error(struct words_reader *r, const char *line)
{
    struct pb_diag_ended *e = r->ret;
    const struct pb_diag_place *place = r->own.line ? &r->own : &r->top;

    if (r->thread[0]) {
        snprintf(e->thread, sizeof(e->thread), "%s", r->thread);
        snprintf(e->thread_error, sizeof(e->thread_error), "%s", line);
        e->thread_place = *place;
        return;
    }
    e->fatal = false;
    snprintf(e->error, sizeof(e->error), "%s", line);
    e->place = *place;
    e->lost_peer = is_of_lost_peer(line);
}

static void take_traceback(struct words_reader *r, const char *line)
{
    struct pb_diag_place frame;

    if (read_frame(line, &frame)) {
        r->after_own = pb_stacks_is_own(frame.file);
        *(r->after_own ? &r->own : &r->top) = frame;
        return;
    }
    if (r->after_own && strncmp(line, "    ", 4) == 0)
        snprintf(r->own.source, sizeof(r->own.source), "%s", line + 4);
    r->after_own = false;
    if (line[0] == ' ' || line[0] == '\0')
        return;
    put_error(r, line);
    r->in = IN_NONE;
    r->thread[0] = '\0';
}

static void take_fatal(struct words_reader *r, const char *line)
{
    struct pb_diag_place frame;

    if (!read_frame(line, &frame))
        return;
    if (!r->ret->place.line && pb_stacks_is_own(frame.file))
        r->ret->place = frame;
}

static void take_line(struct words_reader *r, const char *line)
{
    static const char traceback[] = "Traceback (most recent call last):", thread[] = "Exception in thread ",
                      fatal[] = "Fatal Python error: ";

    if (strncmp(line, thread, sizeof(thread) - 1) == 0) {
        line += sizeof(thread) - 1;
        snprintf(r->thread, sizeof(r->thread), "%.*s", (int)strcspn(line, ":"), line);
    } else if (strcmp(line, traceback) == 0) {
        r->in = IN_TRACEBACK;
        r->own = r->top = (struct pb_diag_place){0};
    } else if (strncmp(line, fatal, sizeof(fatal) - 1) == 0) {
        r->in = IN_FATAL;
        r->ret->fatal = true;
        r->ret->place = (struct pb_diag_place){0};
        snprintf(r->ret->error, sizeof(r->ret->error), "%s", line);
    } else if (r->in == IN_TRACEBACK) {
        take_traceback(r, line);
    } else if (r->in == IN_FATAL) {
        take_fatal(r, line);
    }
}

/* "[rank3]: text" as torch marks it; -1: not marked. */
static int read_mark(const char *line, const char **ret_rest)
{
    int rank, n = 0;

    *ret_rest = line;
    if (sscanf(line, "[rank%d]:%n", &rank, &n) != 1 || !n || n > PREFIX_MAX)
        return -1;
    *ret_rest = line + n + (line[n] == ' ');
    return rank;
}

static char *read_tail(pid_t pid, const char *path, uint64_t inode, double *ret_wrote)
{
    struct stat st;
    char *text = calloc(1, TAIL + 1);

    int fd = text ? pb_open_in_root(pid, path, inode) : -ENOMEM;
    ssize_t n = -1;
    if (fd >= 0 && fstat(fd, &st) == 0) {
        *ret_wrote = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec / 1e9;
        n = pread(fd, text, TAIL, st.st_size > TAIL ? st.st_size - TAIL : 0);
    }
    if (fd >= 0)
        close(fd);
    if (n >= 0)
        return text;
    free(text);
    return NULL;
}

void pb_last_words_read(const char *path, uint64_t inode, bool shared, struct pb_diag_ended *ret)
{
    struct words_reader r = {.ret = ret};
    double wrote = 0;
    _cleanup_free_ char *text =
        path[0] == '/' ? read_tail(ret->living ? ret->pid : 0, path, inode, &wrote) : NULL;

    for (char *line = text, *end; line && *line; line = end) {
        const char *rest;
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        pb_text_clean(line);
        int mark = read_mark(line, &rest);
        if (mark == ret->rank || (mark < 0 && !shared))
            take_line(&r, rest);
    }
    if (!shared)
        ret->wrote = wrote;
}

/* {"message": {"message": "ValueError: ..", "extraInfo": {"py_callstack": "Traceback ..", ..}}}; of C++ the
 * outer message is a text. */
static void take_error_file(const struct pb_json *json, struct words_reader *r)
{
    uint32_t outer = pb_json_get(json, 1, "message"), inner = pb_json_get(json, outer, "message");
    uint32_t stack = pb_json_get(json, pb_json_get(json, outer, "extraInfo"), "py_callstack");
    char *text = calloc(1, TAIL + 1);

    if (text && stack && pb_json_text(json, stack, text, TAIL) > 0) {
        for (char *line = text, *end; *line; line = end) {
            end = line + strcspn(line, "\n");
            if (*end)
                *end++ = '\0';
            pb_text_clean(line);
            take_line(r, line);
        }
    }
    if (text && !r->ret->error[0] && pb_json_text(json, inner ? inner : outer, text, TAIL) > 0) {
        text[strcspn(text, "\n")] = '\0';
        pb_text_clean(text);
        put_error(r, text);
    }
    free(text);
}

void pb_last_words_of_torchrun(const char *path, struct pb_diag_ended *ret)
{
    struct words_reader r = {.ret = ret};
    struct pb_json json;
    double wrote = 0;
    _cleanup_free_ char *text = !ret->error[0] && path[0] == '/' ? read_tail(0, path, 0, &wrote) : NULL;

    if (!text || pb_json_parse(text, strlen(text), &json) < 0)
        return;
    take_error_file(&json, &r);
    pb_json_done(&json);
    if (ret->error[0])
        ret->wrote = wrote;
}

/* A line with that text, of a process that was there by then: pids are reused. The log counts seconds since
 * boot, as start times do. */
static bool has_line(const char *log, const char *text, uint64_t start_time)
{
    double started = (double)start_time / (double)sysconf(_SC_CLK_TCK);

    for (const char *at = log; (at = strstr(at, text)); at++) {
        const char *line = at;
        while (line > log && line[-1] != '\n')
            line--;
        const char *time = strchr(line, '[');
        if (time && time < at && strtod(time + 1, NULL) + 1 >= started)
            return true;
    }
    return false;
}

/* "python[4711]: segfault at 10 ip ..", "Out of memory: Killed process 4711 (python) ..". */
void pb_last_words_of_kernel(struct pb_diag_ended *ended, size_t n)
{
    char *log = calloc(1, KERNEL_LOG + 1), segfault[40], trap[40], killed[40];
    int length = log ? klogctl(READ_ALL, log, KERNEL_LOG) : -1;

    for (size_t i = 0; i < n && length > 0; i++) {
        snprintf(segfault, sizeof(segfault), "[%d]: segfault", (int)ended[i].pid);
        snprintf(trap, sizeof(trap), "[%d] general protection", (int)ended[i].pid);
        snprintf(killed, sizeof(killed), "Killed process %d ", (int)ended[i].pid);
        if (has_line(log, segfault, ended[i].start_time) || has_line(log, trap, ended[i].start_time))
            snprintf(ended[i].kernel, sizeof(ended[i].kernel), "SIGSEGV");
        else if (has_line(log, killed, ended[i].start_time))
            snprintf(ended[i].kernel, sizeof(ended[i].kernel), "oom");
    }
    free(log);
}
