/* crash_keep: the keeper's connection, and the rows that it sends; see crash.h. */
#include "agent/core/agent.h"
#include "agent/core/agent_clock.h"
#include "agent/core/futex.h"
#include "agent/core/part.h"
#include "agent/core/recorder.h"
#include "agent/core/wake.h"
#include "agent/crash/crash.h"
#include "agent/python/python.h"
#include "control/message.h"
#include "control/tables.def"
#include "table/arena.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define MIRROR_TRIES 50 /* some ms each: the handler waits for two seconds at most */
#define TEXT_MAX     3500

static pb_client_id keeper;
static uint32_t keeper_request;
static uint64_t crash_number;
static uint64_t scene; /* id of the last event that the keeper was notified of */
static uint64_t over_since;
static uint32_t copies_wanted, copies_made; /* requests by threads that wait for the copy of the tables */

/* _catch.py writes these tables too. */
#define E_ID(id, ...) E_##id,
#define F_ID(id, ...) F_##id,
enum { PB_TABLE_EXCEPTIONS(PB_NOTHING, E_ID) };
enum { PB_TABLE_CRASH_FRAMES(PB_NOTHING, F_ID) };
static const struct pb_column exception_columns[] = {PB_COLUMNS_OF(PB_TABLE_EXCEPTIONS)};
static const struct pb_column frame_columns[] = {PB_COLUMNS_OF(PB_TABLE_CRASH_FRAMES)};

#define COLUMNS(of) .columns = (of), .ncolumns = sizeof(of) / sizeof((of)[0])
static const struct pb_table_spec tables[PB_CRASH_TABLES] = {
    [PB_CRASH_EXCEPTIONS] = {.name = PB_NAME_OF(PB_TABLE_EXCEPTIONS),
                             .comment = PB_COMMENT_OF(PB_TABLE_EXCEPTIONS),
                             COLUMNS(exception_columns)},
    [PB_CRASH_FRAMES] = {.name = PB_NAME_OF(PB_TABLE_CRASH_FRAMES),
                         .comment = PB_COMMENT_OF(PB_TABLE_CRASH_FRAMES),
                         COLUMNS(frame_columns)},
};

uint64_t pb_crash_number(void)
{
    return __atomic_add_fetch(&crash_number, 1, __ATOMIC_RELAXED);
}

static struct pb_known_table known_tables[PB_CRASH_TABLES];

/* Between this and pb_recorder_end_row the tables stay mapped. */
static int begin_row(enum pb_crash_table which, struct pb_row *row, uint32_t *place)
{
    return pb_recorder_begin_row(&tables[which], &known_tables[which], row, place);
}

static void set_text(struct pb_row *row, unsigned column, const struct pb_frame *frame, uint16_t tag)
{
    struct pb_field text;

    if (pb_field_find(frame, tag, &text) == 0 && text.size > 0)
        pb_set_string(row, column, (const char *)text.data, text.size < TEXT_MAX ? text.size : TEXT_MAX);
}

static void set_number(struct pb_row *row, unsigned column, const struct pb_frame *frame, uint16_t tag)
{
    uint64_t value = pb_field_u64(frame, tag, 0);

    if (value > 0 && value <= INT32_MAX)
        pb_set_i32(row, column, (int32_t)value);
}

/* Records the cause of death of a thread. Dropped without room. */
static void add_signal(const struct pb_frame *frame)
{
    struct pb_row row;
    uint32_t place;

    if (begin_row(PB_CRASH_EXCEPTIONS, &row, &place) < 0)
        return;
    pb_set_i64(&row, E_ID, (int64_t)scene);
    pb_set_string(&row, E_KIND, "signal", strlen("signal"));
    set_text(&row, E_TYPE, frame, PB_TAG_NAME);
    set_text(&row, E_MESSAGE, frame, PB_TAG_WHY);
    pb_set_i64(&row, E_TID, (int64_t)pb_field_u64(frame, PB_TAG_TID, 0));
    set_text(&row, E_THREAD, frame, PB_TAG_DATA);
    set_text(&row, E_FUNCTION, frame, PB_TAG_CODE);
    set_text(&row, E_FILE, frame, PB_TAG_FILENAME);
    set_number(&row, E_LINE, frame, PB_TAG_VALUE);
    set_text(&row, E_TRACEBACK, frame, PB_TAG_TEXT);
    pb_recorder_end_row(&row, place);
}

