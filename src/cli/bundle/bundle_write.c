/* bundle_write: puts the parts together: the manifest, the page, and of the rest what fits, the most telling
 * first. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_write.h"
#include "base/replace.h"
#include "base/vector.h"
#include "base/zip.h"
#include "cli/bundle/bundle.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE = 65536, NAMED = 100 };

struct file_part {
    char *name;
    uint64_t size;
    unsigned rank; /* how late it is left out */
    bool in;
};

struct file_parts {
    struct file_part *at;
    size_t n;
};

/* Small parts that say what is wrong come first, rows last; of those the descriptions before the rows. */
static unsigned rank_part(const char *name)
{
    static const char *const order[] = {
        "findings", "stacks",  "processes", "settings",    "environment", "versions",     "cgroup",
        "machine",  "profile", "threads",   "descriptors", "recordings",  "rows/_probing"};
    unsigned n = sizeof(order) / sizeof(order[0]);

    for (unsigned i = 0; i < n; i++)
        if (strncmp(name, order[i], strlen(order[i])) == 0)
            return i;
    return n;
}

static int add_file(void *arg, const char *name, uint64_t size)
{
    struct file_parts *all = arg;

    if (strchr(name, '\n') || strcmp(name, "manifest.json") == 0 || strcmp(name, "index.html") == 0 ||
        strstr(name, "/lock") || name[0] == '.' || strstr(name, "/."))
        return 0;
    int r = pb_grow_full((void **)&all->at, all->n, sizeof(*all->at));
    char *copy = r == 0 ? strdup(name) : NULL;
    if (!copy)
        return r < 0 ? r : -ENOMEM;
    all->at[all->n++] = (struct file_part){.name = copy, .size = size, .rank = rank_part(name)};
    return 0;
}

static void file_parts_done(struct file_parts *all)
{
    for (size_t i = 0; i < all->n; i++)
        free(all->at[i].name);
    free(all->at);
}

static int by_rank(const void *a, const void *b)
{
    const struct file_part *x = a, *y = b;

    return x->rank != y->rank   ? (x->rank < y->rank ? -1 : 1)
           : x->size != y->size ? (x->size < y->size ? -1 : 1)
                                : strcmp(x->name, y->name);
}

/* Chooses what fits beside so many bytes, and names what does not. */
static int choose_parts(struct pb_bundle *b, struct file_parts *all, uint64_t beside, uint64_t max)
{
    uint64_t taken = beside, bytes = 0;
    char why[PB_BUNDLE_NOTE];
    size_t left = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < all->n; i++) {
        struct file_part *p = &all->at[i];
        uint64_t needs = p->size + pb_zip_overhead(p->name);
        p->in = i < PB_ZIP_PARTS - 2 && taken + needs <= max;
        if (p->in) {
            taken += needs;
            continue;
        }
        bytes += p->size;
        snprintf(why, sizeof(why), "its %llu bytes did not fit (--max)", (unsigned long long)p->size);
        if (left++ < NAMED)
            r = pb_bundle_leave_out(b, p->name, why);
    }
    if (r == 0 && left > NAMED) {
        snprintf(why, sizeof(why), "%zu more files did not fit (--max), %llu bytes in all", left - NAMED,
                 (unsigned long long)bytes);
        r = pb_bundle_leave_out(b, "rows", why);
    }
    return r;
}

static void put_notes(struct pb_json_writer *w, const char *key, const struct pb_bundle_note *at, size_t n)
{
    pb_json_line(w, 1);
    pb_json_open(w, key, '[');
    for (size_t i = 0; i < n; i++) {
        pb_json_line(w, 2);
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "part", at[i].name);
        pb_json_put_text(w, "why", at[i].why);
        pb_json_close(w);
    }
    pb_json_close(w);
}

static void put_processes(struct pb_json_writer *w, const struct pb_bundle *b)
{
    pb_json_line(w, 1);
    pb_json_open(w, "processes", '[');
    for (size_t i = 0; i < b->nprocesses; i++) {
        const struct pb_bundle_process *p = &b->processes[i];
        pb_json_line(w, 2);
        pb_json_open(w, NULL, '{');
        pb_json_put_number(w, "pid", "%d", (int)p->target.pid);
        pb_json_put_number(w, "start_time", "%llu", (unsigned long long)p->target.start_time);
        int32_t rank = pb_target_rank(&p->target);
        if (rank >= 0)
            pb_json_put_number(w, "rank", "%d", rank);
        else
            pb_json_put_null(w, "rank");
        pb_json_put_text(w, "label", p->target.label);
        pb_json_put_text(w, "state", p->target.dead ? "ended" : "running");
        pb_json_put_text(w, "python", p->python[0] ? p->python : NULL);
        pb_json_put_text(w, "command", p->command);
        pb_json_close(w);
    }
    pb_json_close(w);
}

