/* torch_flight: when collectives of NCCL begin and end on the GPU, from torch's Flight Recorder.
 *
 * Their calls return when the GPU has the work. torch's own watchdog finds out when each is over, some
 * 0.1 s later, and writes that, and the time on the GPU where timing is on, into a ring
 * (control/flight.h). The resident thread looks there ten times a second, as long as rows wait for their
 * end: it reads memory through the kernel, takes no lock of torch's, and calls nothing of torch or CUDA.
 *
 * A row belongs to the entry that its own thread made for its group between call and return: the entry's
 * number is the group's own. Several operations that are given to NCCL as one have an entry each, without
 * an end, and one more for all, whose end and time are those of each. */
#include "agent/core/agent_clock.h"
#include "agent/core/fork_gate.h"
#include "agent/core/own_memory.h"
#include "agent/core/recorder.h"
#include "agent/probes/torch/torch.h"
#include "control/flight.h"
#include "table/arena.h"
#include "table/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAITING       4096 /* operations that are issued between two looks */
#define FLYING        8192 /* and those on the GPU, or waiting for it */
#define GROUPS        64
#define LOOK_NS       (100 * PB_NS_PER_MS)
#define FAR           512 /* entries: more are looked through less often */
#define FAR_NS        (500 * PB_NS_PER_MS)
#define SEARCH_NS     (20 * PB_NS_PER_MS)
#define SEARCH_STEP   16384                      /* symbols */
#define NO_ENTRY_NS   (5 * (int64_t)PB_NS_PER_S) /* after the call: it has none */
#define LIBRARY_BYTES 512

/* Written by the thread that issued it, taken by the resident thread. */
static struct waiting {
    uint32_t ready;
    struct pb_torch_issued op;
} waiting[WAITING];
static uint32_t waiting_put, waiting_taken;

/* Entries of the recorder that have a row, or end those of others. By their number. */
static struct flying {
    uint64_t id;
    struct pb_torch_rows rows; /* none: it was not reported, or is settled */
    uint64_t sequence;
    uint32_t group;
    int is_open, is_part, is_late, has_started, is_p2p;
    int64_t created;
} flying[FLYING];
static uint32_t flying_put, flying_first; /* counters: a place is a counter modulo FLYING */

static enum { UNSEEN, SEARCHING, KNOWN, NONE } state; /* of the recorder */
static const char *why_none = "";
static struct pb_flight_symbols symbols;
static struct pb_flight flight;
static uint64_t next_id; /* of the first entry not looked at */
static uint64_t epoch;
static uint64_t lost; /* operations whose entry was overwritten before its end was seen */
static struct {
    uint64_t id;
    uint32_t hash, known;
} names[GROUPS];
static char buffer[128 * PB_FLIGHT_ENTRY_MAX];

static int64_t realtime(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * (int64_t)PB_NS_PER_S + now.tv_nsec;
}

int64_t pb_torch_flight_clock(void)
{
    return realtime();
}

int pb_torch_flight_issued(const struct pb_torch_issued *op)
{
    struct waiting *w = &waiting[__atomic_fetch_add(&waiting_put, 1, __ATOMIC_RELAXED) % WAITING];

    if (__atomic_load_n(&w->ready, __ATOMIC_ACQUIRE)) /* nobody has looked for thousands of operations */
        return 0;
    w->op = *op;
    __atomic_store_n(&w->ready, 1, __ATOMIC_RELEASE);
    return 1;
}

int pb_torch_flight_is_none(void)
{
    return __atomic_load_n(&state, __ATOMIC_RELAXED) == NONE;
}

/* --- finding the recorder --------------------------------------------------------------------------- */

struct flight_library {
    char name[LIBRARY_BYTES];
    uint64_t at;
};

static int is_library(struct dl_phdr_info *info, size_t size, void *ret)
{
    struct flight_library *library = ret;
    (void)size;

    if (!info->dlpi_name || !strstr(info->dlpi_name, "libtorch_cuda.so"))
        return 0;
    snprintf(library->name, sizeof(library->name), "%s", info->dlpi_name);
    library->at = info->dlpi_addr;
    return 1;
}

static int read_own(void *unused, uint64_t address, void *to, size_t size)
{
    const struct iovec piece = {(void *)(uintptr_t)address, size};
    (void)unused;

    ssize_t n = pb_own_memory_read(&piece, 1, to);
    return n == (ssize_t)size ? 0 : n < 0 ? (int)n : -EFAULT;
}

