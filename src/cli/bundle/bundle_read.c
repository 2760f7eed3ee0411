/* bundle_read: the manifest of an unpacked incident's file, and what commands printed when it was made. The
 * file may be from anybody: numbers are checked, and texts go out as those of a process do. */
#include "ask/profiles.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_write.h"
#include "cli/bundle/bundle.h"
#include "cli/print/rows.h"
#include "print/outlet.h"
#include "profile/profile.h"
#include "remote/runs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PART_MAX = 256 << 20, PROCESSES_MAX = 100000 };

/* Reads a whole part; a NUL follows it. */
static int read_part(const char *folder, const char *name, char **ret, size_t *ret_size)
{
    char path[2 * PATH_MAX];
    struct stat st;
    size_t n = 0;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > PART_MAX)
        return -EFBIG;
    char *text = malloc((size_t)st.st_size + 1);
    if (!text)
        return -ENOMEM;
    for (ssize_t one = 1; n < (size_t)st.st_size && (one = read(fd, text + n, (size_t)st.st_size - n)) > 0;)
        n += (size_t)one;
    text[n] = '\0';
    *ret = text;
    *ret_size = n;
    return 0;
}

static void get_text(const struct pb_json *j, uint32_t node, const char *key, char *ret, size_t size)
{
    uint32_t at = pb_json_get(j, node, key);

    if (!at || j->nodes[at].kind != '"' || pb_json_text(j, at, ret, size) < 0)
        ret[0] = '\0';
}

static uint64_t get_number(const struct pb_json *j, uint32_t node, const char *key, uint64_t otherwise)
{
    char text[32];
    uint32_t at = pb_json_get(j, node, key);

    if (!at || j->nodes[at].kind || pb_json_text(j, at, text, sizeof(text)) < 0 || text[0] < '0' ||
        text[0] > '9')
        return otherwise;
    return strtoull(text, NULL, 10);
}

static void read_process(const struct pb_json *j, uint32_t node, struct pb_bundle_process *ret)
{
    struct pb_target *t = &ret->target;
    char state[16];

    get_text(j, node, "state", state, sizeof(state));
    get_text(j, node, "command", ret->command, sizeof(ret->command));
    get_text(j, node, "python", ret->python, sizeof(ret->python));
    uint64_t pid = get_number(j, node, "pid", 0), rank = get_number(j, node, "rank", UINT64_MAX);
    /* Whatever it was then: nothing of this machine is meant by it. */
    *t = (struct pb_target){.pid = pid <= INT32_MAX ? (pid_t)pid : 0,
                            .dead = true,
                            .start_time = get_number(j, node, "start_time", 0),
                            .rank = -1};
    if (rank <= INT32_MAX)
        pb_target_set_rank(t, (int32_t)rank);
    else
        snprintf(t->label, sizeof(t->label), "pid %d", (int)t->pid);
}

int pb_bundle_read(const char *folder, const char *path, struct pb_bundle *ret, struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;
    struct pb_bundle b = {0};
    struct pb_json j = {0};
    size_t size;

    int r = read_part(folder, "manifest.json", &text, &size);
    if (r == 0)
        r = pb_json_parse(text, size, &j);
    if (r == -ENOMEM)
        return pb_fail(err, r, "out of memory");
    if (r < 0)
        return pb_fail(err, -EBADMSG, "%.200s is no incident's file: it has no manifest", path);
    uint64_t layout = get_number(&j, 1, "probing_incident", 0);
    uint32_t list = pb_json_get(&j, 1, "processes");
    if (layout != PB_BUNDLE_LAYOUT || !list || j.nodes[list].kind != '[')
        r = pb_fail(err, -EBADMSG, "%.200s %s", path,
                    layout > PB_BUNDLE_LAYOUT ? "was made by a newer release (install that one)"
                                              : "is no incident's file: its manifest is another program's");
    snprintf(b.folder, sizeof(b.folder), "%s", folder);
    get_text(&j, 1, "made", b.made, sizeof(b.made));
    get_text(&j, 1, "target", b.named, sizeof(b.named));
    b.found = get_number(&j, 1, "findings", 0);
    for (uint32_t at = r == 0 ? j.nodes[list].child : 0; r == 0 && at; at = j.nodes[at].next) {
        struct pb_bundle_process *more = NULL;
        if (b.nprocesses < PROCESSES_MAX)
            more = realloc(b.processes, (b.nprocesses + 1) * sizeof(*more));
        if (!more) {
            r = pb_fail(err, -ENOMEM, "%.200s names too many processes", path);
            break;
        }
        b.processes = more;
        read_process(&j, at, &more[b.nprocesses++]);
    }
    pb_json_done(&j);
    if (r < 0)
        pb_bundle_done(&b);
    else
        *ret = b;
    return r;
}

