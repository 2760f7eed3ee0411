/* gpu_profile: the probe that records kernels and copies of GPUs for some seconds, by CUPTI.
 *
 * A recording is a thread of ours. It finds CUPTI in the program, switches the records of kernels, copies
 * and sets on, and off again when the time is over: whatever became of the tool that asked for it. Nothing
 * waits for the GPU, no call of the program is hooked by us, and CUPTI is not touched before or after.
 *
 * CUPTI asks for buffers in threads of the program, and gives them back filled. Both are done here without a
 * lock or a wait: there is a fixed number of buffers, and which are free, and which are full, are bits of
 * two words. If none is free CUPTI drops records, and counts them. The memory of the buffers is given back
 * after a recording, its addresses are kept: CUPTI may hold one for longer. */
#include "agent/probes/gpu/gpu_profile.h"
#include "agent/core/agent_clock.h"
#include "agent/core/futex.h"
#include "agent/core/small_files.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/probes/probe.h"
#include "table/clock.h"
#include "table/pages.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BUFFERS      16
#define BUFFER_BYTES ((size_t)1 << 20)
#define ALL          ((uint32_t)((1u << BUFFERS) - 1))
#define LEAST_NS     (10 * PB_NS_PER_MS)
#define MOST_NS      (60 * PB_NS_PER_S)
#define LOOK_MS      20
#define PAUSE_NS     PB_NS_PER_S /* between recordings */

static char *buffers; /* BUFFERS of them; NULL: there was no recording yet */
static size_t valid[BUFFERS];
static uint32_t free_buffers, full_buffers; /* a bit each */
static uint32_t kept_buffers;               /* that CUPTI had kept before this recording */
static uint32_t open_for_records;           /* whether CUPTI gets buffers */

static uint32_t running, must_end, bell; /* of the thread */
static uint64_t length_ns;
static int64_t last_ended; /* CLOCK_MONOTONIC ns, of the last recording; 0: none */
static struct pb_gpu_totals totals;
static char last_why[200]; /* why the last recording ended early; "": it did not. Of the resident thread
                            * once nothing runs */

/* --- what CUPTI calls, in any thread --------------------------------------------------------------- */

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    uint32_t some = __atomic_load_n(&free_buffers, __ATOMIC_ACQUIRE);

    *buffer = NULL;
    *size = 0;
    *records = 0;
    if (!__atomic_load_n(&open_for_records, __ATOMIC_ACQUIRE))
        return;
    while (some) {
        uint32_t bit = some & -some;
        if (__atomic_compare_exchange_n(&free_buffers, &some, some & ~bit, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            *buffer = (uint8_t *)buffers + (size_t)__builtin_ctz(bit) * BUFFER_BYTES;
            *size = BUFFER_BYTES;
            return;
        }
    }
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t length)
{
    uintptr_t at = (uintptr_t)buffer - (uintptr_t)buffers;
    (void)context;
    (void)stream;
    (void)size;

    if (!buffer || at >= BUFFERS * BUFFER_BYTES || at % BUFFER_BYTES) /* of somebody else */
        return;
    valid[at / BUFFER_BYTES] = length <= BUFFER_BYTES ? length : 0;
    __atomic_or_fetch(&full_buffers, 1u << at / BUFFER_BYTES, __ATOMIC_ACQ_REL);
    __atomic_add_fetch(&bell, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(&bell);
}

/* --- the thread of a recording --------------------------------------------------------------------- */

static void read_buffer(const struct pb_cupti *c, unsigned i, const struct pb_gpu_clock *clock)
{
    uint8_t *buffer = (uint8_t *)buffers + i * BUFFER_BYTES;
    struct pb_cupti_record record;
    void *at = NULL;

    for (size_t n = 0; n < BUFFER_BYTES / 8 && c->get_next_record(buffer, valid[i], &at) == 0; n++) {
        uintptr_t offset = (uintptr_t)at - (uintptr_t)buffer;
        if (offset >= valid[i])
            return;
        if (pb_cupti_read(at, valid[i] - offset, &record) > 0)
            pb_gpu_rows_add(&record, clock, &totals);
    }
}

static void take_full(const struct pb_cupti *c, const struct pb_gpu_clock *clock)
{
    uint32_t full = __atomic_exchange_n(&full_buffers, 0, __ATOMIC_ACQ_REL);

    for (unsigned i = 0; i < BUFFERS; i++)
        if (full >> i & 1) {
            read_buffer(c, i, clock);
            __atomic_or_fetch(&free_buffers, 1u << i, __ATOMIC_ACQ_REL);
        }
}

/* The buffers that CUPTI holds. */
static uint32_t find_out(void)
{
    return ALL & ~(__atomic_load_n(&free_buffers, __ATOMIC_ACQUIRE) |
                   __atomic_load_n(&full_buffers, __ATOMIC_ACQUIRE));
}

/* Whether it holds some of this recording. */
static int are_some_out(void)
{
    return (find_out() & ~kept_buffers) != 0;
}

/* Both clocks at one moment: CUPTI's is read between two looks at the other, and the closest of a few
 * counts. */
static int read_clocks(const struct pb_cupti *c, int64_t *mono, uint64_t *there)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < 5; i++) {
        uint64_t now = 0;
        int64_t before = pb_clock_mono();
        if (c->get_timestamp(&now) != 0)
            continue;
        int64_t after = pb_clock_mono();
        if (after - before < best) {
            best = after - before;
            *mono = before + (after - before) / 2;
            *there = now;
        }
    }
    return best < INT64_MAX ? 0 : -EIO;
}

