/* inspect: one object of a running program: its type, its contents, and what refers to it.
 *
 * The agent's Python part (python/probing/_inspect.py) finds and describes the object. The numbers of a
 * tensor are read from outside while the open channel keeps the tensor alive. The times of a module are SQL
 * over the rows of the torch probe. */
#include "ask/numbers.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_write.h"
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "cli/query/query_run.h"
#include "cli/ranks/ranks.h"
#include "cli/talk/dialog.h"
#include "cli/talk/question.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 1 << 20, BAR = 40, TIMES_TIMEOUT_MS = 10000 };

/* The answer of the Python part: "ok PLACE", the name of a module, then the text. */
struct description {
    char *buf; /* holds all the texts below */
    const char *place, *name;
    char *text;
};

/* Reads up to the final zero byte, or the end of the channel. */
static int receive_description(struct pb_dialog *dialog, const struct pb_call *call, char *buf,
                               struct pb_err *err)
{
    int timeout = call->timeout_ms ? (int)call->timeout_ms : -1;
    size_t n = 0;

    while (n < ANSWER_MAX && !(n && buf[n - 1] == '\0')) {
        long got = pb_dialog_read(dialog, buf + n, ANSWER_MAX - n, timeout);
        if (got == 0)
            return pb_fail(err, -EIO, "%s",
                           pb_dialog_reason(dialog)[0] ? pb_dialog_reason(dialog)
                                                       : "the agent gave no answer");
        if (got == -EINTR)
            continue;
        if (got == -ETIMEDOUT)
            return pb_fail(err, -ETIMEDOUT, "no answer within %g s (--timeout)", call->timeout_ms / 1e3);
        if (got < 0)
            return pb_fail(err, (int)got, "the process ended, or its agent was detached");
        n += (size_t)got;
    }
    buf[n < ANSWER_MAX ? n : ANSWER_MAX] = '\0';
    return 0;
}

static int split_answer(char *buf, struct description *ret, struct pb_err *err)
{
    char *name = strchr(buf, '\n'), *text = name ? strchr(name + 1, '\n') : NULL;

    if (strncmp(buf, "ok ", 3) != 0 || !text)
        return pb_fail(err, -EPROTO, "the agent's answer cannot be understood");
    *name++ = '\0';
    *text++ = '\0';
    *ret = (struct description){.buf = buf, .place = buf + 3, .name = name, .text = text};
    return 0;
}

/* "ADDRESS DTYPE ITEM NDIM SIZE STRIDE ...". */
static int parse_place(const char *text, struct pb_numbers_place *ret, struct pb_err *err)
{
    int at = 0;

    memset(ret, 0, sizeof(*ret));
    bool ok = sscanf(text, "%" SCNu64 " %23s %*u %u%n", &ret->address, ret->dtype, &ret->ndim, &at) == 3 &&
              ret->ndim <= PB_NUMBERS_DIMS;
    for (unsigned i = 0; ok && i < ret->ndim; i++) {
        int more = 0;
        ok = sscanf(text + at, " %" SCNd64 " %" SCNd64 "%n", &ret->sizes[i], &ret->strides[i], &more) == 2;
        at += more;
    }
    return ok ? pb_numbers_check(ret, err) : pb_fail(err, -EPROTO, "the agent's answer cannot be understood");
}

static void print_numbers(const struct pb_numbers *n)
{
    uint64_t most = 1;

    printf("%-12s min %.6g, max %.6g, mean %.6g, std %.6g, NaN %" PRIu64 ", infinite %" PRIu64
           ", zero %" PRIu64 "\n",
           "values", n->min, n->max, n->mean, n->std, n->nan, n->infinite, n->zero);
    if (!n->all)
        printf("%-12s of the %" PRIu64 " elements that could be read in time\n", "", n->elements);
    for (unsigned i = 0; i < PB_NUMBERS_BINS; i++)
        most = n->bins[i] > most ? n->bins[i] : most;
    for (unsigned i = 0; i < PB_NUMBERS_BINS && n->max > n->min; i++) {
        unsigned eighths = (unsigned)((double)n->bins[i] / (double)most * BAR * 8 + 0.5);
        static const char *const parts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
        printf("  %12.4g  ", n->min + (n->max - n->min) * i / PB_NUMBERS_BINS);
        for (unsigned k = 0; k < eighths / 8; k++)
            fputs("█", stdout);
        printf("%s %" PRIu64 "\n", n->bins[i] && !eighths ? parts[1] : parts[eighths % 8], n->bins[i]);
    }
}

/* JSON has no NaN and no infinity. */
static void put_number(struct pb_json_writer *w, const char *name, double value)
{
    if (isfinite(value))
        pb_json_put_number(w, name, "%.17g", value);
    else
        pb_json_put_null(w, name);
}

