/* process_code: see process_code.h. */
#include "remote/native/process_code.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "remote/native/library.h"
#include "remote/native/lines.h"
#include "remote/native/object_files.h"
#include "remote/native/perfmap.h"
#include "remote/native/unwind_arch.h"

enum {
    MAX_FILES = 16384,
};

#define STACK_MAX  (16u << 20)
#define MEMORY_MAX (256u << 20)

static const uint64_t refresh_after = PB_NS_PER_S, missing_after = 10 * PB_NS_PER_MS;

/* The address of the first byte of mapping i's file: the mapping below it with offset 0. */
static uint64_t base_of(const struct pb_maps *maps, size_t i)
{
    const struct pb_map *map = &maps->at[i];
    for (size_t k = i + 1; k-- > 0 && i - k < 16;) {
        const struct pb_map *m = &maps->at[k];
        if (m->inode == map->inode && m->offset == 0 && strcmp(m->path, map->path) == 0)
            return m->start;
    }
    return map->start - map->offset;
}

static struct pb_file *file_of(struct pb_native *n, const struct pb_maps *maps, size_t i)
{
    const struct pb_map *map = &maps->at[i];
    uint64_t base = base_of(maps, i);
    size_t count = 0;
    if (!map->path[0] || (map->path[0] == '[' && strcmp(map->path, "[vdso]") != 0))
        return NULL;
    for (struct pb_file *f = n->files; f; f = f->next, count++)
        if (f->base == base && f->inode == map->inode && strcmp(f->path, map->path) == 0)
            return f;
    if (count >= MAX_FILES)
        return NULL;
    struct pb_file *f = calloc(1, sizeof(*f));
    const char *path = f ? pb_names_keep(&n->names, map->path) : NULL;
    if (!path) {
        free(f);
        return NULL;
    }
    *f = (struct pb_file){.path = path, .inode = map->inode, .base = base, .next = n->files};
    f->object.fd = f->debug.fd = -1;
    n->files = f;
    return f;
}

static int make_ranges(struct pb_native *n, const struct pb_maps *maps, struct pb_range **ret, size_t *ret_n)
{
    struct pb_range *range = reallocarray(NULL, maps->n + 1, sizeof(*range));
    size_t count = 0;
    if (!range)
        return -ENOMEM;
    for (size_t i = 0; i < maps->n; i++) {
        const struct pb_map *map = &maps->at[i];
        if (!(map->prot & PROT_EXEC) || strcmp(map->path, "[vsyscall]") == 0)
            continue;
        range[count++] = (struct pb_range){
            .start = map->start,
            .end = map->end,
            .offset = map->offset,
            .file = file_of(n, maps, i),
        };
    }
    *ret = range;
    *ret_n = count;
    return 0;
}

static bool same_ranges(const struct pb_native *n, const struct pb_range *range, size_t count)
{
    if (count != n->nranges)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct pb_range *a = &n->range[i], *b = &range[i];
        if (a->start != b->start || a->end != b->end || a->offset != b->offset || a->file != b->file)
            return false;
    }
    return true;
}

static int read_maps(struct pb_native *n, bool *ret_changed, struct pb_err *err)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    struct pb_range *range;
    size_t count;
    int r = pb_source_maps(n->source, &maps, err);
    if (r < 0)
        return r;
    r = make_ranges(n, &maps, &range, &count);
    if (r < 0)
        return r;
    *ret_changed = !same_ranges(n, range, count);
    if (*ret_changed) {
        free(n->range);
        n->range = range;
        n->nranges = count;
    } else {
        free(range);
    }
    struct pb_maps old = n->maps;
    n->maps = maps;
    maps = old;
    n->maps_at = pb_now_ns();
    return 0;
}

bool pb_process_refresh(struct pb_native *n, bool missing)
{
    bool changed;
    if (pb_now_ns() - n->maps_at < (missing ? missing_after : refresh_after))
        return false;
    if (read_maps(n, &changed, NULL) < 0 || !changed)
        return false;
    if (n->rows)
        memset(n->rows, 0, PB_ROW_SLOTS * sizeof(*n->rows));
    pb_describe_forget(n);
    return true;
}

static void place(struct pb_native *n, struct pb_range *r)
{
    struct pb_file *f = r->file;
    uint64_t addr;
    if (f->state == PB_NOT_TRIED) {
        f->state = pb_file_open(n, f, r) == 0 ? PB_OPEN : PB_FAILED;
        if (f->state == PB_OPEN && f->object.build_id[0])
            f->build_id = pb_names_keep(&n->names, f->object.build_id);
    }
    if (f->state != PB_OPEN || f->object.machine != n->arch->machine)
        return;
    if (f->object.fd < 0)
        r->bias = f->object.bias;
    else if (pb_object_address_of(&f->object, r->offset, &addr) == 0)
        r->bias = r->start - addr;
    else
        return;
    r->placed = true;
}

