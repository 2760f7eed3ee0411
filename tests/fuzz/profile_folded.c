/* Folded stacks from any source: rows or an error, never a crash; accepted stacks can be written again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "profile/write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_timeline(FILE *out, const struct pb_profile *p)
{
    struct pb_timeline *t;

    if (pb_timeline_new(&t) < 0)
        return;
    if (pb_timeline_add_profile(t, p) == 0 && pb_timeline_finish(t) == 0) {
        pb_write_speedscope(out, t, true);
        pb_write_perfetto(out, t);
    }
    pb_timeline_free(t);
}

static void write_all(const struct pb_profile *p)
{
    const struct pb_flame_options options = {.threads = true};
    struct pb_flame flame;
    char *text = NULL;
    size_t len;

    if (pb_flame_init(&flame, &options) < 0)
        return;
    FILE *out = open_memstream(&text, &len);
    if (out && pb_flame_add(&flame, p, 0) == 0 && pb_flame_finish(&flame) == 0) {
        pb_write_folded(out, &flame, false);
        pb_write_flame(out, &flame, p, NULL, true);
        pb_write_pprof(out, p);
        write_timeline(out, p);
    }
    if (out)
        fclose(out);
    free(text);
    pb_flame_done(&flame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_profile *p;
    struct pb_err err;

    if (size == 0 || pb_profile_new(4 << 20, &p) < 0)
        return 0;
    FILE *in = fmemopen((void *)(uintptr_t)data, size, "r");
    if (in) {
        /* A count of a thousand million samples is fine in a profile, but not written out one by one. */
        if (pb_read_folded(in, p, &err) == 0 && pb_profile_samples(p) < 100000)
            write_all(p);
        fclose(in);
    }
    pb_profile_free(p);
    return 0;
}
