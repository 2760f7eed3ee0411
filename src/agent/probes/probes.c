/* probes: see probes.h. */
#include "agent/probes/probes.h"

#include "agent/core/agent_clock.h"
#include "control/settings.h"
#include "table/arena.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const struct pb_probe *const pb_probe_list[] = {&pb_probe_memory_usage,       &pb_probe_resource_usage,
                                                &pb_probe_memory_allocations, &pb_probe_torch,
                                                &pb_probe_gpu_profile,        NULL};

static const struct pb_probe *const *probes; /* NULL: none */
static struct pb_arena *tables;
static struct {
    enum pb_probe_state state;
    uint64_t next_ns;
    char settings[PB_PROBE_SETTINGS];
    char why[200]; /* of one that is stuck */
} states[PB_PROBES_MAX];

static int find_probe(const char *name, char *why, size_t why_size)
{
    int n = snprintf(why, why_size, "there is no probe '%.40s'; there are", name);

    for (int i = 0; probes && probes[i]; i++) {
        if (strcmp(probes[i]->name, name) == 0)
            return i;
        if (n > 0 && (size_t)n < why_size)
            n += snprintf(why + n, why_size - (size_t)n, "%s %s", i ? "," : "", probes[i]->name);
    }
    return -ENOENT;
}

static int stop_probe(int i, char *why, size_t why_size)
{
    why[0] = '\0';
    int r = probes[i]->stop(why, why_size);
    states[i].state = r < 0 ? PB_PROBE_STUCK : PB_PROBE_OFF;
    snprintf(states[i].why, sizeof(states[i].why), "%s", r < 0 ? why : "");
    return r;
}

static int start_probe(int i, const char *settings, char *why, size_t why_size)
{
    why[0] = '\0';
    int r = probes[i]->start(tables, settings, why, why_size);
    if (r < 0)
        return r;
    states[i].state = PB_PROBE_ON;
    states[i].next_ns = 0;
    snprintf(states[i].settings, sizeof(states[i].settings), "%s", settings);
    return 0;
}

int pb_probes_begin(const struct pb_probe *const *list, struct pb_arena *arena, char *why, size_t why_size)
{
    int r = 0;

    memset(states, 0, sizeof(states));
    probes = list;
    tables = arena;
    for (int i = 0; r == 0 && list[i]; i++) {
        if (i < PB_PROBES_MAX && list[i]->configure)
            list[i]->configure(NULL, NULL);
        if (i >= PB_PROBES_MAX)
            r = -E2BIG;
        else if (list[i]->on)
            r = start_probe(i, "", why, why_size);
    }
    if (r < 0)
        pb_probes_end();
    return r;
}

int pb_probes_start(const char *name, const char *settings, char *why, size_t why_size)
{
    int i = find_probe(name, why, why_size);

    if (i < 0)
        return i;
    if (strlen(settings) >= PB_PROBE_SETTINGS) {
        snprintf(why, why_size, "settings of a probe have at most %d bytes", PB_PROBE_SETTINGS - 1);
        return -EMSGSIZE;
    }
    if (states[i].state == PB_PROBE_ON && strcmp(states[i].settings, settings) == 0)
        return 1;
    int r = states[i].state == PB_PROBE_OFF ? 0 : stop_probe(i, why, why_size);
    return r < 0 ? r : start_probe(i, settings, why, why_size);
}

int pb_probes_stop(const char *name, char *why, size_t why_size)
{
    int i = find_probe(name, why, why_size);

    if (i < 0)
        return i;
    return states[i].state == PB_PROBE_OFF ? 1 : stop_probe(i, why, why_size);
}

int pb_probes_configure(const struct pb_settings *settings, const char *changed, char *why, size_t why_size)
{
    int r = 0;

    for (int i = 0; probes && probes[i]; i++) {
        int want = probes[i]->configure ? probes[i]->configure(settings, changed) : -1;
        if (want == 1 && states[i].state != PB_PROBE_ON)
            r = pb_probes_start(probes[i]->name, "", why, why_size);
        else if (want == 0 && states[i].state == PB_PROBE_ON)
            r = stop_probe(i, why, why_size);
        if (r < 0)
            return r;
    }
    return 0;
}

int pb_probes_tick(uint64_t now, uint64_t *next)
{
    int ticked = 0;

    *next = now + PB_NS_PER_S;
    for (int i = 0; probes && probes[i]; i++) {
        if (states[i].state != PB_PROBE_ON || !probes[i]->tick)
            continue;
        if (now >= states[i].next_ns || (probes[i]->urgent && probes[i]->urgent())) {
            states[i].next_ns = probes[i]->tick(now);
            ticked++;
        }
        if (states[i].next_ns == PB_PROBE_IS_OVER) {
            states[i].state = PB_PROBE_OFF;
            continue;
        }
        if (states[i].next_ns < *next)
            *next = states[i].next_ns;
    }
    return ticked;
}

int pb_probes_end(void)
{
    char why[200];
    int left = 0;

    for (int i = 0; probes && probes[i]; i++)
        if (probes[i]->detach)
            probes[i]->detach();
    for (int i = 0; probes && probes[i]; i++)
        if (i < PB_PROBES_MAX && states[i].state != PB_PROBE_OFF)
            left += stop_probe(i, why, sizeof(why)) < 0;
    probes = NULL;
    tables = NULL;
    return left;
}

void pb_probes_forget(void)
{
    for (int i = 0; probes && probes[i]; i++)
        if (i < PB_PROBES_MAX && probes[i]->forked)
            probes[i]->forked();
    memset(states, 0, sizeof(states));
    probes = NULL;
    tables = NULL;
}

