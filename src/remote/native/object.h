/* object: one ELF object of the target, read a few bytes at a time.
 *
 * The bytes come from its file, by pread (a mapping would raise SIGBUS when the file shrinks), or from the
 * target's memory if there is no file to open: deleted, in a memfd, the vdso. Addresses here are the object's
 * own; the module that maps it knows the bias. Every count and size in it may be wrong and is bounded. 64-bit
 * little-endian only. */
#pragma once

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_cfi_row;
struct pb_object;
struct pb_source;

/* A table of (function start, FDE) for an object without .eh_frame_hdr, made by reading its frames once. */
struct pb_fde_index {
    struct pb_fde_at {
        uint64_t start, fde;
    } * at;
    size_t n;
};

enum { PB_OBJECT_SEGMENTS = 16 };

struct pb_section {
    uint64_t addr, offset, size;
    uint32_t link, type;
    uint64_t flags;
};

struct pb_object {
    int fd;                   /* -1: from memory */
    struct pb_source *memory; /* used then */
    uint64_t bias;
    struct pb_segment {
        uint64_t addr, offset, filesz, memsz;
        unsigned flags;
    } segment[PB_OBJECT_SEGMENTS];
    unsigned nsegments;
    uint16_t machine;
    Elf64_Shdr *section; /* NULL: from memory, or they cannot be read */
    unsigned nsections;
    char *names; /* of the sections, ended by a zero */
    size_t names_len;
    uint64_t hdr_addr, hdr_size;  /* .eh_frame_hdr; size 0: none */
    uint64_t table, ntable;       /* its search table and how many pairs are there; ntable 0: not usable */
    uint64_t frames, frames_size; /* .eh_frame or .debug_frame, for the linear index */
    bool debug_frame, indexed;
    struct pb_fde_index index;
    uint64_t dynamic, dynamic_size;
    char build_id[65]; /* hexadecimal; "": none */
};

/* Takes over fd. -ENOEXEC: not a supported object. */
int pb_object_open(int fd, struct pb_object *ret);

/* The object mapped at base in the target. */
int pb_object_map(struct pb_source *memory, uint64_t base, struct pb_object *ret);
void pb_object_done(struct pb_object *o);

/* Bytes at an address of the object; -EFAULT: not there, or not all of them. */
int pb_object_read(const struct pb_object *o, uint64_t addr, void *buf, size_t len);
/* As many as there are, up to len. */
ssize_t pb_object_read_some(const struct pb_object *o, uint64_t addr, void *buf, size_t len);
/* Bytes at an offset of the file; -ENOTSUP from memory. */
int pb_object_read_file(const struct pb_object *o, uint64_t offset, void *buf, size_t len);

/* The section of that name. -ENOENT: none, or the object is from memory. */
int pb_object_section(const struct pb_object *o, const char *name, struct pb_section *ret);
int pb_object_section_at(const struct pb_object *o, unsigned index, struct pb_section *ret);

/* How to unwind at addr, and the start of the function in the tables. -ENOENT: no entry for addr; -EBADMSG:
 * the entry is not valid. */
int pb_object_row(struct pb_object *o, uint64_t addr, struct pb_cfi_row *ret, uint64_t *ret_start);

/* Reads its frame information at an address in the terms of struct pb_cfi_row: as many bytes as there are, up
 * to len. */
ssize_t pb_object_read_frames(const struct pb_object *o, uint64_t addr, void *buf, size_t len);

/* The object's address for a mapping of its code at this offset of the file. */
int pb_object_address_of(const struct pb_object *o, uint64_t offset, uint64_t *ret);
