/* Channels: the agent's server and rings, a tool's talk, and threads that read and write as the Python part
 * does, all real but for Python. What a client that floods, stops reading, half-closes or goes away does to
 * the other side, and what is left of it: nothing. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#include "agent/channel/channel.h"
#include "agent/core/agent.h"
#include "agent/core/fds.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "agent/python/job.h"
#include "control/message.h"
#include "control/talk.h"

#include "agent_test.h"
#include "test.h"

static struct pb_agent agent;
static int door[2];
static atomic_int stop, threads_ended, end_all;
static _Atomic long last_result; /* of a thread of a channel */
static _Atomic uint64_t last_number;

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* --- what threads of channels do, by kind --- */

static void echo(uint64_t number)
{
    char buf[5000];
    long n;

    while ((n = pb_channel_read(number, buf, sizeof(buf), -1)) != 0) {
        if (n == -EINTR)
            n = snprintf(buf, sizeof(buf), "interrupted");
        if (n > 0 && pb_channel_write(number, buf, (size_t)n, 10000) != n)
            break;
    }
    last_result = n;
}

/* Writes as fast as it can until that fails. */
static void flood(uint64_t number)
{
    static const char bytes[20000];
    long n;

    while ((n = pb_channel_write(number, bytes, sizeof(bytes), 200)) == sizeof(bytes))
        ;
    last_result = n;
    pb_channel_close(number, 1, "it does not read");
}

/* Runs until it is interrupted, as code of a user's does. */
static void code(uint64_t number)
{
    unsigned long ident;

    last_result = pb_channel_enter_code(number, 1);
    pb_channel_write(number, "r", 1, 1000);
    while (pb_channel_claim(number, &ident) < 0)
        pause_ms(1);
    pb_channel_unclaim(number);
    last_result = pb_channel_leave_code(number);
}

static void *serve_channel(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    const char *kind;
    const uint8_t *arguments;
    char reason[64];
    size_t size;

    last_number = number;
    if (pb_channel_begin(number)) {
        pb_channel_describe(number, &kind, &arguments, &size);
        snprintf(reason, sizeof(reason), "%.*s", (int)size, (const char *)arguments);
        if (strcmp(kind, "echo") == 0)
            echo(number);
        else if (strcmp(kind, "flood") == 0)
            flood(number);
        else if (strcmp(kind, "code") == 0)
            code(number);
        pb_channel_thread_end(number, strcmp(kind, "none") == 0, reason);
    } else {
        pb_channel_thread_end(number, 1, "");
    }
    threads_ended++;
    return NULL;
}

static void client_gone(void *owner, pb_client_id client)
{
    (void)owner;
    pb_channel_gone(client);
}

static void *serve(void *unused)
{
    (void)unused;
    pb_channels_begin(serve_channel);
    while (!stop) {
        int wait = pb_channel_turn(&agent.server);
        pb_channel_poll(agent.server.others);
        pb_server_wait(&agent.server, wait >= 0 && wait < 20 ? wait : 20);
        pb_wake_drain();
        if (end_all) {
            pb_channels_end(&agent.server, "the end of all");
            end_all = 0;
        }
        pb_server_read_events(&agent.server);
        pb_channel_read_events(agent.server.others);
    }
    pb_channels_end(&agent.server, "the test is over");
    return NULL;
}

/* A client's end, handed in through the door as a tool does it. */
static int connect_client(void)
{
    int fd = connect_through(door[1]);
    assert_true(fd >= 0);
    return fd;
}

struct opened {
    struct pb_client client;
    struct pb_talk talk;
    char text[256];
};

static int open_talk(struct opened *ret, const char *kind, const char *arguments)
{
    assert_int_equal(pb_client_init(&ret->client, connect_client(), "0123456789abcdef", 5000), 0);
    return pb_talk_open(&ret->client, kind, arguments, strlen(arguments), 5000, &ret->talk, ret->text);
}

/* The next event that is no ROOM. */
static struct pb_talk_event next_event(struct opened *o)
{
    struct pb_talk_event event;

    do
        assert_int_equal(pb_talk_next(&o->talk, &event, 10000), 0);
    while (event.type == PB_TALK_ROOM);
    return event;
}

static void await_threads(int n)
{
    for (double begun = seconds(); threads_ended < n; pause_ms(1))
        assert_true(seconds() - begun < 20);
}

