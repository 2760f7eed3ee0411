/* settings: see settings.h. */
#include "control/settings.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GB (1ull << 30)

const struct pb_setting_info pb_setting_info[PB_SETTINGS] = {
    [PB_SET_SAMPLE_RATE] =
        {"probing.sample_rate", "PROBING_SAMPLE_RATE", PB_SETTING_NUMBER, "share", "0.1", 0.0001, 1, NULL,
         "a share from 0.0001 to 1, such as 0.05",
         "share of the milliseconds at which record, flamegraph and top look at the process "
         "(0.1: 100 Hz); --rate is stronger"},
    [PB_SET_MAX_MEMORY] = {"probing.max_memory", "PROBING_MAX_MEMORY", PB_SETTING_SIZE, "bytes", "40MB",
                           2 << 20, (double)(1024 * GB), NULL, "a size from 2MB to 1TB, such as 64MB or 1GB",
                           "bound of the tables of the process; the oldest rows make room, at once"},
    [PB_SET_RETENTION_DAYS] = {"probing.retention_days", "PROBING_RETENTION_DAYS", PB_SETTING_NUMBER, "days",
                               "7", 0.01, 3650, NULL, "days from 0.01 to 3650, such as 7",
                               "how long the run and the archive of an ended process are kept"},
    [PB_SET_COMPRESSION] = {"probing.compression", "PROBING_COMPRESSION", PB_SETTING_CHOICE, "", "zstd", 0, 0,
                            "zstd,snappy,gzip,none", "zstd, snappy, gzip or none",
                            "how archived Parquet files are compressed"},
    [PB_SET_REDACT] =
        {"probing.redact", "PROBING_REDACT", PB_SETTING_WORDS, "",
         "key,token,secret,password,passwd,credential", 0, 0, NULL,
         "words of letters, digits, '_', '-' and '.' with commas between them, at most 255 bytes; "
         "nothing masks nothing",
         "variables, locals and options with such a word in their names are masked; the tool's own "
         "PROBING_REDACT adds to it"},
    [PB_SET_TORCH_PROFILING] = {"probing.torch.profiling", "PROBING_TORCH_PROFILING", PB_SETTING_SWITCH, "",
                                "off", 0, 0, NULL, "on, off, or on,exprs=loss@train,lr",
                                "whether calls of PyTorch modules, phases and steps are recorded"},
    [PB_SET_TORCH_BUDGET] = {"probing.torch.budget", "PROBING_TORCH_BUDGET", PB_SETTING_NUMBER, "%", "1",
                             0.01, 100, "off", "percent of the time of a step from 0.01 to 100, or off",
                             "what recording modules may cost a step before it leaves out steps; off: every "
                             "step is recorded"},
    [PB_SET_TORCH_HANG_TIMEOUT] = {"probing.torch.hang_timeout", "PROBING_TORCH_HANG_TIMEOUT",
                                   PB_SETTING_NUMBER, "s", "auto", 0.1, 1e6, "auto,off",
                                   "seconds from 0.1 to 1000000, auto or off",
                                   "no step for so long is a row of python.alerts; auto: ten usual steps, at "
                                   "least 30 s"},
    [PB_SET_MEMORY_SAMPLING] =
        {"probing.memory.sampling", "PROBING_MEMORY_SAMPLING", PB_SETTING_SWITCH, "", "off", 0, 0, NULL,
         "on, off, or on,interval=64KB",
         "whether allocations of Python and torch are sampled, by default one in 512 KB: "
         "memory_allocations"},
};

static const char *const origins[] = {
    [PB_ORIGIN_DEFAULT] = "default",
    [PB_ORIGIN_BAD_VARIABLE] = "default, its variable is wrong",
    [PB_ORIGIN_ENVIRONMENT] = "environment",
    [PB_ORIGIN_COMMAND] = "command",
};

const char *pb_origin_name(enum pb_origin origin)
{
    return origins[origin];
}

int pb_setting_find(const char *name)
{
    for (int i = 0; i < PB_SETTINGS; i++)
        if (strcmp(name, pb_setting_info[i].name) == 0)
            return i;
    return -ENOENT;
}

/* strtod depends on the host's locale, in which "0.5" may be 0. Up to 18 digits; *ret_end: the first
 * character behind the number. */