static bool is_meant(const struct pb_bundle_process *p, const char *text)
{
    struct pb_run_id id;

    if (!text)
        return true;
    if (strspn(text, "0123456789") == strlen(text))
        return p->target.pid == atoi(text);
    if (pb_run_id_parse(text, &id) == 0)
        return p->target.pid == id.pid && p->target.start_time == id.start_time;
    return strstr(p->command, text);
}

int pb_bundle_targets(const struct pb_bundle *b, const char *text, struct pb_targets *ret, struct pb_err *err)
{
    struct pb_targets found = {.at = calloc(b->nprocesses + 1, sizeof(*found.at))};

    if (!found.at)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < b->nprocesses; i++)
        if (is_meant(&b->processes[i], text))
            found.at[found.n++] = b->processes[i].target;
    if (!found.n) {
        pb_targets_done(&found);
        return pb_fail(err, -ESRCH, "the incident's file has no process '%.60s' (list shows those it has)",
                       text ? text : "");
    }
    *ret = found;
    return 0;
}

/* --- what was printed --- */

bool pb_bundle_replays(const struct pb_call *call)
{
    return call->command->printed;
}

/* list: the processes of the file, in the columns of the command. */
static int print_list(const struct pb_call *call, const struct pb_bundle *b, struct pb_err *err)
{
    static const char *const columns[] = {"pid",    "state",     "python", "rank",
                                          "uptime", "memory_mb", "id",     "command"};
    char id[PB_RUN_ID_SIZE];
    struct pb_rows rows;

    pb_rows_init(&rows, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < b->nprocesses; i++) {
        const struct pb_bundle_process *p = &b->processes[i];
        int32_t rank = pb_target_rank(&p->target);
        pb_rows_number(&rows, "%d", (int)p->target.pid);
        pb_rows_text(&rows, "dead");
        pb_rows_text(&rows, p->python[0] ? p->python : NULL);
        if (rank >= 0)
            pb_rows_number(&rows, "%d", rank);
        else
            pb_rows_text(&rows, NULL);
        pb_rows_text(&rows, NULL);
        pb_rows_text(&rows, NULL);
        pb_rows_text(&rows, pb_run_id_text(&(struct pb_run_id){p->target.pid, p->target.start_time, 0}, id));
        pb_rows_text(&rows, p->command);
    }
    int r = pb_rows_print(&rows, call->format, "the file has no process", err);
    pb_rows_done(&rows);
    return r;
}

static bool has_pid(const struct pb_targets *targets, uint64_t pid)
{
    for (size_t i = 0; i < targets->n; i++)
        if ((uint64_t)targets->at[i].pid == pid)
            return true;
    return false;
}

/* An array of objects: those of the targets. */
static int print_elements(const struct pb_targets *targets, const char *text, size_t size)
{
    struct pb_json_writer w = {.out = stdout};
    struct pb_json j = {0};

    int r = pb_json_parse(text, size, &j);
    if (r < 0 || j.nodes[1].kind != '[') {
        pb_json_done(&j);
        return r < 0 ? r : -EBADMSG;
    }
    pb_json_open(&w, NULL, '[');
    for (uint32_t at = j.nodes[1].child; at; at = j.nodes[at].next) {
        size_t length;
        const char *span = pb_json_span(&j, at, &length);
        if (!has_pid(targets, get_number(&j, at, "pid", 0)))
            continue;
        pb_json_line(&w, 2);
        pb_json_put_made(&w, NULL, span, length);
    }
    pb_json_close(&w);
    putchar('\n');
    pb_json_done(&j);
    return 0;
}

