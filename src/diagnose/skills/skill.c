/* skill: see skill.h. */
#include "diagnose/skills/skill.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/replace.h"
#include "base/text.h"
#include "base/yaml.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOTS = 3 };

/* --- files --- */

/* -ENOENT: it is not there. A file must be a plain one: a FIFO would never end. */
static int read_file(const char *folder, const char *name, char **ret, size_t *ret_length, struct pb_err *err)
{
    char path[PATH_MAX + 32];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pb_fail(err, -errno, "%s: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return pb_fail(err, -EINVAL, "%s is no plain file", name);
    char *text = malloc(PB_YAML_MAX + 2);
    ssize_t n, size = 0;
    if (!text)
        return pb_fail(err, -ENOMEM, "out of memory");
    while (size <= PB_YAML_MAX && (n = read(fd, text + size, (size_t)(PB_YAML_MAX + 1 - size))) > 0)
        size += n;
    if (size > PB_YAML_MAX) {
        free(text);
        return pb_fail(err, -EFBIG, "%s is longer than %d KB", name, PB_YAML_MAX >> 10);
    }
    text[size] = '\0';
    *ret = text;
    *ret_length = (size_t)size;
    return 0;
}

static bool has_file(const char *folder, const char *name)
{
    char path[PATH_MAX + 32];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static bool is_id(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

    return *text && strlen(text) < PB_SKILL_NAME && strspn(text, letters) == strlen(text);
}

/* --- a playbook --- */

uint32_t pb_skill_first(const struct pb_skill *s, uint32_t node)
{
    return node && s->doc.nodes[node].kind && s->doc.nodes[node].kind != '"' ? s->doc.nodes[node].child : 0;
}

const char *pb_skill_get(const struct pb_skill *s, uint32_t node, const char *key, char *ret, size_t size)
{
    uint32_t value = node && s->doc.nodes[node].kind == '{' ? pb_json_get(&s->doc, node, key) : 0;

    ret[0] = '\0';
    if (value && s->doc.nodes[value].kind == '"' && pb_json_text(&s->doc, value, ret, size) < 0)
        ret[0] = '\0';
    return ret;
}

char *pb_skill_copy(const struct pb_skill *s, uint32_t node, const char *key)
{
    uint32_t value = node && s->doc.nodes[node].kind == '{' ? pb_json_get(&s->doc, node, key) : 0;
    size_t size = value ? (size_t)s->doc.nodes[value].length + 1 : 1;
    char *text = malloc(size);

    if (text)
        pb_skill_get(s, node, key, text, size);
    return text;
}

uint32_t pb_skill_part(const struct pb_skill *s, const char *name)
{
    return s->text ? pb_json_get(&s->doc, pb_json_get(&s->doc, 1, "spec"), name) : 0;
}

static void skill_done(struct pb_skill *s)
{
    if (s->text)
        pb_json_done(&s->doc);
    free(s->text);
}

/* The YAML of a text as a tree; *ret_json holds its texts. */
static int read_yaml(const char *text, size_t length, char **ret_json, struct pb_json *ret,
                     struct pb_err *err)
{
    char *json = NULL;
    size_t size = 0;

    int r = pb_yaml_to_json(text, length, &json, &size, err);
    if (r == 0 && (r = pb_json_parse(json, size, ret)) < 0)
        pb_fail(err, r, "nested too deeply");
    if (r == 0 && ret->nodes[1].kind != '{') {
        pb_json_done(ret);
        r = pb_fail(err, -EBADMSG, "it is no mapping");
    }
    if (r < 0)
        free(json);
    else
        *ret_json = json;
    return r;
}

/* What stands between two lines of "---" at the beginning of SKILL.md. */
static void read_front(struct pb_skill *s)
{
    _cleanup_free_ char *text = NULL;
    struct pb_skill front = {0};
    size_t length;

    if (read_file(s->folder, "SKILL.md", &text, &length, NULL) < 0 || strncmp(text, "---\n", 4) != 0)
        return;
    char *end = strstr(text + 3, "\n---");
    if (!end || read_yaml(text + 4, (size_t)(end + 1 - text - 4), &front.text, &front.doc, NULL) < 0)
        return;
    pb_skill_get(&front, 1, "description", s->about, sizeof(s->about));
    pb_skill_get(&front, 1, "category", s->category, sizeof(s->category));
    skill_done(&front);
}

static void read_steps(struct pb_skill *s)
{
    _cleanup_free_ char *text = NULL;
    struct pb_err err = {0};
    size_t length;

    int r = read_file(s->folder, "steps.yaml", &text, &length, &err);
    if (r == -ENOENT)
        return;
    if (r == 0 && (r = read_yaml(text, length, &s->text, &s->doc, &err)) < 0) {
        snprintf(s->broken, sizeof(s->broken), "steps.yaml, %s", pb_err_text(&err, r));
        return;
    }
    if (r < 0) {
        snprintf(s->broken, sizeof(s->broken), "%s", pb_err_text(&err, r));
        return;
    }
    uint32_t about = pb_json_get(&s->doc, 1, "metadata");
    char value[PB_SKILL_TEXT];
    if (pb_skill_get(s, about, "title_en", value, sizeof(value))[0] ||
        pb_skill_get(s, about, "title", value, sizeof(value))[0])
        snprintf(s->title, sizeof(s->title), "%s", value);
    if (!s->category[0])
        pb_skill_get(s, about, "category", s->category, sizeof(s->category));
    uint32_t steps = pb_skill_part(s, "steps");
    if (steps && s->doc.nodes[steps].kind != '[')
        snprintf(s->broken, sizeof(s->broken), "steps.yaml: spec.steps is no list");
}

static void read_skill(const char *folder, const char *id, struct pb_skill *ret)
{
    *ret = (struct pb_skill){0};
    snprintf(ret->id, sizeof(ret->id), "%s", id);
    snprintf(ret->folder, sizeof(ret->folder), "%s", folder);
    read_front(ret);
    read_steps(ret);
    for (size_t n = strlen(ret->about); n && strchr(" \n", ret->about[n - 1]);)
        ret->about[--n] = '\0';
    pb_text_clean(ret->about);
    pb_text_clean(ret->title);
    pb_text_clean(ret->category);
    pb_text_clean(ret->broken);
    if (!ret->title[0])
        snprintf(ret->title, sizeof(ret->title), "%s", ret->about[0] ? ret->about : ret->id);
}

static bool is_skill(const char *folder)
{
    return has_file(folder, "steps.yaml") || has_file(folder, "SKILL.md");
}

/* --- folders of playbooks --- */

static bool home_folder(char ret[PATH_MAX])
{
    const char *home = getenv("HOME");

    snprintf(ret, PATH_MAX, "%s/.probing/skills", home ? home : "");
    return home && home[0] == '/';
}

static bool project_folder(char ret[PATH_MAX])
{
    char at[PATH_MAX - 32];
    struct stat st;

    if (!getcwd(at, sizeof(at)))
        return false;
    for (char *slash; (slash = strrchr(at, '/')); *slash = '\0') {
        snprintf(ret, PATH_MAX, "%s/.probing/skills", at);
        if (stat(ret, &st) == 0 && S_ISDIR(st.st_mode))
            return true;
    }
    return false;
}

/* The folders that exist, by rising priority. */
static size_t list_roots(char ret[ROOTS][PATH_MAX])
{
    const char *own = getenv("PROBING_SKILLS_DIR");
    size_t n = 0;

    n += home_folder(ret[n]);
    n += project_folder(ret[n]);
    if (n == 2 && strcmp(ret[0], ret[1]) == 0)
        n = 1;
    if (own && own[0])
        snprintf(ret[n++], PATH_MAX, "%s", own);
    return n;
}

void pb_skills_where(char *ret, size_t size)
{
    char roots[ROOTS][PATH_MAX];
    size_t n = list_roots(roots), len = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(ret + len, size - len, "%s%s", i ? ", " : "", roots[i]);
}

static int add_skill(struct pb_skills *skills, const char *folder, const char *id)
{
    struct pb_skill *own = NULL;

    for (size_t i = 0; i < skills->n; i++)
        if (strcmp(skills->at[i].id, id) == 0)
            own = &skills->at[i];
    if (own) {
        skill_done(own);
    } else {
        struct pb_skill *more = reallocarray(skills->at, skills->n + 1, sizeof(*more));
        if (!more)
            return -ENOMEM;
        skills->at = more;
        own = &more[skills->n++];
    }
    read_skill(folder, id, own);
    return 0;
}

static int add_root(struct pb_skills *skills, const char *root)
{
    DIR *dir = opendir(root);
    char folder[PATH_MAX];
    int r = 0;

    if (!dir)
        return 0;
    for (struct dirent *e; r == 0 && skills->n < PB_SKILLS_MOST && (e = readdir(dir));)
        if (is_id(e->d_name) &&
            (size_t)snprintf(folder, sizeof(folder), "%s/%s", root, e->d_name) < sizeof(folder) &&
            is_skill(folder))
            r = add_skill(skills, folder, e->d_name);
    closedir(dir);
    return r;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct pb_skill *)a)->id, ((const struct pb_skill *)b)->id);
}