void pb_crash_add_frame(const struct pb_table_spec *spec, struct pb_known_table *known, uint64_t id,
                        const struct pb_frame *frame)
{
    struct pb_row row;
    uint32_t place;

    if (pb_recorder_begin_row(spec, known, &row, &place) < 0)
        return;
    pb_set_i64(&row, F_ID, (int64_t)id);
    pb_set_i64(&row, F_TID, (int64_t)pb_field_u64(frame, PB_TAG_TID, 0));
    set_text(&row, F_THREAD, frame, PB_TAG_DATA);
    pb_set_bool(&row, F_FAILED, pb_field_u64(frame, PB_TAG_STATUS, 0) == 1);
    pb_set_i32(&row, F_DEPTH, (int32_t)(pb_field_u64(frame, PB_TAG_OFFSET, 0) & INT32_MAX));
    set_text(&row, F_LANGUAGE, frame, PB_TAG_NAME);
    set_text(&row, F_FUNCTION, frame, PB_TAG_CODE);
    set_text(&row, F_FILE, frame, PB_TAG_FILENAME);
    set_number(&row, F_LINE, frame, PB_TAG_VALUE);
    set_text(&row, F_LOCALS, frame, PB_TAG_TEXT);
    pb_recorder_end_row(&row, place);
}

static const char *name_of(int signal)
{
    return signal == SIGSEGV  ? "SIGSEGV"
           : signal == SIGBUS ? "SIGBUS"
           : signal == SIGFPE ? "SIGFPE"
                              : "SIGABRT";
}

static void add_survived(int signal)
{
    static const char message[] = "the process went on: its own handler deals with this signal, which is not "
                                  "caught any more";
    const char *name = name_of(signal);
    struct pb_row row;
    uint32_t place;

    if (begin_row(PB_CRASH_EXCEPTIONS, &row, &place) < 0)
        return;
    pb_set_i64(&row, E_ID, (int64_t)scene);
    pb_set_string(&row, E_KIND, "survived", strlen("survived"));
    pb_set_string(&row, E_TYPE, name, strlen(name));
    pb_set_string(&row, E_MESSAGE, message, strlen(message));
    pb_recorder_end_row(&row, place);
}

void pb_crash_copy_tables(struct pb_agent *agent)
{
    for (int i = 0; i < MIRROR_TRIES && pb_arena_mirror(agent->arena) > 0; i++)
        ;
}

/* Tells the former keeper, if any, that it is over; it ends. */
static void dismiss_keeper(struct pb_agent *agent)
{
    if (keeper)
        pb_server_send_done(&agent->server, keeper, keeper_request, 0);
    keeper = 0;
}

/* Writes a sentence for each signal that is not caught. */
static size_t tell_left_out(char *ret, size_t size)
{
    const char *why;
    size_t n = 0;

    ret[0] = '\0';
    for (int i = 0, signal; (signal = pb_crash_left_out(i, &why)) >= 0 && n < size; i++)
        if (why)
            n += (size_t)snprintf(ret + n, size - n, "%s is not caught: %s\n", name_of(signal), why);
    return n < size ? n : size - 1;
}

static int take_keeper(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    uint8_t buf[512];
    char left_out[384];
    struct pb_frame_writer w;

    int r = pb_crash_arm();
    if (r < 0)
        return r;
    dismiss_keeper(agent);
    keeper = c->id;
    keeper_request = frame->id;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, 0); /* no signal: it is armed */
    pb_frame_put_u64(&w, PB_TAG_STATUS, pb_python_here() != NULL);
    pb_frame_put(&w, PB_TAG_TEXT, left_out, tell_left_out(left_out, sizeof(left_out)));
    return pb_server_send(&agent->server, c->id, buf, (size_t)pb_frame_end(&w, PB_MSG_OUTPUT, frame->id));
}

static void answer_request(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, PB_CRASH_STOP);
    int from_keeper = keeper != 0 && keeper == c->id;
    pb_client_id id = c->id;
    int r = 0;

    if (mode == PB_CRASH_KEEP) {
        r = take_keeper(agent, c, frame);
    } else if (mode == PB_CRASH_STOP) {
        uint64_t was = (keeper ? PB_CRASH_WAS_ON : 0) | (pb_python_here() ? PB_CRASH_HAS_PYTHON : 0);
        pb_crash_disarm();
        dismiss_keeper(agent);
        pb_server_send_done(&agent->server, id, frame->id, was);
    } else if (!from_keeper) {
        r = -EPERM;
    } else if (mode == PB_CRASH_SIGNAL) { /* rows are not answered */
        add_signal(frame);
    } else if (mode == PB_CRASH_FRAME) {
        pb_crash_add_frame(&tables[PB_CRASH_FRAMES], &known_tables[PB_CRASH_FRAMES], scene, frame);
    } else if (mode == PB_CRASH_KEPT) {
        pb_crash_copy_tables(agent);
        pb_crash_release();
    }
    if (r < 0)
        pb_server_send_error(&agent->server, id, frame->id, r, "the handlers of signals cannot be set");
}

