/* cluster_file: the file of a cluster; see cluster.h.
 *
 *   probing-cluster 1
 *   name NAME / way WAY / job TEXT / match TEXT / launcher TEXT / program TEXT / token-file TEXT /
 *   layout TEXT / serve TEXT / world N / seen NS a line each; texts go to the end of the line
 *   node NAME ADDRESS VERSION|- [OFFSET ERROR AT]
 *   service NODE ADDRESS TOKEN                   NODE: which of the nodes, from 0
 *   rank RANK NODE LOCAL PID START ROLES|-       NODE: which of the nodes, from 0
 *   end
 *
 * The file is the user's own, but it may be cut short, edited, or of another release: anything that is not
 * as above is refused with its line. */
#include "base/text.h"
#include "cluster/cluster.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/own_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADING "probing-cluster 1"
#define ENDING  ".cluster"
enum {
    PATH_SIZE = 4096,
    LINE_SIZE = 1024,
    FILE_MAX = 64 << 20,
    WORDS = 8,
    FILE_NAME_SIZE = PB_CLUSTER_NAME + sizeof(ENDING)
};

/* --- the text --- */

static char *field_of(struct pb_cluster *c, const char *key)
{
    const struct {
        const char *name;
        char *at;
    } texts[] = {{"job", c->job},         {"match", c->match},           {"launcher", c->launcher},
                 {"program", c->program}, {"token-file", c->token_file}, {"layout", c->layout},
                 {"serve", c->serve}};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(texts[i].name, key) == 0)
            return texts[i].at;
    return NULL;
}

static int read_int(const char *text, int64_t least, int64_t most, int64_t *ret)
{
    char *end;

    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most)
        return -EBADMSG;
    *ret = value;
    return 0;
}

static int take_node(struct pb_cluster *c, char **words, size_t n)
{
    int64_t numbers[3];

    if ((n != 3 && n != 6) || strlen(words[2]) >= sizeof(c->nodes->version))
        return -EBADMSG;
    for (size_t i = 0; i + 3 < n; i++)
        if (read_int(words[3 + i], INT64_MIN, INT64_MAX, &numbers[i]) < 0)
            return -EBADMSG;
    int r = pb_cluster_add_node(c, words[0], words[1]);
    if (r < 0)
        return r == -ENOMEM ? r : -EBADMSG;
    struct pb_cluster_node *node = &c->nodes[c->nnodes - 1];
    if (strcmp(words[2], "-") != 0)
        strcpy(node->version, words[2]);
    if (n == 6)
        node->clock = (struct pb_cluster_clock){true, numbers[0], numbers[1], numbers[2]};
    return 0;
}

static int take_service(struct pb_cluster *c, char **words, size_t n)
{
    int64_t node;

    if (n != 3 || read_int(words[0], 0, (int64_t)c->nnodes - 1, &node) < 0 ||
        strlen(words[1]) >= PB_CLUSTER_SERVICE || strlen(words[2]) >= PB_CLUSTER_TOKEN)
        return -EBADMSG;
    strcpy(c->nodes[node].service, words[1]);
    strcpy(c->nodes[node].token, words[2]);
    return 0;
}

static int take_rank(struct pb_cluster *c, char **words, size_t n)
{
    struct pb_cluster_rank rank = {0};
    int64_t number[4];

    if (n != 6 || read_int(words[0], 0, INT32_MAX, &number[0]) < 0 ||
        read_int(words[1], 0, PB_CLUSTER_NODES - 1, &number[1]) < 0 ||
        read_int(words[2], -1, INT32_MAX, &number[2]) < 0 || read_int(words[3], 1, INT32_MAX, &number[3]) < 0)
        return -EBADMSG;
    rank.rank = (int32_t)number[0];
    rank.node = (uint32_t)number[1];
    rank.local = (int32_t)number[2];
    rank.pid = (pid_t)number[3];
    if (read_int(words[4], 0, INT64_MAX, &number[0]) < 0)
        return -EBADMSG;
    rank.start_time = (uint64_t)number[0];
    if (strcmp(words[5], "-") != 0 && pb_roles_parse(words[5], &rank.roles) < 0)
        return -EBADMSG;
    int r = pb_cluster_add_rank(c, &rank);
    return r < 0 && r != -ENOMEM ? -EBADMSG : r;
}

