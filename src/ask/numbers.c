/* numbers: see numbers.h.
 *
 * The order of elements does not matter for the statistics, so the dimensions are sorted by stride, and
 * adjacent ones are joined: most arrays become one run, read in pieces. There are two passes, since a
 * histogram needs the minimum and the maximum first. */
#include "ask/numbers.h"

#include "ask/task.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "remote/source.h"
#include "remote/source_agent.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 256 << 10, LIMIT_MS = 5000, FAR = 4096 };

typedef double read_fn(const uint8_t *at);

#define READER(name, type)                                                                                   \
    static double read_##name(const uint8_t *at)                                                             \
    {                                                                                                        \
        type value;                                                                                          \
        memcpy(&value, at, sizeof(value));                                                                   \
        return (double)value;                                                                                \
    }
READER(u8, uint8_t)
READER(i8, int8_t)
READER(u16, uint16_t)
READER(i16, int16_t)
READER(u32, uint32_t)
READER(i32, int32_t)
READER(u64, uint64_t)
READER(i64, int64_t)
READER(f32, float)
READER(f64, double)

/* A small float with exponent and mantissa of these widths. `finite`: it has no infinity, and one NaN. */
static double small_float(unsigned bits, unsigned exponent_bits, unsigned mantissa_bits, bool finite)
{
    unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    unsigned top = (1u << exponent_bits) - 1;
    int bias = (int)(top >> 1);
    double value;

    if (exponent == top && (!finite || mantissa == (1u << mantissa_bits) - 1))
        value = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - (int)mantissa_bits);
    else
        value = ldexp(mantissa + (1u << mantissa_bits), (int)exponent - bias - (int)mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

static double read_f16(const uint8_t *at)
{
    return small_float((unsigned)at[0] | (unsigned)at[1] << 8, 5, 10, false);
}

static double read_e5m2(const uint8_t *at)
{
    return small_float(at[0], 5, 2, false);
}

static double read_e4m3(const uint8_t *at)
{
    return small_float(at[0], 4, 3, true);
}

static double read_bf16(const uint8_t *at)
{
    uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* By Newton's method: the program does not link libm. */
static double square_root(double of)
{
    int exponent;

    if (!(of > 0) || !isfinite(of))
        return of;
    frexp(of, &exponent);
    double root = ldexp(1, exponent / 2);
    for (int i = 0; i < 8; i++)
        root = (root + of / root) / 2;
    return root;
}

static double read_c64(const uint8_t *at)
{
    double real = read_f32(at), imaginary = read_f32(at + 4);
    return square_root(real * real + imaginary * imaginary);
}

static double read_c128(const uint8_t *at)
{
    double real = read_f64(at), imaginary = read_f64(at + 8);
    return square_root(real * real + imaginary * imaginary);
}

static const struct number_type {
    const char *name;
    unsigned size;
    read_fn *read;
} types[] = {
    {"uint8", 1, read_u8},      {"int8", 1, read_i8},          {"uint16", 2, read_u16},
    {"int16", 2, read_i16},     {"uint32", 4, read_u32},       {"int32", 4, read_i32},
    {"uint64", 8, read_u64},    {"int64", 8, read_i64},        {"float16", 2, read_f16},
    {"bfloat16", 2, read_bf16}, {"float32", 4, read_f32},      {"float64", 8, read_f64},
    {"bool", 1, read_u8},       {"float8_e5m2", 1, read_e5m2}, {"float8_e4m3fn", 1, read_e4m3},
    {"complex64", 8, read_c64}, {"complex128", 16, read_c128},
};

static const struct number_type *find_type(const char *name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

/* --- the layout of the array --- */

struct dimension {
    uint64_t size, stride;
};

/* An array as runs: n dimensions, the innermost first. Elements at the same address count once. */
struct runs {
    uint64_t address;
    unsigned n;
    struct dimension at[PB_NUMBERS_DIMS];
};

static int by_stride(const void *a, const void *b)
{
    const struct dimension *x = a, *y = b;
    return (x->stride > y->stride) - (x->stride < y->stride);
}

/* -EOVERFLOW: it does not fit an address space. */
static int make_runs(const struct pb_numbers_place *place, struct runs *ret)
{
    uint64_t reach, span = 0;

    *ret = (struct runs){.address = place->address};
    for (unsigned i = 0; i < place->ndim; i++) {
        int64_t size = place->sizes[i], stride = place->strides[i];
        if (size < 1 || size > INT64_MAX / 16 || stride == INT64_MIN)
            return -EOVERFLOW;
        if (size == 1 || stride == 0)
            continue;
        uint64_t step = (uint64_t)(stride < 0 ? -stride : stride);
        if (__builtin_mul_overflow((uint64_t)size - 1, step, &reach) ||
            __builtin_add_overflow(span, reach, &span) || span > UINT64_C(1) << 47)
            return -EOVERFLOW;
        if (stride < 0)
            ret->address -= reach;
        ret->at[ret->n++] = (struct dimension){(uint64_t)size, step};
    }
    qsort(ret->at, ret->n, sizeof(ret->at[0]), by_stride);
    unsigned n = 0;
    for (unsigned i = 0; i < ret->n; i++) {
        if (n && ret->at[i].stride == ret->at[n - 1].stride * ret->at[n - 1].size)
            ret->at[n - 1].size *= ret->at[i].size;
        else
            ret->at[n++] = ret->at[i];
    }
    if (n == 0)
        ret->at[n++] = (struct dimension){1, 1};
    ret->n = n;
    return 0;
}

struct pass {
    struct pb_source *source;
    const struct number_type *type;
    uint64_t end; /* deadline, in ns */
    uint8_t *buf;
    void (*take)(struct pass *p, double value);
    struct pb_numbers *n;
    double sum_of_squares; /* of differences from the mean */
    bool over;             /* the deadline has passed */
};

/* Reads one run in pieces. -EFAULT: unmapped memory. */
static int read_run(struct pass *p, uint64_t address, const struct dimension *run)
{
    unsigned size = p->type->size;
    /* Elements far apart are read one by one. */
    uint64_t most = run->stride > FAR ? 1 : (PIECE - size) / run->stride + 1;

    for (uint64_t done = 0; done < run->size && !p->over;) {
        uint64_t count = run->size - done < most ? run->size - done : most;
        int r = pb_source_read(p->source, address + done * run->stride, p->buf,
                               (size_t)((count - 1) * run->stride + size));
        if (r < 0)
            return r;
        for (uint64_t i = 0; i < count; i++)
            p->take(p, p->type->read(p->buf + i * run->stride));
        done += count;
        p->over = pb_now_ns() > p->end;
    }
    return 0;
}

static int read_all(struct pass *p, const struct runs *runs)
{
    uint64_t index[PB_NUMBERS_DIMS] = {0}, address = runs->address;

    for (;;) {
        int r = read_run(p, address, &runs->at[0]);
        if (r < 0 || p->over)
            return r;
        unsigned i = 1;
        while (i < runs->n && ++index[i] == runs->at[i].size) {
            address -= (runs->at[i].size - 1) * runs->at[i].stride;
            index[i++] = 0;
        }
        if (i == runs->n)
            return 0;
        address += runs->at[i].stride;
    }
}

/* --- statistics --- */

static void take_first(struct pass *p, double value)
{
    struct pb_numbers *n = p->n;

    n->elements++;
    n->nan += isnan(value);
    n->infinite += isinf(value) != 0;
    n->zero += value == 0;
    if (!isfinite(value))
        return;
    n->min = !(n->min <= value) ? value : n->min;
    n->max = !(n->max >= value) ? value : n->max;
    double from = value - n->mean;
    n->mean += from / (double)(n->elements - n->nan - n->infinite);
    p->sum_of_squares += from * (value - n->mean);
}

static void take_second(struct pass *p, double value)
{
    struct pb_numbers *n = p->n;

    if (!isfinite(value))
        return;
    double part = n->max > n->min ? (value - n->min) / (n->max - n->min) * PB_NUMBERS_BINS : 0;
    /* The value may have changed since the first pass. */
    n->bins[part > 0 ? part < PB_NUMBERS_BINS ? (int)part : PB_NUMBERS_BINS - 1 : 0]++;
}

struct numbers_question {
    pid_t pid;
    const struct pb_numbers_place *place;
};

static int read_numbers(struct pass *p, const struct runs *runs, uint64_t time)
{
    struct pb_numbers *n = p->n;

    n->min = n->max = NAN;
    p->take = take_first;
    p->end = pb_now_ns() + time / 2;
    int r = read_all(p, runs);
    if (r < 0 && n->elements == 0)
        return r;
    n->all = r == 0 && !p->over;
    uint64_t finite = n->elements - n->nan - n->infinite;
    n->std = finite ? square_root(p->sum_of_squares / (double)finite) : NAN;
    n->mean = finite ? n->mean : NAN;
    if (finite) {
        p->take = take_second;
        p->over = false;
        p->end = pb_now_ns() + time / 2;
        (void)read_all(p, runs); /* errors were reported by the first pass */
    }
    return 0;
}

static int answer_numbers(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct numbers_question *q = arg;
    _cleanup_free_ uint8_t *buf = malloc(PIECE);
    struct pb_numbers *n = pb_room_alloc(room, sizeof(*n));
    struct pb_source source;
    struct runs runs;

    if (!n || !buf)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_source_open(q->pid, &source, err);
    if (r < 0)
        return r;
    struct pass p = {.source = &source, .type = find_type(q->place->dtype), .buf = buf, .n = n};
    r = make_runs(q->place, &runs);
    if (r == 0)
        r = read_numbers(&p, &runs, (ask->limit_ms ? ask->limit_ms : LIMIT_MS) * PB_NS_PER_MS / 2);
    pb_source_close(&source);
    pb_task_answer(room, n);
    return r < 0 ? pb_fail(err, r, "its memory cannot be read: %s", strerror(-r)) : 0;
}

int pb_numbers_check(const struct pb_numbers_place *place, struct pb_err *err)
{
    struct runs runs;

    if (!find_type(place->dtype) || place->ndim > PB_NUMBERS_DIMS || make_runs(place, &runs) < 0)
        return pb_fail(err, -EINVAL, "the process describes an array that cannot exist");
    return 0;
}

int pb_numbers_ask(const struct pb_ask *ask, pid_t pid, const struct pb_numbers_place *place,
                   struct pb_numbers *ret, struct pb_err *err)
{
    struct numbers_question q = {pid, place};
    struct pb_task task = {
        .work = answer_numbers, .arg = &q, .pid = pid, .limit_ms = LIMIT_MS, .room_size = 4096};

    int r = pb_numbers_check(place, err);
    if (r == 0)
        r = pb_task_run(ask, &task, err);
    const struct pb_numbers *n = r == 0 ? pb_task_answer_of(&task) : NULL;
    if (n)
        *ret = *n;
    else if (r == 0)
        r = pb_fail(err, -EIO, "its numbers could not be read");
    pb_room_free(task.room);
    return r;
}
