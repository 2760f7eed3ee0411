/* stacks_source: lines of source files as another process sees them.
 *
 * Files are opened below the process's own root, links resolved inside it, relative paths below its working
 * directory. Only regular files are read: a path chosen by the target must not block us. */
#include "ask/apart.h"
#include "ask/stacks.h"
#include "base/cleanup.h"
#include "remote/openin.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES_MAX 256
#define BYTES_MAX (64 << 20) /* of all files together */

struct source_file {
    char *name;
    char *text;     /* NULL: cannot be read */
    uint32_t *line; /* offset of each line found so far: threads share their outer frames */
    size_t nlines;
};

struct pb_sources {
    int root_fd, cwd_fd;
    struct source_file files[FILES_MAX];
    size_t n, bytes;
};

/* The working directory of a core is unknown. */
static void open_folders(struct pb_sources *s, pid_t pid, const char *root)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
    s->root_fd = open(pid ? path : root ? root : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/cwd", (int)pid);
    s->cwd_fd = pid ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
}

struct pb_sources *pb_sources_new(const struct pb_stacks *stacks)
{
    struct pb_sources *s = calloc(1, sizeof(*s));

    if (s)
        open_folders(s, stacks->source.pid, stacks->root);
    return s;
}

void pb_sources_free(struct pb_sources *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->files[i].name);
        free(s->files[i].text);
        free(s->files[i].line);
    }
    if (s->root_fd >= 0)
        close(s->root_fd);
    if (s->cwd_fd >= 0)
        close(s->cwd_fd);
    free(s);
}

static int open_in(const struct pb_sources *s, const char *file)
{
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_NO_MAGICLINKS};

    if (*file == '/')
        return pb_open_below(s->root_fd, file, flags);
    int fd = (int)syscall(SYS_openat2, s->cwd_fd, file, &how, sizeof(how));
    /* Without openat2 only files below its working directory are opened. */
    return fd >= 0 || (errno != ENOSYS && errno != EPERM) ? fd : pb_open_below(s->cwd_fd, file, flags);
}

static char *read_whole_file(struct pb_sources *s, const char *file)
{
    struct stat st;

    _cleanup_close_ int fd = open_in(s, file);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > BYTES_MAX ||
        s->bytes + (size_t)st.st_size > BYTES_MAX)
        return NULL;
    s->bytes += (size_t)st.st_size;
    char *text = malloc((size_t)st.st_size + 1);
    ssize_t n = text ? read(fd, text, (size_t)st.st_size) : -1;
    if (n < 0) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

static struct source_file *find_file(struct pb_sources *s, const char *file)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->files[i].name, file) == 0)
            return &s->files[i];
    if (s->n == FILES_MAX || file[0] == '<' || !file[0])
        return NULL;
    char *name = strdup(file);
    if (!name)
        return NULL;
    s->files[s->n] = (struct source_file){.name = name, .text = read_whole_file(s, file)};
    return &s->files[s->n++];
}

/* Finds the start of the next line. False: there is none. */
static bool next_line(struct source_file *f)
{
    const char *at = f->text;

    if (f->nlines) {
        at = strchr(f->text + f->line[f->nlines - 1], '\n');
        if (!at++)
            return false;
    }
    /* The array grows in powers of two from 64, so the count alone says when it is full. */
    if (f->nlines == 0 || (f->nlines >= 64 && (f->nlines & (f->nlines - 1)) == 0)) {
        uint32_t *more = reallocarray(f->line, f->nlines ? 2 * f->nlines : 64, sizeof(*more));
        if (!more)
            return false;
        f->line = more;
    }
    f->line[f->nlines++] = (uint32_t)(at - f->text);
    return true;
}

static const char *line_of(struct source_file *f, size_t line)
{
    while (f->nlines < line)
        if (!next_line(f))
            return NULL;
    return f->text + f->line[line - 1];
}