int pb_skills_find(struct pb_skills *ret, struct pb_err *err)
{
    char roots[ROOTS][PATH_MAX];
    struct pb_skills skills = {0};
    size_t n = list_roots(roots);
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_root(&skills, roots[i]);
    if (r < 0) {
        pb_skills_done(&skills);
        return pb_fail(err, r, "out of memory");
    }
    if (skills.n)
        qsort(skills.at, skills.n, sizeof(*skills.at), by_id);
    *ret = skills;
    return 0;
}

void pb_skills_done(struct pb_skills *skills)
{
    for (size_t i = 0; i < skills->n; i++)
        skill_done(&skills->at[i]);
    free(skills->at);
    *skills = (struct pb_skills){0};
}

const struct pb_skill *pb_skill_named(const struct pb_skills *skills, const char *id)
{
    for (size_t i = 0; i < skills->n; i++)
        if (strcmp(skills->at[i].id, id) == 0)
            return &skills->at[i];
    return NULL;
}

/* --- installing --- */

/* A file that is not there is none to copy. */
static int copy_file(const char *from, const char *to, const char *name, struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;
    char path[PATH_MAX + 32];
    struct pb_replace replace;
    size_t length;

    int r = read_file(from, name, &text, &length, err);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    snprintf(path, sizeof(path), "%s/%s", to, name);
    r = pb_replace_begin(path, &replace);
    if (r == 0)
        r = pb_replace_end(&replace, fwrite(text, 1, length, replace.out) == length ? 0 : -EIO);
    return r < 0 ? pb_fail(err, r, "%s cannot be written: %s", path, strerror(-r)) : 0;
}

