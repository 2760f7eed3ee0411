/* profile_from: see profile_from.h. */
#include "cli/profile/profile_from.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "profile/flame.h"
#include "profile/store.h"
#include "profile/write.h"
#include "remote/runs.h"

#define CHANGES 5 /* named in the summary of a difference */

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

static int from_folded(const char *path, struct pb_profile *p, struct pb_err *err)
{
    FILE *in = fopen(path, "re");

    if (!in)
        return pb_fail(err, -errno, "%s: %s", path, strerror(errno));
    snprintf(pb_profile_facts(p)->title, sizeof(pb_profile_facts(p)->title), "%s", path);
    struct pb_err one = {0};
    int r = pb_read_folded(in, p, &one);
    fclose(in);
    return r < 0 ? pb_fail(err, r, "%s: %s", path, pb_err_text(&one, r)) : 0;
}

int pb_profile_from(const char *name, const struct pb_profile_range *range, struct pb_profile *p,
                    struct pb_err *err)
{
    size_t len = strlen(name);
    bool folded = len > 7 && (strcmp(name + len - 7, ".folded") == 0 || strcmp(name + len - 4, ".txt") == 0);

    return folded ? from_folded(name, p, err) : pb_store_read(name, range->since, range->until, p, err);
}

struct change {
    uint32_t function; /* in names */
    double before, after;
};

static int largest_first(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    double s = x->after - x->before, t = y->after - y->before;

    s = s < 0 ? -s : s;
    t = t < 0 ? -t : t;
    return s < t ? 1 : s > t ? -1 : 0;
}

/* Self shares of one profile into changes, by functions that both share. */
static int add_side(const struct pb_profile *p, struct pb_profile *names, struct change *changes, size_t room,
                    bool after)
{
    _cleanup_free_ struct pb_hot *hot = NULL;
    double all = (double)pb_profile_samples(p);

    int n = pb_profile_hot(p, &hot);
    for (int i = 0; i < n; i++) {
        struct pb_profile_function f = pb_profile_function_at(p, hot[i].function);
        uint32_t id = pb_profile_function(names, f.kind, f.name, pb_profile_short_file(f.file));
        if (id >= room)
            continue;
        changes[id].function = id;
        *(after ? &changes[id].after : &changes[id].before) += 100 * (double)hot[i].self / all;
    }
    return n < 0 ? n : 0;
}

void pb_profile_say_diff(const char *output, const struct pb_profile *before, const struct pb_profile *after)
{
    size_t room = pb_profile_nfunctions(before) + pb_profile_nfunctions(after);
    _cleanup_free_ struct change *changes = calloc(room + 1, sizeof(*changes));
    struct pb_profile *names;
    char label[160];

    printf("%s: %llu samples before, %llu after\n", output, (unsigned long long)pb_profile_samples(before),
           (unsigned long long)pb_profile_samples(after));
    if (!changes || pb_profile_new(0, &names) < 0)
        return;
    if (add_side(before, names, changes, room, false) == 0 &&
        add_side(after, names, changes, room, true) == 0) {
        qsort(changes, pb_profile_nfunctions(names), sizeof(*changes), largest_first);
        for (size_t i = 0; i < CHANGES && i < pb_profile_nfunctions(names); i++)
            if (changes[i].after != changes[i].before)
                printf("  %+6.1f points  %s: %.1f%% before, %.1f%% after, in itself\n",
                       changes[i].after - changes[i].before,
                       pb_profile_label(names, changes[i].function, label, sizeof(label)), changes[i].before,
                       changes[i].after);
    }
    pb_profile_free(names);
}
