/* alert: see alert.h. */
#include "ask/alert.h"

#include "ask/parts.h"
#include "control/message.h"

#include <errno.h>

enum { LIMIT_MS = 3000 };

int pb_alert_send(const struct pb_ask *ask, pid_t pid, const struct pb_alert_row *row, struct pb_err *err)
{
    struct pb_session session;
    struct pb_frame_writer w;
    struct pb_frame frame;
    uint8_t buf[2048];

    int r = pb_parts_session(ask, pid, true, LIMIT_MS, &session, err);
    if (r < 0)
        return r;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, row->kind);
    pb_frame_put_str(&w, PB_TAG_WHY, row->severity);
    pb_frame_put_str(&w, PB_TAG_TEXT, row->text);
    if (row->subject)
        pb_frame_put_str(&w, PB_TAG_FILENAME, row->subject);
    pb_client_limit(&session.client, LIMIT_MS);
    int64_t id = pb_client_request(&session.client, &w, PB_MSG_ALERT);
    r = id < 0 ? (int)id : pb_client_next(&session.client, &frame, -1);
    r = pb_reply_end(pid, r, &frame, err);
    pb_session_done(&session);
    return r;
}
