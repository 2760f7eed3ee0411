/* dwarf: units, abbreviations and attributes of .debug_info, as far as lines and inlined calls need them.
 *
 * DWARF 2 to 5, 32- and 64-bit. A unit is read whole when it is first needed, nothing else is; every offset,
 * count and depth comes from a file that the target chose, and is bounded. Private to native/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "remote/native/object.h"

enum pb_dwarf_constants {
    PB_TAG_LEXICAL_BLOCK = 0x0b,
    PB_TAG_COMPILE_UNIT = 0x11,
    PB_TAG_INLINED = 0x1d,
    PB_TAG_MODULE = 0x1e,
    PB_TAG_SUBPROGRAM = 0x2e,
    PB_TAG_NAMESPACE = 0x39,
    PB_TAG_PARTIAL_UNIT = 0x3c,
    PB_AT_SIBLING = 0x01,
    PB_AT_NAME = 0x03,
    PB_AT_STMT_LIST = 0x10,
    PB_AT_LOW_PC = 0x11,
    PB_AT_HIGH_PC = 0x12,
    PB_AT_COMP_DIR = 0x1b,
    PB_AT_ABSTRACT_ORIGIN = 0x31,
    PB_AT_SPECIFICATION = 0x47,
    PB_AT_RANGES = 0x55,
    PB_AT_CALL_FILE = 0x58,
    PB_AT_CALL_LINE = 0x59,
    PB_AT_LINKAGE_NAME = 0x6e,
    PB_AT_STR_OFFSETS_BASE = 0x72,
    PB_AT_ADDR_BASE = 0x73,
    PB_AT_RNGLISTS_BASE = 0x74,
    PB_AT_MIPS_LINKAGE_NAME = 0x2007,
};

enum pb_debug_section {
    PB_DEBUG_INFO,
    PB_DEBUG_ABBREV,
    PB_DEBUG_LINE,
    PB_DEBUG_STR,
    PB_DEBUG_LINE_STR,
    PB_DEBUG_RANGES,
    PB_DEBUG_RNGLISTS,
    PB_DEBUG_ADDR,
    PB_DEBUG_STR_OFFSETS,
    PB_DEBUG_ARANGES,
    PB_DEBUG_SECTIONS,
};

/* A part of a section that was read at once: lists of ranges lie side by side. */
struct pb_dwarf_window {
    enum pb_debug_section section;
    uint64_t at;
    size_t len; /* 0: nothing yet */
    unsigned char data[32 << 10];
};

struct pb_dwarf {
    const struct pb_object *object;
    struct pb_section section[PB_DEBUG_SECTIONS]; /* size 0: not there */
    struct pb_dwarf_window *window;
    uint64_t *budget; /* remaining work, in units of about 50 ns; at 0 everything is -EBADMSG */
};

struct pb_abbrev {
    uint64_t code;
    unsigned tag;
    bool has_children;
    uint32_t first, n; /* of its attributes */
    int32_t size;      /* of all their values, where that is always the same; else -1 */
};

struct pb_attribute {
    uint16_t name, form;
    int64_t constant; /* of DW_FORM_implicit_const */
};

struct pb_unit {
    const struct pb_dwarf *dwarf;
    uint64_t offset; /* in .debug_info */
    unsigned char *data;
    size_t len;
    size_t first_die; /* from data */
    unsigned version;
    bool wide; /* 64-bit DWARF */
    struct pb_abbrev *abbrev;
    size_t nabbrevs;
    struct pb_attribute *attribute;
    size_t nattributes;
    uint64_t low_pc, stmt_list, str_offsets, addrs, rnglists;
    bool has_lines;
};

enum pb_value_kind { PB_VALUE_NONE, PB_VALUE_NUMBER, PB_VALUE_ADDRESS, PB_VALUE_REFERENCE, PB_VALUE_STRING };

struct pb_value {
    uint8_t kind;     /* enum pb_value_kind */
    uint8_t section;  /* of a string: enum pb_debug_section */
    bool is_index;    /* of DW_FORM_rnglistx and strx */
    uint64_t number;  /* a reference is an offset in .debug_info */
    const char *text; /* of a string that stands in the unit; NULL: at number in section */
};

/* The attributes of a DIE that are used. */
struct pb_die {
    size_t at, next;                /* from the unit's data: its code, and what follows its attributes */
    const struct pb_abbrev *abbrev; /* NULL: the end of a list of siblings */
    struct pb_value name, linkage_name, low, high, ranges, origin, sibling, call_file, call_line;
    struct pb_value stmt_list, str_offsets, addrs, rnglists;
};

enum { PB_FORM_IMPLICIT_CONST = 0x21 };

/* Bytes that a value of a form takes; -1: that depends on the value. */
int pb_form_size(const struct pb_unit *u, unsigned form);

/* The value of an attribute; values that are not used are skipped. An unknown form makes the cursor bad. */
struct pb_value pb_form_value(const struct pb_unit *u, const struct pb_attribute *a, struct pb_cursor *c);

/* A string by its number in .debug_str_offsets; no value where there is none. */
struct pb_value pb_form_indexed_string(const struct pb_unit *u, uint64_t index);

/* -ENOENT: no debug information, or only compressed. */
int pb_dwarf_open(const struct pb_object *o, struct pb_dwarf *ret);

/* Takes work off the budget. False: it is used up. */
bool pb_dwarf_spend(const struct pb_dwarf *d, uint64_t work);

/* Bytes of a section; -EFAULT: beyond its end. */
int pb_dwarf_read(const struct pb_dwarf *d, enum pb_debug_section s, uint64_t offset, void *buf, size_t len);

/* Reads the head of the unit at offset for the start of the next one. */
int pb_unit_skip(const struct pb_dwarf *d, uint64_t offset, uint64_t *ret_next);

/* The unit at offset. */
int pb_unit_open(const struct pb_dwarf *d, uint64_t offset, struct pb_unit *ret);
void pb_unit_done(struct pb_unit *u);

/* The DIE at an offset of the unit's data. -EBADMSG: there is none. */
int pb_die_read(const struct pb_unit *u, size_t at, struct pb_die *ret);

/* The DIE's abbreviation and the end of its attributes, without their values, to skip it. abbrev NULL: the
 * end of a list of siblings. */
int pb_die_peek(const struct pb_unit *u, size_t at, const struct pb_abbrev **ret, size_t *ret_next);

/* The offset of the DIE after this one and its children. */
int pb_die_skip(const struct pb_unit *u, const struct pb_die *die, size_t *ret);

/* A string value into buf; "" where it is not one or cannot be read. */
void pb_value_text(const struct pb_unit *u, const struct pb_value *v, char *buf, size_t size);

/* Calls each with every range of addresses of a DIE until it returns true. True: it did. */
bool pb_die_ranges(const struct pb_unit *u, const struct pb_die *die,
                   bool (*each)(void *arg, uint64_t low, uint64_t high), void *arg);
