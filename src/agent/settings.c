/* settings: see settings.h. */
#include "agent/settings.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MB (1ull << 20)

static const struct {
    const char *name, *variable, *allowed;
    uint64_t fallback, least, most;
} table[PB_SETTINGS] = {
    [PB_SET_MAX_MEMORY] = {"probing.max_memory", "PROBING_MAX_MEMORY",
                           "a size from 2MB to 1TB, such as 64MB or 1GB", 64 * MB, 2 * MB, 1ull << 40},
};

int pb_parse_size(const char *text, uint64_t *ret)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},          {"b", 1},         {"k", 1 << 10},   {"kb", 1 << 10},    {"m", 1 << 20},
                 {"mb", 1 << 20},  {"g", 1 << 30},   {"gb", 1 << 30},  {"t", 1ull << 40},  {"tb", 1ull << 40},
                 {"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1ull << 40}};
    char *end;

    double number = strtod(text, &end);
    if (end == text || !(number >= 0 && number < 1e15))
        return -EINVAL;
    while (isspace((unsigned char)*end))
        end++;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcasecmp(end, units[i].suffix) == 0) {
            *ret = (uint64_t)(number * units[i].factor);
            return 0;
        }
    return -EINVAL;
}

static int set(struct pb_settings *s, int i, const char *value, const char *origin)
{
    uint64_t number;

    if (pb_parse_size(value, &number) < 0 || number < table[i].least || number > table[i].most)
        return -EINVAL;
    s->value[i] = number;
    s->origin[i] = origin;
    return 0;
}

void pb_settings_init(struct pb_settings *s, const char *environment, size_t size)
{
    for (int i = 0; i < PB_SETTINGS; i++) {
        s->value[i] = table[i].fallback;
        s->origin[i] = "default";
    }
    while (size > 0) {
        size_t entry = strnlen(environment, size);
        for (int i = 0; i < PB_SETTINGS; i++) {
            size_t n = strlen(table[i].variable);
            if (entry > n && entry < size && environment[n] == '=' &&
                memcmp(environment, table[i].variable, n) == 0)
                set(s, i, environment + n + 1, "environment");
        }
        size_t step = entry < size ? entry + 1 : entry;
        environment += step;
        size -= step;
    }
}

int pb_settings_set(struct pb_settings *s, const char *name, const char *value, char *why, size_t why_size)
{
    for (int i = 0; i < PB_SETTINGS; i++)
        if (strcmp(name, table[i].name) == 0) {
            int r = set(s, i, value, "set");
            if (r < 0)
                snprintf(why, why_size, "%s takes %s, not '%.40s'", name, table[i].allowed, value);
            return r;
        }
    snprintf(why, why_size, "there is no setting '%.60s'; there is %s", name, table[0].name);
    return -ENOENT;
}

const char *pb_settings_name(enum pb_setting setting)
{
    return table[setting].name;
}

void pb_settings_text(const struct pb_settings *s, enum pb_setting setting, char *ret, size_t size)
{
    uint64_t value = s->value[setting];

    if (value % MB == 0)
        snprintf(ret, size, "%lluMB", (unsigned long long)(value / MB));
    else
        snprintf(ret, size, "%llu", (unsigned long long)value);
}
