/* config: shows the settings of a process (live or ended) or of this tool; changes those of a live
 * process. */
#include "ask/parts.h"
#include "ask/process_settings.h"
#include "ask/tool_settings.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/commands/config.h"
#include "cli/fanout.h"
#include "cli/print/rows.h"
#include "cli/talk/keeper.h"
#include "control/message.h"
#include "engine/shared/sql_text.h"
#include "print/outlet.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIKE = 4 }; /* edit distance up to which "did you mean" offers a name */

static const char *const columns[] = {"target", "name",   "value",      "default_value",
                                      "unit",   "origin", "explanation"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* An argument: NAME or NAME=VALUE. */
struct wanted {
    char name[64];
    const char *value; /* NULL: shown only */
    char share[32];    /* the value in our unit, where the setting was given by its old name */
};

/* The predecessor's name of the sampling rate, in Hz. Ours (probing.sample_rate) is a share of 1000 Hz. */
#define SAMPLE_FREQ "probing.pprof.sample_freq"

static void use_our_name(struct wanted *w)
{
    char *end;

    if (strcmp(w->name, SAMPLE_FREQ) != 0)
        return;
    snprintf(w->name, sizeof(w->name), "%s", pb_setting_info[PB_SET_SAMPLE_RATE].name);
    double hz = w->value ? strtod(w->value, &end) : 0;
    if (!w->value || end == w->value || *end)
        return; /* shown, or refused with this name */
    snprintf(w->share, sizeof(w->share), "%.6f", hz / 1e3);
    w->value = w->share;
}

static int fail_unknown_setting(const char *name, struct pb_err *err)
{
    char near[256] = "";
    size_t len = 0;

    for (int i = 0; i < PB_SETTINGS; i++) {
        const char *full = pb_setting_info[i].name, *last = strchr(full, '.') + 1;
        if ((pb_name_distance(name, full) <= ALIKE || pb_name_distance(name, last) <= ALIKE) &&
            len < sizeof(near))
            len += (size_t)snprintf(near + len, sizeof(near) - len, "%s%s", len ? " or " : "", full);
    }
    if (len)
        return pb_fail(err, PB_USAGE, "there is no setting '%.60s'; did you mean %s?", name, near);
    return pb_fail(err, PB_USAGE, "there is no setting '%.60s' (probing config lists them)", name);
}

/* All arguments are checked before the first setting is changed. */
static int parse_settings(const struct pb_call *call, struct wanted *ret, bool *ret_sets, struct pb_err *err)
{
    struct pb_settings scratch;
    char why[400];

    *ret_sets = false;
    pb_settings_init(&scratch, "", 0);
    for (int i = 0; i < call->nargs; i++) {
        const char *equals = strchr(call->args[i], '=');
        size_t n = equals ? (size_t)(equals - call->args[i]) : strlen(call->args[i]);
        snprintf(ret[i].name, sizeof(ret[i].name), "%.*s", (int)n, call->args[i]);
        ret[i].value = equals ? equals + 1 : NULL;
        use_our_name(&ret[i]);
        int of_tool = pb_tool_setting_find(ret[i].name);
        if (of_tool >= 0 && !ret[i].value)
            continue;
        if (of_tool >= 0)
            return pb_fail(err, PB_USAGE,
                           "%s is this tool's, not a process's: %s=%.200s in its environment%s",
                           pb_tool_setting_info[of_tool].name, pb_tool_setting_info[of_tool].variable,
                           ret[i].value, of_tool == PB_TOOL_ARCHIVE ? ", or archive --to" : "");
        if (pb_setting_find(ret[i].name) < 0)
            return fail_unknown_setting(ret[i].name, err);
        if (ret[i].value && pb_settings_set(&scratch, ret[i].name, ret[i].value, why, sizeof(why)) < 0)
            return pb_fail(err, PB_USAGE, "%s", why);
        *ret_sets = *ret_sets || ret[i].value;
    }
    return 0;
}

static int set_one(struct pb_client *client, const struct pb_target *target, unsigned timeout_ms,
                   const struct wanted *wanted, struct pb_err *err)
{
    uint8_t buf[PB_SETTING_LENGTH + 256];
    struct pb_frame_writer w;
    struct pb_frame frame;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, wanted->name);
    pb_frame_put_str(&w, PB_TAG_VALUE, wanted->value);
    pb_client_limit(client, timeout_ms);
    int64_t id = pb_client_request(client, &w, PB_MSG_CONFIG);
    int r = id < 0 ? (int)id : 0;
    do
        r = r < 0 ? r : pb_client_next(client, &frame, -1);
    while (r == 0 && frame.type == PB_MSG_OUTPUT);
    return pb_reply_end(target->pid, r, &frame, err);
}

static int set_all(const struct pb_call *call, const struct pb_target *target, struct pb_parts_session *s,
                   const struct wanted *wanted, struct pb_err *err)
{
    int r = s->result;

    if (target->dead)
        return pb_fail(err, -ESRCH, "process %d has ended: its settings can be shown, not changed",
                       (int)target->pid);
    if (r < 0)
        return pb_fail(err, r, "%s", pb_err_text(&s->err, r));
    for (int i = 0; r == 0 && i < call->nargs; i++)
        if (wanted[i].value)
            r = set_one(&s->session.client, target, call->timeout_ms, &wanted[i], err);
    return r;
}

static bool is_wanted(const struct pb_call *call, const struct wanted *wanted, const char *name)
{
    for (int i = 0; i < call->nargs; i++)
        if (strcmp(wanted[i].name, name) == 0)
            return true;
    return call->nargs == 0;
}

