/* diff: what differs between two runs: steps, phases, modules, collectives, memory, settings, versions. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_write.h"
#include "cli/bundle/bundle.h"
#include "cli/cli.h"
#include "cli/diff/run_diff.h"
#include "print/outlet.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 20 };

static const char *const kinds[PB_DIFF_KINDS] = {"step", "phase", "module", "collective", "memory", "line"};
static const char *const units[PB_DIFF_KINDS] = {"ms", "ms", "ms", "ms", "MB", "MB/s"};

struct comparison {
    struct pb_diff_side sides[2];
    struct pb_diff_changes changes;
};

/* --- output --- */

/* The part that explains most of the difference: a module or collective if it is half of it, else a phase. */
static const struct pb_diff_change *find_cause(const struct pb_diff_changes *c)
{
    double all = c->step.b - c->step.a;
    const struct pb_diff_change *first = NULL;

    for (size_t i = 0; i < c->n; i++) {
        const struct pb_diff_change *one = &c->at[i];
        if (one->kind >= PB_DIFF_MEMORY || (one->b - one->a) * all <= 0)
            continue;
        if (one->kind != PB_DIFF_PHASE && fabs(one->b - one->a) >= fabs(all) / 2)
            return one;
        first = first ? first : one;
    }
    return first;
}

/* "forward of layers.3", "the phase forward", "allreduce". */
static void put_change_name(FILE *to, const struct pb_diff_change *c)
{
    fputs(c->kind == PB_DIFF_PHASE        ? "the phase "
          : c->kind == PB_DIFF_COLLECTIVE ? "the collective "
                                          : "",
          to);
    pb_put_name(to, c->name);
}

static void put_sentence(FILE *to, const struct pb_diff_changes *c)
{
    const struct pb_diff_change *s = &c->step, *cause = find_cause(c);
    double percent = s->a > 0 ? 100 * (s->b - s->a) / s->a : 0;

    if (!s->real) {
        fprintf(to, "B is as fast as A: %.3g ms a step and %.3g (%+.1f%%, within the noise).\n", s->b, s->a,
                percent);
        return;
    }
    fprintf(to, "B is %.0f%% %s: %.3g ms a step, A %.3g", fabs(percent), percent > 0 ? "slower" : "faster",
            s->b, s->a);
    if (cause) {
        fputs(": ", to);
        put_change_name(to, cause);
        fprintf(to, " takes %.3g ms %s", fabs(cause->b - cause->a), cause->b > cause->a ? "more" : "less");
    }
    fputs(".\n", to);
}

static const struct pb_diff_text *find_text(const struct pb_diff_text *at, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(at[i].name, name) == 0)
            return &at[i];
    return NULL;
}

/* Calls `each` for every name whose value is not the same on both sides; NULL: it is not there. */
static void each_other_text(const struct pb_diff_text *a, size_t na, const struct pb_diff_text *b, size_t nb,
                            void (*each)(void *arg, const char *name, const char *a, const char *b),
                            void *arg)
{
    for (size_t i = 0; i < na; i++) {
        const struct pb_diff_text *other = find_text(b, nb, a[i].name);
        if (!other || strcmp(other->value, a[i].value) != 0)
            each(arg, a[i].name, a[i].value, other ? other->value : NULL);
    }
    for (size_t i = 0; i < nb; i++)
        if (!find_text(a, na, b[i].name))
            each(arg, b[i].name, NULL, b[i].value);
}

static void put_other_text(void *arg, const char *name, const char *a, const char *b)
{
    FILE *to = arg;

    fputs("  ", to);
    pb_put_name(to, name);
    fputs(": ", to);
    pb_put_name(to, a ? a : "(none)");
    fputs(" -> ", to);
    pb_put_name(to, b ? b : "(none)");
    putc('\n', to);
}

static void count_other_text(void *arg, const char *name, const char *a, const char *b)
{
    (void)name, (void)a, (void)b;
    ++*(size_t *)arg;
}

static void print_others(const char *title, const struct pb_diff_text *a, size_t na,
                         const struct pb_diff_text *b, size_t nb)
{
    size_t n = 0;

    each_other_text(a, na, b, nb, count_other_text, &n);
    printf("%s: %s\n", title, !na || !nb ? "not known of both" : n ? "A -> B" : "the same");
    if (na && nb)
        each_other_text(a, na, b, nb, put_other_text, stdout);
}