static int take_way(struct pb_cluster *c, const char *text)
{
    for (int i = 0; i < PB_WAYS; i++)
        if (strcmp(pb_cluster_way_name((enum pb_cluster_way)i), text) == 0) {
            c->way = (enum pb_cluster_way)i;
            return 0;
        }
    return -EBADMSG;
}

/* 1: that was the last line. */
static int take_line(struct pb_cluster *c, char *line)
{
    char *words[WORDS], *rest = strchr(line, ' ');
    size_t n = 0;
    int64_t number;

    if (strcmp(line, "end") == 0)
        return 1;
    if (!rest)
        return -EBADMSG;
    *rest++ = '\0';
    if (!pb_text_is_clean(rest))
        return -EBADMSG;
    char *text = field_of(c, line);
    if (text || strcmp(line, "name") == 0) {
        size_t most = text ? PB_CLUSTER_TEXT : PB_CLUSTER_NAME;
        if (strlen(rest) >= most || (!text && !pb_cluster_is_name(rest)))
            return -EBADMSG;
        strcpy(text ? text : c->name, rest);
        return 0;
    }
    if (strcmp(line, "way") == 0)
        return take_way(c, rest);
    if (strcmp(line, "world") == 0 || strcmp(line, "seen") == 0) {
        bool world = line[0] == 'w';
        if (read_int(rest, 0, world ? PB_CLUSTER_RANKS : INT64_MAX, &number) < 0)
            return -EBADMSG;
        if (world)
            c->world = (uint32_t)number;
        else
            c->seen_ns = number;
        return 0;
    }
    for (char *save, *word = strtok_r(rest, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        if (n == WORDS)
            return -EBADMSG;
        words[n++] = word;
    }
    return strcmp(line, "node") == 0      ? take_node(c, words, n)
           : strcmp(line, "service") == 0 ? take_service(c, words, n)
           : strcmp(line, "rank") == 0    ? take_rank(c, words, n)
                                          : -EBADMSG;
}

int pb_cluster_parse(const char *text, size_t n, struct pb_cluster *ret, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};
    char line[LINE_SIZE];
    size_t number = 0;
    int r = 0;

    while (r == 0 && n) {
        const char *newline = memchr(text, '\n', n);
        size_t length = newline ? (size_t)(newline - text) : n;
        number++;
        if (!newline || length >= sizeof(line) || memchr(text, '\0', length)) {
            r = -EBADMSG;
            break;
        }
        memcpy(line, text, length);
        line[length] = '\0';
        text += length + 1;
        n -= length + 1;
        if (number == 1)
            r = strcmp(line, HEADING) == 0 ? 0 : -EBADMSG;
        else
            r = take_line(&c, line);
    }
    if (r == 0 || (r == 1 && (n || !c.name[0])))
        r = -EBADMSG;
    if (r < 0)
        return pb_fail(err, r, r == -ENOMEM ? "out of memory" : "line %zu is not as it should be, or missing",
                       number);
    *ret = pb_take(c, (struct pb_cluster){0});
    return 0;
}

static void put_text(FILE *out, const char *key, const char *text)
{
    if (text[0])
        fprintf(out, "%s %s\n", key, text);
}

int pb_cluster_format(const struct pb_cluster *c, char **ret, size_t *ret_length)
{
    char *text = NULL, roles[PB_ROLES_TEXT];
    FILE *out = open_memstream(&text, ret_length);

    if (!out)
        return -ENOMEM;
    fprintf(out, HEADING "\nname %s\nway %s\n", c->name, pb_cluster_way_name(c->way));
    put_text(out, "job", c->job);
    put_text(out, "match", c->match);
    put_text(out, "launcher", c->launcher);
    put_text(out, "program", c->program);
    put_text(out, "token-file", c->token_file);
    put_text(out, "layout", c->layout);
    put_text(out, "serve", c->serve);
    fprintf(out, "world %u\nseen %" PRId64 "\n", c->world, c->seen_ns);
    for (size_t i = 0; i < c->nnodes; i++) {
        const struct pb_cluster_node *n = &c->nodes[i];
        fprintf(out, "node %s %s %s", n->name, n->address, n->version[0] ? n->version : "-");
        if (n->clock.known)
            fprintf(out, " %" PRId64 " %" PRId64 " %" PRId64, n->clock.offset_ns, n->clock.error_ns,
                    n->clock.at_ns);
        putc('\n', out);
    }
    for (size_t i = 0; i < c->nnodes; i++)
        if (c->nodes[i].service[0])
            fprintf(out, "service %zu %s %s\n", i, c->nodes[i].service, c->nodes[i].token);
    for (size_t i = 0; i < c->nranks; i++) {
        const struct pb_cluster_rank *r = &c->ranks[i];
        pb_roles_format(&r->roles, roles);
        fprintf(out, "rank %d %u %d %d %" PRIu64 " %s\n", r->rank, r->node, r->local, (int)r->pid,
                r->start_time, roles[0] ? roles : "-");
    }
    fputs("end\n", out);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return -ENOMEM;
    }
    *ret = text;
    return 0;
}

