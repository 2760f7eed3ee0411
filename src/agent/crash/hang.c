/* hang: see hang.h. */
#include "agent/crash/hang.h"

#include "agent/core/agent.h"
#include "agent/core/recorder.h"
#include "agent/crash/crash.h"
#include "control/message.h"
#include "control/tables.def"
#include "table/arena.h"

#include <errno.h>
#include <string.h>

static pb_client_id keeper;
static uint32_t keeper_request;
static int32_t told_tid;
static int has_begun, is_over; /* to be sent in the next turn */
static uint64_t number;        /* the id of the rows about the present hang */

static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_HANG_FRAMES)};
static const struct pb_table_spec table = {.name = PB_NAME_OF(PB_TABLE_HANG_FRAMES),
                                           .comment = PB_COMMENT_OF(PB_TABLE_HANG_FRAMES),
                                           .columns = columns,
                                           .ncolumns = sizeof(columns) / sizeof(columns[0])};

void pb_hang_began(int32_t tid)
{
    told_tid = tid;
    has_begun = 1;
}

void pb_hang_over(void)
{
    is_over = 1;
    has_begun = 0;
}

static void dismiss_keeper(struct pb_agent *agent)
{
    if (keeper)
        pb_server_send_done(&agent->server, keeper, keeper_request, 0);
    keeper = 0;
}

/* value: 0 it is the keeper from now on, 1 there is a hang. */
static int tell_keeper(struct pb_agent *agent, uint64_t value)
{
    uint8_t buf[128];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, value);
    pb_frame_put_u64(&w, PB_TAG_TID, (uint64_t)told_tid);
    return pb_server_send(&agent->server, keeper, buf,
                          (size_t)pb_frame_end(&w, PB_MSG_OUTPUT, keeper_request));
}

void pb_hang_request(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    static struct pb_known_table known;
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, 0);

    if (mode == PB_CRASH_KEEP) {
        dismiss_keeper(agent);
        keeper = c->id;
        keeper_request = frame->id;
        is_over = 0;
        tell_keeper(agent, 0);
    } else if (!pb_hang_is_keeper(c->id)) {
        pb_server_send_error(&agent->server, c->id, frame->id, -EPERM, "it is not the keeper of hangs");
    } else if (mode == PB_CRASH_FRAME) {
        pb_crash_add_frame(&table, &known, number, frame);
    } else if (mode == PB_CRASH_KEPT) {
        pb_crash_copy_tables(agent);
    }
}

void pb_hang_turn(struct pb_agent *agent)
{
    if (is_over)
        dismiss_keeper(agent);
    is_over = 0;
    if (has_begun && keeper) {
        number = pb_crash_number();
        if (tell_keeper(agent, 1) < 0)
            keeper = 0;
    }
    has_begun = 0;
}

int pb_hang_is_keeper(pb_client_id client)
{
    return keeper != 0 && keeper == client;
}

void pb_hang_keeper_gone(pb_client_id client)
{
    if (pb_hang_is_keeper(client))
        keeper = 0;
}

void pb_hang_end(struct pb_agent *agent)
{
    dismiss_keeper(agent);
    has_begun = is_over = 0;
}

void pb_hang_forget(void)
{
    keeper = 0;
    has_begun = is_over = 0;
}
