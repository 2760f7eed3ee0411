/* profile_from: see profile_from.h. */
#include "cli/profile/profile_from.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/values.h"
#include "print/outlet.h"
#include "profile/diff.h"

#define CHANGES 5 /* functions named in the summary of a difference */

/* "90s ago", "14:30", "14:30:05", "2026-01-31 14:30:05", in local time. */
static int parse_time(const char *text, int64_t *ret)
{
    static const char *const forms[] = {"%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%H:%M:%S", "%H:%M"};
    time_t now = time(NULL);
    char word[32];
    unsigned ms;

    size_t len = strcspn(text, " ");
    snprintf(word, sizeof(word), "%.*s", (int)len, text);
    if ((strcmp(text + len, " ago") == 0 || !text[len]) && pb_parse_duration(word, &ms) == 0) {
        *ret = ((int64_t)now * 1000 - ms) * 1000000;
        return 0;
    }
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm tm;
        localtime_r(&now, &tm);
        tm.tm_sec = 0;
        const char *end = strptime(text, forms[i], &tm);
        tm.tm_isdst = -1;
        if (end && !*end) {
            *ret = (int64_t)mktime(&tm) * (int64_t)PB_NS_PER_S;
            return 0;
        }
    }
    return -EINVAL;
}

int pb_profile_range(const struct pb_call *call, struct pb_profile_range *ret, struct pb_err *err)
{
    struct pb_profile_range range = {0, INT64_MAX};
    const char *const names[] = {"since", "until"};
    int64_t *const ends[] = {&range.since, &range.until};

    for (int i = 0; i < 2; i++) {
        const char *text = pb_call_option(call, names[i]);
        if (text && parse_time(text, ends[i]) < 0)
            return pb_fail(err, PB_USAGE,
                           "--%s takes a time such as '5m ago', 14:30:00 or '2026-01-31 14:30:00', not '%s'",
                           names[i], text);
    }
    *ret = range;
    return 0;
}

void pb_profile_say_diff(const char *output, const struct pb_profile *before, const struct pb_profile *after)
{
    _cleanup_(pb_profile_diff_done) struct pb_profile_diff diff = {0};
    char label[160];

    printf("%s: %llu samples before, %llu after\n", output, (unsigned long long)pb_profile_samples(before),
           (unsigned long long)pb_profile_samples(after));
    if (pb_profile_diff(before, after, &diff) < 0)
        return;
    for (size_t i = 0; i < CHANGES && i < diff.n; i++) {
        const struct pb_profile_change *c = &diff.at[i];
        if (c->after != c->before) {
            printf("  %+6.1f points  ", c->after - c->before);
            pb_put_name(stdout, pb_profile_label(diff.names, c->function, label, sizeof(label)));
            printf(": %.1f%% before, %.1f%% after, in itself\n", c->before, c->after);
        }
    }
}