static void bytes_come_back_in_order_and_both_sides_end(void **state)
{
    struct opened o;
    size_t sent = 0, got = 0, total = 3 << 20;
    (void)state;

    int before = threads_ended;
    assert_int_equal(open_talk(&o, "echo", "well done"), 0);
    uint8_t block[10007];
    while (got < total) {
        struct pb_talk_event event;
        size_t n = total - sent < sizeof(block) ? total - sent : sizeof(block);
        for (size_t i = 0; i < n; i++)
            block[i] = (uint8_t)((sent + i) * 2654435761u >> 24);
        long r = n ? pb_talk_send(&o.talk, block, n) : 0;
        assert_true(r >= 0);
        sent += (size_t)r;
        while ((r = pb_talk_next(&o.talk, &event, sent < total && o.talk.credit ? 0 : 5000)) == 0) {
            for (size_t i = 0; event.type == PB_TALK_DATA && i < event.size; i++)
                assert_int_equal(event.data[i], (uint8_t)((got + i) * 2654435761u >> 24));
            got += event.type == PB_TALK_DATA ? event.size : 0;
            if (event.type == PB_TALK_ROOM || got == total)
                break;
        }
        assert_true(r == 0 || r == -ETIMEDOUT);
    }
    assert_int_equal(pb_talk_interrupt(&o.talk), 0);
    struct pb_talk_event event = next_event(&o);
    assert_int_equal(event.type, PB_TALK_DATA);
    assert_memory_equal(event.data, "interrupted", 11);
    assert_int_equal(pb_client_signal(&o.client, PB_MSG_END, o.talk.id), 0);
    event = next_event(&o);
    assert_int_equal(event.type, PB_TALK_END);
    assert_int_equal(event.status, 0);
    assert_string_equal(event.text, "well done");
    assert_int_equal(pb_talk_next(&o.talk, &event, 0), -ECONNRESET);
    pb_client_done(&o.client);
    await_threads(before + 1);
    /* Of a channel that is no more, reads end and writes fail. */
    assert_int_equal(pb_channel_read(last_number, block, sizeof(block), -1), 0);
    assert_int_equal(pb_channel_write(last_number, "x", 1, -1), -EPIPE);
    assert_int_equal(pb_channel_ended(last_number, NULL, 0), 1);
    assert_int_equal(pb_channel_interrupted(last_number), 0);
}

static void a_client_that_does_not_read_holds_nobody(void **state)
{
    struct opened o, other;
    (void)state;

    int before = threads_ended;
    double begun = seconds();
    assert_int_equal(open_talk(&o, "flood", ""), 0);
    await_threads(before + 1);
    assert_true(seconds() - begun < 10);
    assert_true(last_result >= 0 && last_result < 20000);
    /* Others are served meanwhile. */
    assert_int_equal(open_talk(&other, "none", "at once"), 0);
    struct pb_talk_event event = next_event(&other);
    assert_int_equal(event.type, PB_TALK_END);
    assert_string_equal(event.text, "at once");
    pb_client_done(&other.client);
    pb_client_done(&o.client);
    await_threads(before + 2);
}

static void a_client_that_goes_is_seen_at_once(void **state)
{
    struct opened o;
    (void)state;

    for (int how = 0; how < 2; how++) {
        int before = threads_ended;
        assert_int_equal(open_talk(&o, "echo", ""), 0);
        assert_int_equal(pb_talk_send(&o.talk, "abc", 3), 3);
        next_event(&o);
        double begun = seconds();
        if (how == 0)
            pb_client_done(&o.client);
        else
            shutdown(o.client.fd, SHUT_WR); /* half of a connection with frames is none */
        await_threads(before + 1);
        assert_true(seconds() - begun < 5);
        assert_int_equal(last_result, 0);
        if (how == 1)
            pb_client_done(&o.client);
    }
}

static void code_that_runs_is_interrupted(void **state)
{
    struct opened o;
    (void)state;

    for (int how = 0; how < 3; how++) {
        int before = threads_ended;
        assert_int_equal(open_talk(&o, "code", ""), 0);
        assert_int_equal(next_event(&o).type, PB_TALK_DATA);
        if (how == 0)
            assert_int_equal(pb_talk_interrupt(&o.talk), 0);
        else if (how == 1)
            pb_client_done(&o.client);
        else
            end_all = 1;
        await_threads(before + 1);
        assert_int_equal(last_result, 1);
        if (how == 2) {
            struct pb_talk_event event = next_event(&o);
            assert_int_equal(event.type, PB_TALK_END);
            assert_string_equal(event.text, "the end of all");
        }
        if (how != 1)
            pb_client_done(&o.client);
    }
}

static void more_than_was_given_room_for_is_refused(void **state)
{
    struct opened o;
    static char bytes[PB_CHANNEL_WINDOW + 1];
    int before = threads_ended;
    (void)state;

    assert_int_equal(open_talk(&o, "code", ""), 0); /* reads nothing */
    next_event(&o);
    o.talk.credit = sizeof(bytes);
    assert_int_equal(pb_talk_send(&o.talk, bytes, sizeof(bytes)), sizeof(bytes));
    struct pb_talk_event event = next_event(&o);
    assert_int_equal(event.type, PB_TALK_END);
    assert_int_equal(event.status, 1);
    assert_non_null(strstr(event.text, "more than it was given room for"));
    pb_client_done(&o.client);
    await_threads(before + 1);
}