/* Makes a folder and those above it. */
static int make_folder(char *path, struct pb_err *err)
{
    for (char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
        if (at)
            *at = '\0';
        bool failed = mkdir(path, 0777) < 0 && errno != EEXIST;
        if (failed)
            return pb_fail(err, -errno, "%s cannot be made: %s", path, strerror(errno));
        if (!at)
            return 0;
        *at = '/';
    }
}

/* 1: copied; 0: it is broken. */
static int install(const char *folder, const char *id, const char *root, FILE *notes, struct pb_err *err)
{
    char to[PATH_MAX];
    struct pb_skill skill;

    read_skill(folder, id, &skill);
    skill_done(&skill);
    if (skill.broken[0]) {
        fprintf(notes, "the playbook %s is left out: %s\n", id, skill.broken);
        return 0;
    }
    if ((size_t)snprintf(to, sizeof(to), "%s/%s", root, id) >= sizeof(to))
        return pb_fail(err, -ENAMETOOLONG, "%s is too long a path", root);
    int r = make_folder(to, err);
    if (r == 0)
        r = copy_file(folder, to, "SKILL.md", err);
    if (r == 0)
        r = copy_file(folder, to, "steps.yaml", err);
    return r < 0 ? r : 1;
}

static int install_folder(const char *from, const char *root, FILE *notes, struct pb_err *err)
{
    DIR *dir = opendir(from);
    char folder[PATH_MAX];
    int r = 0, n = 0;

    if (!dir)
        return pb_fail(err, -errno, "%s cannot be read: %s", from, strerror(errno));
    for (struct dirent *e; r >= 0 && n < PB_SKILLS_MOST && (e = readdir(dir));)
        if (is_id(e->d_name) &&
            (size_t)snprintf(folder, sizeof(folder), "%s/%s", from, e->d_name) < sizeof(folder) &&
            is_skill(folder)) {
            r = install(folder, e->d_name, root, notes, err);
            n += r > 0;
        }
    closedir(dir);
    return r < 0 ? r : n;
}

int pb_skills_install(const char *from, FILE *notes, char ret_to[PATH_MAX], struct pb_err *err)
{
    char whole[PATH_MAX];

    if (!home_folder(ret_to))
        return pb_fail(err, -ENOENT, "HOME is not set: playbooks are kept in ~/.probing/skills");
    if (!realpath(from, whole))
        return pb_fail(err, -errno, "%s: %s", from, strerror(errno));
    if (!is_skill(whole))
        return install_folder(whole, ret_to, notes, err);
    const char *id = strrchr(whole, '/') + 1;
    return is_id(id)
               ? install(whole, id, ret_to, notes, err)
               : pb_fail(err, -EINVAL, "%s: a playbook's folder is named by letters, digits, _ and -", id);
}
