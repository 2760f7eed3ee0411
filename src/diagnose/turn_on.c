/* turn_on: see turn_on.h. */
#include "diagnose/turn_on.h"

#include "ask/ask.h"
#include "ask/parts.h"
#include "ask/process_settings.h"
#include "ask/targets.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "control/message.h"
#include "diagnose/job_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_MS = 8000, SWITCHES = 2 };

static const enum pb_setting switches[SWITCHES] = {PB_SET_TORCH_PROFILING, PB_SET_MEMORY_SAMPLING};

struct changed {
    bool injected;         /* the agent came with us */
    bool turned[SWITCHES]; /* it was off before */
};

struct pb_diag_turned_on {
    struct pb_targets ranks;
    struct changed *at;
};

static int ask_agent(pid_t pid, struct pb_session *s, enum pb_setting setting, const char *value,
                     struct pb_err *err)
{
    uint8_t buf[256];
    struct pb_frame_writer w;
    struct pb_frame frame;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, pb_setting_info[setting].name);
    pb_frame_put_str(&w, PB_TAG_VALUE, value);
    pb_client_limit(&s->client, LIMIT_MS);
    int64_t id = pb_client_request(&s->client, &w, PB_MSG_CONFIG);
    int r = id < 0 ? (int)id : 0;
    do
        r = r < 0 ? r : pb_client_next(&s->client, &frame, -1);
    while (r == 0 && frame.type == PB_MSG_OUTPUT);
    return pb_reply_end(pid, r, &frame, err);
}

static void free_all(struct pb_diag_turned_on *on)
{
    if (!on)
        return;
    free(on->ranks.at);
    free(on->at);
    free(on);
}

static int find_ranks(const struct pb_ask *ask, const struct pb_targets *targets,
                      struct pb_diag_turned_on *on, struct pb_err *err)
{
    _cleanup_(pb_diag_jobs_done) struct pb_diag_jobs jobs = {0};
    size_t n = 0;

    int r = pb_diag_jobs_find(ask, targets, &jobs, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < jobs.n; i++)
        n += jobs.at[i].nprocesses;
    on->ranks.at = calloc(n + 1, sizeof(*on->ranks.at));
    on->at = calloc(n + 1, sizeof(*on->at));
    if (!on->ranks.at || !on->at)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < jobs.n; i++)
        for (size_t k = 0; k < jobs.at[i].nprocesses; k++) {
            const struct pb_diag_process *p = &jobs.at[i].processes[k];
            if (p->parent == PB_NOBODY && p->state != 'Z' && p->state != 'X')
                on->ranks.at[on->ranks.n++].pid = p->pid;
        }
    return 0;
}

static int turn_on_one(pid_t pid, const struct pb_settings *before, struct pb_session *s,
                       struct changed *changed, struct pb_err *err)
{
    int r = 0;

    changed->injected = s->injected;
    for (size_t i = 0; r == 0 && i < SWITCHES; i++) {
        if (pb_settings_switched(before, switches[i]) == 1)
            continue;
        changed->turned[i] = true; /* also where it fails: it may be on all the same */
        r = ask_agent(pid, s, switches[i], "on", err);
    }
    return r;
}

int pb_diag_turn_on(const struct pb_ask *ask, const struct pb_targets *targets,
                    struct pb_diag_turned_on **ret, size_t *ret_n, struct pb_err *err)
{
    struct pb_diag_turned_on *on = calloc(1, sizeof(*on));
    struct pb_parts_session *sessions = NULL;
    struct pb_err why;

    if (!on)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = find_ranks(ask, targets, on, err);
    struct pb_settings *before = r == 0 ? calloc(on->ranks.n + 1, sizeof(*before)) : NULL;
    if (r == 0 && !before)
        r = pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < on->ranks.n; i++)
        pb_settings_saved(on->ranks.at[i].pid, &before[i]);
    if (r == 0)
        r = pb_parts_sessions(ask, &on->ranks, false, LIMIT_MS, &sessions, err);
    *ret_n = 0;
    for (size_t i = 0; r == 0 && i < on->ranks.n; i++) {
        pid_t pid = on->ranks.at[i].pid;
        why = sessions[i].err;
        int e = sessions[i].result < 0 ? sessions[i].result
                                       : turn_on_one(pid, &before[i], &sessions[i].session, &on->at[i], &why);
        if (e < 0)
            pb_ask_note(ask, "nothing can be turned on in process %d: %s", (int)pid, pb_err_text(&why, e));
        *ret_n += e >= 0;
    }
    pb_parts_sessions_done(sessions, on->ranks.n);
    free(before);
    if (r < 0) {
        free_all(on);
        return r;
    }
    *ret = on;
    return 0;
}

static int turn_back_one(pid_t pid, struct pb_session *s, const struct changed *changed, struct pb_err *err)
{
    struct pb_frame frame;
    int r = 0;

    for (size_t i = 0; r == 0 && i < SWITCHES; i++)
        if (changed->turned[i])
            r = ask_agent(pid, s, switches[i], "off", err);
    if (r < 0 || !changed->injected)
        return r;
    pb_client_limit(&s->client, LIMIT_MS);
    r = pb_client_signal(&s->client, PB_MSG_DETACH, 1);
    return r == 0 ? pb_client_next(&s->client, &frame, -1) : r;
}

void pb_diag_turn_back(const struct pb_ask *ask, struct pb_diag_turned_on *on)
{
    struct pb_parts_session *sessions = NULL;
    struct pb_err err = {0};

    if (!on)
        return;
    int r = pb_parts_sessions(ask, &on->ranks, true, LIMIT_MS, &sessions, &err);
    if (r < 0)
        pb_ask_note(ask, "what was turned on stays on: %s", pb_err_text(&err, r));
    for (size_t i = 0; r >= 0 && i < on->ranks.n; i++) {
        pid_t pid = on->ranks.at[i].pid;
        const struct changed *changed = &on->at[i];
        if (!changed->injected && !changed->turned[0] && !changed->turned[1])
            continue;
        err = sessions[i].err;
        int e = sessions[i].result < 0 ? sessions[i].result
                                       : turn_back_one(pid, &sessions[i].session, changed, &err);
        if (e < 0 && e != -ESRCH)
            pb_ask_note(ask, "what was turned on in process %d stays on: %s (probing -t %d %s)", (int)pid,
                        pb_err_text(&err, e), (int)pid, changed->injected ? "detach" : "probes");
    }
    pb_parts_sessions_done(sessions, on->ranks.n);
    free_all(on);
}