/* Some ms after it began at least. */
static void adjust_clock(const struct pb_cupti *c, struct pb_gpu_clock *clock)
{
    uint64_t there;
    int64_t mono;

    if (read_clocks(c, &mono, &there) == 0)
        pb_gpu_clock_adjust(clock, mono, there);
}

static const int kinds[] = {PB_CUPTI_KERNEL, PB_CUPTI_COPY, PB_CUPTI_SET};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void drop_full(void)
{
    __atomic_or_fetch(&free_buffers, __atomic_exchange_n(&full_buffers, 0, __ATOMIC_ACQ_REL),
                      __ATOMIC_ACQ_REL);
}

/* Switches the first n kinds off, which were on for a moment only. */
static void undo(const struct pb_cupti *c, size_t n)
{
    while (n > 0)
        c->disable(kinds[--n]);
    c->flush_all(PB_CUPTI_FLUSH_FORCED);
    drop_full();
}

/* CUPTI may start threads of its own, which stay: they get the name of the program's first thread, as they
 * do when a profiler of the program starts them, not ours. */
static void take_name_of_program(void)
{
    char name[32];

    if (pb_file_read("/proc/self/comm", name, sizeof(name)) > 0) {
        name[strcspn(name, "\n")] = '\0';
        pb_thread_name(name);
    }
}

static int switch_on(const struct pb_cupti *c, char *why, size_t why_size)
{
    const char *text = NULL;
    size_t n = 0;

    int r = c->register_callbacks(requested, completed);
    while (r == 0 && n < KINDS && (r = c->enable(kinds[n])) == 0)
        n++;
    if (r == 0)
        return 0;
    undo(c, n);
    if (c->get_result_string(r, &text) != 0 || !text)
        text = "an error without a name";
    snprintf(why, why_size, "CUPTI refuses: %.80s", text);
    return -EIO;
}

/* What was launched before the end may still be on the GPU: its records are waited for, but not for ever.
 * CUPTI's own thread works on the records too: it is asked for them as rarely as possible, and never forced
 * to give them back unfinished. */
static void settle(const struct pb_cupti *c, const struct pb_gpu_clock *clock)
{
    static const unsigned pauses_ms[] = {100, 400, 1500};
    size_t dropped = 0;

    for (size_t i = 0; i < sizeof(pauses_ms) / sizeof(pauses_ms[0]) && (i == 0 || are_some_out()); i++) {
        uint64_t until = pb_now_ns() + pauses_ms[i] * PB_NS_PER_MS;
        while (pb_now_ns() < until) {
            uint32_t seen = __atomic_load_n(&bell, __ATOMIC_SEQ_CST);
            take_full(c, clock);
            pb_futex_wait_ms(&bell, seen, LOOK_MS);
        }
        c->flush_all(0);
        take_full(c, clock);
    }
    if (c->get_dropped(NULL, 0, &dropped) == 0)
        totals.lost += dropped;
}