static void tell_keeper(struct pb_agent *agent, const struct pb_crash *crash)
{
    uint8_t buf[256];
    struct pb_frame_writer w;

    scene = pb_crash_number();
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, (uint64_t)crash->signal);
    pb_frame_put_u64(&w, PB_TAG_TID, (uint64_t)crash->tid);
    pb_frame_put_u64(&w, PB_TAG_STATUS, (uint32_t)crash->code);
    pb_frame_put_u64(&w, PB_TAG_ERRNO, (uint64_t)crash->sender);
    pb_frame_put_u64(&w, PB_TAG_OFFSET, crash->address);
    int size = pb_frame_end(&w, PB_MSG_OUTPUT, keeper_request);
    if (!keeper || pb_server_send(&agent->server, keeper, buf, (size_t)size) < 0)
        pb_crash_release();
}

/* Whether the program handles a signal itself shows some time after its scene was recorded. */
static void watch_survivor(void)
{
    if (!pb_crash_is_handled()) {
        over_since = 0;
    } else if (!over_since) {
        over_since = pb_now_ns();
    } else if (pb_now_ns() - over_since > PB_CRASH_SURVIVED_MS * PB_NS_PER_MS) {
        add_survived(pb_crash_survived());
        over_since = 0;
    }
}

/* Tells the keeper of a crash; updates the copy of the tables if a thread waits for that. */
static int turn(struct pb_agent *agent, uint64_t now)
{
    uint32_t wanted = __atomic_load_n(&copies_wanted, __ATOMIC_ACQUIRE);
    struct pb_crash crash;
    (void)now;

    if (pb_crash_take(&crash))
        tell_keeper(agent, &crash);
    watch_survivor();
    if (wanted != __atomic_load_n(&copies_made, __ATOMIC_RELAXED)) {
        pb_crash_copy_tables(agent);
        __atomic_store_n(&copies_made, wanted, __ATOMIC_RELEASE);
        pb_futex_wake(&copies_made);
    }
    return -1;
}

static int is_keeper(pb_client_id client)
{
    return keeper != 0 && keeper == client;
}

static void keeper_gone(pb_client_id client)
{
    if (!is_keeper(client))
        return;
    keeper = 0;
    pb_crash_disarm();
}

static int configure(struct pb_agent *agent, const char *changed, char *why, size_t why_size)
{
    (void)changed;
    (void)why;
    (void)why_size;
    pb_crash_set_secrets(agent->settings.at[PB_SET_REDACT].text);
    return 0;
}

static int begin(struct pb_agent *agent, char *why, size_t why_size)
{
    return configure(agent, NULL, why, why_size);
}

static int request(struct pb_agent *agent, struct pb_server_client *client, const struct pb_frame *frame)
{
    if (frame->type != PB_MSG_CRASH)
        return 0;
    answer_request(agent, client, frame);
    return 1;
}

static void end(struct pb_agent *agent)
{
    pb_crash_disarm();
    dismiss_keeper(agent);
    /* Nobody makes copies any more: threads that wait continue. */
    __atomic_store_n(&copies_made, __atomic_load_n(&copies_wanted, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    pb_futex_wake(&copies_made);
}

static void forget(void)
{
    pb_crash_forget();
    keeper = 0;
}

const struct pb_part pb_part_crash = {
    .begin = begin,
    .turn = turn,
    .request = request,
    .busy = is_keeper,
    .gone = keeper_gone,
    .configure = configure,
    .end = end,
    .forget = forget,
};

void pb_crash_keep_rows(unsigned timeout_ms)
{
    uint32_t mine = __atomic_add_fetch(&copies_wanted, 1, __ATOMIC_ACQ_REL), made;
    uint64_t now = pb_now_ns(), end = now + timeout_ms * PB_NS_PER_MS;

    pb_wake();
    for (; now < end; now = pb_now_ns()) {
        made = __atomic_load_n(&copies_made, __ATOMIC_ACQUIRE);
        if ((int32_t)(made - mine) >= 0)
            return;
        pb_futex_wait_ms(&copies_made, made, (long)((end - now) / PB_NS_PER_MS) + 1);
    }
}