static void print_text(const struct comparison *c)
{
    const struct pb_diff_side *a = &c->sides[0], *b = &c->sides[1];
    const struct pb_diff_changes *changes = &c->changes;

    put_sentence(stdout, changes);
    printf("\n%-12s %10s %10s %10s  %-21s  %s\n", "what", "A", "B", "B - A", "99% interval", "");
    for (size_t i = 0; i <= changes->n && i <= SHOWN; i++) {
        const struct pb_diff_change *one = i ? &changes->at[i - 1] : &changes->step;
        printf("%-12s %10.4g %10.4g %+10.4g  %+9.3g to %+9.3g  %-4s ", kinds[one->kind], one->a, one->b,
               one->b - one->a, one->least, one->most, units[one->kind]);
        pb_put_name(stdout, one->kind == PB_DIFF_STEP ? "" : one->name);
        putchar('\n');
    }
    if (changes->n > SHOWN)
        printf("and %zu smaller ones (--json has all)\n", changes->n - SHOWN);
    printf("%zu steps of A and %zu of B; other parts do not differ by 3%% or more than the noise\n",
           a->slots[PB_DIFF_STEP], b->slots[PB_DIFF_STEP]);
    print_others("settings", a->settings, a->nsettings, b->settings, b->nsettings);
    print_others("versions", a->versions, a->nversions, b->versions, b->nversions);
}

static void put_json_text(void *arg, const char *name, const char *a, const char *b)
{
    struct pb_json_writer *w = arg;

    pb_json_line(w, 2);
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "name", name);
    pb_json_put_text(w, "a", a);
    pb_json_put_text(w, "b", b);
    pb_json_close(w);
}

static void put_json_change(struct pb_json_writer *w, const char *key, const struct pb_diff_change *c)
{
    pb_json_open(w, key, '{');
    pb_json_put_text(w, "kind", kinds[c->kind]);
    pb_json_put_text(w, "name", c->name);
    pb_json_put_text(w, "unit", units[c->kind]);
    pb_json_put_number(w, "a", "%.6g", c->a);
    pb_json_put_number(w, "b", "%.6g", c->b);
    pb_json_put_number(w, "least", "%.6g", c->least);
    pb_json_put_number(w, "most", "%.6g", c->most);
    pb_json_put_bool(w, "real", c->real);
    pb_json_close(w);
}

static int print_json(const struct comparison *c, struct pb_err *err)
{
    const struct pb_diff_side *a = &c->sides[0], *b = &c->sides[1];
    struct pb_json_writer w = {.out = stdout};
    _cleanup_free_ char *sentence = NULL;
    size_t size;
    FILE *to = open_memstream(&sentence, &size);

    if (!to)
        return pb_fail(err, -ENOMEM, "out of memory");
    put_sentence(to, &c->changes);
    if (fclose(to) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    sentence[strcspn(sentence, "\n")] = '\0';
    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "says", sentence);
    pb_json_line(&w, 1);
    put_json_change(&w, "step", &c->changes.step);
    pb_json_line(&w, 1);
    pb_json_open(&w, "differences", '[');
    for (size_t i = 0; i < c->changes.n; i++) {
        pb_json_line(&w, 2);
        put_json_change(&w, NULL, &c->changes.at[i]);
    }
    pb_json_close(&w);
    pb_json_line(&w, 1);
    pb_json_open(&w, "settings", '[');
    each_other_text(a->settings, a->nsettings, b->settings, b->nsettings, put_json_text, &w);
    pb_json_close(&w);
    pb_json_line(&w, 1);
    pb_json_open(&w, "versions", '[');
    each_other_text(a->versions, a->nversions, b->versions, b->nversions, put_json_text, &w);
    pb_json_close(&w);
    pb_json_close(&w);
    putchar('\n');
    return 0;
}

/* --- the two --- */

/* "100-199", "100-", "-99". */
static int read_steps(const char *text, struct pb_diff_side *s, struct pb_err *err)
{
    char *end = (char *)text;

    s->first = 0;
    s->last = 1L << 60;
    if (!text)
        return 0;
    if (*text != '-')
        s->first = strtol(text, &end, 10);
    bool good = *end == '-' && strspn(text, "0123456789-") == strlen(text);
    if (good && end[1])
        s->last = strtol(end + 1, &end, 10);
    else
        end += good;
    return good && !*end && s->last >= s->first
               ? 0
               : pb_fail(err, PB_USAGE, "'%.40s' is no range of steps (FIRST-LAST, such as 100-199)", text);
}