static void give_up(const char *why)
{
    why_none = why;
    if (state == SEARCHING)
        close(symbols.fd);
    __atomic_store_n(&state, NONE, __ATOMIC_RELAXED);
}

static void begin_search(void)
{
    struct flight_library library = {.name = ""};

    if (!pb_fork_gate_each_object(is_library, &library)) {
        give_up("libtorch_cuda.so is not loaded");
        return;
    }
    int fd = open(library.name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pb_flight_symbols_open(fd, &symbols) < 0) {
        if (fd >= 0)
            close(fd);
        give_up("libtorch_cuda.so has no symbol table");
        return;
    }
    flight = (struct pb_flight){.fetch = read_own, .variable = library.at + symbols.first};
    state = SEARCHING;
}

static void search(void)
{
    uint64_t at;
    int r = pb_flight_symbols_step(&symbols, SEARCH_STEP, &at);

    if (r < 0) {
        give_up("this version of torch has no Flight Recorder");
    } else if (r > 0) {
        close(symbols.fd);
        flight.variable += at;
        state = KNOWN;
    }
}

/* --- rows ------------------------------------------------------------------------------------------ */

static void write_number(struct pb_arena *arena, const struct pb_torch_rows *rows, uint64_t number)
{
    int64_t value = (int64_t)number;
    const struct pb_late cell = {PB_TORCH_COMM_NUMBER, PB_I64, &value, sizeof(value)};

    pb_torch_comm_fill(arena, rows, &cell, 1);
}

static void write_started(struct pb_arena *arena, struct flying *f, int64_t mono)
{
    const struct pb_late cell = {PB_TORCH_COMM_STARTED, PB_TIMESTAMP, &mono, sizeof(mono)};

    if (!f->has_started)
        pb_torch_comm_fill(arena, &f->rows, &cell, 1);
    f->has_started = 1;
}

static void write_end(struct pb_arena *arena, struct flying *f, const struct pb_flight_entry *entry,
                      int64_t to_mono)
{
    int64_t done = entry->completed + to_mono;
    const struct pb_late cells[] = {
        {PB_TORCH_COMM_DONE, PB_TIMESTAMP, &done, sizeof(done)},
        {PB_TORCH_COMM_DURATION, PB_F64, &entry->duration_ms, sizeof(entry->duration_ms)}};

    write_started(arena, f, (entry->started ? entry->started : entry->completed) + to_mono);
    pb_torch_comm_fill(arena, &f->rows, cells, entry->duration_ms >= 0 ? 2 : 1);
    f->is_open = 0;
}

/* --- entries --------------------------------------------------------------------------------------- */

static uint32_t group_of(const struct pb_flight_entry *entry)
{
    unsigned at = (unsigned)(entry->group_id % GROUPS);
    char name[128];

    if (!names[at].known || names[at].id != entry->group_id) {
        pb_flight_text(&flight, entry->group, entry->group_length, name, sizeof(name));
        names[at].id = entry->group_id;
        names[at].hash = pb_torch_comm_group(name);
        names[at].known = 1;
    }
    return names[at].hash;
}

/* The operation whose call made the entry. */
static struct waiting *find_waiting(const struct pb_flight_entry *entry, uint32_t group)
{
    uint32_t end = __atomic_load_n(&waiting_put, __ATOMIC_ACQUIRE);

    for (uint32_t i = end - waiting_taken > WAITING ? end - WAITING : waiting_taken; i != end; i++) {
        struct waiting *w = &waiting[i % WAITING];
        if (__atomic_load_n(&w->ready, __ATOMIC_ACQUIRE) &&
            (w->op.group == group || (!w->op.group && entry->thread)) && w->op.from <= entry->created &&
            entry->created <= w->op.to && (!entry->thread || w->op.thread == entry->thread))
            return w;
    }
    return NULL;
}

static int has_parts(uint32_t group)
{
    for (uint32_t i = flying_first; i != flying_put; i++)
        if (flying[i % FLYING].is_open && flying[i % FLYING].is_part && flying[i % FLYING].group == group)
            return 1;
    return 0;
}

