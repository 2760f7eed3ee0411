/* process_settings: see process_settings.h. */
#include "ask/process_settings.h"

#include "ask/parts.h"
#include "ask/task.h"
#include "ask/tool_settings.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "control/message.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGENT_TIMEOUT_MS = 2000, LIMIT_MS = 5000 };

static void read_environment(pid_t pid, struct pb_settings *ret)
{
    _cleanup_free_ char *block = NULL;
    size_t length = 0;

    if (pb_proc_slurp(pid, "environ", &block, &length) < 0)
        length = 0;
    pb_settings_init(ret, length ? block : "", length);
}

static int read_dead(const struct pb_target *target, struct pb_settings *ret, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    const struct pb_run_id id = {target->pid, target->start_time, target->program};

    int r = pb_runs_scan(&runs, err);
    if (r < 0)
        return r;
    const struct pb_run_info *run = pb_runs_find_dead(&runs, &id);
    if (!run)
        return pb_fail(err, -ENOENT, "process %d left nothing behind", (int)id.pid);
    r = pb_run_settings(run, ret);
    return r < 0 ? pb_fail(err, r, "process %d left no settings: %s", (int)id.pid, strerror(-r)) : 0;
}

/* An agent without a run directory has no settings file: ask the agent. */
static int ask_agent(const struct pb_ask *ask, pid_t pid, struct pb_settings *ret, struct pb_err *err)
{
    struct pb_session session;
    struct pb_frame_writer w;
    struct pb_frame frame;
    uint8_t buf[64];
    char why[64];

    int r = pb_parts_session(ask, pid, true, AGENT_TIMEOUT_MS, &session, err);
    if (r < 0)
        return r;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_client_limit(&session.client, AGENT_TIMEOUT_MS);
    int64_t id = pb_client_request(&session.client, &w, PB_MSG_CONFIG);
    r = id < 0 ? (int)id : 0;
    while (r == 0 && (r = pb_client_next(&session.client, &frame, -1)) == 0 && frame.type == PB_MSG_OUTPUT) {
        struct pb_field name, value, origin;
        char texts[2][PB_SETTING_LENGTH];
        if (pb_field_find(&frame, PB_TAG_NAME, &name) < 0 ||
            pb_field_find(&frame, PB_TAG_VALUE, &value) < 0 ||
            pb_field_find(&frame, PB_TAG_TEXT, &origin) < 0)
            continue;
        snprintf(texts[0], sizeof(texts[0]), "%.*s", (int)name.size, (const char *)name.data);
        snprintf(texts[1], sizeof(texts[1]), "%.*s", (int)value.size, (const char *)value.data);
        int i = pb_setting_find(texts[0]);
        if (i < 0 || pb_settings_set(ret, texts[0], texts[1], why, sizeof(why)) < 0)
            continue;
        for (int k = 0; k <= PB_ORIGIN_COMMAND; k++)
            if (strncmp(pb_origin_name(k), (const char *)origin.data, origin.size) == 0 &&
                strlen(pb_origin_name(k)) == origin.size)
                ret->at[i].origin = k;
    }
    pb_session_done(&session);
    return r < 0 ? pb_fail(err, r, "the agent of process %d does not answer: %s", (int)pid, strerror(-r)) : 0;
}

/* The settings that the agent stored, else those of the environment. 1: there may be an agent that could not
 * store them. */
static int read_files(pid_t pid, struct pb_procinfo *ret_process, struct pb_settings *ret, struct pb_err *err)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};

    int r = pb_procinfo_identify(pid, ret_process);
    if (r < 0)
        return pb_fail(err, r, "process %d cannot be read: %s", (int)pid, strerror(-r));
    if (pb_run_of(ret_process, &run) == 0 && pb_run_settings(&run, ret) == 0)
        return 0;
    read_environment(pid, ret);
    return 1;
}

static int read_live_settings(const struct pb_ask *ask, pid_t pid, struct pb_settings *ret,
                              struct pb_err *err)
{
    struct pb_procinfo process;

    int r = read_files(pid, &process, ret, err);
    return r == 1 && pb_session_probed(&process) ? ask_agent(ask, pid, ret, err) : r < 0 ? r : 0;
}

static void read_tool(struct pb_settings *ret)
{
    _cleanup_free_ char *block = NULL;
    size_t size;
    FILE *out = open_memstream(&block, &size);

    for (int i = 0; out && i < PB_SETTINGS; i++) {
        const char *value = getenv(pb_setting_info[i].variable);
        if (value)
            fprintf(out, "%s=%s%c", pb_setting_info[i].variable, value, 0);
    }
    bool whole = out && fclose(out) == 0;
    pb_settings_init(ret, whole ? block : "", whole ? size : 0);
}

/* The settings of a live process, also where its agent failed to answer. */
struct settings_answer {
    int result;
    struct pb_err err;
    struct pb_settings settings;
};

