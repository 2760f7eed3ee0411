/* config: shows and changes settings of a running agent. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/parts.h"
#include "cli/rows.h"
#include "cli/targets.h"
#include "control/message.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *const columns[] = {"target", "name", "value", "origin"};

static int64_t ask(struct pb_client *client, const char *assignment)
{
    uint8_t buf[512];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    if (assignment) {
        size_t name = strcspn(assignment, "=");
        pb_frame_put(&w, PB_TAG_NAME, assignment, name);
        if (assignment[name])
            pb_frame_put_str(&w, PB_TAG_VALUE, assignment + name + 1);
    }
    return pb_client_request(client, &w, PB_MSG_CONFIG);
}

static void add_text(struct pb_rows *rows, const struct pb_frame *frame, uint16_t tag)
{
    struct pb_field field;
    char text[128] = "";

    if (pb_field_find(frame, tag, &field) == 0)
        snprintf(text, sizeof(text), "%.*s", (int)field.size, (const char *)field.data);
    pb_rows_text(rows, text);
}

static int collect(struct pb_client *client, const struct pb_target *target, int timeout_ms,
                   struct pb_rows *rows, struct pb_err *err)
{
    struct pb_frame frame;
    struct pb_field text;

    for (;;) {
        int r = pb_client_next(client, &frame, timeout_ms);
        if (r < 0)
            return pb_fail(err, r, "the agent of process %d does not answer: %s", (int)target->pid,
                           strerror(-r));
        if (frame.type == PB_MSG_DONE)
            return 0;
        if (frame.type == PB_MSG_ERROR) {
            if (pb_field_find(&frame, PB_TAG_TEXT, &text) < 0)
                text = (struct pb_field){.data = (const uint8_t *)"", .size = 0};
            return pb_fail(err, -(int)pb_field_u64(&frame, PB_TAG_ERRNO, EIO), "%.*s", (int)text.size,
                           (const char *)text.data);
        }
        pb_rows_text(rows, target->label);
        add_text(rows, &frame, PB_TAG_NAME);
        add_text(rows, &frame, PB_TAG_VALUE);
        add_text(rows, &frame, PB_TAG_TEXT);
    }
}

static int add_target(const struct pb_call *call, const struct pb_target *target, struct pb_rows *rows,
                      struct pb_err *err)
{
    struct pb_session session;

    int r = pb_parts_session(target->pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    int64_t id = ask(&session.client, call->nargs ? call->args[0] : NULL);
    r = id < 0 ? pb_fail(err, (int)id, "the setting could not be sent: %s", strerror((int)-id))
               : collect(&session.client, target, call->timeout_ms ? (int)call->timeout_ms : -1, rows, err);
    pb_session_done(&session);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_rows rows;
    int failed = 0;

    pb_rows_init(&rows, columns, 4);
    for (size_t i = 0; i < call->targets.n; i++) {
        int r = add_target(call, &call->targets.at[i], &rows, err);
        if (r < 0)
            failed = pb_target_failed(call, &call->targets.at[i], r, err);
    }
    int r = failed && call->targets.n == 1
                ? failed
                : pb_rows_print(&rows, call->format, "there is no such setting", err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_config = {
    .name = "config",
    .summary = "show or change settings of a probed process",
    .synopsis = "[NAME | NAME=VALUE]",
    .text = "probing.max_memory bounds the tables of the process; it may be changed at any time.",
    .example = "probing -t 4711 config\nprobing -t 4711 config probing.max_memory=1GB",
    .max_args = 1,
    .flags = PB_CMD_TARGET | PB_CMD_ROWS,
    .run = run,
};
