/* webhook: see webhook.h. */
#include "cli/webhook.h"

#include "base/cleanup.h"
#include "base/json_write.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool is_installed(const char *program)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];

    for (const char *at = path ? path : "/usr/bin:/bin"; *at; at += *at == ':') {
        size_t n = strcspn(at, ":");
        snprintf(file, sizeof(file), "%.*s/%s", (int)n, at, program);
        if (access(file, X_OK) == 0)
            return true;
        at += n;
    }
    return false;
}

int pb_webhook_check(const char *address, struct pb_err *err)
{
    if (!address)
        return 0;
    if ((strncmp(address, "http://", 7) != 0 && strncmp(address, "https://", 8) != 0) ||
        strpbrk(address, " \t\r\n\"\\"))
        return pb_fail(err, -EINVAL,
                       "probing.alert.webhook is no address that begins with http:// or https://");
    return is_installed("curl")
               ? 0
               : pb_fail(err, -ENOENT, "probing.alert.webhook needs curl, which is not installed here");
}

static void put_time(struct pb_json_writer *w, const char *key, double seconds_ago)
{
    time_t at = time(NULL) - (time_t)seconds_ago;
    char text[40];
    struct tm tm;

    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &tm));
    pb_json_put_text(w, key, text);
}

/* Who, where, why and what to do; no lines of source. */
static void put_annotations(struct pb_json_writer *w, const struct pb_diag_event *e)
{
    _cleanup_free_ char *text = NULL;
    size_t size = 0;

    pb_json_open(w, "annotations", '{');
    pb_json_put_text(w, "summary", e->what->says);
    FILE *out = e->finding ? open_memstream(&text, &size) : NULL;
    for (size_t i = 0; out && i < e->finding->nevidence; i++) {
        const struct pb_diag_evidence *row = &e->finding->evidence[i];
        fprintf(out, "%s%s %s %s", i ? "\n" : "", row->field[0], row->field[1], row->field[2]);
    }
    if (out && fclose(out) == 0)
        pb_json_put_text(w, "evidence", text);
    if (e->finding) {
        pb_json_put_text(w, "why", e->finding->why);
        pb_json_put_text(w, "next", e->finding->next);
    }
    pb_json_close(w);
}

static void put_labels(struct pb_json_writer *w, const struct pb_diag_event *e, const char *host)
{
    static const char *const sures[] = {"remark", "likely", "certain"};

    pb_json_open(w, "labels", '{');
    pb_json_put_text(w, "alertname", "probing_finding");
    pb_json_put_text(w, "job", e->what->job);
    pb_json_put_text(w, "kind", e->what->kind);
    if (e->what->rank >= 0)
        pb_json_put_format(w, "rank", "%d", e->what->rank);
    pb_json_put_text(w, "sure", sures[e->what->sure]);
    pb_json_put_text(w, "host", host);
    pb_json_close(w);
}

static void put_document(FILE *to, const struct pb_diag_event *e)
{
    struct pb_json_writer w = {.out = to};
    const char *status = e->over ? "resolved" : "firing";
    char host[65] = "", text[700];

    gethostname(host, sizeof(host) - 1);
    if (e->over)
        snprintf(text, sizeof(text), "%s on %s: over after %.0f s: %s", e->what->job, host, e->seconds,
                 e->what->says);
    else
        snprintf(text, sizeof(text), "%s on %s: %s", e->what->job, host, e->what->says);
    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "text", text);
    pb_json_put_text(&w, "msg_type", "text");
    pb_json_open(&w, "content", '{');
    pb_json_put_text(&w, "text", text);
    pb_json_close(&w);
    pb_json_put_text(&w, "version", "4");
    pb_json_put_text(&w, "status", status);
    pb_json_put_text(&w, "receiver", "probing");
    pb_json_open(&w, "alerts", '[');
    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "status", status);
    put_labels(&w, e, host);
    put_annotations(&w, e);
    put_time(&w, "startsAt", e->seconds);
    if (e->over)
        put_time(&w, "endsAt", 0);
    pb_json_close(&w);
    pb_json_close(&w);
    pb_json_close(&w);
}

/* As a value in curl's configuration. */
static void put_quoted(FILE *to, const char *name, const char *value)
{
    fprintf(to, "%s = \"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            fputc('\\', to);
        fputc(*value, to);
    }
    fputs("\"\n", to);
}

/* By its standard input: a command line can be seen by everybody. */
static int start_curl(const char *configuration, size_t size)
{
    static const char *const words[] = {"curl",
                                        "-q",
                                        "-sS",
                                        "-f",
                                        "-o",
                                        "/dev/null",
                                        "-m",
                                        "10",
                                        "--retry",
                                        "3",
                                        "--retry-connrefused",
                                        "--retry-max-time",
                                        "60",
                                        "-K",
                                        "-",
                                        NULL};
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 16);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    int r = write(ends[1], configuration, size) == (ssize_t)size ? 0 : -EMSGSIZE;
    close(ends[1]);
    if (r == 0) {
        const struct pb_process_plan plan = {
            .argv = words, .search = true, .in = ends[0], .out = STDERR_FILENO, .errors = STDERR_FILENO};
        r = pb_process_start(&plan);
    }
    close(ends[0]);
    return r;
}

int pb_webhook_post(const char *address, const struct pb_diag_event *e, struct pb_err *err)
{
    _cleanup_free_ char *document = NULL, *configuration = NULL;
    size_t size = 0;

    while (waitpid(-1, NULL, WNOHANG) > 0) /* those that have ended meanwhile */
        ;
    FILE *out = open_memstream(&document, &size);
    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    put_document(out, e);
    if (fclose(out) != 0 || !(out = open_memstream(&configuration, &size)))
        return pb_fail(err, -ENOMEM, "out of memory");
    put_quoted(out, "url", address);
    put_quoted(out, "header", "Content-Type: application/json");
    put_quoted(out, "data-raw", document);
    if (fclose(out) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = start_curl(configuration, size);
    return r < 0 ? pb_fail(err, r, "a finding cannot be posted: %s", strerror(-r)) : 0;
}
