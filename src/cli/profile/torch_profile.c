/* torch_profile: see torch_profile.h.
 *
 * The agent's Python part (python/probing/_profile.py) starts and stops the profiler. Ranks step together, so
 * all are given the same moment, in the middle of a step of the first rank, and begin with the same step. The
 * operators in the trace are summed up here, not in the process, and sent back to it as rows. */
#include "cli/profile/torch_profile.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/replace.h"
#include "base/text.h"
#include "base/time.h"
#include "base/vector.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/talk/dialog.h"
#include "cli/talk/question.h"
#include "cli/values.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 256, BUCKETS_MAX = 300, SLACK_MS = 15000 };
#define TRACE_MAX ((size_t)1 << 30)

struct capture {
    struct pb_call call; /* with this target alone */
    struct pb_dialog dialog;
    bool open;
    long long last, period, now; /* ms of its clock: its last step, the time between steps, the moment of its
                                    answer */
    char path[PATH_MAX];
    char *trace;
    size_t size;
};

/* Reads a line of the answer, without its end. When the agent refuses, the reason is that of the channel's
 * end. */
static int read_line(struct capture *c, char *ret, size_t size, unsigned timeout_ms, struct pb_err *err)
{
    for (size_t n = 0;;) {
        long got = pb_dialog_read(&c->dialog, ret + n, 1, (int)timeout_ms);
        if (got == -EINTR)
            continue;
        if (got == 0)
            return pb_fail(err, -EIO, "%s",
                           pb_dialog_reason(&c->dialog)[0] ? pb_dialog_reason(&c->dialog)
                                                           : "the agent gave no answer");
        if (got < 0)
            return pb_fail(err, (int)got,
                           got == -ETIMEDOUT ? "the process does not answer"
                                             : "the process ended, or its agent was detached");
        if (ret[n] == '\n' || n + 2 == size) {
            ret[n] = '\0';
            return 0;
        }
        n++;
    }
}

static int send_text(struct capture *c, const char *text, size_t size, struct pb_err *err)
{
    while (size > 0) {
        long n = pb_talk_send(&c->dialog.talk, text, size);
        if (n < 0)
            return pb_fail(err, (int)n, "the process ended, or its agent was detached");
        text += n;
        size -= (size_t)n;
        if (size > 0)
            usleep(1000);
    }
    return 0;
}

static int begin_capture(struct capture *c, const char *question, unsigned limit_ms, struct pb_err *err)
{
    char line[LINE];

    int r = pb_dialog_open(&c->call, "profile", question, &c->dialog, err);
    if (r < 0)
        return r;
    c->open = true;
    r = read_line(c, line, sizeof(line), limit_ms + SLACK_MS, err);
    if (r < 0)
        return r;
    if (sscanf(line, "ready %lld %lld %lld", &c->last, &c->period, &c->now) != 3 || c->period < 0 ||
        c->period > INT_MAX || c->last < 0 || c->last > c->now || c->now > LLONG_MAX / 4)
        return pb_fail(err, -EPROTO, "the agent's answer cannot be understood");
    return 0;
}

/* A moment soon, in the middle of a step: ranks that step together then begin with the same step. */
static long long choose_moment(const struct capture *first, const struct capture *last)
{
    long long period = first->period > 0 ? first->period : 1, soon = last->now + 50;
    return first->last + ((soon - first->last) / period + 1) * period + period / 2;
}

static int receive_trace(struct capture *c, unsigned limit_ms, struct pb_err *err)
{
    char line[LINE];
    size_t n = 0;

    int r = read_line(c, line, sizeof(line), 2 * limit_ms + SLACK_MS, err);
    if (r < 0)
        return r;
    if (sscanf(line, "ok %zu", &c->size) != 1 || c->size == 0 || c->size > TRACE_MAX)
        return pb_fail(err, -EPROTO, "the agent's answer cannot be understood");
    c->trace = malloc(c->size);
    if (!c->trace)
        return pb_fail(err, -ENOMEM, "out of memory");
    while (n < c->size) {
        long got = pb_dialog_read(&c->dialog, c->trace + n, c->size - n, SLACK_MS);
        if (got == -EINTR)
            continue;
        if (got <= 0)
            return pb_fail(err, got < 0 ? (int)got : -EIO,
                           "the trace is incomplete: the process or its agent stopped sending");
        n += (size_t)got;
    }
    return 0;
}

/* --- summing up the trace --- */

struct slice {
    const char *kind, *name; /* pointers into the JSON text */
    uint32_t kind_length, name_length;
    double ts, dur, inside; /* in us; inside: time of the slices within this one */
    uint64_t track;
    uint32_t calls;
};