static void add_flying(struct pb_arena *arena, const struct pb_flight_entry *entry)
{
    uint32_t group = group_of(entry);
    struct waiting *w = find_waiting(entry, group);
    struct flying *f = &flying[flying_put % FLYING];

    if (!w && !has_parts(group))
        return;
    if (flying_put - flying_first == FLYING) {
        if (flying[flying_first % FLYING].is_open)
            pb_torch_comm_unknown(arena, &flying[flying_first % FLYING].rows);
        flying_first++;
    }
    flying_put++;
    *f = (struct flying){.id = entry->id,
                         .sequence = entry->is_p2p ? entry->p2p_sequence : entry->sequence,
                         .group = group,
                         .is_open = 1,
                         .is_part = !entry->has_events && !entry->retired,
                         .is_p2p = entry->is_p2p,
                         .created = entry->created};
    if (!w)
        return;
    /* Of several entries of one call the last has the end: those before are settled with it. */
    for (uint32_t i = flying_first; w->op.bound && i != flying_put - 1; i++)
        if (flying[i % FLYING].id + 1 == w->op.bound)
            flying[i % FLYING].is_open = 0;
    f->rows = w->op.rows;
    if (!w->op.bound)
        write_number(arena, &f->rows, f->sequence);
    w->op.bound = entry->id + 1;
}

/* Those given to NCCL together with it. */
static void end_parts(struct pb_arena *arena, const struct flying *whole, const struct pb_flight_entry *entry,
                      int64_t to_mono)
{
    for (uint32_t i = flying_first; i != flying_put; i++) {
        struct flying *f = &flying[i % FLYING];
        if (f->is_open && f->is_part && f->group == whole->group && f->created <= whole->created)
            write_end(arena, f, entry, to_mono);
    }
}

static void update(struct pb_arena *arena, struct flying *f, const struct pb_flight_entry *entry,
                   const struct pb_flight_group *group, int64_t to_mono)
{
    if (!entry->created) { /* overwritten */
        lost++;
        pb_torch_comm_unknown(arena, &f->rows);
        f->is_open = 0;
    } else if (entry->completed && (entry->duration_ms >= 0 || f->is_late)) {
        write_end(arena, f, entry, to_mono);
        end_parts(arena, f, entry, to_mono);
    } else if (entry->completed) {
        f->is_late = 1; /* its duration is written a moment later, where timing is on */
    } else if (pb_flight_state_of(entry, group) == PB_FLIGHT_STARTED) {
        write_started(arena, f, pb_clock_mono());
    }
}

/* Drops what is settled, and calls that have made no entry. */
static void tidy(struct pb_arena *arena, int64_t now)
{
    uint32_t end = __atomic_load_n(&waiting_put, __ATOMIC_ACQUIRE);

    while (flying_first != flying_put && !flying[flying_first % FLYING].is_open)
        flying_first++;
    for (uint32_t i = waiting_taken; i != end; i++) {
        struct waiting *w = &waiting[i % WAITING];
        if (!__atomic_load_n(&w->ready, __ATOMIC_ACQUIRE))
            continue;
        int over = w->op.bound ? now > w->op.to : now > w->op.to + NO_ENTRY_NS;
        if (over && !w->op.bound)
            pb_torch_comm_unknown(arena, &w->op.rows);
        if (over)
            __atomic_store_n(&w->ready, 0, __ATOMIC_RELEASE);
    }
    while (waiting_taken != end &&
           !__atomic_load_n(&waiting[waiting_taken % WAITING].ready, __ATOMIC_ACQUIRE))
        waiting_taken++;
}

static const struct pb_flight_group *find_group(const struct pb_flight_group *groups, size_t n, uint64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (groups[i].id == id)
            return &groups[i];
    return NULL;
}

