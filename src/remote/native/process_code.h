/* process_code: the contents of struct pb_native: the code of the process and its files. Private to native/.
 *
 * Ranges are the executable mappings, sorted; each belongs to a file, which is opened when a program counter
 * first falls into it: of four hundred mappings a stack touches ten. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "remote/maps.h"
#include "remote/native/cfi.h"
#include "remote/native/name_texts.h"
#include "remote/native/object.h"
#include "remote/native/symbols.h"
#include "remote/native/unwind.h"
#include "remote/source.h"

struct pb_native_arch;
struct pb_library;
struct pb_lines;
struct pb_perf_map;

enum pb_open_state { PB_NOT_TRIED, PB_OPEN, PB_FAILED };

/* An object of the process, with everything read of it. Lives as long as the pb_native. */
struct pb_file {
    const char *path; /* as mapped */
    uint64_t inode;
    uint64_t base; /* where its first byte is mapped */
    enum pb_open_state state, debug_state, symbols_state, lines_state;
    struct pb_object object, debug;
    const struct pb_object *lines; /* one of these two */
    enum pb_open_state reader_state;
    struct pb_lines *reader;
    struct pb_symbols symbols;
    const char *build_id; /* NULL: none */
    uint64_t used;        /* when its symbols were last used */
    bool loop_sought;
    uint64_t loop_part; /* see eval.h; 0: none */
    size_t asked;       /* scratch of pb_native_prepare */
    struct pb_file *next;
};

struct pb_range {
    uint64_t start, end, offset;
    struct pb_file *file; /* NULL: anonymous */
    uint64_t bias;        /* valid when file->state is PB_OPEN and placed is set */
    bool placed;
};

struct pb_row_slot {
    uint64_t pc; /* 0: empty */
    struct pb_range *range;
    bool none; /* there are no rules for this pc */
    struct pb_cfi_row row;
};

enum { PB_ROW_SLOTS = 4096 };

struct pb_description;

struct pb_native {
    struct pb_source *source;
    const struct pb_native_arch *arch;
    struct pb_native_options options;
    struct pb_maps maps;
    uint64_t maps_at; /* when they were read */
    struct pb_range *range;
    size_t nranges;
    struct pb_file *files;
    struct pb_row_slot *rows; /* by a hash of the program counter */
    struct pb_names names;
    struct pb_description **described; /* chains by a hash of the program counter */
    size_t ndescribed;
    struct pb_perf_map *perf;
    struct pb_library *library;
    uint64_t clock; /* counts lookups, for `used` */
    bool no_map_files;
};

/* Reads the mappings again if they are older than a second, or `missing` (an address was not found in them;
 * then at most every 10 ms). True: code was added or removed. */
bool pb_process_refresh(struct pb_native *n, bool missing);

/* The range that holds addr, with its file opened and placed if possible; NULL: not code. */
struct pb_range *pb_process_range(struct pb_native *n, uint64_t addr);

/* True where the range has an object whose addresses can be computed. */
static inline bool pb_range_usable(const struct pb_range *r)
{
    return r && r->file && r->placed;
}

/* The symbols of a file, loaded when first needed; NULL: it has none. */
struct pb_symbols *pb_process_symbols(struct pb_native *n, struct pb_file *f);

/* The object that has the debug information of a file: itself, or a separate one. NULL: none has it. */
const struct pb_object *pb_process_debug(struct pb_native *n, struct pb_file *f);

/* Forgets the descriptions of program counters, since other code may be there now. */
void pb_describe_forget(struct pb_native *n);