static double number_of(const struct pb_json *j, uint32_t node, const char *key)
{
    uint32_t at = pb_json_get(j, node, key);
    char text[40];

    if (!at || j->nodes[at].kind || j->nodes[at].length >= sizeof(text))
        return 0;
    memcpy(text, j->nodes[at].at, j->nodes[at].length);
    text[j->nodes[at].length] = '\0';
    return strtod(text, NULL);
}

static uint64_t hash_of(const struct pb_json *j, uint32_t node, const char *key, uint64_t hash)
{
    uint32_t at = pb_json_get(j, node, key);

    hash = at ? pb_hash_bytes(hash, j->nodes[at].at, j->nodes[at].length) : hash;
    return pb_hash_bytes(hash, "", 1); /* the end of the value */
}

static int by_track_and_time(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    if (x->ts != y->ts)
        return x->ts < y->ts ? -1 : 1;
    return (x->dur < y->dur) - (x->dur > y->dur);
}

static int compare_spans(const char *a, uint32_t an, const char *b, uint32_t bn)
{
    int d = memcmp(a, b, an < bn ? an : bn);
    return d ? d : (an > bn) - (an < bn);
}

static int by_name(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    int d = compare_spans(x->kind, x->kind_length, y->kind, y->kind_length);
    return d ? d : compare_spans(x->name, x->name_length, y->name, y->name_length);
}

static int by_self(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    double own = x->dur - x->inside, others = y->dur - y->inside;
    return (own < others) - (own > others);
}

/* The complete events ("X") that have a category. Returns how many; 0 also when out of memory. */
static size_t take_slices(const struct pb_json *j, struct slice **ret)
{
    uint32_t events = pb_json_get(j, 1, "traceEvents");
    size_t n = 0, room = 0;

    *ret = NULL;
    for (uint32_t e = events ? j->nodes[events].child : 0; e; e = j->nodes[e].next) {
        uint32_t kind = pb_json_get(j, e, "cat"), name = pb_json_get(j, e, "name");
        if (!kind || !name || !pb_json_is(j, pb_json_get(j, e, "ph"), "X") || pb_json_is(j, kind, "Trace"))
            continue;
        if (pb_grow((void **)ret, &room, n, sizeof(**ret), NULL) < 0)
            return 0;
        uint64_t track = hash_of(j, e, "tid", hash_of(j, e, "pid", PB_HASH_START));
        (*ret)[n++] = (struct slice){j->nodes[kind].at,
                                     j->nodes[name].at,
                                     j->nodes[kind].length,
                                     j->nodes[name].length,
                                     number_of(j, e, "ts"),
                                     number_of(j, e, "dur"),
                                     0,
                                     track,
                                     1};
    }
    return n;
}

/* Computes for each slice the time of the slices within it on its track. */
static void find_inside(struct slice *s, size_t n)
{
    size_t open[64], depth = 0;

    qsort(s, n, sizeof(*s), by_track_and_time);
    for (size_t i = 0; i < n; i++) {
        while (depth && (s[open[depth - 1]].track != s[i].track ||
                         s[open[depth - 1]].ts + s[open[depth - 1]].dur <= s[i].ts))
            depth--;
        if (depth)
            s[open[depth - 1]].inside += s[i].dur;
        if (depth < sizeof(open) / sizeof(open[0]))
            open[depth++] = i;
    }
}

/* Adds up slices of the same name. Returns how many are left, by descending time. */
static size_t join_names(struct slice *s, size_t n)
{
    size_t kept = 0;

    qsort(s, n, sizeof(*s), by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept && by_name(&s[kept - 1], &s[i]) == 0) {
            s[kept - 1].dur += s[i].dur;
            s[kept - 1].inside += s[i].inside;
            s[kept - 1].calls++;
        } else {
            s[kept++] = s[i];
        }
    }
    qsort(s, kept, sizeof(*s), by_self);
    return kept;
}

static void put_span(FILE *to, const char *text, uint32_t length)
{
    char line[400];

    snprintf(line, sizeof(line), "%.*s", (int)length, text);
    fwrite(line, 1, pb_text_clean(line), to);
    putc('\t', to);
}