static void put_numbers(struct pb_json_writer *w, const struct pb_numbers *n)
{
    pb_json_open(w, "numbers", '{');
    pb_json_put_number(w, "elements", "%" PRIu64, n->elements);
    pb_json_put_bool(w, "all", n->all);
    pb_json_put_number(w, "nan", "%" PRIu64, n->nan);
    pb_json_put_number(w, "infinite", "%" PRIu64, n->infinite);
    pb_json_put_number(w, "zero", "%" PRIu64, n->zero);
    put_number(w, "min", n->min);
    put_number(w, "max", n->max);
    put_number(w, "mean", n->mean);
    put_number(w, "std", n->std);
    pb_json_open(w, "histogram", '[');
    for (unsigned i = 0; i < PB_NUMBERS_BINS; i++)
        pb_json_put_number(w, NULL, "%" PRIu64, n->bins[i]);
    pb_json_close(w);
    pb_json_close(w);
}

/* Prints the times that the torch probe has recorded of a module. w: NULL for people. */
static int print_times(const struct pb_call *call, const char *name, struct pb_json_writer *w,
                       struct pb_err *err)
{
    struct pb_query_options o = {.timeout_ms = TIMES_TIMEOUT_MS,
                                 .format = w ? PB_QUERY_JSON : PB_QUERY_TABLE};
    _cleanup_free_ char *sql = NULL;
    size_t size;

    FILE *to = open_memstream(&sql, &size);
    if (!to)
        return pb_fail(err, -ENOMEM, "out of memory");
    fputs("SELECT stage, count(*) AS calls, round(avg(duration_ms), 4) AS avg_ms,"
          " round(avg(self_ms), 4) AS self_ms, round(max(duration_ms), 4) AS max_ms,"
          " round(arg_max(duration_ms, timestamp), 4) AS last_ms FROM python.torch_trace WHERE module = '",
          to);
    for (; *name; name++) {
        if (*name == '\'')
            putc(*name, to);
        putc(*name, to);
    }
    fputs("' GROUP BY stage ORDER BY stage", to);
    if (fclose(to) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (w) {
        pb_json_key(w, "times");
        putchar('\n');
    } else {
        puts("times");
    }
    return pb_query_run(call, &o, sql, strlen(sql), stdout, err);
}

static int print_description(const struct pb_call *call, const struct description *d,
                             const struct pb_numbers *numbers, struct pb_err *err)
{
    pb_put_plain(stdout, d->text);
    if (numbers)
        print_numbers(numbers);
    return d->name[0] ? print_times(call, d->name, NULL, err) : 0;
}

/* The agent's object, extended by numbers and times. */
static int print_json(const struct pb_call *call, const struct description *d,
                      const struct pb_numbers *numbers, struct pb_err *err)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    struct pb_json_writer w = {.out = stdout, .tight = true};
    int r = pb_json_parse(d->text, strlen(d->text), &j);

    if (r < 0 || j.nodes[1].kind != '{')
        return pb_fail(err, r < 0 ? r : -EPROTO, "the agent's answer cannot be understood");
    pb_json_open(&w, NULL, '{');
    for (uint32_t i = j.nodes[1].child; i; i = j.nodes[i].next) {
        char key[64];
        size_t length;
        const char *value = pb_json_span(&j, i, &length);
        snprintf(key, sizeof(key), "%.*s", (int)(j.nodes[i].key_length < 60 ? j.nodes[i].key_length : 60),
                 j.nodes[i].key);
        pb_json_put_value(&w, key, value, length);
    }
    if (numbers)
        put_numbers(&w, numbers);
    r = d->name[0] ? print_times(call, d->name, &w, err) : 0;
    pb_json_close(&w);
    putchar('\n');
    return r;
}

/* The description of the object (its texts are in buf, of ANSWER_MAX + 1 bytes) and, where it has some, its
 * numbers. */
static int ask_for_object(const struct pb_call *call, struct pb_question *question, char *buf,
                          struct description *ret, struct pb_numbers *ret_numbers, bool *ret_has_numbers,
                          struct pb_err *err)
{
    struct pb_numbers_place place;
    struct pb_ask ask = call->ask;
    struct pb_dialog dialog;

    int r = pb_question_add(question, "object", call->args[0], err);
    if (r == 0)
        r = pb_dialog_open(call, "inspect", question->text, &dialog, err);
    if (r < 0)
        return r;
    r = receive_description(&dialog, call, buf, err);
    if (r == 0)
        r = split_answer(buf, ret, err);
    *ret_has_numbers = r == 0 && ret->place[0];
    if (*ret_has_numbers)
        r = parse_place(ret->place, &place, err);
    ask.limit_ms = pb_call_limit(call);
    if (r == 0 && *ret_has_numbers)
        r = pb_numbers_ask(&ask, call->targets.at[0].pid, &place, ret_numbers, err);
    pb_dialog_close(&dialog);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    bool json = pb_call_option(call, "json") != NULL, has_numbers;
    _cleanup_free_ char *buf = malloc(ANSWER_MAX + 1);
    struct pb_question question = {.used = 0};
    struct pb_numbers numbers;
    struct description d = {0};