/* Until the time is over, or somebody asks for the end, or torch's own profiler begins: 1. Nothing is read
 * before both clocks were compared twice. */
static int record(const struct pb_cupti *c, const struct pb_torch_profiler *other, struct pb_gpu_clock *clock)
{
    const uint64_t begun = pb_now_ns(), until = begun + length_ns;

    for (uint64_t now = begun; now < until; now = pb_now_ns()) {
        uint32_t seen = __atomic_load_n(&bell, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&must_end, __ATOMIC_SEQ_CST))
            break;
        if (pb_torch_profiler_is_active(other))
            return 1;
        if (now - begun >= LEAST_NS) {
            adjust_clock(c, clock);
            take_full(c, clock);
        }
        uint64_t left = (until - now) / PB_NS_PER_MS + 1;
        pb_futex_wait_ms(&bell, seen, left < LOOK_MS ? (long)left : LOOK_MS);
    }
    adjust_clock(c, clock);
    return pb_torch_profiler_is_active(other);
}

/* Torch's profiler has set callbacks of its own and switched on the records that it wants, which may be ours
 * too. They stay on until it ends. */
static void wait_for(const struct pb_torch_profiler *other)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * (long)PB_NS_PER_MS};

    while (pb_torch_profiler_is_active(other))
        nanosleep(&pause, NULL);
}

static void switch_off(const struct pb_cupti *c)
{
    for (size_t i = 0; i < KINDS; i++)
        c->disable(kinds[i]);
}

static void record_all(const struct pb_cupti *c, const struct pb_torch_profiler *other,
                       struct pb_gpu_recording *ret)
{
    struct pb_gpu_clock clock;
    uint64_t there;
    int64_t mono;

    kept_buffers = find_out(); /* torch's profiler took CUPTI over: it may never give them back */
    __atomic_store_n(&open_for_records, 1, __ATOMIC_SEQ_CST);
    ret->begun = pb_clock_mono();
    take_name_of_program();
    int r = switch_on(c, ret->why, sizeof(ret->why));
    pb_thread_name("probing-gpu");
    if (r == 0 && read_clocks(c, &mono, &there) == 0) {
        pb_gpu_clock_begin(&clock, mono, there);
        int taken = record(c, other, &clock);
        ret->ended = pb_clock_mono();
        if (taken) {
            snprintf(ret->why, sizeof(ret->why), "torch.profiler started to record and took over CUPTI");
            wait_for(other);
        }
        if (!taken)
            c->flush_all(0);
        switch_off(c);
        if (taken)
            drop_full(); /* it may have changed the clock */
        else
            settle(c, &clock);
    } else if (r == 0) {
        snprintf(ret->why, sizeof(ret->why), "CUPTI does not tell its time");
        undo(c, KINDS);
    }
    __atomic_store_n(&open_for_records, 0, __ATOMIC_SEQ_CST);
    if (!find_out())
        madvise(buffers, BUFFERS * BUFFER_BYTES, MADV_DONTNEED);
}

static int make_room(char *why, size_t why_size)
{
    if (!buffers && (buffers = pb_pages_map(BUFFERS * BUFFER_BYTES)))
        __atomic_store_n(&free_buffers, ALL, __ATOMIC_SEQ_CST);
    if (buffers && pb_gpu_rows_begin() == 0)
        return 0;
    snprintf(why, why_size, "there is no memory for buffers");
    return -ENOMEM;
}

/* CUPTI's own thread goes on with records after the end. Recordings that followed each other at once have
 * ended jobs there, before settle() asked less often (docs/gpu.md). */
static void wait_after_last(void)
{
    while (last_ended && !__atomic_load_n(&must_end, __ATOMIC_SEQ_CST) &&
           pb_clock_mono() < last_ended + (int64_t)PAUSE_NS)
        pb_futex_wait_ms(&bell, __atomic_load_n(&bell, __ATOMIC_SEQ_CST), LOOK_MS);
}