/* Sends operators and kernels back to the process, as rows. */
static int send_buckets(struct capture *c, struct pb_err *err)
{
    _cleanup_free_ struct slice *s = NULL;
    _cleanup_free_ char *text = NULL;
    struct pb_json j;
    size_t size;

    if (pb_json_parse(c->trace, c->size, &j) < 0)
        return pb_fail(err, -EBADMSG, "the trace is no JSON");
    size_t n = take_slices(&j, &s);
    find_inside(s, n);
    n = join_names(s, n);
    FILE *to = open_memstream(&text, &size);
    for (size_t i = 0; to && i < n && i < BUCKETS_MAX; i++) {
        double of_kind = 0, own = s[i].dur - s[i].inside;
        for (size_t k = 0; k < n; k++)
            if (compare_spans(s[k].kind, s[k].kind_length, s[i].kind, s[i].kind_length) == 0)
                of_kind += s[k].dur - s[k].inside;
        put_span(to, s[i].kind, s[i].kind_length);
        put_span(to, s[i].name, s[i].name_length);
        fprintf(to, "%.3f\t%.3f\t%u\t%.3f\n", own, s[i].dur, s[i].calls,
                of_kind > 0 ? 100 * own / of_kind : 0);
    }
    pb_json_done(&j);
    if (!to || putc('\n', to) == EOF || fclose(to) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = send_text(c, text, size, err);
    char line[LINE]; /* the channel ends when the rows are stored */
    while (r == 0 && pb_dialog_read(&c->dialog, line, sizeof(line), SLACK_MS) > 0)
        ;
    return r;
}

/* --- all targets --- */

static int write_trace(const struct capture *c, struct pb_err *err)
{
    struct pb_replace file;

    int r = pb_replace_begin(c->path, &file);
    if (r == 0)
        r = pb_replace_end(&file, fwrite(c->trace, 1, c->size, file.out) == c->size ? 0 : -errno);
    return r < 0 ? pb_fail(err, r, "%s cannot be written: %s", c->path, strerror(-r)) : 0;
}

static int finish_capture(struct capture *c, unsigned limit_ms, struct pb_err *err)
{
    int r = receive_trace(c, limit_ms, err);
    if (r == 0)
        r = write_trace(c, err);
    if (r == 0)
        r = send_buckets(c, err);
    if (r == 0)
        printf("%s: written to %s\n", c->call.targets.at[0].label, c->path);
    return r;
}

static int run_captures(struct capture *all, size_t n, const struct pb_call *call, const char *question,
                        unsigned limit_ms, struct pb_err *err)
{
    long long moment = 0;
    int failed = 0;

    for (size_t i = 0; i < n; i++) {
        int r = begin_capture(&all[i], question, limit_ms, err);
        if (r < 0) /* no target begins: the ranks would profile different steps */
            return n > 1 ? pb_target_failed(call, &call->targets.at[i], r, err) : r;
    }
    if (n > 1)
        moment = choose_moment(&all[0], &all[n - 1]);
    for (size_t i = 0; i < n; i++) {
        char line[32];
        int length = snprintf(line, sizeof(line), "%lld\n", moment);
        int r = send_text(&all[i], line, (size_t)length, err);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < n; i++) {
        int r = finish_capture(&all[i], limit_ms, err);
        if (r < 0 && n == 1)
            return r;
        if (r < 0)
            failed = pb_target_failed(call, &call->targets.at[i], r, err);
    }
    return failed;
}

int pb_torch_profile(const struct pb_call *call, struct pb_err *err)
{
    const char *output = pb_call_option(call, "output");
    struct pb_question question = {.used = 0};
    char number[24];
    unsigned limit_ms = pb_call_ms(call, "within");
    size_t n = call->targets.n;

    if (!output)
        return pb_fail(err, PB_USAGE, "torch profile needs -o FILE, where the trace goes");
    snprintf(number, sizeof(number), "%.0f", pb_call_number(call, "steps"));
    int r = pb_question_add(&question, "steps", number, err);
    snprintf(number, sizeof(number), "%u", limit_ms);
    if (r == 0)
        r = pb_question_add(&question, "limit_ms", number, err);
    struct capture *all = r == 0 ? calloc(n, sizeof(*all)) : NULL;
    if (r == 0 && !all)
        r = pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < n; i++) {
        all[i].call = *call;
        all[i].call.timeout_ms = SLACK_MS;
        all[i].call.targets.at = &call->targets.at[i];
        all[i].call.targets.n = 1;
        pb_target_path(&call->targets.at[i], output, n, all[i].path, sizeof(all[i].path));
    }
    if (r == 0)
        r = run_captures(all, n, call, question.text, limit_ms, err);
    for (size_t i = 0; all && i < n; i++) {
        if (all[i].open)
            pb_dialog_close(&all[i].dialog);
        free(all[i].trace);
    }
    free(all);
    return r;
}