static int resolve_side(struct pb_diff_side *s, struct pb_err *err)
{
    struct pb_bundle b = {0};

    if (!s->folder[0])
        return pb_targets_resolve(&s->ask, s->text, true, true, &s->targets, err);
    int r = pb_bundle_read(s->folder, s->text, &b, err);
    if (r < 0)
        return r;
    snprintf(s->rows, sizeof(s->rows), "%s/rows", s->folder);
    s->ask.archive = s->rows;
    s->ask.only_archive = true;
    r = pb_bundle_targets(&b, NULL, &s->targets, err);
    pb_bundle_done(&b);
    return r;
}

static int check_rank(struct pb_diff_side *s, struct pb_err *err)
{
    if (s->rank < 0)
        return 0;
    pb_targets_label(&s->ask, &s->targets);
    for (size_t i = 0; i < s->targets.n; i++)
        if (pb_target_rank(&s->targets.at[i]) == s->rank)
            return 0;
    return pb_fail(err, -ESRCH, "%.100s has no rank %ld (list shows ranks)", s->text, s->rank);
}

static void comparison_done(struct comparison *c)
{
    for (int i = 0; i < 2; i++)
        pb_diff_side_done(&c->sides[i]);
    pb_diff_changes_done(&c->changes);
}

static int compare(const struct pb_call *call, const char folders[2][PATH_MAX], struct pb_err *err)
{
    _cleanup_(comparison_done) struct comparison c = {0};
    int r = 0;

    for (int i = 0; r == 0 && i < 2; i++) {
        struct pb_diff_side *s = &c.sides[i];
        const char *rank = pb_call_option(call, i ? "rank-b" : "rank-a");
        s->text = call->args[i];
        s->ask = call->ask;
        s->rank = rank ? atol(rank) : -1;
        snprintf(s->folder, sizeof(s->folder), "%s", folders[i]);
        r = read_steps(pb_call_option(call, i ? "steps-b" : "steps-a"), s, err);
        if (r == 0)
            r = resolve_side(s, err);
        if (r == 0)
            r = check_rank(s, err);
        if (r == 0)
            r = pb_diff_read(s, err);
    }
    if (r == 0)
        r = pb_diff_compare(&c.sides[0], &c.sides[1], &c.changes, err);
    if (r == 0 && pb_call_option(call, "json"))
        r = print_json(&c, err);
    else if (r == 0)
        print_text(&c);
    return r == 0 && c.changes.differs ? PB_FOUND : r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    return pb_bundle_with(call, call->args, 2, compare, err);
}

static const struct pb_option options[] = {
    {0, "steps-a", PB_TEXT("FIRST-LAST"), "of A only these steps, such as 100-199"},
    {0, "steps-b", PB_TEXT("FIRST-LAST"), "of B only these steps"},
    {0, "rank-a", PB_COUNT("N"), "of A only this rank"},
    {0, "rank-b", PB_COUNT("N"), "of B only this rank"},
    {0, "json", NULL, "all differences as JSON"},
    {0},
};

const struct pb_command pb_cmd_diff = {
    .name = "diff",
    .summary = "two runs compared: what a step takes more or less, and where",
    .synopsis = "A B",
    .text =
        "A and B are each a process, a run that has ended (PID@START), a job by a part of its command line, "
        "or an incident's file (bundle). The same one twice with other steps or ranks compares those. The "
        "last thousand recorded steps count. A range of steps applies to steps, phases, modules and "
        "collectives, and not to memory.\n\n"
        "Compares the time of a step, its phases, modules and collectives, memory in all and by line, "
        "settings and versions. A difference is shown if it is 3% or more, and more than the noise: a 99% "
        "interval, by a bootstrap over blocks of steps, without zero in it. Those of a step come first, by "
        "what they cost it.\n\n"
        "Exit status: 10 the step or one of its phases differs, 0 if not. Modules, collectives and memory do "
        "not "
        "decide: of many, some differ by chance.",
    .example = "probing diff 4711@2x7k1q 4902\n"
               "probing diff monday.probing tuesday.probing\n"
               "probing diff 4711 4711 --steps-a 0-499 --steps-b 500-999",
    .options = options,
    .min_args = 2,
    .max_args = 2,
    .run = run,
};