static int put_manifest(const struct pb_bundle *b, const struct file_parts *all, FILE *to)
{
    struct pb_json_writer w = {.out = to};

    pb_json_open(&w, NULL, '{');
    pb_json_put_number(&w, "probing_incident", "%d", PB_BUNDLE_LAYOUT);
    pb_json_put_text(&w, "made", b->made);
    pb_json_put_text(&w, "release", b->release);
    pb_json_put_text(&w, "target", b->named);
    pb_json_put_number(&w, "findings", "%d", b->found);
    put_processes(&w, b);
    put_notes(&w, "left_out", b->left_out, b->nleft_out);
    put_notes(&w, "notes", b->notes, b->nnotes);
    pb_json_line(&w, 1);
    pb_json_open(&w, "parts", '[');
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].in) {
            pb_json_line(&w, 2);
            pb_json_open(&w, NULL, '{');
            pb_json_put_text(&w, "name", all->at[i].name);
            pb_json_put_number(&w, "bytes", "%llu", (unsigned long long)all->at[i].size);
            pb_json_close(&w);
        }
    pb_json_close(&w);
    pb_json_close(&w);
    putc('\n', to);
    return 0;
}

static int add_made(struct pb_zip *z, const char *name, char *text, size_t size)
{
    FILE *in = size ? fmemopen(text, size, "r") : NULL;

    if (!in)
        return -ENOMEM;
    int r = pb_zip_add(z, name, in);
    fclose(in);
    return r;
}

/* What is made here, in memory. */
struct made {
    char *manifest, *page;
    size_t manifest_size, page_size;
};

static void made_done(struct made *made)
{
    free(made->manifest);
    free(made->page);
    *made = (struct made){0};
}

static int make_texts(const struct pb_bundle *b, const struct file_parts *all, uint64_t max, struct made *ret)
{
    made_done(ret);
    FILE *to = open_memstream(&ret->manifest, &ret->manifest_size);
    if (!to)
        return -ENOMEM;
    int r = put_manifest(b, all, to);
    r = fclose(to) != 0 ? -ENOMEM : r;
    to = r == 0 ? open_memstream(&ret->page, &ret->page_size) : NULL;
    if (!to)
        return r < 0 ? r : -ENOMEM;
    r = pb_bundle_put_page(b, max, to);
    return fclose(to) != 0 ? -ENOMEM : r;
}

/* How long the manifest and the page are depends on what is chosen: until all of it fits, less is. */
static int choose(struct pb_bundle *b, struct file_parts *all, uint64_t max, struct made *ret,
                  struct pb_err *err)
{
    size_t nleft_out = b->nleft_out;
    uint64_t beside = SPARE < max / 2 ? SPARE : max / 2;

    if (all->n)
        qsort(all->at, all->n, sizeof(*all->at), by_rank);
    for (;;) {
        b->nleft_out = nleft_out;
        int r = choose_parts(b, all, beside, max);
        if (r == 0)
            r = make_texts(b, all, max, ret);
        if (r < 0)
            return pb_fail(err, r, "the parts in %s cannot be read: %s", b->folder, strerror(-r));
        uint64_t made = ret->manifest_size + ret->page_size + pb_zip_overhead("manifest.json") +
                        pb_zip_overhead("index.html") + PB_ZIP_END;
        if (made <= beside)
            return 0;
        if (beside >= max)
            return pb_fail(err, -EFBIG, "the manifest and the page alone have %llu bytes (--max)",
                           (unsigned long long)made);
        beside = made + SPARE / 8 < max ? made + SPARE / 8 : max;
    }
}

static int add_parts(struct pb_zip *z, const struct pb_bundle *b, const struct file_parts *all)
{
    char path[2 * PATH_MAX];
    int r = 0;

    for (size_t i = 0; r == 0 && i < all->n; i++) {
        if (!all->at[i].in)
            continue;
        snprintf(path, sizeof(path), "%s/%s", b->folder, all->at[i].name);
        FILE *in = fopen(path, "re");
        r = in ? pb_zip_add(z, all->at[i].name, in) : -errno;
        if (in)
            fclose(in);
    }
    return r;
}

int pb_bundle_write(struct pb_bundle *b, const char *path, uint64_t max, uint64_t *ret_size,
                    struct pb_err *err)
{
    _cleanup_(file_parts_done) struct file_parts all = {0};
    _cleanup_(made_done) struct made made = {0};
    struct pb_zip z = {0};
    struct pb_replace file;

    int r = pb_bundle_each_file(b->folder, add_file, &all);
    if (r < 0)
        return pb_fail(err, r, "the parts in %s cannot be read: %s", b->folder, strerror(-r));
    r = choose(b, &all, max < PB_ZIP_BYTES ? max : PB_ZIP_BYTES, &made, err);
    if (r < 0)
        return r;
    r = pb_replace_begin(path, &file);
    if (r == 0) {
        z.out = file.out;
        r = add_made(&z, "manifest.json", made.manifest, made.manifest_size);
        if (r == 0)
            r = add_made(&z, "index.html", made.page, made.page_size);
        if (r == 0)
            r = add_parts(&z, b, &all);
        if (r == 0)
            r = pb_zip_end(&z);
        *ret_size = z.written;
        r = pb_replace_end(&file, r);
    }
    pb_zip_done(&z);
    return r < 0 ? pb_fail(err, r, "%s cannot be written: %s", path, strerror(-r)) : 0;
}
