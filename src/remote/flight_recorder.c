/* flight_recorder: see flight_recorder.h. */
#include "remote/flight_recorder.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/maps.h"
#include "remote/openin.h"
#include "remote/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fetch(void *of, uint64_t address, void *to, size_t size)
{
    return pb_source_read(of, address, to, size);
}

static int open_library(struct pb_source *source, const struct pb_map *map)
{
    if (source->ops->open_file)
        return source->ops->open_file(source, map->path, map->inode, map->start);
    int fd = pb_open_mapped(source->pid, map->start, map->end);
    return fd >= 0 ? fd : pb_open_in_root(source->pid, map->path, map->inode);
}

/* Where the library is mapped from its first byte on. */
static const struct pb_map *find_library(const struct pb_maps *maps, const char *name)
{
    for (size_t i = 0; i < maps->n; i++)
        if (maps->at[i].offset == 0 && strcmp(pb_maps_base(&maps->at[i]), name) == 0)
            return &maps->at[i];
    return NULL;
}

int pb_recorder_find(struct pb_source *source, bool gpu, struct pb_flight *ret, struct pb_err *err)
{
    const char *name = gpu ? "libtorch_cuda.so" : "libtorch_cpu.so";
    struct pb_flight_symbols symbols;
    struct pb_maps maps;
    uint64_t at;

    int r = pb_source_maps(source, &maps, err);
    if (r < 0)
        return r;
    const struct pb_map *library = find_library(&maps, name);
    _cleanup_close_ int fd = library ? open_library(source, library) : -1;
    uint64_t start = library ? library->start : 0;
    pb_maps_done(&maps);
    if (!library)
        return pb_fail(err, -ENOENT, "the process has not loaded %s", name);
    if (fd < 0)
        return pb_fail(err, fd, "%s cannot be read: %s", name, strerror(-fd));
    if (pb_flight_symbols_open(fd, &symbols) < 0)
        return pb_fail(err, -ENODATA, "%s has no symbol table, so the Flight Recorder is not found", name);
    while ((r = pb_flight_symbols_step(&symbols, 65536, &at)) == 0) {
    }
    if (r < 0)
        return pb_fail(err, -ENODATA, "this version of %s has no Flight Recorder", name);
    *ret = (struct pb_flight){.fetch = fetch, .of = source, .variable = start + at};
    return 0;
}

int pb_recorder_each(const struct pb_flight *f, const struct pb_flight_head *head,
                     void (*take)(void *arg, const struct pb_flight_entry *e), void *arg)
{
    enum { CHUNK = 256 };
    const size_t size = (size_t)CHUNK * PB_FLIGHT_ENTRY_MAX;
    _cleanup_free_ char *buffer = malloc(size);
    _cleanup_free_ struct pb_flight_entry *entries = malloc(CHUNK * sizeof(*entries));
    uint64_t first, from = 0;
    long n;

    if (!buffer || !entries)
        return -ENOMEM;
    while ((n = pb_flight_read(f, head, from, buffer, size, entries, CHUNK, &first)) > 0) {
        for (long i = 0; i < n; i++)
            take(arg, &entries[i]);
        from = first + (uint64_t)n;
    }
    return 0;
}
