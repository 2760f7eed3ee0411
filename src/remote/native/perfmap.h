/* perfmap: names of code generated at run time, which the process writes to /tmp/perf-PID.map.
 *
 * The target wrote the file: it is bounded, opened only as a regular file, and read again when it has
 * grown. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_perf_map;

struct pb_perf_entry {
    uint64_t start, size;
    const char *name; /* lives until the next find */
};

/* The entry that holds addr. *map starts as NULL and is kept for the next time. -ENOENT: none. */
int pb_perf_map_find(struct pb_perf_map **map, pid_t pid, uint64_t addr, struct pb_perf_entry *ret);
void pb_perf_map_free(struct pb_perf_map *map);

/* Only the parsing: changes text, and entries point into it. Returns how many; the caller frees *ret, sorted
 * by start. */
ssize_t pb_perf_map_parse(char *text, struct pb_perf_entry **ret);
