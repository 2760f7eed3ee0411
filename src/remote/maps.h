/* maps: the memory mappings of a process, from the kernel.
 *
 * A snapshot, sorted by address, owned by the caller; it does not follow changes. Used by the ELF finder,
 * injection and the unwinder. Uses only procfs. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;

struct pb_map {
    uint64_t start, end, offset;
    uint64_t inode;
    unsigned prot;    /* PROT_* */
    const char *path; /* "" for anonymous memory; lives as long as the snapshot */
};

struct pb_maps {
    struct pb_map *at;
    size_t n;
    char *text; /* what the paths point into */
};

/* Reads all mappings of pid. -ESRCH: it is gone, or has no memory (a kernel thread, a zombie); -EACCES: not
 * allowed. *ret is written on success only. */
int pb_maps_read(pid_t pid, struct pb_maps *ret, struct pb_err *err);
void pb_maps_done(struct pb_maps *m);

/* The same from the text of a maps file, which is taken over (and freed when this fails). */
int pb_maps_parse(char *text, struct pb_maps *ret, struct pb_err *err);

/* The mapping that holds addr, or NULL. */
const struct pb_map *pb_maps_find(const struct pb_maps *m, uint64_t addr);

/* The file name in a path: what follows the last slash. */
const char *pb_maps_base(const struct pb_map *map);
