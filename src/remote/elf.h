/* elf: the dynamic symbols of an object mapped in a target.
 *
 * Everything is read from the target's memory, never from a file: the file may be deleted, replaced, or in
 * another mount namespace, and a path that the target names proves nothing. The memory may be hostile: every
 * size and index is bounded. A snapshot owned by the caller. 64-bit little-endian objects only. */
#pragma once

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_source;

struct pb_elf {
    uint64_t base;           /* where its first byte is mapped */
    uint64_t bias;           /* what is added to the addresses in the file */
    uint64_t text, text_end; /* span of its executable segments */
    uint16_t machine;
    Elf64_Sym *sym;
    size_t n;
    char *str;
    size_t str_len;
};

struct pb_symbol {
    const char *name; /* lives as long as the snapshot */
    uint64_t addr, size;
    unsigned type; /* STT_* */
};

/* Reads the object whose header is mapped at base. -ENOEXEC: there is no such object. */
int pb_elf_open(struct pb_source *from, uint64_t base, struct pb_elf *ret);
void pb_elf_done(struct pb_elf *e);

/* The i-th symbol, i < n. False: it is not defined here, or its name is not valid. */
bool pb_elf_at(const struct pb_elf *e, size_t i, struct pb_symbol *ret);

/* The symbol of that name that is defined here. -ENOENT: none. *ret is written on success only. */
int pb_elf_find(const struct pb_elf *e, const char *name, struct pb_symbol *ret);

/* Finds one symbol by the object's own hash table: a few short reads, so that hundreds of objects can be
 * tried. -ENOENT: not defined there; -ENOEXEC: no such object. *ret_addr is written on success only. */
int pb_elf_lookup(struct pb_source *from, uint64_t base, const char *name, uint64_t *ret_addr);
