/* stacks_source: lines of source files as another process sees them.
 *
 * Files are opened below the process's own root with the rights of its user, links resolved inside it,
 * relative paths below its working directory. Only regular files are read: a path chosen by the target must
 * not block us. */
#include "ask/stacks.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "control/own_code.h"
#include "remote/core.h"
#include "remote/named.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 256
#define SHOWN_MAX 400        /* bytes of a line */
#define BYTES_MAX (64 << 20) /* of all files together */

struct source_file {
    char *name;
    char *text;     /* NULL: cannot be read */
    uint32_t *line; /* offset of each line found so far: threads share their outer frames */
    size_t nlines;
};

struct pb_sources {
    struct pb_named_root view;
    struct source_file files[FILES_MAX];
    size_t n, bytes;
};

static int open_folders(struct pb_sources *s, const struct pb_stacks *stacks)
{
    const struct pb_core_info *core = stacks->about.core;

    return core ? pb_named_root_of_core(core, stacks->root, &s->view)
                : pb_named_root_open(stacks->source.pid, &s->view);
}

struct pb_sources *pb_sources_new(const struct pb_stacks *stacks)
{
    struct pb_sources *s = calloc(1, sizeof(*s));

    if (s)
        (void)open_folders(s, stacks); /* without them no file can be opened */
    return s;
}

struct pb_sources *pb_sources_of(pid_t pid)
{
    struct pb_sources *s = calloc(1, sizeof(*s));

    if (s)
        (void)pb_named_root_open(pid, &s->view);
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
    pb_named_root_close(&s->view);
    free(s);
}

static char *read_whole_file(struct pb_sources *s, const char *file)
{
    struct stat st;

    _cleanup_close_ int fd = pb_named_root_file(&s->view, file);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size > BYTES_MAX || s->bytes + (size_t)st.st_size > BYTES_MAX)
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

const char *pb_sources_whole_line(struct pb_sources *s, const char *file, int line, int *ret_len)
{
    struct source_file *f = s && line > 0 ? find_file(s, file) : NULL;
    const char *at = f && f->text ? line_of(f, (size_t)line) : NULL;
    size_t len = at ? strcspn(at, "\n") : 0;

    /* What follows the last line end is no line. */
    if (!at || (!len && !at[len]))
        return NULL;
    *ret_len = len > SHOWN_MAX ? SHOWN_MAX : (int)len;
    return at;
}

const char *pb_sources_line(struct pb_sources *s, const char *file, int line, int *ret_len)
{
    const char *at = pb_sources_whole_line(s, file, line, ret_len);

    if (!at)
        return NULL;
    at += strspn(at, " \t\f");
    size_t len = strcspn(at, "\n");
    while (len && (at[len - 1] == ' ' || at[len - 1] == '\r' || at[len - 1] == '\t'))
        len--;
    *ret_len = len > SHOWN_MAX ? SHOWN_MAX : (int)len;
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

/* In a child of its own: opening and reading may both wait for ever. */
static int read_text(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct wanted_text *q = arg;
    struct pb_sources s;
    ssize_t n = 0;

    int r = open_folders(&s, q->stacks);
    _cleanup_close_ int fd = r < 0 ? r : pb_named_root_file(&s.view, q->file);
    if (fd < 0)
        return pb_fail(err, fd, "%s cannot be read: %s", q->file,
                       fd == -ENXIO ? "not a regular file" : strerror(-fd));
    struct wanted_text *answer = pb_room_alloc(room, sizeof(*answer) + TEXT_MAX);
    if (!answer)
        return pb_fail(err, -ENOMEM, "out of memory");
    while (answer->length < TEXT_MAX &&
           (n = read(fd, answer->bytes + answer->length, TEXT_MAX - answer->length)) > 0)
        answer->length += (size_t)n;
    if (n < 0)
        return pb_fail(err, -errno, "%s cannot be read: %s", q->file, strerror(errno));
    pb_task_answer(room, answer);
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
    int r = pb_task_run(ask, &task, err);
    if (r < 0)
        return r;
    const struct wanted_text *answer = pb_task_answer_of(&task);
    *ret_room = task.room;
    *ret = answer->bytes;
    *ret_length = answer->length;
    return 0;
}

bool pb_stacks_is_own(const char *file)
{
    return !pb_is_library_file(file);
}

const struct pb_shown_frame *pb_stacks_own_frame(const struct pb_shown_thread *t)
{
    for (size_t i = 0; i < t->nframes; i++) {
        const struct pb_py_code *code = t->frames[i].code;
        if (pb_stacks_is_own(code->file))
            return &t->frames[i];
        if (strcmp(code->name, "_bootstrap") == 0 && strstr(code->file, "/multiprocessing/process.py"))
            return NULL;
    }
    return NULL;
}
