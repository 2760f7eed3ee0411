/* hang: see hang.h. */
#include "agent/crash/hang.h"

#include "agent/core/agent.h"
#include "agent/core/part.h"
#include "agent/core/recorder.h"
#include "agent/core/wake.h"
#include "agent/crash/crash.h"
#include "control/message.h"
#include "control/tables.def"
#include "table/arena.h"

#include <errno.h>
#include <string.h>

static pb_client_id keeper;
static uint32_t keeper_request;
static int32_t stuck_tid;
static int has_started, is_over; /* to be sent in the next turn */
static uint64_t number;          /* the id of the rows about the present hang */

static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_HANG_FRAMES)};
static const struct pb_table_spec table = {.name = PB_NAME_OF(PB_TABLE_HANG_FRAMES),
                                           .comment = PB_COMMENT_OF(PB_TABLE_HANG_FRAMES),
                                           .columns = columns,
                                           .ncolumns = sizeof(columns) / sizeof(columns[0])};

void pb_hang_began(int32_t tid)
{
    stuck_tid = tid;
    has_started = 1;
    pb_wake(); /* the probe's turn is after ours */
}

void pb_hang_dismiss_keeper(void)
{
    is_over = 1;
    has_started = 0;
    pb_wake();
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
    pb_frame_put_u64(&w, PB_TAG_TID, (uint64_t)stuck_tid);
    return pb_server_send(&agent->server, keeper, buf,
                          (size_t)pb_frame_end(&w, PB_MSG_OUTPUT, keeper_request));
}

static int is_keeper(pb_client_id client)
{
    return keeper != 0 && keeper == client;
}

static void answer_request(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    static struct pb_known_table known;
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, 0);

    if (mode == PB_CRASH_KEEP) {
        dismiss_keeper(agent);
        keeper = c->id;
        keeper_request = frame->id;
        is_over = 0;
        tell_keeper(agent, 0);
    } else if (!is_keeper(c->id)) {
        pb_server_send_error(&agent->server, c->id, frame->id, -EPERM, "it is not the keeper of hangs");
    } else if (mode == PB_CRASH_FRAME) {
        pb_crash_add_frame(&table, &known, number, frame);
    } else if (mode == PB_CRASH_KEPT) {
        pb_crash_copy_tables(agent);
    }
}

/* Sends pending messages to the keeper. */
static int turn(struct pb_agent *agent, uint64_t now)
{
    (void)now;

    if (is_over)
        dismiss_keeper(agent);
    is_over = 0;
    if (has_started && keeper) {
        number = pb_crash_number();
        if (tell_keeper(agent, 1) < 0)
            keeper = 0;
    }
    has_started = 0;
    return -1;
}

static void keeper_gone(pb_client_id client)
{
    if (is_keeper(client))
        keeper = 0;
}

static int request(struct pb_agent *agent, struct pb_server_client *client, const struct pb_frame *frame)
{
    if (frame->type != PB_MSG_HANG)
        return 0;
    answer_request(agent, client, frame);
    return 1;
}

static void end(struct pb_agent *agent)
{
    dismiss_keeper(agent);
    has_started = is_over = 0;
}

static void forget(void)
{
    keeper = 0;
    has_started = is_over = 0;
}

const struct pb_part pb_part_hang = {
    .turn = turn,
    .request = request,
    .busy = is_keeper,
    .gone = keeper_gone,
    .end = end,
    .forget = forget,
};