struct pb_range *pb_process_range(struct pb_native *n, uint64_t addr)
{
    size_t low = 0, high = n->nranges;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        struct pb_range *r = &n->range[mid];
        if (addr >= r->end) {
            low = mid + 1;
        } else if (addr < r->start) {
            high = mid;
        } else {
            if (r->file && !r->placed && r->file->state != PB_FAILED)
                place(n, r);
            return r;
        }
    }
    return NULL;
}

/* The separate debug file, or NULL. */
static const struct pb_object *open_separate_debug(struct pb_native *n, struct pb_file *f)
{
    if (f->debug_state == PB_NOT_TRIED)
        f->debug_state = pb_debug_open(n, f) == 0 ? PB_OPEN : PB_FAILED;
    return f->debug_state == PB_OPEN ? &f->debug : NULL;
}

static bool has_lines(const struct pb_object *o)
{
    struct pb_section s;
    return o && pb_object_section(o, ".debug_info", &s) == 0 && s.size && !(s.flags & SHF_COMPRESSED);
}

const struct pb_object *pb_process_debug(struct pb_native *n, struct pb_file *f)
{
    if (f->lines_state == PB_NOT_TRIED) {
        f->lines = has_lines(&f->object) ? &f->object : open_separate_debug(n, f);
        f->lines_state = has_lines(f->lines) ? PB_OPEN : PB_FAILED;
    }
    return f->lines_state == PB_OPEN ? f->lines : NULL;
}

/* Frees the least recently used symbols. They grow in use, so all are counted. */
static void make_room(struct pb_native *n)
{
    for (;;) {
        struct pb_file *oldest = NULL;
        size_t bytes = 0;
        for (struct pb_file *f = n->files; f; f = f->next) {
            if (f->symbols_state != PB_OPEN)
                continue;
            bytes += f->symbols.bytes;
            if (f->used != n->clock && (!oldest || f->used < oldest->used))
                oldest = f;
        }
        if (bytes <= n->options.memory_max / 2 || !oldest)
            return;
        pb_symbols_done(&oldest->symbols);
        oldest->symbols = (struct pb_symbols){0};
        oldest->symbols_state = PB_NOT_TRIED;
    }
}

struct pb_symbols *pb_process_symbols(struct pb_native *n, struct pb_file *f)
{
    f->used = ++n->clock;
    if (f->symbols_state == PB_NOT_TRIED) {
        make_room(n);
        int r = pb_symbols_open(&f->object, open_separate_debug(n, f), f->base, &f->symbols);
        f->symbols_state = r == 0 ? PB_OPEN : PB_FAILED;
    }
    return f->symbols_state == PB_OPEN ? &f->symbols : NULL;
}

int pb_native_new(struct pb_source *source, const struct pb_native_options *options, struct pb_native **ret,
                  struct pb_err *err)
{
    struct pb_native *n = calloc(1, sizeof(*n));
    bool changed;
    if (!n)
        return -ENOMEM;
    n->source = source;
    n->arch = pb_native_arch(source->machine);
    if (options)
        n->options = *options;
    if (!n->options.stack_max)
        n->options.stack_max = STACK_MAX;
    if (!n->options.memory_max)
        n->options.memory_max = MEMORY_MAX;
    n->names.limit = n->options.memory_max / 4;
    int r = read_maps(n, &changed, err);
    if (r == 0 && n->nranges == 0)
        r = pb_fail(err, -ESRCH, "there is no code in it");
    if (r < 0) {
        pb_native_free(n);
        return r;
    }
    *ret = n;
    return 0;
}

static void free_file(struct pb_file *f)
{
    pb_lines_free(f->reader);
    if (f->symbols_state == PB_OPEN)
        pb_symbols_done(&f->symbols);
    if (f->debug_state == PB_OPEN)
        pb_object_done(&f->debug);
    if (f->state == PB_OPEN)
        pb_object_done(&f->object);
    free(f);
}

void pb_native_free(struct pb_native *n)
{
    if (!n)
        return;
    pb_describe_forget(n);
    free(n->described);
    for (struct pb_file *f = n->files, *next; f; f = next) {
        next = f->next;
        free_file(f);
    }
    pb_library_free(n->library);
    pb_perf_map_free(n->perf);
    pb_maps_done(&n->maps);
    pb_names_done(&n->names);
    free(n->range);
    free(n->rows);
    free(n);
}
