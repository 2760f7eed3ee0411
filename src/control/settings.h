/* settings: what can be set, by name, as text: one table for the agent, the tools, SQL and the manual.
 *
 * A value is the default, or that of a PROBING_* variable, or what a command set; later ones win in that
 * order. Of a process its own environment and commands count; a tool has an environment too, which counts
 * where the process says nothing (pb_settings_fall_back). No heap, no locale: it runs inside other people's
 * processes. One thread only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Numbers index arrays only: files and messages use the names. */
enum pb_setting {
    PB_SET_SAMPLE_RATE,
    PB_SET_MAX_MEMORY,
    PB_SET_RETENTION_DAYS,
    PB_SET_COMPRESSION,
    PB_SET_REDACT,
    PB_SET_TORCH_PROFILING,
    PB_SET_TORCH_BUDGET,
    PB_SET_TORCH_HANG_TIMEOUT,
    PB_SET_MEMORY_SAMPLING,
    PB_SETTINGS,
};

enum pb_setting_kind {
    PB_SETTING_SIZE,   /* bytes: "64MB", "1.5 GB", "1048576", in units of 1024 */
    PB_SETTING_NUMBER, /* decimal, or one of its words */
    PB_SETTING_CHOICE, /* one of a few words */
    PB_SETTING_WORDS,  /* words with commas between them */
    PB_SETTING_SWITCH, /* on or off; after a comma, settings of the probe that it switches */
};

struct pb_setting_info {
    const char *name, *variable;
    enum pb_setting_kind kind;
    const char *unit; /* "" : none */
    const char *fallback;
    double least, most;
    const char
        *choices; /* "zstd,none"; of a number: words that it may be instead, which count as 0; or NULL */
    const char *allowed; /* completes a sentence: "takes .." */
    const char *text;    /* one line: what it is, and where it takes effect */
};

extern const struct pb_setting_info pb_setting_info[PB_SETTINGS];

enum pb_origin {
    PB_ORIGIN_DEFAULT,
    PB_ORIGIN_BAD_VARIABLE, /* the default, since its variable has a value that is not allowed */
    PB_ORIGIN_ENVIRONMENT,
    PB_ORIGIN_COMMAND,
};

#define PB_SETTING_LENGTH 256 /* of a value, with its end */

struct pb_settings {
    struct {
        char text[PB_SETTING_LENGTH];
        double number; /* of sizes and numbers */
        enum pb_origin origin;
    } at[PB_SETTINGS];
};

const char *pb_origin_name(enum pb_origin origin);

/* The setting of that name, or -ENOENT. */
int pb_setting_find(const char *name);

/* The defaults, then the values in the environment block (NUL-separated NAME=value, size bytes, any
 * content). */
void pb_settings_init(struct pb_settings *s, const char *environment, size_t size);

/* Sets one value, by a command. 0; -ENOENT: no such name; -EINVAL: the value is not allowed. On failure `why`
 * is a sentence with the names or values that are. */
int pb_settings_set(struct pb_settings *s, const char *name, const char *value, char *why, size_t why_size);

/* 1: the switch is on; 0: it was switched off; -1: it was never set. */
int pb_settings_switched(const struct pb_settings *s, enum pb_setting setting);

/* Copies from `other` the values that are still the default in s. */
void pb_settings_fall_back(struct pb_settings *s, const struct pb_settings *other);

/* The form in a run directory: a line each, "origin name=value". Size and number of lines are bounded; lines
 * that do not parse are skipped. */
#define PB_SETTINGS_FILE      "config"
#define PB_SETTINGS_FILE_NEW  "config.new" /* until it is whole */
#define PB_SETTINGS_FILE_SIZE 4096
size_t pb_settings_write(const struct pb_settings *s, char *ret, size_t size);
void pb_settings_read(struct pb_settings *s, const char *text);

/* "64MB": bytes. -EINVAL. */
int pb_parse_size(const char *text, uint64_t *ret);
