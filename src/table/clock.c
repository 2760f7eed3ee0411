/* clock: see clock.h. Signal-safe throughout. */
#include "table/clock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S  1000000000
#define FIRST_NS  (NS_PER_S / 2) /* the shortest base for a line: 100 ns of jitter are then 2e-7 of slope */
#define REFIT_NS  NS_PER_S
#define JUMP_NS   1000000 /* a line this far off is not noise: the counter itself was changed */
#define FITS      16      /* a reader delayed by this many seconds notices, and reads again */
#define TRIES     5
#define GAP_LIMIT 10000 /* ticks: if two reads are further apart, the thread was interrupted */
#define BOTH_NS   1000  /* two clocks read within this time count as read together */
#define BOTH_MAX  20

static int64_t system_clock(clockid_t which)
{
    struct timespec ts;
    clock_gettime(which, &ts);
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

static int64_t real_now(void)
{
    return system_clock(CLOCK_REALTIME);
}

#ifdef __x86_64__
#include <cpuid.h>
#include <x86intrin.h>

/* ns = base_ns + (ticks - base) * slope / 2^32 */
struct clock_line {
    uint64_t base, slope;
    int64_t base_ns;
};

struct clock_pair {
    uint64_t ticks;
    int64_t ns;
};

static struct clock_line lines[FITS];
static _Atomic uint64_t fitted;       /* lines made so far; 0: none is in use */
static struct clock_pair first, last; /* of the tending thread */
static enum { UNASKED, SOUND, UNSOUND } counter;

/* Whether the kernel itself keeps time by the counter: it checks that all cores tick at one rate. */
static int kernel_uses_counter(void)
{
    static const char path[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    unsigned a, b, c, d;
    char name[16] = "";

    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d >> 8 & 1))
        return UNSOUND;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UNSOUND;
    ssize_t n = read(fd, name, sizeof(name) - 1);
    close(fd);
    return n > 0 && strcmp(name, "tsc\n") == 0 ? SOUND : UNSOUND;
}

/* Reads counter and clock as close together as possible. 0: every try was interrupted. */
static int read_pair(struct clock_pair *ret)
{
    uint64_t best = GAP_LIMIT;

    for (int i = 0; i < TRIES; i++) {
        uint64_t before = __rdtsc();
        int64_t ns = system_clock(CLOCK_MONOTONIC);
        uint64_t gap = __rdtsc() - before;
        if (gap < best) {
            best = gap;
            *ret = (struct clock_pair){before + gap / 2, ns};
        }
    }
    return best < GAP_LIMIT;
}

static int64_t on_line(const struct clock_line *l, uint64_t ticks)
{
    /* A core may be a few ticks behind the one that fitted the line. */
    uint64_t passed = ticks > l->base ? ticks - l->base : 0;
    return l->base_ns + (int64_t)((unsigned __int128)passed * l->slope >> 32);
}

int64_t pb_clock_mono(void)
{
    for (;;) {
        uint64_t n = atomic_load_explicit(&fitted, memory_order_acquire);
        if (n == 0)
            return system_clock(CLOCK_MONOTONIC);
        struct clock_line l = lines[n % FITS];
        int64_t ns = on_line(&l, __rdtsc());
        atomic_thread_fence(memory_order_acquire);
        uint64_t now = atomic_load_explicit(&fitted, memory_order_relaxed);
        if (now - n < FITS - 1) /* otherwise the line may have been overwritten while it was read */
            return ns;
    }
}

static void fit(const struct clock_pair *from, const struct clock_pair *to)
{
    uint64_t n = atomic_load_explicit(&fitted, memory_order_relaxed);
    struct clock_line l = {
        .base = to->ticks,
        .base_ns = to->ns,
        .slope = (uint64_t)((double)(to->ns - from->ns) / (double)(to->ticks - from->ticks) * 4294967296.0),
    };

    lines[(n + 1) % FITS] = l;
    atomic_store_explicit(&fitted, n + 1, memory_order_release);
}

void pb_clock_tend(void)
{
    struct clock_pair now;

    if (counter == UNASKED)
        counter = kernel_uses_counter();
    if (counter == UNSOUND)
        return;
    uint64_t n = atomic_load_explicit(&fitted, memory_order_relaxed);
    if (n && on_line(&lines[n % FITS], __rdtsc()) - last.ns < REFIT_NS)
        return;
    if (!read_pair(&now))
        return;
    if (first.ticks == 0) {
        first = now;
    } else if (n == 0 && now.ns - first.ns >= FIRST_NS) {
        fit(&first, &now);
        last = now;
    } else if (n) {
        int64_t off = on_line(&lines[n % FITS], now.ticks) - now.ns;
        if (off > JUMP_NS || off < -JUMP_NS) {
            counter = UNSOUND;
            atomic_store_explicit(&fitted, 0, memory_order_release);
            return;
        }
        fit(&last, &now);
        last = now;
    }
}

int pb_clock_is_counter(void)
{
    return atomic_load(&fitted) != 0;
}

#else

int64_t pb_clock_mono(void)
{
    return system_clock(CLOCK_MONOTONIC);
}

void pb_clock_tend(void)
{
}

int pb_clock_is_counter(void)
{
    return 0;
}

#endif

void pb_clock_both(int64_t *mono, int64_t *real)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < BOTH_MAX && best > BOTH_NS; i++) {
        int64_t before = pb_clock_mono(), wall = real_now(), gap = pb_clock_mono() - before;
        if (gap < 0 || gap >= best)
            continue;
        best = gap;
        *mono = before + gap / 2;
        *real = wall;
    }
    if (best == INT64_MAX) {
        *mono = pb_clock_mono();
        *real = real_now();
    }
}