static int parse_decimal(const char *text, const char **ret_end, double *ret)
{
    uint64_t digits = 0, scale = 1;
    int n = 0, point = 0;

    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = 1;
            continue;
        }
        if (++n > 18)
            return -EINVAL;
        digits = digits * 10 + (uint64_t)(*text - '0');
        scale *= point ? 10 : 1;
    }
    if (n == 0)
        return -EINVAL;
    *ret_end = text;
    *ret = (double)digits / (double)scale;
    return 0;
}

int pb_parse_size(const char *text, uint64_t *ret)
{
    static const char *const units[][3] = {
        {"", "b", "b"}, {"k", "kb", "kib"}, {"m", "mb", "mib"}, {"g", "gb", "gib"}, {"t", "tb", "tib"}};
    const char *end;
    double number;

    int r = parse_decimal(text, &end, &number);
    if (r < 0)
        return r;
    while (*end == ' ')
        end++;
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++)
            if (strcasecmp(end, units[i][k]) == 0) {
                number *= (double)(1ull << (10 * i));
                if (number >= 1e18)
                    return -EINVAL;
                *ret = (uint64_t)number;
                return 0;
            }
    return -EINVAL;
}

/* In the largest unit that is exact. */
static void print_size(uint64_t bytes, char *ret, size_t size)
{
    static const char *const units[] = {"", "KB", "MB", "GB", "TB"};
    int unit = 0;

    for (; unit < 4 && bytes && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    snprintf(ret, size, "%llu%s", (unsigned long long)bytes, units[unit]);
}

static int is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);

    for (const char *p = choices; n && !strchr(value, ',') && *p; p += strcspn(p, ","), p += *p == ',')
        if (strncmp(p, value, n) == 0 && (p[n] == ',' || !p[n]))
            return 1;
    return 0;
}

static int is_words(const char *value)
{
    for (; *value; value++)
        if (!isalnum((unsigned char)*value) && !strchr("_-., ", *value))
            return 0;
    return 1;
}

static const struct {
    const char *word;
    int on;
} switched[] = {{"on", 1}, {"off", 0}, {"1", 1}, {"0", 0}, {"true", 1}, {"false", 0}};

/* 1, 0, or -EINVAL. */
static int parse_switch(const char *value)
{
    size_t n = strcspn(value, ",");

    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20)
            return -EINVAL;
    for (size_t i = 0; i < sizeof(switched) / sizeof(switched[0]); i++)
        if (strlen(switched[i].word) == n && strncasecmp(value, switched[i].word, n) == 0)
            return switched[i].on;
    return -EINVAL;
}

int pb_settings_switched(const struct pb_settings *s, enum pb_setting setting)
{
    return s->at[setting].origin <= PB_ORIGIN_BAD_VARIABLE ? -1 : parse_switch(s->at[setting].text);
}

static int set_value(struct pb_settings *s, int i, const char *value, enum pb_origin origin)
{
    const struct pb_setting_info *info = &pb_setting_info[i];
    char text[PB_SETTING_LENGTH] = "";
    double number = 0;
    uint64_t bytes;
    const char *end;
    int ok;

    if (strlen(value) >= sizeof(text))
        return -EINVAL;
    snprintf(text, sizeof(text), "%s", value);
    switch (info->kind) {
    case PB_SETTING_SIZE:
        ok = pb_parse_size(value, &bytes) == 0 && (double)bytes >= info->least && (double)bytes <= info->most;
        if (ok) {
            number = (double)bytes;
            print_size(bytes, text, sizeof(text));
        }
        break;
    case PB_SETTING_NUMBER:
        ok = parse_decimal(value, &end, &number) == 0 && !*end && number >= info->least &&
             number <= info->most;
        if (!ok && info->choices && is_choice(info->choices, value)) {
            ok = 1;
            number = 0;
        }
        break;
    case PB_SETTING_CHOICE:
        ok = is_choice(info->choices, value);
        break;
    case PB_SETTING_SWITCH:
        ok = parse_switch(value) >= 0;
        break;
    default:
        ok = is_words(value);
    }
    if (!ok)
        return -EINVAL;
    memcpy(s->at[i].text, text, sizeof(text));
    s->at[i].number = number;
    s->at[i].origin = origin;
    return 0;
}