static int read_live(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct pb_target *target = arg;
    struct settings_answer *answer = pb_room_alloc(room, sizeof(*answer));

    if (!answer)
        return pb_fail(err, -ENOMEM, "out of memory");
    pb_settings_init(&answer->settings, "", 0);
    answer->result = read_live_settings(ask, target->pid, &answer->settings, &answer->err);
    pb_task_answer(room, answer);
    return 0;
}

static int ask_live(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret,
                    struct pb_err *err)
{
    struct pb_target copy = *target;
    struct pb_task task = {.work = read_live,
                           .arg = &copy,
                           .pid = target->pid,
                           .limit_ms = LIMIT_MS,
                           .room_size = sizeof(struct settings_answer) + 4096};

    int r = pb_task_run(ask, &task, err);
    if (r < 0) {
        pb_settings_init(ret, "", 0);
        return r;
    }
    const struct settings_answer *answer = pb_task_answer_of(&task);
    *ret = answer->settings;
    r = answer->result < 0 ? pb_fail(err, answer->result, "%s", pb_err_text(&answer->err, answer->result))
                           : 0;
    pb_room_free(task.room);
    return r;
}

int pb_settings_of(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret,
                   struct pb_err *err)
{
    if (!target) {
        read_tool(ret);
        return 0;
    }
    return target->dead ? read_dead(target, ret, err) : ask_live(ask, target, ret, err);
}

void pb_settings_for(const struct pb_ask *ask, const struct pb_target *target, struct pb_settings *ret)
{
    struct pb_settings tool;
    struct pb_err err;

    read_tool(&tool);
    if (!target) {
        *ret = tool;
        return;
    }
    pb_settings_init(ret, "", 0);
    pb_settings_of(ask, target, ret, &err);
    pb_settings_fall_back(ret, &tool);
}

void pb_settings_saved(pid_t pid, struct pb_settings *ret)
{
    struct pb_procinfo process;
    struct pb_settings tool;

    read_tool(&tool);
    pb_settings_init(ret, "", 0);
    read_files(pid, &process, ret, NULL);
    pb_settings_fall_back(ret, &tool);
}

void pb_settings_each(const struct pb_settings *s,
                      void (*each)(void *arg, const struct pb_shown_setting *setting), void *arg)
{
    for (int i = 0; i < PB_SETTINGS; i++) {
        const struct pb_setting_info *info = &pb_setting_info[i];
        each(arg, &(const struct pb_shown_setting){.name = info->name,
                                                   .value = s->at[i].text,
                                                   .fallback = info->fallback,
                                                   .unit = info->unit[0] ? info->unit : NULL,
                                                   .origin = pb_origin_name(s->at[i].origin),
                                                   .text = info->text,
                                                   .with_unit = info->kind == PB_SETTING_SIZE});
    }
    pb_tool_settings_each(each, arg);
}

static void join_words(const struct pb_settings *own, char ret[PB_REDACT_SIZE])
{
    struct pb_settings tool;

    read_tool(&tool);
    bool more = tool.at[PB_SET_REDACT].origin == PB_ORIGIN_ENVIRONMENT;
    snprintf(ret, PB_REDACT_SIZE, "%s%s%s", own->at[PB_SET_REDACT].text, more ? "," : "",
             more ? tool.at[PB_SET_REDACT].text : "");
}

void pb_redact_words(const struct pb_ask *ask, const struct pb_target *target, char ret[PB_REDACT_SIZE])
{
    struct pb_settings own;
    struct pb_err err;

    pb_settings_init(&own, "", 0);
    int r = target ? pb_settings_of(ask, target, &own, &err) : 0;
    join_words(&own, ret);
    /* Where the words of the process are unknown, the default ones are used too. */
    size_t len = strlen(ret);
    if (r < 0)
        snprintf(ret + len, PB_REDACT_SIZE - len, ",%s", pb_setting_info[PB_SET_REDACT].fallback);
}

void pb_redact_cmdline(pid_t pid, char *ret, size_t size)
{
    struct pb_procinfo process;
    struct pb_settings own;
    struct pb_err err;
    char words[PB_REDACT_SIZE];

    int n = pb_proc_read(pb_proc_living(pid), "cmdline", ret, size);
    while (n > 0 && ret[n - 1] == '\0')
        n--;
    if (n <= 0) {
        ret[0] = '\0';
        return;
    }
    /* A command line without options and assignments has nothing to mask. */
    words[0] = '\0';
    if (memchr(ret, '=', (size_t)n) || memchr(ret, '-', (size_t)n)) {
        pb_settings_init(&own, "", 0);
        read_files(pid, &process, &own, &err);
        join_words(&own, words);
    }
    ret[pb_redact_command(words, ret, (size_t)n)] = '\0';
}
