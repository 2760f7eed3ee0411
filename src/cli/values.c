/* values: see values.h. */
#include "cli/values.h"

#include "base/err.h"
#include "control/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pb_parse_duration(const char *text, unsigned *ret_ms)
{
    static const struct {
        const char *suffix;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60e3}, {"min", 60e3}, {"h", 3600e3}};
    char *end;

    double number = strtod(text, &end);
    if (end == text || !(number >= 0 && number < 1e9))
        return -EINVAL;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(end, units[i].suffix) == 0 && number * units[i].ms < 4e9) {
            *ret_ms = (unsigned)(number * units[i].ms);
            /* 0 means "no limit": a very short time is rounded up to 1 ms. */
            if (*ret_ms == 0 && number > 0)
                *ret_ms = 1;
            return 0;
        }
    return -EINVAL;
}

int pb_value_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);

    for (int i = 0; *choices; i++) {
        size_t n = strcspn(choices, " ");
        if (n == length && memcmp(choices, text, n) == 0)
            return i;
        choices += n + (choices[n] == ' ');
    }
    return -ENOENT;
}

static int parse_number(const char *text, bool whole, double *ret)
{
    char *end;

    if (whole && (!*text || text[strspn(text, "0123456789")]))
        return -EINVAL;
    *ret = strtod(text, &end);
    return end == text || *end ? -EINVAL : 0;
}

/* A time is in milliseconds. */
static int parse_value(const struct pb_option_value *v, const char *text, double *ret)
{
    uint64_t size;
    unsigned ms;
    int r = 0;

    switch (v->kind) {
    case PB_OPTION_TIME:
        r = pb_parse_duration(text, &ms);
        *ret = r < 0 ? 0 : ms;
        return r;
    case PB_OPTION_SIZE:
        r = pb_parse_size(text, &size);
        *ret = r < 0 ? 0 : (double)size;
        return r;
    case PB_OPTION_COUNT:
    case PB_OPTION_NUMBER:
        return parse_number(text, v->kind == PB_OPTION_COUNT, ret);
    case PB_OPTION_CHOICE:
        r = pb_value_choice(v->choices, text);
        *ret = r;
        return r < 0 ? r : 0;
    case PB_OPTION_TEXT:
        break;
    }
    *ret = 0;
    return 0;
}

/* "a, b and c". */
static void list_choices(const char *choices, char *ret, size_t size)
{
    size_t at = 0;

    for (const char *c = choices; *c && at < size;) {
        size_t n = strcspn(c, " ");
        bool last = !c[n] || !strchr(c + n + 1, ' ');
        at += (size_t)snprintf(ret + at, size - at, "%.*s%s", (int)n, c, !c[n] ? "" : last ? " and " : ", ");
        c += n + (c[n] == ' ');
    }
}

/* "500ms", "30". */
static const char *time_text(double ms, char ret[24])
{
    if (ms < 1000)
        snprintf(ret, 24, "%gms", ms);
    else
        snprintf(ret, 24, "%g", ms / 1000);
    return ret;
}

static int refuse(const struct pb_option *o, const char *text, struct pb_err *err)
{
    const struct pb_option_value *v = o->value;
    char least[24], most[24], list[256] = "";

    switch (v->kind) {
    case PB_OPTION_TIME:
        if (v->most > 0)
            return pb_fail(err, PB_USAGE,
                           "--%s takes a time from %s to %s seconds, such as 30 or 2m, not '%s'", o->name,
                           time_text(v->least, least), time_text(v->most, most), text);
        if (v->least > 1)
            return pb_fail(err, PB_USAGE, "--%s takes a time of at least %s, such as 2 or 500ms, not '%s'",
                           o->name, time_text(v->least, least), text);
        return pb_fail(err, PB_USAGE, "--%s takes a time such as 30, 500ms or 2m, not '%s'", o->name, text);
    case PB_OPTION_SIZE:
        return pb_fail(err, PB_USAGE, "--%s takes a size such as 500MB or 20GB, not '%s'", o->name, text);
    case PB_OPTION_CHOICE:
        list_choices(v->choices, list, sizeof(list));
        return pb_fail(err, PB_USAGE, "there is no %s '%s'; there are %s", o->name, text, list);
    case PB_OPTION_COUNT:
    case PB_OPTION_NUMBER:
    case PB_OPTION_TEXT:
        break;
    }
    const char *what = v->kind == PB_OPTION_COUNT ? "a whole number" : "a number";
    if (v->most > 0)
        return pb_fail(err, PB_USAGE, "--%s takes %s from %g to %.10g, not '%s'", o->name, what, v->least,
                       v->most, text);
    return pb_fail(err, PB_USAGE, "--%s takes %s from %g on, not '%s'", o->name, what, v->least, text);
}

int pb_value_check(const struct pb_option *o, const char *text, struct pb_err *err)
{
    const struct pb_option_value *v = o->value;
    double number;

    if (v->kind == PB_OPTION_TEXT)
        return 0;
    bool right =
        parse_value(v, text, &number) == 0 && number >= v->least && !(v->most > 0 && number > v->most);
    return right ? 0 : refuse(o, text, err);
}

double pb_call_number(const struct pb_call *call, const char *name)
{
    const struct pb_option *o = call->command->options;
    double number;

    for (size_t i = 0; o && o[i].name; i++)
        if (strcmp(o[i].name, name) == 0)
            return call->values[i] && parse_value(o[i].value, call->values[i], &number) == 0
                       ? number
                       : o[i].value->usual;
    return 0;
}

unsigned pb_call_ms(const struct pb_call *call, const char *name)
{
    return (unsigned)pb_call_number(call, name);
}