/* --- the folder --- */

/* Opened, and made where it is not there; whatever is not the user's own is refused: what lies in it says
 * which program is started. */
static int open_folder(struct pb_err *err)
{
    char path[PATH_SIZE];
    struct stat st;

    pb_own_folder_path("probing-clusters", "probing-clusters", path, sizeof(path));
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return pb_fail(err, -errno, "%s cannot be made: %s", path, strerror(errno));
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return pb_fail(err, -errno, "%s cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077)
        return pb_fail(err, -EPERM, "%s is not yours alone (it must be, with mode 0700)", path);
    return pb_take_fd(fd);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void pb_cluster_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

int pb_cluster_names(char ***ret, size_t *ret_n, struct pb_err *err)
{
    int fd = open_folder(err);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return pb_fail(err, -errno, "the folder of clusters cannot be read: %s", strerror(errno));
    }
    char **names = NULL;
    size_t n = 0;
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        size_t length = strlen(e->d_name), ending = strlen(ENDING);
        if (length <= ending || strcmp(e->d_name + length - ending, ENDING) != 0)
            continue;
        char **more = realloc(names, (n + 1) * sizeof(*names));
        if (more) {
            names = more;
            names[n] = strndup(e->d_name, length - ending);
        }
        r = more && names[n] ? 0 : -ENOMEM;
        n += r == 0;
    }
    closedir(dir);
    if (r < 0) {
        pb_cluster_names_free(names, n);
        return pb_fail(err, r, "out of memory");
    }
    if (n)
        qsort(names, n, sizeof(*names), by_name);
    *ret = names;
    *ret_n = n;
    return 0;
}

static int read_all(int fd, char **ret, size_t *ret_n)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size > FILE_MAX)
        return -EPERM;
    _cleanup_free_ char *text = malloc((size_t)st.st_size + 1);
    size_t n = 0;
    if (!text)
        return -ENOMEM;
    while (n < (size_t)st.st_size) {
        ssize_t more = read(fd, text + n, (size_t)st.st_size - n);
        if (more < 0 && errno != EINTR)
            return -errno;
        if (more == 0)
            break;
        n += more > 0 ? (size_t)more : 0;
    }
    *ret = pb_take_ptr(text);
    *ret_n = n;
    return 0;
}

/* Which of several: err names them. */
static int find_only(char ret[PB_CLUSTER_NAME], struct pb_err *err)
{
    char **names = NULL;
    size_t n = 0;

    int r = pb_cluster_names(&names, &n, err);
    if (r < 0)
        return r;
    if (n == 1 && pb_cluster_is_name(names[0])) {
        strcpy(ret, names[0]);
    } else if (n == 0) {
        r = pb_fail(err, -ENOENT, "no cluster is attached (probing cluster attach)");
    } else {
        char text[256] = "";
        for (size_t i = 0, at = 0; i < n && at < sizeof(text); i++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? ", " : "", names[i]);
        r = pb_fail(err, -EINVAL, "which cluster? There are %s (-t cluster:NAME)", text);
    }
    pb_cluster_names_free(names, n);
    return r;
}

/* The folder, and the name of the cluster's file in it. */
static int open_folder_of(const char *name, char ret_file[FILE_NAME_SIZE], struct pb_err *err)
{
    if (!pb_cluster_is_name(name))
        return pb_fail(err, -EINVAL, "'%s' is no name of a cluster", name);
    snprintf(ret_file, FILE_NAME_SIZE, "%s" ENDING, name);
    return open_folder(err);
}

