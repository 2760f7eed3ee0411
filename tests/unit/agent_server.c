/* The agent's server and a tool's client, both real, each in a thread: what passes between them beside
 * frames, and what a peer that dribbles, stops reading or goes away can do to the other side. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include "agent/core/fds.h"
#include "agent/core/server.h"
#include "control/client.h"
#include "control/message.h"

#include "agent_test.h"
#include "test.h"

static struct pb_server server;
static int door[2];
static int given_fd = -1;
static atomic_int stop, gone;

static void handle(void *owner, struct pb_server *s, struct pb_server_client *c, const struct pb_frame *frame)
{
    (void)owner;
    if (frame->type == PB_MSG_HELLO)
        c->greeted = 1;
    if (frame->type == PB_MSG_MAPS)
        assert_int_equal(pb_server_send_fd(s, c->id, frame->id, given_fd), 0);
    else
        pb_server_send_done(s, c->id, frame->id, 0);
}

static void client_gone(void *owner, pb_client_id client)
{
    (void)owner;
    (void)client;
    gone++;
}

static void *serve(void *unused)
{
    (void)unused;
    while (!stop) {
        pb_server_wait(&server, 20);
        pb_server_read_events(&server);
    }
    return NULL;
}

/* A client's end, handed in through the door as a tool does it. */
static int connect_client(void)
{
    int fd = connect_through(door[1]);
    assert_true(fd >= 0);
    return fd;
}

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void a_descriptor_comes_with_its_reply(void **state)
{
    struct pb_client client;
    struct pb_frame reply;
    struct pb_frame_writer w;
    struct stat sent, got;
    uint8_t buf[64];
    (void)state;

    assert_int_equal(pb_client_init(&client, connect_client(), "", 5000), 0);
    assert_int_equal(pb_client_take_fd(&client), -ENOENT);
    int64_t id = 0;
    for (int i = 0; i < 3; i++) {
        pb_frame_begin(&w, buf, sizeof(buf));
        id = pb_client_request(&client, &w, i == 1 ? PB_MSG_MAPS : PB_MSG_PING);
        assert_true(id > 0);
    }
    for (int64_t i = id - 2; i <= id; i++) {
        assert_int_equal(pb_client_next(&client, &reply, 5000), 0);
        assert_int_equal(reply.type, PB_MSG_DONE);
        assert_int_equal(reply.id, i);
    }
    int fd = pb_client_take_fd(&client);
    assert_true(fd >= 0 && fd != given_fd);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fstat(fd, &got), 0);
    assert_int_equal(fstat(given_fd, &sent), 0);
    assert_true(got.st_ino == sent.st_ino && got.st_dev == sent.st_dev);
    close(fd);
    assert_int_equal(pb_client_take_fd(&client), -ENOENT);
    pb_client_done(&client);
}

static void *dribble(void *fd)
{
    const uint8_t frame[] = {'P', 'B', 'C', '1', 65, 0, 0, 0, 1, 0, 0, 0, 200, 0, 0, 0};

    for (int i = 0; i < 40; i++) {
        uint8_t byte = i < 16 ? frame[i] : 0;
        if (send(*(int *)fd, &byte, 1, MSG_NOSIGNAL) < 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return NULL;
}

static void an_agent_that_dribbles_does_not_hold_a_tool(void **state)
{
    struct pb_client client;
    pthread_t thread;
    int pair[2];
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(pthread_create(&thread, NULL, dribble, &pair[1]), 0);
    double begun = seconds();
    assert_int_equal(pb_client_init(&client, pair[0], "", 500), -ETIMEDOUT);
    assert_true(seconds() - begun < 2);
    pthread_join(thread, NULL);
    close(pair[1]);
}

static int set_up(void **state)
{
    static pthread_t thread;

    given_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (given_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, door) < 0)
        return -1;
    pb_server_init(&server,
                   &(struct pb_server_ways){
                       .listen_fd = -1, .abstract_fd = -1, .door_fd = pb_fd_keep(door[0]), .wake_fd = -1});
    server.handle = handle;
    server.gone = client_gone;
    *state = &thread;
    return pthread_create(&thread, NULL, serve, NULL);
}

static int tear_down(void **state)
{
    stop = 1;
    pthread_join(*(pthread_t *)*state, NULL);
    pb_server_done(&server);
    close(door[1]);
    close(given_fd);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_descriptor_comes_with_its_reply),
        cmocka_unit_test(an_agent_that_dribbles_does_not_hold_a_tool),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