static void run_recording(struct pb_gpu_recording *ret)
{
    struct pb_torch_profiler other;
    struct pb_cupti c;

    if (pb_cupti_open(&c, ret->why, sizeof(ret->why)) < 0)
        return;
    ret->version = c.version;
    pb_cupti_relax_captures();
    int r = pb_torch_profiler_find(&other, ret->why, sizeof(ret->why));
    if (r == 0 && pb_torch_profiler_is_active(&other)) {
        snprintf(ret->why, sizeof(ret->why), "torch.profiler is recording, and only one can use CUPTI");
        r = -EBUSY;
    }
    if (r == 0 && make_room(ret->why, sizeof(ret->why)) == 0)
        record_all(&c, &other, ret);
    pb_gpu_rows_done();
    pb_cupti_close(&c);
}

static void *thread_function(void *unused)
{
    struct pb_gpu_recording recording = {.begun = 0};
    (void)unused;

    wait_after_last();
    recording.begun = pb_clock_mono();
    if (__atomic_load_n(&must_end, __ATOMIC_SEQ_CST))
        snprintf(recording.why, sizeof(recording.why), "it was ended before it began");
    else
        run_recording(&recording);
    if (recording.ended)
        last_ended = pb_clock_mono();
    else
        recording.ended = recording.begun;
    pb_gpu_rows_end(&recording, &totals);
    memcpy(last_why, recording.why, sizeof(last_why));
    __atomic_store_n(&running, 0, __ATOMIC_SEQ_CST);
    return NULL;
}

static void not_started(void *unused, int error)
{
    (void)unused;
    snprintf(last_why, sizeof(last_why), "its thread cannot be started: %s", strerror(-error));
    __atomic_store_n(&running, 0, __ATOMIC_SEQ_CST);
}

/* --- the probe ------------------------------------------------------------------------------------- */

static int start(struct pb_arena *arena, const char *settings, char *why, size_t why_size)
{
    uint64_t length = 2 * PB_NS_PER_S;
    (void)arena; /* its tables are made with their first rows */

    int r = pb_probe_check(settings, "for", why, why_size);
    if (r == 0)
        r = pb_probe_duration(settings, "for", LEAST_NS, MOST_NS, &length, why, why_size);
    if (r < 0)
        return r;
    if (__atomic_load_n(&running, __ATOMIC_SEQ_CST)) {
        snprintf(why, why_size, "another recording of the GPU is about to end: try again in a moment");
        return -EBUSY;
    }
    totals = (struct pb_gpu_totals){0};
    last_why[0] = '\0';
    length_ns = length;
    __atomic_store_n(&must_end, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&running, 1, __ATOMIC_SEQ_CST);
    r = pb_spawn(thread_function, not_started, NULL);
    if (r < 0) {
        running = 0;
        snprintf(why, why_size, "its thread cannot be started: %s", strerror(-r));
    }
    return r;
}

/* The thread ends soon after; rows that it still writes find the tables or not. */
static int stop(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    __atomic_store_n(&must_end, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&bell, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(&bell);
    return 0;
}

static uint64_t tick(uint64_t now)
{
    return __atomic_load_n(&running, __ATOMIC_SEQ_CST) ? now + LOOK_MS * PB_NS_PER_MS : PB_PROBE_IS_OVER;
}

static void forked(void)
{
    buffers = NULL; /* CUPTI in the child, which cannot use the GPU, may hold some of them */
    running = must_end = open_for_records = full_buffers = free_buffers = 0;
    last_ended = 0;
    last_why[0] = '\0';
}

static const char *why_over(void)
{
    return last_why;
}

static void describe(char *ret, size_t size)
{
    snprintf(ret, size, "records for %.3g s", (double)length_ns / 1e9);
}

const struct pb_probe pb_probe_gpu_profile = {.name = "gpu_profile",
                                              .text = "kernels and copies of the GPU, for some seconds",
                                              .settings = "for=2s",
                                              .start = start,
                                              .stop = stop,
                                              .tick = tick,
                                              .forked = forked,
                                              .why_over = why_over,
                                              .describe = describe};
