/* ranks_show: one variable of all ranks of a cluster, side by side; see rank_outputs.h.
 *
 * Equal values stand once, the most common first. What differs from it is marked, and named where it is a NaN
 * or of another shape. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_write.h"
#include "cli/print/rows.h"
#include "cli/ranks/rank_outputs.h"

#include <stdlib.h>
#include <string.h>

struct value {
    const struct pb_rank_output *first;
    const char *text;
    size_t length, members;
    bool failed;
};

static bool same_value(const struct value *v, const struct value *w)
{
    return v->failed == w->failed && v->length == w->length && memcmp(v->text, w->text, v->length) == 0;
}

/* What it printed without the line's end; where it failed the last line of its errors. */
static struct value read_value(const struct pb_rank_output *s)
{
    struct value v = {.first = s, .text = s->output ? s->output : "", .length = s->noutput, .members = 1};

    v.failed = s->status != 0;
    if (v.failed) {
        v.text = s->errors ? s->errors : "no answer";
        v.length = strlen(v.text);
    }
    while (v.length && v.text[v.length - 1] == '\n')
        v.length--;
    const char *newline = v.failed && v.length ? memrchr(v.text, '\n', v.length) : NULL;
    if (newline) {
        v.length -= (size_t)(newline + 1 - v.text);
        v.text = newline + 1;
    }
    return v;
}

static bool is_nan(const struct value *v)
{
    return (v->length == 5 && memcmp(v->text, "\"nan\"", 5) == 0) || memmem(v->text, v->length, ", NaN ", 6);
}

/* The length of "Tensor float32 2x3", the prefix that all values of one shape share; 0: no such prefix. */
static size_t shape_length(const struct value *v)
{
    size_t at = 0, words = 0, begin = 0;

    for (; at <= v->length && words < 3; at++)
        if (at == v->length || v->text[at] == ' ') {
            words++;
            begin = words == 2 ? at + 1 : begin;
        }
    size_t length = words == 3 ? at - 1 - begin : 0;
    bool sizes = length && strspn(v->text + begin, "0123456789x") >= length;
    bool scalar = length == 6 && memcmp(v->text + begin, "scalar", 6) == 0;
    return sizes || scalar ? at - 1 : 0;
}

static bool is_other_shape(const struct value *v, const struct value *most)
{
    size_t n = shape_length(v), m = shape_length(most);

    return n && m && (n != m || memcmp(v->text, most->text, n) != 0);
}

static int by_members(const void *a, const void *b)
{
    const struct value *x = a, *y = b;

    if (x->members != y->members)
        return x->members > y->members ? -1 : 1;
    return x->first->rank.rank < y->first->rank.rank ? -1 : 1;
}

/* The distinct values, the most common first. */
static size_t find_values(const struct pb_rank_outputs *a, struct value *ret)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++) {
        struct value v = read_value(&a->at[i]);
        size_t k = 0;
        while (k < n && !same_value(&ret[k], &v))
            k++;
        if (k < n)
            ret[k].members++;
        else
            ret[n++] = v;
    }
    if (n)
        qsort(ret, n, sizeof(*ret), by_members);
    return n;
}

static void mark_members(const struct pb_rank_outputs *a, const struct value *v, bool *in, size_t most)
{
    memset(in, 0, most * sizeof(*in));
    for (size_t i = 0; i < a->n; i++) {
        struct value w = read_value(&a->at[i]);
        in[a->at[i].rank.rank] = same_value(v, &w);
    }
}

static void put_values(const struct pb_rank_outputs *a, const struct value *values, size_t n, bool *in,
                       size_t most)
{
    size_t width = 0;

    for (size_t i = 0; i < n; i++)
        width = values[i].length > width && values[i].length <= 60 ? values[i].length : width;
    for (size_t i = 0; i < n; i++) {
        const struct value *v = &values[i];
        _cleanup_free_ char *text = strndup(v->text, v->length);
        const char *why = v->failed                       ? ": no value"
                          : is_nan(v)                     ? ": NaN"
                          : is_other_shape(v, &values[0]) ? ": another shape"
                                                          : "";
        mark_members(a, v, in, most);
        fputs(i || v->failed || is_nan(v) ? "! " : "  ", stdout);
        pb_put_plain(stdout, text ? text : "");
        printf("%*s  ", (int)(v->length < width ? width - v->length : 0), "");
        pb_ranks_put_with_roles(stdout, a->c, in, most, true);
        puts(why);
    }
}

static void put_json_value(struct pb_json_writer *w, const struct pb_rank_outputs *a, const struct value *v,
                           const struct value *most, const bool *in, size_t size)
{
    char role[256];

    pb_json_open(w, NULL, '{');
    if (v->failed)
        pb_json_put_null(w, "value");
    pb_json_put_bytes(w, v->failed ? "why" : "value", v->text, v->length);
    pb_json_open(w, "ranks", '[');
    for (size_t i = 0; i < size; i++)
        if (in[i])
            pb_json_put_number(w, NULL, "%zu", i);
    pb_json_close(w);
    pb_json_put_bool(w, "differs", v != most);
    pb_json_put_bool(w, "nan", !v->failed && is_nan(v));
    pb_json_put_bool(w, "other_shape", !v->failed && is_other_shape(v, most));
    pb_cluster_common_role(a->c, in, size, role, sizeof(role));
    pb_json_put_text(w, "role", role[0] ? role : NULL);
    pb_json_close(w);
}

static void put_json(const struct pb_rank_outputs *a, const struct value *values, size_t n, bool *in,
                     size_t most)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '[');
    for (size_t i = 0; i < n; i++) {
        mark_members(a, &values[i], in, most);
        if (i)
            pb_json_line(&w, 1);
        put_json_value(&w, a, &values[i], values, in, most);
    }
    pb_json_close(&w);
    putchar('\n');
}

int pb_cluster_show(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err)
{
    _cleanup_(pb_command_line_done) struct pb_command_line w = {0};
    _cleanup_(pb_rank_outputs_done) struct pb_rank_outputs a = {0};
    struct pb_call plain = *call;
    bool failed = false;

    memset(plain.values, 0, sizeof(plain.values)); /* the ranks print text */
    int r = pb_command_line_make(&plain, NULL, pb_ranks_limit(call), &w, err);
    if (r == 0)
        r = pb_rank_outputs_ask(c, s, w.at, w.n, pb_ranks_limit(call), &a, err);
    if (r < 0)
        return r;
    size_t most = a.n ? (size_t)a.at[a.n - 1].rank.rank + 1 : 0;
    _cleanup_free_ struct value *values = calloc(a.n + 1, sizeof(*values));
    _cleanup_free_ bool *in = calloc(most + 1, sizeof(*in));
    if (!values || !in)
        return pb_fail(err, -ENOMEM, "out of memory");
    size_t n = find_values(&a, values);
    if (pb_call_option(call, "json"))
        put_json(&a, values, n, in, most);
    else
        put_values(&a, values, n, in, most);
    for (size_t i = 0; i < a.n; i++)
        failed = failed || a.at[i].status != 0;
    return !pb_rank_outputs_report(&a) ? PB_PARTIAL : failed ? PB_FAILED : 0;
}
