/* served: see served.h. */
#include "cli/served.h"

#include "ask/running.h"
#include "base/cleanup.h"
#include "control/relay.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void pb_served_read(struct pb_call *call)
{
    static char text[1024];
    const char *set = getenv(PB_RELAY_SERVED);

    if (!set)
        return;
    snprintf(text, sizeof(text), "%s", set);
    unsetenv(PB_RELAY_SERVED); /* no program that this one starts is such a command */
    char *blank = strchr(text, ' ');
    if (blank)
        *blank = '\0';
    call->served_at = text;
    call->served_target = blank ? blank + 1 : NULL;
}

bool pb_served_must_choose(const struct pb_call *call)
{
    static const char *const without[] = {"list", "diff", "from", "archive"}; /* options about no process */
    unsigned flags = call->command->flags;

    if (!call->served_at || call->target || call->all)
        return false;
    if (flags & PB_CMD_TARGET)
        return true;
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
        if (pb_call_option(call, without[i]))
            return false;
    return flags & PB_CMD_SERVED;
}

/* Probed processes; where there are none, all that could be. */
static size_t keep_candidates(struct pb_running_list *running)
{
    size_t probed = 0, n = 0;

    for (size_t i = 0; i < running->n; i++)
        probed += running->at[i].probed;
    for (size_t i = 0; i < running->n; i++)
        if (!probed || running->at[i].probed) {
            struct pb_running kept = running->at[i];
            running->at[i] = running->at[n]; /* its text is freed with the list */
            running->at[n++] = kept;
        }
    return n;
}

static int name_candidates(const struct pb_call *call, const struct pb_running_list *running, size_t n,
                           struct pb_err *err)
{
    enum { NAMED = 8 };
    char list[400] = "";
    size_t length = 0, i = 0;

    if (!n)
        return pb_fail(err, -ESRCH, "no Python process runs at %.100s", call->served_at);
    for (; i < n && i < NAMED && length + 140 < sizeof(list); i++)
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%s-t %.90s/%d", i ? ", " : "",
                                   call->served_at, (int)running->at[i].pid);
    if (i < n)
        snprintf(list + length, sizeof(list) - length, " and %zu more (list)", n - i);
    return pb_fail(err, PB_USAGE, "which process? There are %s", list);
}

static int choose(struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_running_done) struct pb_running_list running = {0};
    const char *own = call->served_target;
    static char pid[24];

    if (own)
        return pb_targets_resolve(&call->ask, own, false, call->command->flags & PB_CMD_DEAD, &call->targets,
                                  err);
    int r = pb_running_read(&call->ask, &running, err);
    if (r < 0)
        return r;
    size_t n = keep_candidates(&running);
    if (n != 1)
        return name_candidates(call, &running, n, err);
    snprintf(pid, sizeof(pid), "%d", (int)running.at[0].pid);
    return pb_targets_resolve(&call->ask, pid, false, call->command->flags & PB_CMD_DEAD, &call->targets,
                              err);
}

int pb_served_choose(struct pb_call *call, struct pb_err *err)
{
    int r = choose(call, err);

    if (r >= 0 || !(call->command->flags & PB_CMD_PROBED))
        return r;
    call->which = *err;
    *err = (struct pb_err){0};
    return 0;
}

/* --- SQL --- */

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* After strings and comments: their end. */
static size_t skip_text(const char *sql, size_t length, size_t at)
{
    static const char *const texts[][2] = {{"'", "'"}, {"--", "\n"}, {"/*", "*/"}};

    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(texts[i][0]);
        if (length - at < n || memcmp(sql + at, texts[i][0], n) != 0)
            continue;
        const char *end = memmem(sql + at + n, length - at - n, texts[i][1], strlen(texts[i][1]));
        return end ? (size_t)(end - sql) + strlen(texts[i][1]) : length;
    }
    return at;
}

/* The word that a table's name follows. */
static bool introduces_table(const char *word, size_t n)
{
    static const char *const words[] = {"from", "join", "describe", "summarize", "show"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == n && strncasecmp(word, words[i], n) == 0)
            return true;
    return false;
}

/* What the service knows of itself, and functions that make rows. */
static bool is_of_no_process(const char *name, size_t n)
{
    static const char *const names[] = {"probing.audit", "range", "generate_series", "unnest", "values"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t length = strlen(names[i]);
        if (n >= length && strncasecmp(name, names[i], length) == 0 &&
            (n == length || !is_name(name[length])))
            return true;
    }
    return false;
}

bool pb_served_needs_process(const char *sql, size_t length)
{
    bool table = false;

    for (size_t at = 0; at < length;) {
        size_t next = skip_text(sql, length, at);
        if (next == at && !is_name(sql[at])) {
            table = table && (isspace((unsigned char)sql[at]) || sql[at] == '"');
            next = at + 1;
        } else if (next == at) {
            while (next < length && is_name(sql[next]))
                next++;
            if (table && !is_of_no_process(sql + at, length - at))
                return true;
            table = introduces_table(sql + at, next - at);
        }
        at = next;
    }
    return false;
}
