/* top: which functions take the time just now, refreshed in place; plain text where stdout is no terminal. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/profile/profile_run.h"
#include "cli/profile/profile_screen.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"
#include "print/outlet.h"

#define PLAIN_FUNCTIONS 20
#define PLAIN_THREADS   20
#define KEY_NS          (PB_NS_PER_S / 10)
#define FULL            0.5 /* share of the memory in use beyond which a new epoch drops old names */

static const struct pb_option options[] = {
    {0, "interval", PB_TIME(.least = 1, .usual = 1000), "time between two refreshes (default 1s)"},
    {0, "count", PB_COUNT("N", .least = 1),
     "refresh N times (default: until q or Ctrl-C; once if stdout is no terminal)"},
    PB_PROFILE_OPTIONS,
    {0, "interpreter", NULL, "with --native: also the interpreter's own frames (_PyEval_*, ..)"},
    {0},
};

struct look {
    const struct pb_call *call;
    struct pb_profiling *profiling;
    struct pb_profile *p;
    uint64_t ticks; /* of the profile, at the last refresh */
    bool color;
};

struct thread_load {
    uint32_t thread;
    uint64_t running, waiting, gil;
};

static int busiest_first(const void *a, const void *b)
{
    const struct thread_load *x = a, *y = b;

    if (x->running != y->running)
        return x->running < y->running ? 1 : -1;
    return (x->thread > y->thread) - (x->thread < y->thread);
}

static struct thread_load *thread_loads(const struct pb_profile *p)
{
    struct thread_load *loads = calloc(pb_profile_nthreads(p) + 1, sizeof(*loads));

    for (size_t i = 0; loads && i < pb_profile_nthreads(p); i++)
        loads[i].thread = (uint32_t)i;
    for (size_t i = 0; loads && i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        *(c.flags & PB_SAMPLE_WAITING ? &loads[c.thread].waiting : &loads[c.thread].running) += c.samples;
        loads[c.thread].gil += c.flags & PB_SAMPLE_GIL ? c.samples : 0;
    }
    if (loads)
        qsort(loads, pb_profile_nthreads(p), sizeof(*loads), busiest_first);
    return loads;
}

static const char *color_code(const struct look *look, enum pb_style style)
{
    return look->color ? pb_style(style) : "";
}

static void put_head(FILE *out, const struct look *look, const struct thread_load *loads, double ticks)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(look->p);
    uint64_t gil = 0, running = 0;
    char methods[256];

    for (size_t i = 0; i < pb_profile_nthreads(look->p); i++) {
        gil += loads[i].gil;
        running += loads[i].running;
    }
    fputs(color_code(look, PB_BOLD), out);
    pb_put_name(out, f->title);
    fprintf(out, "%s\n", color_code(look, PB_PLAIN));
    fprintf(out, "%g Hz, %s time, %u threads; %.0f%% of a core running, GIL held %.0f%% of the time\n",
            f->rate, f->clock, pb_sampler_threads(pb_profiling_sampler(look->profiling)),
            100 * (double)running / ticks, 100 * (double)gil / ticks);
    fprintf(out, "stacks read %s\n", pb_profile_methods(look->p, methods, sizeof(methods)));
    pb_profile_say_notes(pb_profiling_sampler(look->profiling), out);
    fputc('\n', out);
}

static void put_threads(FILE *out, const struct look *look, const struct thread_load *loads, double ticks,
                        int room)
{
    size_t n = pb_profile_nthreads(look->p), quiet = 0;
    bool idle = pb_call_option(look->call, "idle");

    fprintf(out, "%s  RUN%%  WAIT%%   GIL%%      TID  THREAD%s\n", color_code(look, PB_REVERSE),
            color_code(look, PB_PLAIN));
    for (size_t i = 0; i < n; i++) {
        const struct thread_load *l = &loads[i];
        struct pb_profile_thread t = pb_profile_thread_at(look->p, l->thread);
        if ((t.hidden && !idle) || room <= 0) {
            quiet += l->running || l->waiting;
            continue;
        }
        fprintf(out, "%6.1f %6.1f %6.1f %8d  ", 100 * (double)l->running / ticks,
                100 * (double)l->waiting / ticks, 100 * (double)l->gil / ticks, (int)t.tid);
        pb_put_name(out, t.name);
        putc('\n', out);
        room--;
    }
    if (quiet)
        fprintf(out, "%*s(%zu more wait%s)\n", 32, "", quiet, idle ? "" : "; --idle shows them");
    fputc('\n', out);
}

/* Functions that run come first, then those that wait. */
static int running_first(const void *a, const void *b)
{
    const struct pb_hot *x = a, *y = b;
    uint64_t s = x->self - x->waiting, t = y->self - y->waiting;

    if (s != t)
        return s < t ? 1 : -1;
    return x->total != y->total ? (x->total < y->total ? 1 : -1) : 0;
}