int pb_cluster_load(const char *name, struct pb_cluster *ret, struct pb_err *err)
{
    char only[PB_CLUSTER_NAME], file[FILE_NAME_SIZE];
    _cleanup_free_ char *text = NULL;
    struct pb_err why = {0};
    size_t n = 0;

    if (!name || !name[0]) {
        int r = find_only(only, err);
        if (r < 0)
            return r;
        name = only;
    }
    _cleanup_close_ int folder = open_folder_of(name, file, err);
    if (folder < 0)
        return folder;
    _cleanup_close_ int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return pb_fail(err, -errno,
                       errno == ENOENT ? "there is no cluster '%s' (probing cluster list shows them)"
                                       : "the file of cluster '%s' cannot be opened",
                       name);
    int r = read_all(fd, &text, &n);
    if (r == 0)
        r = pb_cluster_parse(text, n, ret, &why);
    if (r < 0)
        return pb_fail(err, r, "the file of cluster '%s' cannot be read: %s (attach it again)", name,
                       pb_err_text(&why, r));
    snprintf(ret->name, sizeof(ret->name), "%s", name);
    return 0;
}

static int write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t more = write(fd, text, n);
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return -errno;
        text += more;
        n -= (size_t)more;
    }
    return 0;
}

/* As open_folder_of, for a change: until it is closed nobody else changes a file there. */
static int lock_folder_of(const char *name, char ret_file[FILE_NAME_SIZE], struct pb_err *err)
{
    int folder = open_folder_of(name, ret_file, err);

    while (folder >= 0 && flock(folder, LOCK_EX) < 0 && errno == EINTR)
        ;
    return folder;
}

/* folder: of lock_folder_of. */
static int save_into(int folder, const char *file, const struct pb_cluster *c, struct pb_err *err)
{
    char part[PB_CLUSTER_NAME + 32];
    _cleanup_free_ char *text = NULL;
    size_t n;

    int r = pb_cluster_format(c, &text, &n);
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    snprintf(part, sizeof(part), ".%s.%d", c->name, (int)getpid());
    unlinkat(folder, part, 0);
    _cleanup_close_ int fd = openat(folder, part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    r = fd < 0 ? -errno : write_all(fd, text, n);
    if (r == 0 && renameat(folder, part, folder, file) < 0)
        r = -errno;
    if (r < 0) {
        unlinkat(folder, part, 0);
        return pb_fail(err, r, "the file of cluster '%s' cannot be written: %s", c->name, strerror(-r));
    }
    return 0;
}

int pb_cluster_save(const struct pb_cluster *c, struct pb_err *err)
{
    char file[FILE_NAME_SIZE];
    _cleanup_close_ int folder = lock_folder_of(c->name, file, err);

    return folder < 0 ? folder : save_into(folder, file, c, err);
}

int pb_cluster_save_clocks(const struct pb_cluster *c, struct pb_err *err)
{
    _cleanup_(pb_cluster_done) struct pb_cluster now = {0};
    char file[FILE_NAME_SIZE];
    _cleanup_close_ int folder = lock_folder_of(c->name, file, err);

    if (folder < 0)
        return folder;
    int r = pb_cluster_load(c->name, &now, err);
    if (r == -ENOENT) /* detached meanwhile */
        return 0;
    for (size_t i = 0; r == 0 && i < now.nnodes; i++) {
        ssize_t at = pb_cluster_find_node(c, now.nodes[i].name);
        if (at >= 0 && strcmp(c->nodes[at].address, now.nodes[i].address) == 0 &&
            (!now.nodes[i].clock.known || c->nodes[at].clock.at_ns > now.nodes[i].clock.at_ns))
            now.nodes[i].clock = c->nodes[at].clock;
    }
    return r < 0 ? r : save_into(folder, file, &now, err);
}

int pb_cluster_forget(const char *name, struct pb_err *err)
{
    char file[FILE_NAME_SIZE];

    _cleanup_close_ int folder = lock_folder_of(name, file, err);
    if (folder < 0)
        return folder;
    if (unlinkat(folder, file, 0) < 0)
        return pb_fail(err, -errno,
                       errno == ENOENT ? "there is no cluster '%s'" : "cluster '%s' cannot be forgotten",
                       name);
    return 0;
}
