/* line_history: see line_history.h. */
#include "cli/line/line_history.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "cli/line/line_edit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 8 << 20 }; /* a file larger than this was not written by us */

static void push_entry(struct pb_line_history *h, char *entry)
{
    if (!h->at || !entry) {
        free(entry);
        return;
    }
    if (h->n == PB_HISTORY_MAX) {
        free(h->at[0]);
        memmove(h->at, h->at + 1, --h->n * sizeof(*h->at));
    }
    h->at[h->n++] = entry;
}

void pb_line_history_done(struct pb_line_history *h)
{
    for (size_t i = 0; i < h->n; i++)
        free(h->at[i]);
    free(h->at);
    free(h->path);
    *h = (struct pb_line_history){0};
}

/* --- the file --- */

static char *unescaped(const char *line, size_t n)
{
    char *text = malloc(n + 1), *to = text;

    for (size_t i = 0; text && i < n; i++) {
        bool escape = line[i] == '\\' && i + 1 < n;
        i += escape;
        *to++ = (char)(escape && line[i] == 'n' ? '\n' : line[i]);
    }
    if (text)
        *to = '\0';
    return text;
}

static void put_escaped(FILE *to, const char *text)
{
    for (const char *p = text; *p; p++)
        if (*p == '\n')
            fputs("\\n", to);
        else if (*p == '\\')
            fputs("\\\\", to);
        else
            putc(*p, to);
    putc('\n', to);
}

/* Opens and locks the file. It must be a regular file of this user. */
static int open_file(const char *path)
{
    struct stat st;

    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size > FILE_MAX)
        return -EPERM;
    if (fchmod(fd, 0600) < 0 || flock(fd, LOCK_EX) < 0)
        return -errno;
    return pb_take_fd(fd);
}

/* Adds the entries of the file. Returns how many lines it has. */
static size_t read_lines(struct pb_line_history *h, FILE *file)
{
    _cleanup_free_ char *line = NULL;
    size_t room = 0, lines = 0;

    for (ssize_t n; (n = getline(&line, &room, file)) > 0; lines++) {
        n -= line[n - 1] == '\n';
        if (n > 0 && n <= (ssize_t)PB_HISTORY_BYTES && !memchr(line, 0, (size_t)n))
            push_entry(h, unescaped(line, (size_t)n));
    }
    return lines;
}

/* Cuts a file that has grown too long to its newest entries. In place, under the lock: other prompts append
 * to the same file. */
static void rewrite_file(const struct pb_line_history *h, FILE *file)
{
    if (ftruncate(fileno(file), 0) < 0)
        return;
    for (size_t i = 0; i < h->n; i++)
        put_escaped(file, h->at[i]);
}

int pb_line_history_open(const char *path, struct pb_line_history *ret)
{
    struct pb_line_history h = {.at = calloc(PB_HISTORY_MAX, sizeof(*h.at))};

    if (!h.at)
        return -ENOMEM;
    int fd = path ? open_file(path) : -ENOENT;
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r+");
    if (file) {
        h.path = strdup(path);
        if (read_lines(&h, file) > 2 * PB_HISTORY_MAX)
            rewrite_file(&h, file);
        fclose(file);
    } else if (fd >= 0) {
        close(fd);
    }
    *ret = h;
    return 0;
}

void pb_line_history_add(struct pb_line_history *h, const char *text)
{
    if (text[strspn(text, " \t\n")] == '\0' || (h->n && strcmp(h->at[h->n - 1], text) == 0))
        return;
    push_entry(h, strdup(text));
    if (!h->path || strlen(text) > PB_HISTORY_BYTES / 2)
        return;
    int fd = open_file(h->path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    if (file) {
        put_escaped(file, text);
        fclose(file);
    } else if (fd >= 0) {
        close(fd);
    }
}

/* --- its path --- */

static int make_directories(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int r = mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
        *slash = '/';
        if (r < 0)
            return r;
    }
    return 0;
}

static int find_path(const char *name, char *ret, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;

    if (state && state[0] == '/')
        n = snprintf(ret, size, "%s/probing/%s_history", state, name);
    else if (home && home[0] == '/')
        n = snprintf(ret, size, "%s/.local/state/probing/%s_history", home, name);
    else
        return -ENOENT;
    return n < (int)size && make_directories(ret) == 0 ? 0 : -ENOENT;
}

int pb_line_open_prompt(const char *name, const struct pb_line_hooks *hooks, struct pb_line **ret,
                        struct pb_err *err)
{
    char path[PATH_MAX];

    bool found = find_path(name, path, sizeof(path)) == 0;
    int r = pb_line_open(STDIN_FILENO, STDOUT_FILENO, hooks, found ? path : NULL, ret);
    return r < 0 ? pb_fail(err, r, "the prompt cannot be opened: %s", strerror(-r)) : 0;
}