static void put_functions(FILE *out, const struct look *look, double ticks, int room)
{
    _cleanup_free_ struct pb_hot *hot = NULL;
    char label[300];

    int n = pb_profile_hot(look->p, NULL, &hot);
    if (n > 0)
        qsort(hot, (size_t)n, sizeof(*hot), running_first);
    fprintf(out, "%s SELF%%  WAIT%%  TOTAL%%  FUNCTION%s\n", color_code(look, PB_REVERSE),
            color_code(look, PB_PLAIN));
    for (int i = 0; i < n && i < room; i++) {
        double self = 100 * (double)(hot[i].self - hot[i].waiting) / ticks;
        fprintf(out, "%s%6.1f %6.1f %7.1f  ", self >= 20 ? color_code(look, PB_BOLD) : "", self,
                100 * (double)hot[i].waiting / ticks, 100 * (double)hot[i].total / ticks);
        pb_profile_label(look->p, hot[i].function, label, sizeof(label));
        pb_put_name(out, label);
        fprintf(out, "%s\n", color_code(look, PB_PLAIN));
    }
}

static int show_refresh(struct look *look, bool screen)
{
    _cleanup_free_ struct thread_load *loads = thread_loads(look->p);
    _cleanup_free_ char *text = NULL;
    uint64_t ticks = pb_profile_facts_of(look->p)->ticks - look->ticks;
    int rows = 0, columns;
    size_t size;

    if (!pb_call_option(look->call, "idle"))
        pb_profile_hide_idle(look->p);
    FILE *out = open_memstream(&text, &size);
    if (!out || !loads)
        return -ENOMEM;
    if (screen)
        pb_screen_size(&rows, &columns);
    int threads = screen ? rows / 4 : PLAIN_THREADS;
    put_head(out, look, loads, ticks ? (double)ticks : 1);
    put_threads(out, look, loads, ticks ? (double)ticks : 1, threads);
    put_functions(out, look, ticks ? (double)ticks : 1, screen ? rows : PLAIN_FUNCTIONS);
    if (fclose(out) != 0)
        return -ENOMEM;
    if (screen)
        pb_screen_show(text);
    else
        fputs(text, stdout);
    fflush(stdout);
    look->ticks = pb_profile_facts_of(look->p)->ticks;
    pb_profile_forget_samples(look->p);
    if (pb_profile_filled(look->p) > FULL)
        (void)pb_profiling_begin_epoch(look->profiling); /* out of memory: stacks are cut, and counted */
    return 0;
}

/* How long to sample before the next look for a key: at most 100 ms. */
static uint64_t slice_of(uint64_t next)
{
    uint64_t now = pb_now_ns(), left = next > now ? next - now : 0;
    return left < KEY_NS ? left : KEY_NS;
}

static int refresh_until_end(struct look *look, uint64_t count, uint64_t interval_ns, bool screen)
{
    uint64_t next = pb_now_ns() + interval_ns;
    int r = 0;

    for (uint64_t shown = 0; r == 0 && (count == 0 || shown < count);) {
        enum pb_profiling_state state = pb_profiling_run(look->profiling, slice_of(next));
        bool over = state != PB_PROFILING_GOES_ON;
        int key = screen ? pb_screen_key() : 0;
        if (key == 'q' || key == 'Q' || (over && pb_profile_signal()))
            return 0;
        if (pb_now_ns() < next && !over)
            continue;
        if (!screen && shown)
            putchar('\n');
        r = show_refresh(look, screen);
        shown++;
        next = pb_now_ns() + interval_ns;
        if (over)
            return r < 0 ? r : 1;
    }
    return r;
}

static void profiling_cleanup(struct pb_profiling **p)
{
    pb_profiling_free(*p);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(profiling_cleanup) struct pb_profiling *p = NULL;
    struct pb_profile_plan plan;
    uint64_t count = (uint64_t)pb_call_number(call, "count");
    unsigned interval_ms = pb_call_ms(call, "interval");

    bool screen = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!count && !screen)
        count = 1;
    int r = pb_profile_plan(call, &plan, err);
    if (r < 0)
        return r;
    plan.sampler.with_gil = true;
    const struct pb_profiling_options profiling = {.sampler = plan.sampler,
                                                   .cancelled = pb_profile_cancelled()};
    r = pb_profiling_new(&profiling, &p, err);
    if (r == 0)
        r = pb_profiling_join_all(p, &call->ask, &call->targets, err);
    if (r < 0)
        return r;
    struct look look = {.call = call, .profiling = p, .p = pb_profiling_profile(p), .color = pb_color()};
    pb_profile_fold_interpreter(look.p, !pb_call_option(call, "interpreter"));
    pb_profile_catch_signals();
    pb_sampler_hurry(&plan.sampler);
    if (screen)
        screen = pb_screen_open() == 0;
    r = refresh_until_end(&look, count, interval_ms * PB_NS_PER_MS, screen);
    pb_screen_close();
    if (r > 0)
        fprintf(stderr, "probing: top: the process has ended\n");
    return r < 0 ? r : 0;
}

const struct pb_command pb_cmd_top = {
    .name = "top",
    .summary = "which functions take the time now, refreshed in place",
    .synopsis = "[--interval TIME] [--count N]",
    .text = "Shares are of the time since the last refresh: 100% is one thread for all of that "
            "time. SELF is time that a function runs itself, WAIT is time that it waits, TOTAL "
            "includes the functions that it calls.\n\n"
            "q quits. If stdout is no terminal, top prints once as plain text, or --count times. "
            "With -t cluster each rank is a line.",
    .example = "probing -t 4711 top\nprobing -t 4711 top --native --interval 2\nprobing -t 4711 top "
               "--count 3 | cat",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_TOGETHER | PB_CMD_CLUSTER,
    .run = run,
    .run_over = pb_cluster_top,
};
