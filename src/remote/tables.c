/* tables: see tables.h. */
#include "remote/tables.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "control/client.h"
#include "control/message.h"
#include "remote/procinfo.h"
#include "remote/runs.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ANSWER_MS 1000 /* for each step: connecting, the greeting, the answer */
#define NOTE_SIZE 256

#ifndef F_GET_SEALS
#define F_GET_SEALS   1034
#define F_SEAL_SHRINK 2
#endif

/* Whether that process began the arena behind fd. */
static int check_writer(int fd, const struct pb_procinfo *process, struct pb_err *err)
{
    struct pb_reader_info info;
    struct pb_reader *reader;
    char why[PB_WHY_SIZE];

    int r = pb_reader_open(fd, &reader, why);
    if (r < 0)
        return pb_fail(err, r, "the tables of process %d cannot be read: %s", (int)process->pid, why);
    pb_reader_info(reader, &info);
    pb_reader_close(reader);
    if (info.pid != (uint32_t)process->ns_pid || (info.start_time && info.start_time != process->start_time))
        return pb_fail(err, -EPERM, "what process %d gave are tables of another process", (int)process->pid);
    return 0;
}

int pb_tables_check(int given, const struct pb_procinfo *process, struct pb_err *err)
{
    _cleanup_close_ int fd = given;
    char path[32];
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != process->euid)
        return pb_fail(err, -EPERM, "what process %d gave is no file of its user", (int)process->pid);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return pb_fail(err, -EPERM, "what process %d gave could be cut while it is read", (int)process->pid);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        int again = open(path, O_RDONLY | O_CLOEXEC);
        if (again < 0)
            return pb_fail(err, -errno, "the tables of process %d cannot be opened to read: %s",
                           (int)process->pid, strerror(errno));
        close(fd);
        fd = again;
    }
    int r = check_writer(fd, process, err);
    return r < 0 ? r : pb_take_fd(fd);
}

/* Copies the target's text for a terminal, without control characters. */
static void copy_note(const struct pb_field *text, char *note)
{
    size_t n = text->size < NOTE_SIZE - 1 ? text->size : NOTE_SIZE - 1;

    memcpy(note, text->data, n);
    note[n] = '\0';
    pb_text_clean(note);
}

/* Asks on a connection after its HELLO. */
static int ask_for_tables(struct pb_client *client, char *note)
{
    uint8_t buf[64];
    struct pb_frame_writer w;
    struct pb_frame reply;
    struct pb_field text;

    pb_frame_begin(&w, buf, sizeof(buf));
    int64_t id = pb_client_request(client, &w, PB_MSG_TABLES);
    int r = id < 0 ? (int)id : pb_client_next(client, &reply, ANSWER_MS);
    if (r == 0 && reply.type == PB_MSG_OUTPUT) {
        if (pb_field_find(&reply, PB_TAG_TEXT, &text) == 0)
            copy_note(&text, note);
        r = pb_client_next(client, &reply, ANSWER_MS);
    }
    if (r < 0)
        return r;
    return reply.type == PB_MSG_DONE ? pb_client_take_fd(client) : -ENOENT;
}

static int open_live(const struct pb_procinfo *process, const struct pb_run_info *run, char *note)
{
    struct pb_err ignored = {0};
    struct pb_client client;
    char secret[40];

    if (process->state == 'T' || process->state == 't') /* a stopped process would not answer */
        return -EAGAIN;
    int fd = pb_run_connect(run, process, secret, ANSWER_MS, &ignored);
    int r = fd < 0 ? fd : pb_client_init(&client, fd, secret, ANSWER_MS);
    if (r < 0)
        return r;
    fd = ask_for_tables(&client, note);
    pb_client_done(&client);
    return fd < 0 ? fd : pb_tables_check(fd, process, &ignored);
}

int pb_tables_open(const struct pb_procinfo *process, const struct pb_run_info *run, char *note,
                   struct pb_err *err)
{
    note[0] = '\0';
    int fd = open_live(process, run, note);
    return fd < 0 ? pb_run_open_arena(run, err) : fd;
}