/* How many entries were looked through. */
static uint64_t look_through(struct pb_arena *arena, const struct pb_flight_head *head)
{
    static struct pb_flight_entry entries[128];
    static struct pb_flight_group groups[GROUPS];
    size_t ngroups = pb_flight_groups(&flight, head, groups, GROUPS);
    int64_t to_mono = pb_clock_mono() - realtime();
    uint32_t at = flying_first;
    uint64_t first, looked = 0;
    uint64_t from = flying_first != flying_put ? flying[flying_first % FLYING].id : next_id;

    from = from < next_id ? from : next_id;
    for (long n;
         (n = pb_flight_read(&flight, head, from, buffer, sizeof(buffer), entries, 128, &first)) > 0;) {
        for (; at != flying_put && flying[at % FLYING].id < first;
             at++) /* overwritten, and not there any more */
            if (flying[at % FLYING].is_open)
                update(arena, &flying[at % FLYING], &(struct pb_flight_entry){0}, NULL, 0);
        for (long i = 0; i < n; i++) {
            const struct pb_flight_entry *entry = &entries[i];
            if (entry->id >= next_id) {
                next_id = entry->id + 1;
                if (entry->created)
                    add_flying(arena, entry);
            }
            while (at != flying_put && flying[at % FLYING].id < entry->id)
                at++;
            if (at != flying_put && flying[at % FLYING].id == entry->id && flying[at % FLYING].is_open)
                update(arena, &flying[at % FLYING], entry, find_group(groups, ngroups, entry->group_id),
                       to_mono);
        }
        looked += (uint64_t)n;
        from = first + (uint64_t)n;
    }
    return looked;
}

/* Rows that have waited so far have no end that anybody would tell. */
static void drop_all(struct pb_arena *arena)
{
    for (; flying_first != flying_put; flying_first++)
        if (flying[flying_first % FLYING].is_open)
            pb_torch_comm_unknown(arena, &flying[flying_first % FLYING].rows);
    for (uint32_t i = 0; i < WAITING; i++)
        if (__atomic_load_n(&waiting[i].ready, __ATOMIC_ACQUIRE)) {
            if (!waiting[i].op.bound)
                pb_torch_comm_unknown(arena, &waiting[i].op.rows);
            __atomic_store_n(&waiting[i].ready, 0, __ATOMIC_RELEASE);
        }
    waiting_taken = __atomic_load_n(&waiting_put, __ATOMIC_ACQUIRE);
}

static uint64_t look(struct pb_arena *arena)
{
    struct pb_flight_head head;

    int r = pb_flight_look(&flight, &head);
    if (r == -ENODATA)
        give_up("the Flight Recorder is off (TORCH_FR_BUFFER_SIZE=0)");
    else if (r == -ENOTSUP)
        give_up("the Flight Recorder of this torch is laid out otherwise");
    if (r < 0 || !head.count)
        return 0;
    if (head.epoch != epoch || head.newest + 1 < next_id) { /* it was reset */
        drop_all(arena);
        epoch = head.epoch;
        next_id = 0;
    }
    return look_through(arena, &head);
}

uint64_t pb_torch_flight_tick(void)
{
    uint32_t inside;
    uint64_t looked = 0;

    if (flying_first == flying_put && waiting_taken == __atomic_load_n(&waiting_put, __ATOMIC_ACQUIRE))
        return LOOK_NS;
    if (state == UNSEEN)
        begin_search();
    if (state == SEARCHING) {
        search();
        return SEARCH_NS;
    }
    struct pb_arena *arena = pb_recorder_enter(&inside);
    if (!arena)
        return LOOK_NS;
    if (state == KNOWN)
        looked = look(arena);
    if (state == NONE)
        drop_all(arena);
    tidy(arena, realtime());
    pb_recorder_leave(inside);
    return looked > FAR ? FAR_NS : LOOK_NS;
}

void pb_torch_flight_stop(void)
{
    uint32_t inside;

    if (state == SEARCHING) { /* the descriptor goes with the resident thread */
        close(symbols.fd);
        state = UNSEEN;
    }
    struct pb_arena *arena = pb_recorder_enter(&inside);
    if (!arena)
        return;
    drop_all(arena);
    pb_recorder_leave(inside);
}

void pb_torch_flight_forget(void)
{
    if (state == SEARCHING)
        state = UNSEEN; /* the descriptor was the parent's */
    for (uint32_t i = 0; i < WAITING && waiting_put != waiting_taken; i++)
        waiting[i].ready = 0; /* a child that never had any need not get pages for them */
    waiting_put = waiting_taken = flying_put = flying_first = 0;
}

void pb_torch_flight_describe(char *ret, size_t size)
{
    if (state == NONE)
        snprintf(ret, size, "; ends of NCCL's are unknown: %s", why_none);
    else if (state == KNOWN && lost)
        snprintf(ret, size, "; %llu ends of NCCL's were overwritten before they were seen",
                 (unsigned long long)lost);
    else
        ret[0] = '\0';
}