const char *pb_sources_line(struct pb_sources *s, const char *file, int line, int *ret_len)
{
    struct source_file *f = s && line > 0 ? find_file(s, file) : NULL;
    const char *at = f && f->text ? line_of(f, (size_t)line) : NULL;

    if (!at)
        return NULL;
    at += strspn(at, " \t\f");
    size_t len = strcspn(at, "\n");
    while (len && (at[len - 1] == ' ' || at[len - 1] == '\r' || at[len - 1] == '\t'))
        len--;
    *ret_len = len > 400 ? 400 : (int)len;
    return len ? at : NULL;
}

/* --- a whole file --- */

enum { TEXT_MAX = 4 << 20, TEXT_LIMIT_MS = 5000 };

struct wanted_text {
    const struct pb_stacks *stacks;
    const char *file;
    size_t length;
    char bytes[];
};

static bool names_file(const struct pb_shown_frame *frames, size_t n, const char *file)
{
    for (size_t i = 0; i < n; i++)
        if (frames[i].code && strcmp(frames[i].code->file, file) == 0)
            return true;
    return false;
}

static bool is_in_stacks(const struct pb_stacks *s, const char *file)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        if (names_file(t->frames, t->nframes, file))
            return true;
        for (size_t k = 0; k < t->ntasks; k++)
            if (names_file(t->tasks[k].frames, t->tasks[k].nframes, file))
                return true;
    }
    return false;
}

/* The name is the target's choice: a process of root's must not show by it what the target's user may not
 * read. */
static bool may_be_shown(const struct stat *st, pid_t pid)
{
    struct stat process;
    char path[32];

    snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    return S_ISREG(st->st_mode) &&
           (st->st_mode & S_IROTH || !pid || (stat(path, &process) == 0 && st->st_uid == process.st_uid));
}

/* In a child of its own: opening and reading may both wait for ever. */
static int read_text(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct wanted_text *q = arg;
    struct pb_sources s;
    struct stat st;
    ssize_t n = 0;

    open_folders(&s, q->stacks->source.pid, q->stacks->root);
    _cleanup_close_ int fd = open_in(&s, q->file);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pb_fail(err, -errno, "%s cannot be read: %s", q->file, strerror(errno));
    if (!may_be_shown(&st, q->stacks->source.pid))
        return pb_fail(err, -EACCES, "%s cannot be read: %s", q->file,
                       S_ISREG(st.st_mode) ? "permission denied" : "it is no regular file");
    struct wanted_text *answer = pb_room_alloc(room, sizeof(*answer) + TEXT_MAX);
    if (!answer)
        return pb_fail(err, -ENOMEM, "out of memory");
    while (answer->length < TEXT_MAX &&
           (n = read(fd, answer->bytes + answer->length, TEXT_MAX - answer->length)) > 0)
        answer->length += (size_t)n;
    if (n < 0)
        return pb_fail(err, -errno, "%s cannot be read: %s", q->file, strerror(errno));
    pb_apart_answer(room, answer);
    return 0;
}

int pb_sources_text(const struct pb_ask *ask, const struct pb_stacks *s, const char *file,
                    struct pb_room **ret_room, const char **ret, size_t *ret_length, struct pb_err *err)
{
    struct wanted_text q = {.stacks = s, .file = file};
    struct pb_task task = {.work = read_text,
                           .arg = &q,
                           .pid = s->source.pid,
                           .limit_ms = TEXT_LIMIT_MS,
                           .room_size = sizeof(q) + TEXT_MAX + 64,
                           .always = true};

    if (!is_in_stacks(s, file))
        return pb_fail(err, -ENOENT, "no frame of the process names the file %s", file);
    int r = pb_apart_one(ask, &task, err);
    if (r < 0)
        return r;
    const struct wanted_text *answer = pb_apart_answer_of(&task);
    *ret_room = task.room;
    *ret = answer->bytes;
    *ret_length = answer->length;
    return 0;
}

bool pb_stacks_is_own(const char *file)
{
    static const char *const others[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ",
                                         "<probing>"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strstr(file, others[i]))
            return false;
    return true;
}
