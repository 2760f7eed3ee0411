/* A stand-in for CUPTI 13.0 and for the CUDA driver, on machines without a GPU: a thread of it makes
 * records, laid out as in the headers of CUPTI, while they are switched on. Built twice, as libcupti.so.13
 * and as libcuda.so.1. What STAND_IN says: "version=29", "error=35" (of what switches on), "flood" (more
 * than fits), "open" (some kernels are never over), "ticks" (its clock has 2.1 a ns), "no-cuda" (not
 * initialized). */
#include "../../unit/cupti_layout.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 64, DONE = 12, TICKS = 21 };

static void (*requested)(uint8_t **buffer, size_t *size, size_t *records);
static void (*completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int on[KINDS], started;
static uint8_t *buffer;
static size_t size, used, dropped;
static uint32_t correlation, kernels;
static uint64_t made;
static const char *const names[] = {
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5array"
    "IPcLm1EEEEviT0_T1_",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "plain_kernel"};

/* Whether STAND_IN has the word; of "word=5" 5. */
static int says(const char *word)
{
    const char *all = getenv("STAND_IN"), *at = all ? strstr(all, word) : NULL;

    if (!at)
        return 0;
    at += strlen(word);
    return *at == '=' ? atoi(at + 1) : 1;
}

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return says("ticks") ? ns % 1000000000000000u * TICKS / 10 : ns;
}

static uint64_t tick(uint64_t ns)
{
    return says("ticks") ? ns * TICKS / 10 : ns;
}

static void give_back(void)
{
    uint8_t *full = buffer;

    buffer = NULL;
    if (full)
        completed(NULL, 0, full, size, used);
    used = 0;
}

static void put(const uint8_t *record, size_t length)
{
    size_t records;

    if (buffer && used + length > size)
        give_back();
    if (!buffer)
        requested(&buffer, &size, &records);
    if (!buffer) {
        dropped += *(const uint32_t *)(const void *)record != CUPTI_OTHER;
        return;
    }
    memcpy(buffer + used, record, length);
    used += length;
}

static void make_kernel(void)
{
    _Alignas(8) uint8_t record[CUPTI_KERNEL_SIZE] = {0};
    uint32_t n = kernels++;
    uint64_t begin = now() - tick(10000);
    const struct cupti_kernel kernel = {
        .start = begin,
        .end = n % 10 == 9 && says("open") ? 0 : begin + tick(1000 * (1 + n % 3)),
        .stream = 7,
        .correlation = correlation++,
        .graph = n % 3 == 2 ? 5 : 0,
        .registers = 32,
        .grid = {2, 3, 1},
        .block = {128, 1, 1},
        .dynamic_shared = 4096,
        .name = names[n % 3],
    };

    made++;
    cupti_put_kernel(record, &kernel);
    put(record, sizeof(record));
}

static void make_transfer(uint32_t kind)
{
    _Alignas(8) uint8_t record[CUPTI_COPY_SIZE] = {0};
    uint64_t begin = now() - tick(10000);
    struct cupti_transfer transfer = {.kind = kind,
                                      .bytes = 1 << 20,
                                      .start = begin,
                                      .end = begin + tick(5000),
                                      .stream = 7,
                                      .correlation = correlation++};

    made++;
    if (kind == CUPTI_COPY) { /* host to device, from pageable memory */
        transfer.copy = transfer.from = 1;
        transfer.to = 3;
    }
    cupti_put_transfer(record, &transfer);
    put(record, kind == CUPTI_SET ? CUPTI_SET_SIZE : CUPTI_COPY_SIZE);
}

static void make_other(void)
{
    _Alignas(8) uint8_t record[CUPTI_OTHER_SIZE] = {0};

    cupti_put_kind(record, CUPTI_OTHER);
    put(record, sizeof(record));
}

static void *work(void *unused)
{
    int flood = says("flood");

    for (;;) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < (flood ? 100000 : 1) && on[CUPTI_KERNEL]; i++)
            make_kernel();
        if (on[CUPTI_COPY])
            make_transfer(CUPTI_COPY);
        if (on[CUPTI_SET])
            make_transfer(CUPTI_SET);
        if (on[CUPTI_KERNEL])
            make_other();
        pthread_mutex_unlock(&lock);
        usleep(1000);
    }
    return unused;
}

int cuptiGetVersion(uint32_t *ret)
{
    *ret = says("version") ? (uint32_t)says("version") : 130001;
    return 0;
}

int cuptiGetTimestamp(uint64_t *ret)
{
    *ret = now();
    return 0;
}

int cuptiGetResultString(int result, const char **ret)
{
    *ret = result == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN";
    return 0;
}

int cuptiActivityRegisterCallbacks(void (*r)(uint8_t **, size_t *, size_t *),
                                   void (*c)(void *, uint32_t, uint8_t *, size_t, size_t))
{
    pthread_mutex_lock(&lock);
    requested = r;
    completed = c;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiActivityEnable(int kind)
{
    pthread_t thread;

    if (says("error") && kind == CUPTI_COPY)
        return says("error");
    pthread_mutex_lock(&lock);
    on[kind] = 1;
    if (!started)
        pthread_create(&thread, NULL, work, NULL);
    started = 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiActivityDisable(int kind)
{
    pthread_mutex_lock(&lock);
    on[kind] = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    if (used)
        give_back();
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *from, size_t valid, void **record)
{
    static const size_t sizes[KINDS] = {[CUPTI_KERNEL] = CUPTI_KERNEL_SIZE,
                                        [CUPTI_COPY] = CUPTI_COPY_SIZE,
                                        [CUPTI_SET] = CUPTI_SET_SIZE,
                                        [CUPTI_OTHER] = CUPTI_OTHER_SIZE};
    uint8_t *next = from;

    if (*record)
        next = (uint8_t *)*record + sizes[*(uint32_t *)*record];
    if ((size_t)(next - from) >= valid)
        return DONE;
    *record = next;
    return 0;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *ret)
{
    (void)context;
    (void)stream;
    pthread_mutex_lock(&lock);
    *ret = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* For the test: what is switched on, and whether a buffer is held, as bits; how many records of the kinds
 * that are read there were. */
int stand_in_state(void)
{
    return on[CUPTI_KERNEL] | on[CUPTI_COPY] << 1 | on[CUPTI_SET] << 2 | (buffer != NULL) << 3;
}

uint64_t stand_in_made(void)
{
    return made;
}

/* --- the driver --- */

int cuDeviceGetCount(int *ret)
{
    *ret = !says("no-cuda");
    return says("no-cuda") ? 3 : 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    return *mode == 2 ? 0 : 1;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = device == 0;
    return 0;
}
