/* reply: makes the answer of a request from the output of its command. See request.h.
 *
 * The HTTP status is sent when the command has printed something or has ended: an error before the first row
 * is an HTTP error. A later one breaks the stream off without its last chunk, which clients notice. */
#include "base/cleanup.h"
#include "base/err.h"
#include "serve/answer.h"
#include "serve/jobs.h"
#include "serve/lookout.h"
#include "serve/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PRINTED_MAX = 4 << 20 };

#define RESULT "Probing-Result" /* the trailer of a complete stream */

static struct pb_serve_job_result result_of(const struct pb_request *q)
{
    struct pb_serve_job_result end = pb_serve_job_result(q->job);

    end.status = end.status == PB_EXIT_FOUND ? 0 : end.status;
    return end;
}

/* Whether the command answered for some of several processes. The answer names the others. */
static bool is_partial(const struct pb_request *q)
{
    struct pb_serve_job_result end = result_of(q);

    /* 3: of a cluster, whose nodes are named in the answer too. */
    return q->route->flags & PB_ROUTE_PARTIAL && (end.status == 1 || end.status == 3) && !end.late &&
           !end.silent;
}

static ssize_t read_job(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct pb_request *q = cls;
    ssize_t n = pb_serve_job_read(q->job, buf, max, pb_request_suspend);

    (void)pos;
    if (n == -EAGAIN)
        return 0;
    if (n > 0)
        return n;
    bool partial = n < 0 && is_partial(q);
    if (n < 0 && !partial &&
        (result_of(q).status || result_of(q).late)) /* a stream that broke has no trailer at all */
        return MHD_CONTENT_READER_END_WITH_ERROR;
    MHD_add_response_footer(q->streaming, RESULT, partial ? "partial" : "whole");
    return MHD_CONTENT_READER_END_OF_STREAM;
}

/* Whether the process in the path has ended. */
static bool is_gone(const struct pb_request *q)
{
    char path[PB_ROUTE_VARIABLE + 16];

    snprintf(path, sizeof(path), "/proc/%.*s", (int)strcspn(q->id, "@"), q->id);
    return strstr(q->route->path, "{id}") && access(path, F_OK) < 0;
}

enum MHD_Result pb_request_fail(struct pb_request *q, unsigned status, const char *message)
{
    return pb_answer_is_picture(q->connection, q->route)
               ? pb_answer_picture_of_error(q->connection, status, message)
               : pb_answer_error(q->connection, status, message, NULL);
}

static enum MHD_Result send_failure(struct pb_request *q, const struct pb_serve_job_result *end)
{
    char text[4096];

    snprintf(text, sizeof(text), "%s", end->errors);
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n')
        text[--n] = '\0';
    const char *why = pb_err_without_program(text);
    if (end->late)
        return pb_request_fail(q, 504, "timed out");
    return pb_request_fail(q, is_gone(q) || q->route->flags & PB_ROUTE_FINDS ? 404 : 422,
                           *why ? why : "the command failed");
}

static enum MHD_Result send_file(struct pb_request *q)
{
    struct stat st;
    int fd = pb_serve_job_open_file(q->job);

    if (fd < 0 || fstat(fd, &st) < 0) {
        if (fd >= 0)
            close(fd);
        return pb_request_fail(q, 500, "the command wrote no file");
    }
    return pb_answer(q->connection, 200, MHD_create_response_from_fd((uint64_t)st.st_size, fd),
                     q->form->type);
}

/* Takes what the command printed. -EAGAIN: there is more to come; -EFBIG; -EPIPE: it failed. */
static int take_printed(struct pb_request *q)
{
    char piece[16384];
    ssize_t n;

    while ((n = pb_serve_job_read(q->job, piece, sizeof(piece), pb_request_suspend)) > 0) {
        char *more = q->printed_length + (size_t)n > PRINTED_MAX
                         ? NULL
                         : realloc(q->printed, q->printed_length + (size_t)n);
        if (!more)
            return -EFBIG;
        memcpy(more + q->printed_length, piece, (size_t)n);
        q->printed = more;
        q->printed_length += (size_t)n;
    }
    return (int)n;
}

static enum MHD_Result send_converted(struct pb_request *q)
{
    char *text = NULL;
    size_t size = 0;

    int r = take_printed(q);
    if (r == -EAGAIN)
        return MHD_YES;
    if (r == -EFBIG)
        return pb_answer_error(q->connection, 500, "the answer is too long", NULL);
    FILE *out = r < 0 ? NULL : open_memstream(&text, &size);
    if (!out)
        return pb_answer_error(q->connection, 500, "the command failed in the middle", NULL);
    q->route->convert(q->printed ? q->printed : "", q->printed_length, q->form->name,
                      q->credentials.uid == 0 ? pb_lookout_put_metrics : NULL, out);
    fclose(out);
    return pb_answer(q->connection, 200, MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE),
                     q->form->type);
}

/* The answer of a tool is its text, also if it failed: the assistant reads the error. */
static enum MHD_Result send_tool(struct pb_request *q)
{
    char *text = NULL, piece[16384];
    size_t size = 0;
    ssize_t n;

    int r = take_printed(q);
    if (r == -EAGAIN)
        return MHD_YES;
    struct pb_serve_job_result end = result_of(q);
    _cleanup_close_ int fd = q->mcp.file && !end.status ? pb_serve_job_open_file(q->job) : -1;
    FILE *result = open_memstream(&text, &size);
    if (!result)
        return MHD_NO;
    if (fd < 0)
        fwrite(q->printed ? q->printed : "", 1, q->printed_length, result);
    while (fd >= 0 && size < PRINTED_MAX && (n = read(fd, piece, sizeof(piece))) > 0)
        fwrite(piece, 1, (size_t)n, result), fflush(result);
    fputs(r == -EFBIG ? "\n(cut: the answer is too long)" : end.late ? "\n(timed out)" : "", result);
    if (end.status)
        fputs(end.errors, result);
    fclose(result);
    char *answer = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&answer, &length);
    if (out) {
        pb_mcp_put_result(out, q->mcp.id, r == -EFBIG || end.status || end.late, text, size);
        fclose(out);
    }
    free(text);
    return pb_answer(q->connection, 200,
                     MHD_create_response_from_buffer(length, answer, MHD_RESPMEM_MUST_FREE),
                     q->route->forms->type);
}

enum MHD_Result pb_request_answer(struct pb_request *q)
{
    if (!pb_serve_job_ready(q->job, pb_request_suspend))
        return MHD_YES;
    if (q->route->flags & PB_ROUTE_MCP)
        return send_tool(q);
    struct pb_serve_job_result end = result_of(q);
    if (end.over && (end.late || end.status) && (end.silent || q->form->file || end.late))
        return send_failure(q, &end);
    if (q->form->file)
        return send_file(q);
    if (q->route->convert)
        return send_converted(q);
    q->streaming = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_job, q, NULL);
    if (q->streaming)
        MHD_add_response_header(q->streaming, "Trailer", RESULT);
    return pb_answer(q->connection, 200, q->streaming, q->form->type);
}