/* Variables of another profiler that its users know: each asks for expressions of a training. */
static void take_expressions(struct pb_settings *s, const char *entry, size_t size)
{
    static const char *const variables[] = {"PROBING_TORCH_EXPRS=", "PROBE_TORCH_EXPRS="};
    char value[PB_SETTING_LENGTH];

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        size_t n = strlen(variables[i]);
        if (size <= n || memcmp(entry, variables[i], n) != 0 ||
            s->at[PB_SET_TORCH_PROFILING].origin == PB_ORIGIN_ENVIRONMENT)
            continue;
        int length = snprintf(value, sizeof(value), "on,exprs=%.*s", (int)(size - n), entry + n);
        if (length > 0 && (size_t)length < sizeof(value))
            set_value(s, PB_SET_TORCH_PROFILING, value, PB_ORIGIN_ENVIRONMENT);
    }
}

void pb_settings_init(struct pb_settings *s, const char *environment, size_t size)
{
    char value[PB_SETTING_LENGTH];

    memset(s, 0, sizeof(*s));
    for (int i = 0; i < PB_SETTINGS; i++)
        set_value(s, i, pb_setting_info[i].fallback, PB_ORIGIN_DEFAULT);
    while (size > 0) {
        size_t entry = strnlen(environment, size);
        for (int i = 0; i < PB_SETTINGS; i++) {
            size_t n = strlen(pb_setting_info[i].variable);
            if (entry <= n || environment[n] != '=' ||
                memcmp(environment, pb_setting_info[i].variable, n) != 0)
                continue;
            size_t length = entry - n - 1;
            snprintf(value, sizeof(value), "%.*s", (int)(length < sizeof(value) ? length : 0),
                     environment + n + 1);
            if (length >= sizeof(value) || set_value(s, i, value, PB_ORIGIN_ENVIRONMENT) < 0)
                s->at[i].origin = PB_ORIGIN_BAD_VARIABLE;
        }
        take_expressions(s, environment, entry);
        size_t step = entry < size ? entry + 1 : entry;
        environment += step;
        size -= step;
    }
}

int pb_settings_set(struct pb_settings *s, const char *name, const char *value, char *why, size_t why_size)
{
    int i = pb_setting_find(name);

    if (i < 0) {
        int n = snprintf(why, why_size, "there is no setting '%.60s'; there are", name);
        for (i = 0; i < PB_SETTINGS && n > 0 && (size_t)n < why_size; i++)
            n += snprintf(why + n, why_size - (size_t)n, "%s %s", i ? "," : "", pb_setting_info[i].name);
        return -ENOENT;
    }
    int r = set_value(s, i, value, PB_ORIGIN_COMMAND);
    if (r < 0)
        snprintf(why, why_size, "%s takes %s, not '%.40s'", name, pb_setting_info[i].allowed, value);
    return r;
}

void pb_settings_fall_back(struct pb_settings *s, const struct pb_settings *other)
{
    for (int i = 0; i < PB_SETTINGS; i++)
        if (s->at[i].origin <= PB_ORIGIN_BAD_VARIABLE && other->at[i].origin > PB_ORIGIN_BAD_VARIABLE)
            s->at[i] = other->at[i];
}

size_t pb_settings_write(const struct pb_settings *s, char *ret, size_t size)
{
    size_t len = 0;

    ret[0] = '\0';
    for (int i = 0; i < PB_SETTINGS; i++) {
        int n = snprintf(ret + len, size - len, "%d %s=%s\n", (int)s->at[i].origin, pb_setting_info[i].name,
                         s->at[i].text);
        if (n < 0 || (size_t)n >= size - len) {
            ret[len] = '\0';
            break;
        }
        len += (size_t)n;
    }
    return len;
}

void pb_settings_read(struct pb_settings *s, const char *text)
{
    while (*text) {
        size_t len = strcspn(text, "\n"), name = strcspn(text, "=");
        char line[64 + PB_SETTING_LENGTH];
        unsigned origin = (unsigned char)text[0] - '0';
        if (origin <= PB_ORIGIN_COMMAND && len < sizeof(line) && len > 2 && text[1] == ' ' && name < len) {
            snprintf(line, sizeof(line), "%.*s", (int)len, text);
            line[name] = '\0';
            int i = pb_setting_find(line + 2);
            if (i >= 0)
                set_value(s, i, line + name + 1, (enum pb_origin)origin);
        }
        text += len + (text[len] == '\n');
    }
}
