/* native_dump: the native stacks of a process, one line a frame, for tests.
 *
 * usage: native_dump PID [no-stop] [no-lines] [repeat=N]
 * "thread TID STATE ERROR FLAGS NAME", then for each frame, innermost first, separated by tabs:
 * "PC FLAGS FUNCTION OFFSET FILE:LINE MODULE BUILD_ID"; "-" where something is not known. The last line says
 * how long it took. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/time.h"
#include "remote/native/unwind.h"
#include "remote/source.h"

static const char *or_dash(const char *text)
{
    return text ? text : "-";
}

static void print_stack(const struct pb_native_stack *s)
{
    printf("thread %d %c %d %#x %s\n", s->tid, s->state, s->error, s->flags, s->name);
    for (size_t i = 0; i < s->nframes; i++) {
        const struct pb_native_frame *f = &s->frames[i];
        printf("%#" PRIx64 "\t%#x\t%s\t%" PRIu64 "\t%s:%u\t%s\t%s\n", f->pc, f->flags, or_dash(f->function),
               f->offset, or_dash(f->file), f->line, or_dash(f->module), or_dash(f->build_id));
    }
}

int main(int argc, char **argv)
{
    struct pb_native_options options = {0};
    struct pb_native *n;
    struct pb_err err = {0};
    bool no_stop = false;
    int repeat = 1;
    for (int i = 2; i < argc; i++) {
        no_stop |= strcmp(argv[i], "no-stop") == 0;
        options.no_lines |= strcmp(argv[i], "no-lines") == 0;
        options.packed_lines |= strcmp(argv[i], "packed-lines") == 0;
        if (strncmp(argv[i], "repeat=", 7) == 0)
            repeat = atoi(argv[i] + 7);
    }
    uint64_t began = pb_now_ns(), first = 0, held = 0, holds = 0;
    struct pb_source source = pb_source_of(argc > 1 ? atoi(argv[1]) : 0);
    int r = argc > 1 ? pb_native_new(&source, &options, &n, &err) : -1;
    if (r < 0) {
        fprintf(stderr, "native_dump: %s\n", pb_err_text(&err, r));
        return 1;
    }
    for (int i = 0; i < repeat; i++) {
        struct pb_native_stacks stacks = {0};
        r = pb_native_stacks_take(n, no_stop, &stacks, &err);
        if (r < 0) {
            fprintf(stderr, "native_dump: %s\n", pb_err_text(&err, r));
            return 1;
        }
        if (i == 0)
            first = pb_now_ns() - began;
        for (size_t k = 0; k < stacks.n; k++, holds++) {
            held += stacks.at[k].held_ns;
            if (i == repeat - 1)
                print_stack(&stacks.at[k]);
        }
        pb_native_stacks_done(&stacks);
    }
    printf("first %" PRIu64 " all %" PRIu64 " held %" PRIu64 "\n", first / 1000, (pb_now_ns() - began) / 1000,
           holds ? held / holds / 1000 : 0);
    pb_native_free(n);
    return 0;
}