/* Text in blocks, each led by "process PID": those of the targets, and what stands before the first. */
static void print_blocks(const struct pb_targets *targets, const char *text)
{
    static const char lead[] = "process ";
    bool shown = true;

    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        n += line[n] == '\n';
        if (strncmp(line, lead, sizeof(lead) - 1) == 0)
            shown = has_pid(targets, strtoull(line + sizeof(lead) - 1, NULL, 10));
        if (shown)
            fwrite(line, 1, n, stdout);
        line += n;
    }
}

/* Options of the command that ask for what was not kept. */
static int refuse_options(const struct pb_call *call, struct pb_err *err)
{
    char padded[40];

    for (size_t i = 0; call->command->options && call->command->options[i].name; i++) {
        snprintf(padded, sizeof(padded), " %s ", call->command->options[i].name);
        if (call->values[i] && !strstr(call->command->printed->options, padded))
            return pb_fail(err, PB_USAGE, "--%s is not for an incident's file: it has what %s printed",
                           call->command->options[i].name, call->command->name);
    }
    return 0;
}

int pb_bundle_replay(const struct pb_call *call, const struct pb_bundle *b, struct pb_err *err)
{
    const struct pb_printed_parts *printed = call->command->printed;
    _cleanup_free_ char *text = NULL;
    size_t size;

    int r = refuse_options(call, err);
    if (r < 0)
        return r;
    if (!printed->text)
        return print_list(call, b, err);
    bool json = call->format == PB_FORMAT_JSON || pb_call_option(call, "json");
    bool merge = pb_call_option(call, "merge");
    if ((!json && call->format != PB_FORMAT_TABLE) || (json && merge))
        return pb_fail(err, PB_USAGE, "of an incident's file %s prints text or JSON%s", call->command->name,
                       merge ? ", and merged stacks as text" : "");
    const char *part = json ? printed->json : merge ? "stacks-merged.txt" : printed->text;
    r = read_part(b->folder, part, &text, &size);
    if (r < 0)
        return pb_fail(err, r, "the file has no %s: %s (its manifest.json says what was left out)", part,
                       strerror(-r));
    bool stacks = printed->by_process && !merge;
    r = 0;
    if (stacks && json)
        r = print_elements(&call->targets, text, size);
    else if (stacks)
        print_blocks(&call->targets, text);
    else
        fwrite(text, 1, size, stdout);
    if (r < 0)
        return pb_fail(err, r, "the file's %s is damaged", part);
    return b->found && printed->finding ? PB_FOUND : 0;
}

int pb_bundle_settings(const char *folder, int (*each)(void *arg, const char *name, const char *value),
                       void *arg)
{
    _cleanup_free_ char *text = NULL;
    struct pb_json j = {0};
    char name[128], value[512];
    size_t size;

    if (read_part(folder, "settings.json", &text, &size) < 0 || pb_json_parse(text, size, &j) < 0)
        return 0; /* it was left out */
    int r = 0;
    for (uint32_t at = j.nodes[1].child; r == 0 && at; at = j.nodes[at].next) {
        get_text(&j, at, "name", name, sizeof(name));
        get_text(&j, at, "value", value, sizeof(value));
        r = name[0] ? each(arg, name, value) : 0;
    }
    pb_json_done(&j);
    return r;
}

/* --- profiles --- */

struct reading_profiles {
    const char *folder;
    struct pb_profile *p;
    struct pb_err *err;
    unsigned n;
};

static int read_recording(void *arg, const char *name, uint64_t size)
{
    struct reading_profiles *reading = arg;
    char path[2 * PATH_MAX];
    (void)size;

    if (strncmp(name, "recordings/", 11) != 0)
        return 0;
    snprintf(path, sizeof(path), "%s/%s", reading->folder, name);
    reading->n++;
    return pb_profile_read(path, 0, INT64_MAX, reading->p, reading->err);
}

int pb_bundle_profile(const char *folder, struct pb_profile *p, struct pb_err *err)
{
    struct reading_profiles reading = {.folder = folder, .p = p, .err = err};
    char path[2 * PATH_MAX];

    int r = pb_bundle_each_file(folder, read_recording, &reading);
    if (r < 0 || reading.n)
        return r;
    snprintf(path, sizeof(path), "%s/profile.folded", folder);
    if (access(path, R_OK) < 0)
        return pb_fail(err, -ENODATA, "the file has no samples (its manifest.json says what was left out)");
    return pb_profile_read(path, 0, INT64_MAX, p, err);
}