/* Two lines per setting for a person: the value, and the explanation. */
static void print_setting(const struct pb_shown_setting *s)
{
    printf("%-26s ", s->name);
    pb_put_plain(stdout, s->value[0] ? s->value : "(nothing)");
    /* Words such as auto and off have no unit. */
    const char *unit = s->unit && !s->with_unit && s->value[0] >= '0' && s->value[0] <= '9' ? s->unit : "";
    printf("%s%s  (%s", *unit ? " " : "", unit, s->origin);
    if (strcmp(s->value, s->fallback) != 0)
        printf("; default %s", s->fallback);
    printf(")\n    %s\n", s->text);
}

struct shown {
    const struct pb_call *call;
    const struct pb_target *target;
    const struct wanted *wanted;
    struct pb_rows *rows; /* NULL: print for a person, by this: */
    pb_setting_printer print;
};

static void show_one(void *arg, const struct pb_shown_setting *s)
{
    const struct shown *to = arg;

    if (!is_wanted(to->call, to->wanted, s->name))
        return;
    if (!to->rows) {
        to->print(s);
        return;
    }
    const char *const texts[COLUMNS] = {
        to->target ? to->target->label : NULL, s->name, s->value, s->fallback, s->unit, s->origin, s->text};
    for (size_t i = 0; i < COLUMNS; i++)
        pb_rows_text(to->rows, texts[i]);
}

static int show_settings(const struct pb_call *call, const struct pb_target *target,
                         const struct wanted *wanted, struct pb_rows *rows, pb_setting_printer print,
                         struct pb_err *err)
{
    struct shown to = {call, target, wanted, rows, print};
    struct pb_settings settings;

    int r = pb_settings_of(&call->ask, target, &settings, err);
    if (r == 0 && !rows && call->targets.n > 1)
        pb_put_between(stdout, "", target->label, "\n");
    if (r == 0)
        pb_settings_each(&settings, show_one, &to);
    return r;
}

static bool turns_torch_on(const struct pb_call *call, const struct wanted *wanted)
{
    struct pb_settings scratch;
    bool on = false;

    for (int i = 0; i < call->nargs; i++) {
        if (!wanted[i].value || strcmp(wanted[i].name, pb_setting_info[PB_SET_TORCH_PROFILING].name) != 0)
            continue;
        pb_settings_init(&scratch, "", 0);
        pb_settings_set(&scratch, wanted[i].name, wanted[i].value, (char[400]){""}, 400);
        on = pb_settings_switched(&scratch, PB_SET_TORCH_PROFILING);
    }
    return on;
}

static int do_all(const struct pb_call *call, const struct wanted *wanted, bool sets, struct pb_rows *to,
                  pb_setting_printer print, struct pb_err *err)
{
    struct pb_parts_session *sessions = NULL;
    int failed = 0, r = 0;

    if (sets)
        r = pb_parts_sessions(&call->ask, &call->targets, false, call->timeout_ms, &sessions, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < call->targets.n; i++) {
        const struct pb_target *target = &call->targets.at[i];
        r = sets ? set_all(call, target, &sessions[i], wanted, err) : 0;
        if (r == 0)
            r = show_settings(call, target, wanted, to, print, err);
        if (r < 0)
            failed = pb_target_failed(call, target, r, err);
    }
    pb_parts_sessions_done(sessions, call->targets.n);
    if (sets && turns_torch_on(call, wanted))
        pb_keepers_of_hangs_start(call);
    return failed;
}

int pb_config_run(const struct pb_call *call, pb_setting_printer print, struct pb_err *err)
{
    struct wanted wanted[PB_ARGS_MAX];
    enum pb_format format = call->format;
    struct pb_rows rows, *to = format == PB_FORMAT_TABLE ? NULL : &rows;
    int failed = 0;
    bool sets;

    int r = parse_settings(call, wanted, &sets, err);
    if (r == 0 && sets && call->targets.n == 0)
        r = pb_fail(err, PB_USAGE,
                    "which process? (-t PID sets it in a running process; for later ones set PROBING_* in "
                    "the environment)");
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, COLUMNS);
    failed = call->targets.n ? do_all(call, wanted, sets, to, print, err)
                             : show_settings(call, NULL, wanted, to, print, err);
    r = !to || (failed && call->targets.n == 1) ? failed : pb_rows_print(&rows, format, NULL, err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    return pb_config_run(call, print_setting, err);
}

static const struct pb_printed_parts printed = {
    .text = "settings.txt", .json = "settings.json", .options = " "};

const struct pb_command pb_cmd_config = {
    .name = "config",
    .summary = "show or change settings",
    .synopsis = "[NAME | NAME=VALUE]...",
    .text = "With values, sets them in the running process, all or none; the agent is injected if "
            "needed. They hold until the process ends.\n\n"
            "Without values, shows each setting with its default, where its value comes from "
            "(default, environment, command) and what it does. For a process that has ended, shows "
            "its last values; without a target, those of your environment. Each setting is a "
            "variable too: PROBING_SAMPLE_RATE=0.05 sets probing.sample_rate.",
    .example = "probing config\nprobing -t 4711 config\nprobing -t 4711 config probing.max_memory=1GB "
               "probing.sample_rate=0.05",
    .max_args = 16,
    .printed = &printed,
    .flags = PB_CMD_INCIDENT | PB_CMD_CLUSTER | PB_CMD_SERVED | PB_CMD_MAY_TARGET | PB_CMD_DEAD |
             PB_CMD_ROWS | PB_CMD_TOGETHER | PB_CMD_TIMEOUT,
    .run = run,
};
