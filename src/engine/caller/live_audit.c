/* live_audit: rows of probing.audit: changes made through the user's service, from its log (serve/audit.c). A
 * change has two lines, its begin and its end, which become one row. */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/own_folder.h"
#include "control/relay.h"
#include "control/tables.def"
#include "engine/caller/live.h"
#include "table/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define A_ID(id, ...) A_##id,
enum { PB_TABLE_AUDIT(PB_NOTHING, A_ID) A_COLUMNS };
enum { LINE_MAX_BYTES = 32768, TEXT = 4096 };

struct change {
    char id[17];
    int64_t began, ended; /* UTC ns; 0: not known */
    char *texts[A_COLUMNS];
};

struct changes {
    struct change *at;
    size_t n;
};

static void release_changes(struct changes *all)
{
    for (size_t i = 0; i < all->n; i++)
        for (unsigned k = 0; k < A_COLUMNS; k++)
            free(all->at[i].texts[k]);
    free(all->at);
}

static int64_t time_of(const struct pb_json *j)
{
    struct tm tm = {0};
    char text[40];
    int ms = 0;

    pb_json_text(j, pb_json_get(j, 1, "time"), text, sizeof(text));
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest)
        return 0;
    sscanf(rest, ".%3dZ", &ms);
    return (int64_t)timegm(&tm) * 1000000000 + (int64_t)ms * 1000000;
}

static char *copy_member(const struct pb_json *j, const char *key)
{
    char text[TEXT];

    return pb_json_text(j, pb_json_get(j, 1, key), text, sizeof(text)) < 0 ? NULL : strdup(text);
}

/* The change that a line ends: one of the latest. */
static struct change *find_change(struct changes *all, const char *id)
{
    for (size_t i = all->n; i > 0; i--)
        if (strcmp(all->at[i - 1].id, id) == 0)
            return &all->at[i - 1];
    return NULL;
}

static int take_line(struct changes *all, const char *line, size_t length)
{
    static const char *const keys[A_COLUMNS] = {
        [A_PEER] = "peer", [A_TARGET] = "target", [A_WHAT] = "what", [A_BODY] = "body"};
    _cleanup_(pb_json_done) struct pb_json j = {0};
    char id[17];

    /* A full disk may have cut the line: it is skipped. */
    if (pb_json_parse(line, length, &j) < 0 || pb_json_text(&j, pb_json_get(&j, 1, "id"), id, sizeof(id)) < 0)
        return 0;
    struct change *c = pb_json_get(&j, 1, "outcome") ? find_change(all, id) : NULL;
    if (c) {
        free(c->texts[A_OUTCOME]);
        c->texts[A_OUTCOME] = copy_member(&j, "outcome");
        c->ended = time_of(&j);
        return 0;
    }
    if (!pb_json_get(&j, 1, "what"))
        return 0;
    struct change *more = reallocarray(all->at, all->n + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    all->at = more;
    c = &more[all->n++];
    *c = (struct change){.began = time_of(&j)};
    memcpy(c->id, id, sizeof(id));
    for (unsigned k = 0; k < A_COLUMNS; k++)
        c->texts[k] = keys[k] ? copy_member(&j, keys[k]) : NULL;
    return 0;
}

static int take_file(struct changes *all, int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    char *line = malloc(LINE_MAX_BYTES);
    int r = line ? 0 : -ENOMEM;

    while (file && r == 0 && fgets(line, LINE_MAX_BYTES, file))
        r = take_line(all, line, strlen(line));
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    free(line);
    return r;
}

int pb_live_audit(struct pb_table *t, const struct pb_live_source *source, struct pb_err *err)
{
    _cleanup_(release_changes) struct changes all = {0};
    char path[4096];

    /* The log belongs to the user, not to a process: only the first source of a query has it. */
    if (source->number > 0)
        return 0;
    pb_own_folder_path(PB_SERVE_FOLDER, PB_SERVE_FOLDER, path, sizeof(path));
    _cleanup_close_ int folder = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = folder < 0 ? 0 : take_file(&all, folder, "audit.1");
    if (r == 0 && folder >= 0)
        r = take_file(&all, folder, "audit");
    for (size_t i = 0; r == 0 && i < all.n; i++) {
        const struct change *c = &all.at[i];
        struct pb_row row;
        if (pb_row_begin(t, &row) < 0)
            break;
        pb_live_set_time(&row, A_TIME, c->began);
        for (unsigned k = A_PEER; k <= A_OUTCOME; k++)
            if (c->texts[k] && c->texts[k][0])
                pb_set_string(&row, k, c->texts[k], strlen(c->texts[k]));
        if (c->ended && c->began)
            pb_set_f64(&row, A_SECONDS, (double)(c->ended - c->began) / 1e9);
        pb_row_commit(&row);
    }
    return r;
}
