/* symbols: the functions of an object by address.
 *
 * A large library has half a million and a backtrace needs ten: so one pass over the table finds all
 * addresses of a stack (pb_symbols_scan), and only a table used again and again, by a sampler, gets an index
 * in memory. Names are read when needed. */
#pragma once

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_object;

struct pb_function {
    uint64_t addr;
    uint32_t size;
    uint32_t name; /* offset of its name; the two highest bits are its rank among equals, 0: no function */
};

struct pb_answer {
    uint64_t addr; /* that was asked for */
    struct pb_function function;
};

struct pb_symbols {
    const struct pb_object *from; /* what is read from; outlives the table. NULL: from sym and text */
    uint64_t offset;              /* of the table in the file */
    size_t n;
    bool partial; /* only exported symbols: an address without one may still be in a function */
    uint64_t names, names_len;
    Elf64_Sym *sym;
    char *text;

    struct pb_answer *known; /* sorted */
    size_t nknown;
    struct pb_answer last; /* of the index */
    unsigned passes;

    struct pb_function *at; /* the index: functions in buckets by address */
    size_t nat;
    uint32_t *bucket; /* nbuckets + 1: where each starts in `at` */
    size_t nbuckets;
    unsigned shift;
    uint64_t first; /* the lowest address */
    size_t bytes;   /* of memory that it takes */
};

/* debug: the separate debug file of o, or NULL. base: where o is mapped. -ENOENT: it has no symbols. */
int pb_symbols_open(const struct pb_object *o, const struct pb_object *debug, uint64_t base,
                    struct pb_symbols *ret);
void pb_symbols_done(struct pb_symbols *s);

/* Finds the functions of many addresses in one pass, for pb_symbols_find. Sorts addrs. */
int pb_symbols_scan(struct pb_symbols *s, uint64_t *addrs, size_t n);

/* The function that holds addr: the innermost, of equals the most public. -ENOENT: none. *ret lives until the
 * next call. */
int pb_symbols_find(struct pb_symbols *s, uint64_t addr, const struct pb_function **ret);

/* Its name into buf, cut to size. */
int pb_symbols_name(const struct pb_symbols *s, const struct pb_function *f, char *buf, size_t size);
