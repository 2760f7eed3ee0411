/* symbols: the functions of an object by address.
 *
 * Read whole on first use and kept sorted into buckets: two passes over the table, no sort, since a large
 * library has hundreds of thousands and a backtrace asks for ten. Names are read when asked for. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_object;

struct pb_symbols {
    struct pb_function {
        uint64_t addr;
        uint32_t size;
        uint32_t name; /* offset of its name; the two highest bits are its rank among equals */
    } * at;
    size_t n;
    uint32_t *bucket; /* nbuckets + 1: where each starts in `at` */
    size_t nbuckets;
    unsigned shift;
    uint64_t first;            /* the lowest address */
    uint64_t names, names_len; /* offset in the file; with text set, in it */
    char *text;
    const struct pb_object *from; /* what the names are read from; outlives the table */
    size_t bytes;                 /* what it takes of memory */
};

/* debug: the separate debug file of o, or NULL. base: where o is mapped. -ENOENT: it has no symbols. */
int pb_symbols_load(const struct pb_object *o, const struct pb_object *debug, uint64_t base,
                    struct pb_symbols *ret);
void pb_symbols_done(struct pb_symbols *s);

/* The function that holds addr: the innermost, of equals the most public. -ENOENT: none. */
int pb_symbols_find(const struct pb_symbols *s, uint64_t addr, const struct pb_function **ret);

/* Its name into buf, cut to size. */
int pb_symbols_name(const struct pb_symbols *s, const struct pb_function *f, char *buf, size_t size);