int pb_probes_at(int i, struct pb_probe_info *ret)
{
    if (!probes || i < 0 || i >= PB_PROBES_MAX || !probes[i])
        return -ENOENT;
    *ret =
        (struct pb_probe_info){.probe = probes[i], .state = states[i].state, .settings = states[i].settings};
    if (ret->state == PB_PROBE_STUCK)
        snprintf(ret->text, sizeof(ret->text), "%s", states[i].why);
    else if (ret->state == PB_PROBE_ON && probes[i]->describe)
        probes[i]->describe(ret->text, sizeof(ret->text));
    else if (ret->state == PB_PROBE_OFF && probes[i]->why_over)
        snprintf(ret->text, sizeof(ret->text), "%s", probes[i]->why_over());
    return 0;
}

/* The next "name=value" of the settings, or NULL. */
static const char *next_setting(const char *at, size_t *name, size_t *all)
{
    at += strspn(at, " ");
    *all = strcspn(at, " ");
    const char *equals = memchr(at, '=', *all);
    *name = equals ? (size_t)(equals - at) : *all;
    return *all ? at : NULL;
}

static int is_word(const char *words, const char *name, size_t length)
{
    for (const char *p = words; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == length && memcmp(p, name, length) == 0)
            return 1;
    return 0;
}

int pb_probe_check(const char *settings, const char *known, char *why, size_t why_size)
{
    size_t name, all;

    for (const char *at = settings; (at = next_setting(at, &name, &all)); at += all)
        if (name == all || !is_word(known, at, name)) {
            snprintf(why, why_size, "'%.*s' is no setting of this probe; it takes %s, each as NAME=VALUE",
                     (int)(all < 60 ? all : 60), at, known[0] ? known : "none");
            return -EINVAL;
        }
    return 0;
}

/* "500ms" in ns; 0: not a duration. */
static uint64_t parse_duration(const char *text, size_t length)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {
        {"ms", PB_NS_PER_MS}, {"s", PB_NS_PER_S}, {"m", 60 * PB_NS_PER_S}, {"h", 3600 * PB_NS_PER_S}};
    uint64_t n = 0;
    size_t digits = 0;

    for (; digits < length && text[digits] >= '0' && text[digits] <= '9' && n < 1000000; digits++)
        n = n * 10 + (uint64_t)(text[digits] - '0');
    for (size_t i = 0; digits && i < sizeof(units) / sizeof(units[0]); i++)
        if (strlen(units[i].name) == length - digits &&
            memcmp(text + digits, units[i].name, length - digits) == 0)
            return n * units[i].ns;
    return 0;
}

/* The text of a setting's last value, and its length; NULL: it is not given. */
static const char *find_value(const char *settings, const char *name, size_t *ret_length)
{
    const char *found = NULL;
    size_t length, all;

    for (const char *at = settings; (at = next_setting(at, &length, &all)); at += all)
        if (length == strlen(name) && memcmp(at, name, length) == 0 && length < all) {
            found = at + length + 1;
            *ret_length = all - length - 1;
        }
    return found;
}

int pb_probe_duration(const char *settings, const char *name, uint64_t least_ns, uint64_t most_ns,
                      uint64_t *ret, char *why, size_t why_size)
{
    size_t n = 0;
    const char *value = find_value(settings, name, &n);
    uint64_t ns = value ? parse_duration(value, n) : least_ns;

    if (ns < least_ns || ns > most_ns) {
        snprintf(why, why_size, "%s is a time from %llu ms to %llu s, such as 500ms or 2s, not '%.*s'", name,
                 (unsigned long long)(least_ns / PB_NS_PER_MS), (unsigned long long)(most_ns / PB_NS_PER_S),
                 (int)(n < 40 ? n : 40), value);
        return -EINVAL;
    }
    if (value)
        *ret = ns;
    return 0;
}

int pb_probe_size(const char *settings, const char *name, uint64_t least, uint64_t most, uint64_t *ret,
                  char *why, size_t why_size)
{
    size_t n = 0;
    const char *value = find_value(settings, name, &n);
    uint64_t bytes = 0;
    char text[40];

    if (!value)
        return 0;
    snprintf(text, sizeof(text), "%.*s", (int)n, value);
    if (pb_parse_size(text, &bytes) < 0 || bytes < least || bytes > most) {
        snprintf(why, why_size, "%s is a size from %llu KB to %llu MB, such as 512KB, not '%s'", name,
                 (unsigned long long)(least >> 10), (unsigned long long)(most >> 20), text);
        return -EINVAL;
    }
    *ret = bytes;
    return 0;
}

int pb_probe_start_rows(struct pb_arena *arena, const struct pb_table_spec *spec, const char *settings,
                        uint64_t least_ns, uint64_t *ret_interval_ns, struct pb_table **ret_table, char *why,
                        size_t why_size)
{
    uint64_t interval = PB_NS_PER_S;

    int r = pb_probe_check(settings, "interval", why, why_size);
    if (r == 0)
        r = pb_probe_duration(settings, "interval", least_ns, 3600 * PB_NS_PER_S, &interval, why, why_size);
    if (r < 0)
        return r;
    r = pb_table_new(arena, spec, ret_table);
    if (r < 0) {
        snprintf(why, why_size, "its table cannot be made: %s", strerror(-r));
        return r;
    }
    *ret_interval_ns = interval;
    return 0;
}
