/* skill_when: see skill_when.h. A clause is: what of a column, a comparison, and a number or product. */
#include "diagnose/skills/skill_when.h"

#include "base/cleanup.h"
#include "diagnose/skills/skill_text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct clause {
    const struct pb_skill_result *result;
    const struct pb_skill_step *step;
    char column[PB_SKILL_NAME];
    char *why;
    size_t size;
};

static int fail(struct clause *c, const char *what, const char *name)
{
    snprintf(c->why, c->size, "%s %.200s", what, name);
    return -EINVAL;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (size_t n = strlen(text); n && isspace((unsigned char)text[n - 1]);)
        text[--n] = '\0';
    return text;
}

/* --- the numbers of a column --- */

struct column_numbers {
    double *at;
    size_t n;
};

static void numbers_done(struct column_numbers *numbers)
{
    free(numbers->at);
}

static int read_numbers(struct clause *c, const char *column, struct column_numbers *ret)
{
    unsigned k = 0;

    while (k < c->step->ncolumns && strcmp(c->step->columns[k], column) != 0)
        k++;
    /* A step without rows may have no columns either. */
    if (k == c->step->ncolumns && c->step->nrows)
        return fail(c, "its step has no column", column);
    ret->at = calloc(c->step->nrows + 1, sizeof(*ret->at));
    if (!ret->at)
        return fail(c, "out of memory for", column);
    for (size_t i = 0; i < c->step->nrows; i++) {
        const char *text = c->step->cells[i * c->step->ncolumns + k];
        char *end = NULL;
        double value = text ? strtod(text, &end) : 0;
        if (text && end != text && !*end)
            ret->at[ret->n++] = value;
    }
    return 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* NAN: there are too few numbers. */
static double median_of(struct column_numbers *v)
{
    if (!v->n)
        return NAN;
    qsort(v->at, v->n, sizeof(*v->at), by_size);
    return (v->at[(v->n - 1) / 2] + v->at[v->n / 2]) / 2;
}

static double summed(const struct column_numbers *v)
{
    double sum = 0;

    for (size_t i = 0; i < v->n; i++)
        sum += v->at[i];
    return sum;
}

static double extreme_of(const struct column_numbers *v, int sign)
{
    double most = v->n ? v->at[0] : NAN;

    for (size_t i = 1; i < v->n; i++)
        if (sign * v->at[i] > sign * most)
            most = v->at[i];
    return most;
}

/* As the original: where the least is none or negative, the ratio is above every bound. */
static double spread_of(const struct column_numbers *v)
{
    double least = extreme_of(v, -1);

    return v->n < 2 ? NAN : least <= 0 ? INFINITY : extreme_of(v, 1) / least;
}

/* What a word means of a column. -ENOENT: no such word. */
static int number_of(struct clause *c, const char *word, const char *column, double *ret)
{
    static const char *const words[] = {"max",    "top",   "min",  "avg",           "sum",
                                        "median", "value", "last", "max/min(ratio)"};
    _cleanup_(numbers_done) struct column_numbers v = {0};
    size_t i = 0;

    while (i < sizeof(words) / sizeof(words[0]) && strcmp(words[i], word) != 0)
        i++;
    if (i == sizeof(words) / sizeof(words[0]))
        return -ENOENT;
    int r = read_numbers(c, column, &v);
    if (r < 0)
        return r;
    *ret = i <= 1   ? extreme_of(&v, 1)
           : i == 2 ? extreme_of(&v, -1)
           : i == 3 ? (v.n ? summed(&v) / (double)v.n : NAN)
           : i == 4 ? summed(&v)
           : i == 5 ? median_of(&v)
           : i == 6 ? (v.n ? v.at[0] : NAN)
           : i == 7 ? (v.n ? v.at[v.n - 1] : NAN)
                    : spread_of(&v);
    return 0;
}

/* "avg(column)" */
static int call_of(struct clause *c, char *text, double *ret)
{
    char *open = strchr(text, '('), *close = open ? strrchr(open, ')') : NULL;

    if (!close || close[1])
        return -ENOENT;
    *open = *close = '\0';
    return number_of(c, trim(text), trim(open + 1), ret);
}

/* A number, avg(column), or the product of two such. */
static int right_side(struct clause *c, char *text, double *ret)
{
    double product = 1, value;
    char *end;

    for (char *next = text; next;) {
        char *at = next;
        if ((next = strchr(next, '*')))
            *next++ = '\0';
        at = trim(at);
        value = strtod(at, &end);
        if (end == at || *end) {
            int r = call_of(c, at, &value);
            if (r < 0)
                return r;
        }
        product *= value;
    }
    *ret = product;
    return 0;
}

/* --- clauses --- */

/* Cuts "left > right" at its comparison; NULL: there is none. */
static char *cut_comparison(char *text, char op[3])
{
    char *at = strpbrk(text, "<>=!");

    if (!at)
        return NULL;
    size_t n = at[1] == '=' ? 2 : 1;
    snprintf(op, 3, "%.*s", (int)n, at);
    *at = '\0';
    return at + n;
}

static bool compare(double left, const char *op, double right)
{
    if (isnan(left) || isnan(right))
        return false;
    if (op[0] == '>')
        return op[1] ? left >= right : left > right;
    if (op[0] == '<')
        return op[1] ? left <= right : left < right;
    return (left < right || left > right) == (op[0] == '!');
}

/* "top(row).c", "ratio(a/b)" and what number_of knows. */
static int left_side(struct clause *c, char *text, double *ret)
{
    if (strncmp(text, "top(row).", 9) == 0) {
        if (c->step->nrows < 2) {
            *ret = NAN;
            return 0;
        }
        return number_of(c, "value", text + 9, ret);
    }
    if (strncmp(text, "ratio(", 6) == 0) {
        char *slash = strchr(text, '/'), *close = strrchr(text, ')');
        double below = 0;
        if (!slash || !close || close < slash)
            return -ENOENT;
        *slash = *close = '\0';
        int r = number_of(c, "value", trim(text + 6), ret);
        if (r == 0)
            r = number_of(c, "value", trim(slash + 1), &below);
        if (r == 0 && !isnan(*ret))
            *ret = below > 0 ? *ret / below : 0;
        return r;
    }
    return c->column[0] ? number_of(c, text, c->column, ret) : -ENOENT;
}

static bool is_text_equal(const struct clause *c, const char *op, char *right)
{
    const char *own = pb_skill_cell(c->step, c->column);
    size_t n = strlen(right);

    if (n >= 2 && strchr("'\"", right[0]) && right[n - 1] == right[0]) {
        right[n - 1] = '\0';
        right++;
    }
    return own && (strcmp(own, right) == 0) == (op[0] == '=');
}

/* any_contains('a', 'b'): some cell has one of the texts in it. */
static int any_contains(struct clause *c, char *texts)
{
    char *close = strrchr(texts, ')'), *rest = NULL;
    unsigned k = 0;

    if (!close || !c->column[0])
        return fail(c, "it is not known:", texts);
    *close = '\0';
    while (k < c->step->ncolumns && strcmp(c->step->columns[k], c->column) != 0)
        k++;
    if (k == c->step->ncolumns)
        return c->step->nrows ? fail(c, "its step has no column", c->column) : 0;
    for (char *at = strtok_r(texts, ",", &rest); at; at = strtok_r(NULL, ",", &rest)) {
        char *needle = trim(at);
        needle += strspn(needle, "'\"");
        needle[strcspn(needle, "'\"")] = '\0';
        for (size_t i = 0; *needle && i < c->step->nrows; i++) {
            const char *cell = c->step->cells[i * c->step->ncolumns + k];
            if (cell && strcasestr(cell, needle))
                return 1;
        }
    }
    return 0;
}

static int judge_comparison(struct clause *c, char *text)
{
    char whole[PB_SKILL_TEXT], op[3];
    double left = NAN, right;

    snprintf(whole, sizeof(whole), "%s", text);
    char *second = cut_comparison(text, op), *first = trim(text);
    if (!second)
        return fail(c, "it is not known:", whole);
    second = trim(second);
    bool equals = op[0] == '=' || op[0] == '!';
    int r = strcmp(first, "rows") == 0 ? 0 : left_side(c, first, &left);
    if (strcmp(first, "rows") == 0)
        left = (double)c->step->nrows;
    char copy[PB_SKILL_TEXT];
    snprintf(copy, sizeof(copy), "%s", second);
    if (r == 0 && (r = right_side(c, copy, &right)) == -ENOENT && equals && c->column[0])
        return is_text_equal(c, op, second);
    if (r == -ENOENT)
        return fail(c, "it is not known:", whole);
    return r < 0 ? r : compare(left, op, right);
}

static int judge(struct clause *c, char *text)
{
    if (strcmp(text, "always") == 0)
        return 1;
    if (strncmp(text, "step:", 5) == 0) {
        const char *id = trim(text + 5);
        c->step = pb_skill_step_named(c->result, id, strlen(id));
        c->column[0] = '\0';
        return c->step ? c->step->state == PB_SKILL_ROWS || c->step->state == PB_SKILL_EMPTY
                       : fail(c, "there is no step", id);
    }
    if (!c->step)
        return fail(c, "no step is named before", text);
    if (strncmp(text, "column:", 7) == 0) {
        snprintf(c->column, sizeof(c->column), "%s", trim(text + 7));
        return 1;
    }
    if (strncmp(text, "any_contains(", 13) == 0)
        return any_contains(c, text + 13);
    return judge_comparison(c, text);
}

int pb_skill_when(const char *when, const struct pb_skill_result *result,
                  const struct pb_skill_step **ret_step, char *why, size_t size)
{
    struct clause c = {.result = result, .why = why, .size = size};
    _cleanup_free_ char *copy = strdup(when);
    char *rest = NULL;
    int r = copy && *trim(copy) ? 1 : fail(&c, "it has no condition", "");

    for (char *at = r > 0 ? strtok_r(copy, "|", &rest) : NULL; r > 0 && at; at = strtok_r(NULL, "|", &rest)) {
        char *text = trim(at); /* one without text holds */
        r = *text ? judge(&c, text) : 1;
    }
    *ret_step = c.step;
    return r;
}
