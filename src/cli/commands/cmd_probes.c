/* probes: lists, starts and stops the probes of a process's agent. */
#include "ask/parts.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/print/rows.h"
#include "cli/talk/keeper.h"
#include "control/message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SETTINGS_MAX 128

static const char *const columns[] = {"target", "name", "state", "settings", "description", "records"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static const char *const states[] = {
    [PB_PROBE_OFF] = "off", [PB_PROBE_ON] = "on", [PB_PROBE_STUCK] = "stuck"};

struct order {
    enum pb_probes_mode mode;
    const char *name; /* NULL: all */
    char settings[SETTINGS_MAX];
};

static int parse_order(const struct pb_call *call, struct order *ret, struct pb_err *err)
{
    size_t len = 0;

    *ret = (struct order){.mode = PB_PROBES_LIST};
    if (call->nargs == 0)
        return 0;
    if (strcmp(call->args[0], "start") == 0)
        ret->mode = PB_PROBES_START;
    else if (strcmp(call->args[0], "stop") == 0)
        ret->mode = PB_PROBES_STOP;
    else
        return pb_fail(err, PB_USAGE, "'%.40s' is neither start nor stop", call->args[0]);
    if (call->nargs < 2)
        return pb_fail(err, PB_USAGE, "which probe? (probes without arguments lists them)");
    if (ret->mode == PB_PROBES_STOP && call->nargs > 2)
        return pb_fail(err, PB_USAGE, "stop takes the name of one probe");
    ret->name = call->args[1];
    for (int i = 2; i < call->nargs && len < sizeof(ret->settings); i++)
        len += (size_t)snprintf(ret->settings + len, sizeof(ret->settings) - len, "%s%s", len ? " " : "",
                                call->args[i]);
    return len < sizeof(ret->settings)
               ? 0
               : pb_fail(err, PB_USAGE, "settings of a probe have at most %d bytes", SETTINGS_MAX - 1);
}

/* Adds a text field of the answer to the row. The bytes come from the target. */
static void put_field(struct pb_rows *rows, const struct pb_frame *frame, uint16_t tag)
{
    struct pb_field field = {0};
    char text[256];

    if (pb_field_find(frame, tag, &field) < 0 || field.size == 0) {
        pb_rows_text(rows, NULL);
        return;
    }
    snprintf(text, sizeof(text), "%.*s", (int)(field.size < 255 ? field.size : 255),
             (const char *)field.data);
    pb_rows_text(rows, text);
}

static void put_probe(struct pb_rows *rows, const struct pb_target *target, const struct pb_frame *frame)
{
    uint64_t state = pb_field_u64(frame, PB_TAG_VALUE, PB_PROBE_OFF);

    pb_rows_text(rows, target->label);
    put_field(rows, frame, PB_TAG_NAME);
    pb_rows_text(rows, state < sizeof(states) / sizeof(states[0]) ? states[state] : "unknown");
    put_field(rows, frame, PB_TAG_DATA);
    put_field(rows, frame, PB_TAG_WHY);
    put_field(rows, frame, PB_TAG_TEXT);
}

static int ask_agent(struct pb_client *client, const struct pb_target *target, const struct order *order,
                     struct pb_rows *rows, struct pb_err *err)
{
    uint8_t buf[512];
    struct pb_frame_writer w;
    struct pb_frame frame;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_MODE, order->mode);
    if (order->name)
        pb_frame_put_str(&w, PB_TAG_NAME, order->name);
    pb_frame_put_str(&w, PB_TAG_DATA, order->settings);
    int64_t id = pb_client_request(client, &w, PB_MSG_PROBES);
    if (id == -EMSGSIZE)
        return pb_fail(err, PB_USAGE, "the name of the probe is too long");
    int r = id < 0 ? (int)id : 0;
    while (r == 0) {
        r = pb_client_next(client, &frame, -1);
        if (r < 0 || frame.type != PB_MSG_OUTPUT)
            break;
        put_probe(rows, target, &frame);
    }
    return pb_reply_end(target->pid, r, &frame, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_parts_session *sessions;
    struct order order;
    struct pb_rows rows;
    int failed = 0;

    int r = parse_order(call, &order, err);
    /* Listing does not inject the agent. */
    if (r == 0)
        r = pb_parts_sessions(&call->ask, &call->targets, order.mode != PB_PROBES_START, call->timeout_ms,
                              &sessions, err);
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, COLUMNS);
    for (size_t i = 0; i < call->targets.n; i++) {
        struct pb_parts_session *s = &sessions[i];
        r = s->result < 0 ? pb_fail(err, s->result, "%s", pb_err_text(&s->err, s->result)) : 0;
        if (r == 0) {
            pb_client_limit(&s->session.client, call->timeout_ms);
            r = ask_agent(&s->session.client, &call->targets.at[i], &order, &rows, err);
        }
        if (r < 0)
            failed = pb_target_failed(call, &call->targets.at[i], r, err);
    }
    pb_parts_sessions_done(sessions, call->targets.n);
    if (order.mode == PB_PROBES_START && strcmp(order.name, "torch") == 0 && !failed)
        pb_keepers_of_hangs_start(call);
    r = failed && call->targets.n == 1 ? failed : pb_rows_print(&rows, call->format, NULL, err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_probes = {
    .name = "probes",
    .summary = "list, start and stop what records in a process",
    .synopsis = "[start NAME [SETTING=VALUE]... | stop NAME]",
    .text = "A probe writes rows into tables of its own while the program runs. Without arguments, "
            "lists the probes, which are on, and with which settings.\n\n"
            "start turns one on, and injects the agent if needed; a running probe restarts if its "
            "settings differ. stop turns it off, and its rows stay.",
    .example = "probing -t 4711 probes\nprobing -t 4711 probes start memory_usage interval=100ms\n"
               "probing -t 4711 probes stop memory_usage",
    .max_args = 16,
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TOGETHER | PB_CMD_TIMEOUT,
    .run = run,
};
