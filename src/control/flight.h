/* flight: the Flight Recorder of torch.distributed, read by its layout.
 *
 * torch keeps the last collectives of each backend in a ring: group, number, sizes, when each was issued,
 * whether it is over, and how long it took where timing is on. Its own function to dump the ring queries
 * CUDA events through pointers whose owner may be gone, walks maps that other threads change, and throws
 * C++ exceptions: so nothing of torch is called here. The memory is read through a function of the
 * caller, which may be of this process (the agent), another one, or a core. It changes meanwhile and may
 * be hostile: each entry is checked, and a layout counts only if every entry fits it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The variables that hold the recorders, in the symbol table of the library (not the dynamic one). */
#define PB_FLIGHT_CUDA                                                                                       \
    "_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance" /* libtorch_cuda.so */
#define PB_FLIGHT_CUDA_2                                                                                     \
    "_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance"           /* before torch 2.10 or so */
#define PB_FLIGHT_CPU "_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance" /* libtorch_cpu.so */
#define PB_FLIGHT_OLD "_ZZN4c10d15NCCLTraceBuffer3getEvE8instance"              /* before torch 2.7 */

/* Looks for variables in the symbol table of an ELF file, piece by piece, since it may have tens of MB. */
struct pb_flight_symbols {
    int fd;
    uint64_t at, end, strings, strings_size; /* offsets in the file */
    uint64_t first;                          /* address of the first loaded byte of the object */
};
/* -ENOEXEC: no such object; -ENODATA: it was stripped. The descriptor stays the caller's. */
int pb_flight_symbols_open(int fd, struct pb_flight_symbols *ret);
/* Reads up to `most` symbols: 1 found, and *ret is the offset of the variable from where the object's
 * first byte is mapped; 0 not yet; -ENOENT: it ends without. */
int pb_flight_symbols_step(struct pb_flight_symbols *s, size_t most, uint64_t *ret);

struct pb_flight {
    /* Whole or nothing; 0 or negative errno. */
    int (*fetch)(void *of, uint64_t address, void *to, size_t size);
    void *of;
    uint64_t variable; /* address of the variable that holds the recorder */
    uint64_t recorder; /* 0: not made yet */
    uint32_t stride;   /* of an entry; 0: not known yet, since nothing was recorded */
    uint32_t has_epoch, has_thread;
};

/* What the recorder holds now. */
struct pb_flight_head {
    uint64_t begin, count;  /* its entries, in the order of its ring */
    uint64_t most;          /* how many it keeps; 0: it is off */
    uint64_t newest;        /* number of the newest entry, counted from 0; count 0: none */
    uint64_t newest_at;     /* its place */
    uint64_t epoch;         /* counts resets */
    uint64_t status, names; /* the maps of groups; 0: not known */
};

enum pb_flight_state { PB_FLIGHT_SCHEDULED, PB_FLIGHT_STARTED, PB_FLIGHT_COMPLETED };

struct pb_flight_entry {
    uint64_t address, id, group_id;
    uint64_t sequence, p2p_sequence, operation; /* the group's own numbers */
    uint64_t thread;                            /* pthread_self of the issuer; 0: not known */
    int64_t created;                            /* CLOCK_REALTIME ns */
    int64_t started, completed;                 /* when torch found out; 0: not yet */
    int64_t timeout_ms;
    double duration_ms; /* on the GPU; negative: not known */
    int is_p2p, retired;
    int has_events; /* 0: retired, or part of a coalesced operation */
    uint64_t name, name_length, group, group_length, description, description_length; /* texts */
};

/* -ENOENT: there is no recorder yet; -ENODATA: it is off (TORCH_FR_BUFFER_SIZE=0); -ENOTSUP: laid out
 * otherwise. */
int pb_flight_look(struct pb_flight *f, struct pb_flight_head *ret);

/* Entries from number `from` on, as many as fit the buffer and are there; returns how many, and the first
 * one's number in *first: later than `from` where that was overwritten. */
#define PB_FLIGHT_ENTRY_MAX 512
long pb_flight_read(const struct pb_flight *f, const struct pb_flight_head *head, uint64_t from, void *buffer,
                    size_t size, struct pb_flight_entry *ret, size_t most, uint64_t *first);

/* A text of an entry: cut at size - 1, ended with NUL. Returns its length. */
size_t pb_flight_text(const struct pb_flight *f, uint64_t address, uint64_t length, char *ret, size_t size);
/* "[[4, 8], [4]]" of the inputs or outputs, and "['Float']" of their types. */
void pb_flight_sizes(const struct pb_flight *f, const struct pb_flight_entry *entry, int outputs, char *ret,
                     size_t size);
void pb_flight_types(const struct pb_flight *f, const struct pb_flight_entry *entry, int outputs, char *ret,
                     size_t size);

/* What a group has reached. -1: nothing yet. */
struct pb_flight_group {
    uint64_t id;
    int64_t enqueued, started, completed;
};
size_t pb_flight_groups(const struct pb_flight *f, const struct pb_flight_head *head,
                        struct pb_flight_group *ret, size_t most);
/* The ranks of the group with that name: "0,1,2"; "" if it is not known. */
void pb_flight_ranks(const struct pb_flight *f, const struct pb_flight_head *head, const char *name,
                     char *ret, size_t size);

/* The state, given what its group has reached; NULL: not known. */
enum pb_flight_state pb_flight_state_of(const struct pb_flight_entry *entry,
                                        const struct pb_flight_group *group);
const char *pb_flight_state_name(enum pb_flight_state state);
