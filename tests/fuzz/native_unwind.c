/* Arbitrary registers and stack over real code (our own): every unwinding ends, fits its array and can be
 * described. The first byte of each word says whether it is taken as it is, made an address in the stack, or
 * an address in our code, so that walks get somewhere. And arbitrary text as a perf map. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remote/native/perfmap.h"
#include "remote/native/unwind.h"
#include "remote/native/unwind_arch.h"
#include "remote/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAMES = 256, STACK = 0x7000000 };

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static uint64_t word(const uint8_t *data, size_t size, size_t at)
{
    static const void *const code[] = {
        (void *)&LLVMFuzzerTestOneInput, (void *)&printf, (void *)&pb_native_unwind,
        (void *)&pb_native_new,          (void *)&qsort,  (void *)&pb_native_describe,
        (void *)&pb_perf_map_parse,      (void *)&usleep};
    uint64_t raw = 0;
    if (at + 8 <= size)
        memcpy(&raw, data + at, 8);
    switch (raw & 3) {
    case 0:
        return STACK + (raw >> 8) % 4096;
    case 1:
        return (uint64_t)code[raw >> 8 & 7] + (raw >> 16 & 255);
    default:
        return raw;
    }
}

static void walk(struct pb_native *n, const uint8_t *data, size_t size)
{
    const struct pb_native_arch *arch = pb_native_arch(0);
    static uint64_t stack[512];
    struct pb_native_pc pcs[FRAMES];
    struct pb_native_frame frame[PB_NATIVE_INLINE_MAX];
    unsigned flags;
    struct pb_capture c = {.known = (1ull << arch->nregs) - 1};
    for (unsigned i = 0; i < arch->nregs; i++)
        c.reg[i] = word(data, size, i * 8ull);
    for (size_t i = 0; i < 512; i++)
        stack[i] = word(data, size, (arch->nregs + i) * 8ull);
    c.pc = c.reg[arch->pc];
    c.sp = c.reg[arch->sp] = STACK + c.reg[arch->sp] % 256 * 8;
    c.part[0] = (struct pb_capture_part){.addr = STACK, .data = (unsigned char *)stack, .len = sizeof(stack)};
    size_t count = pb_native_unwind(n, &c, pcs, FRAMES, &flags);
    must(count >= 1 && count <= FRAMES, "a stack of no frames or too many");
    for (size_t i = 0; i < count && i < 4; i++) {
        size_t k = pb_native_describe(n, &pcs[i], frame, PB_NATIVE_INLINE_MAX);
        must(k >= 1 && k <= PB_NATIVE_INLINE_MAX && frame[k - 1].pc == pcs[i].pc, "a frame of another place");
    }
}

static void parse_perf_map(const uint8_t *data, size_t size)
{
    struct pb_perf_entry *at = NULL;
    char *text = malloc(size + 1);
    if (!text)
        return;
    memcpy(text, data, size);
    text[size] = '\0';
    ssize_t n = pb_perf_map_parse(text, &at);
    for (ssize_t i = 0; i < n; i++) {
        must(at[i].size && at[i].name >= text && at[i].name < text + size, "an entry out of nothing");
        must(i == 0 || at[i - 1].start <= at[i].start, "entries that are not sorted");
    }
    free(at);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct pb_native *n;
    static struct pb_source source;
    static unsigned uses;
    const struct pb_native_options options = {.no_lines = true, .memory_max = 64 << 20};
    source = pb_source_of(getpid());
    if (!n && pb_native_new(&source, &options, &n, NULL) < 0)
        abort();
    walk(n, data, size);
    parse_perf_map(data, size);
    if (++uses == 1000) {
        pb_native_free(n);
        n = NULL;
        uses = 0;
    }
    return 0;
}