static void places_are_limited_and_given_back(void **state)
{
    struct opened o[PB_CHANNELS + 1];
    (void)state;

    int before = threads_ended;
    for (int i = 0; i < PB_CHANNELS; i++) {
        assert_int_equal(open_talk(&o[i], "echo", ""), 0);
        assert_int_equal(pb_talk_send(&o[i].talk, "x", 1), 1);
        next_event(&o[i]);
    }
    assert_int_equal(open_talk(&o[PB_CHANNELS], "echo", ""), -EBUSY);
    assert_non_null(strstr(o[PB_CHANNELS].text, "channels are open already"));
    for (int i = 0; i <= PB_CHANNELS; i++)
        pb_client_done(&o[i].client);
    await_threads(before + PB_CHANNELS);
    for (int i = 0; i < 300; i++) {
        int tries = 0;
        while (open_talk(&o[0], "none", "x") == -EBUSY && tries++ < 1000) { /* the last one is still going */
            pb_client_done(&o[0].client);
            pause_ms(1);
        }
        if (i % 2)
            assert_int_equal(next_event(&o[0]).type, PB_TALK_END);
        pb_client_done(&o[0].client);
    }
    await_threads(before + PB_CHANNELS + 300);
}

static int request_value(struct pb_client *client, struct pb_frame_writer *w, uint16_t type, uint64_t *ret)
{
    struct pb_frame reply;

    assert_true(pb_client_request(client, w, type) > 0);
    assert_int_equal(pb_client_next(client, &reply, 5000), 0);
    *ret = pb_field_u64(&reply, PB_TAG_VALUE, 0);
    return reply.type;
}

static int connect_tcp(uint64_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void read_text(int fd, const char *wanted)
{
    char buf[64];
    size_t got = 0;

    while (got < strlen(wanted)) {
        ssize_t n = recv(fd, buf + got, strlen(wanted) - got, 0);
        assert_true(n > 0);
        got += (size_t)n;
    }
    assert_memory_equal(buf, wanted, got);
}

static void plain_bytes_over_tcp_are_a_channel_too(void **state)
{
    struct pb_client client;
    struct pb_frame_writer w;
    uint8_t buf[256];
    uint64_t port, stopped;
    (void)state;

    int before = threads_ended;
    assert_int_equal(pb_client_init(&client, connect_client(), "0123456789abcdef", 5000), 0);
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, "echo");
    pb_frame_put_str(&w, PB_TAG_TEXT, "127.0.0.1");
    pb_frame_put_u64(&w, PB_TAG_MODE, PB_LISTEN_TEXT);
    assert_int_equal(request_value(&client, &w, PB_MSG_LISTEN, &port), PB_MSG_DONE);
    assert_true(port > 0);

    int fd = connect_tcp(port), gone = connect_tcp(port), stays = connect_tcp(port);
    assert_int_equal(send(fd,
                          "ab\xff\xfd\x06"
                          "c",
                          6, 0),
                     6);
    read_text(fd, "abc");
    assert_int_equal(send(fd, "\xff\xf4", 2, 0), 2); /* telnet: interrupt process */
    read_text(fd, "interrupted");
    assert_int_equal(send(fd, "\x03", 1, 0), 1);
    read_text(fd, "interrupted");
    assert_int_equal(send(fd, "last", 4, 0), 4);
    shutdown(fd, SHUT_WR); /* what was sent before comes back all the same */
    read_text(fd, "last");
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    close(gone);
    await_threads(before + 2);

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, "echo");
    pb_frame_put_u64(&w, PB_TAG_MODE, 1);
    assert_int_equal(request_value(&client, &w, PB_MSG_LISTEN_STOP, &stopped), PB_MSG_DONE);
    assert_int_equal(stopped, 1);
    assert_true(recv(stays, &byte, 1, 0) <= 0);
    close(stays);
    await_threads(before + 3);
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, "echo");
    pb_frame_put_str(&w, PB_TAG_TEXT, "localhost");
    assert_int_equal(request_value(&client, &w, PB_MSG_LISTEN, &port), PB_MSG_ERROR);
    pb_client_done(&client);
}

static uint32_t spawner;

static int set_up(void **state)
{
    static pthread_t thread;

    memcpy(agent.run.secret, "0123456789abcdef", 17);
    agent.run.dir_fd = -1;
    spawner = pb_spawn_begin();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, door) < 0 || pb_wake_start() < 0 ||
        pb_spawn_start(spawner) < 0)
        return -1;
    pb_server_init(&agent.server, &(struct pb_server_ways){.listen_fd = -1,
                                                           .abstract_fd = -1,
                                                           .door_fd = pb_fd_keep(door[0]),
                                                           .wake_fd = pb_wake_fd()});
    agent.server.handle = pb_agent_request;
    agent.server.gone = client_gone;
    agent.server.owner = &agent;
    *state = &thread;
    return pthread_create(&thread, NULL, serve, NULL);
}

static int tear_down(void **state)
{
    stop = 1;
    pthread_join(*(pthread_t *)*state, NULL);
    pb_server_done(&agent.server);
    pb_wake_stop();
    pb_spawn_end(spawner);
    close(door[1]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_back_in_order_and_both_sides_end),
        cmocka_unit_test(a_client_that_does_not_read_holds_nobody),
        cmocka_unit_test(a_client_that_goes_is_seen_at_once),
        cmocka_unit_test(code_that_runs_is_interrupted),
        cmocka_unit_test(more_than_was_given_room_for_is_refused),
        cmocka_unit_test(places_are_limited_and_given_back),
        cmocka_unit_test(plain_bytes_over_tcp_are_a_channel_too),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