    int r = buf ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0 && json)
        r = pb_question_add(&question, "json", "1", err);
    if (r == 0 && pb_call_option(call, "referrers"))
        r = pb_question_add(&question, "referrers", "1", err);
    if (r == 0)
        r = ask_for_object(call, &question, buf, &d, &numbers, &has_numbers, err);
    if (r < 0)
        return r;
    return (json ? print_json : print_description)(call, &d, has_numbers ? &numbers : NULL, err);
}

static int run_show(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_free_ char *buf = malloc(ANSWER_MAX + 1);
    struct pb_question question = {.used = 0};
    struct pb_numbers n;
    struct description d = {0};
    bool has_numbers;

    int r = buf ? pb_question_add(&question, "line", "1", err) : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = ask_for_object(call, &question, buf, &d, &n, &has_numbers, err);
    if (r < 0)
        return r;
    _cleanup_free_ char *line = NULL;
    size_t size;
    FILE *to = open_memstream(&line, &size);
    if (!to)
        return pb_fail(err, -ENOMEM, "out of memory");
    fputs(d.text, to);
    if (has_numbers && n.elements == 1 && !n.nan && !n.infinite)
        fprintf(to, " %.9g", n.min);
    else if (has_numbers)
        fprintf(to, " min %.9g max %.9g mean %.9g", n.min, n.max, n.mean);
    if (has_numbers && n.nan)
        fprintf(to, ", NaN %" PRIu64 " of %" PRIu64, n.nan, n.elements);
    if (has_numbers && n.infinite)
        fprintf(to, ", infinite %" PRIu64, n.infinite);
    if (fclose(to) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (pb_call_option(call, "json")) {
        struct pb_json_writer w = {.out = stdout};
        pb_json_open(&w, NULL, '{');
        pb_json_put_bytes(&w, "value", line, size);
        pb_json_close(&w);
        putchar('\n');
    } else {
        pb_put_plain(stdout, line);
        putchar('\n');
    }
    return 0;
}

static const struct pb_option options[] = {
    {0, "json", NULL, "as one JSON object"},
    {0, "referrers", NULL,
     "also list what refers to it: holds the GIL for some 50 ms for each million objects of the program"},
    {0},
};

const struct pb_command pb_cmd_inspect = {
    .name = "inspect",
    .summary = "one object: a tensor with a histogram, a module with its times, any other with its "
               "fields",
    .synopsis = "EXPRESSION | NAME@FUNCTION",
    .text = "EXPRESSION is as for eval. NAME@FUNCTION is a variable, or a path from one, of the "
            "innermost running call of that function.\n\n"
            "  tensor or array: shape, type, device, minimum, maximum, mean, deviation, NaNs, a "
            "histogram\n"
            "  module: parameters, hooks, and times if the torch probe records\n"
            "  any other object: type, size, fields\n\n"
            "Numbers are read from outside, piece by piece: the process computes and allocates "
            "nothing for it, and autograd does not see it. Numbers on a GPU are not read, since "
            "that would wait for the GPU.",
    .example = "probing -t 4711 inspect model.fc.weight\nprobing -t 4711 inspect loss@train\n"
               "probing -t 4711 inspect --referrers \"cache[0]\"",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = run,
};

static const struct pb_option show_options[] = {{0, "json", NULL, "as JSON"}, {0}};

const struct pb_command pb_cmd_show = {
    .name = "show",
    .summary = "one variable on one line; over a cluster, all ranks side by side with differences "
               "marked",
    .synopsis = "VARIABLE | NAME@FUNCTION | EXPRESSION",
    .text = "If a thread is held (break, pause), the variable is looked up in its frames, "
            "innermost first; otherwise as inspect does. Tensors and arrays are shown by type and "
            "shape, with minimum, maximum and mean, read from outside.\n\n"
            "With -t cluster, equal values are shown once, with their ranks. \"!\" marks values "
            "that differ from the majority; NaN and different shapes are named.",
    .example = "probing -t 4711 show loss\nprobing -t cluster show model.fc.weight.grad",
    .min_args = 1,
    .max_args = 1,
    .options = show_options,
    .flags = PB_CMD_TARGET | PB_CMD_TIMEOUT | PB_CMD_CLUSTER | PB_CMD_LABELS,
    .run = run_show,
    .run_over = pb_cluster_show,
};
