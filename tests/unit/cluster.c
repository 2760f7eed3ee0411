/* A cluster's parts: its file comes back as it was, selections fit what they say, a question and an answer
 * arrive whole in whatever pieces, and ranks are told from what their launchers and they themselves started.
 *
 * The loop over nodes is driven here against services of the test's own: sockets that answer, stall, lie, or
 * speak something else. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/link/ask_nodes.h"
#include "cluster/members.h"

#include "test.h"

static void make_cluster(struct pb_cluster *c, size_t nodes, size_t each, const char *layout)
{
    char name[32];
    struct pb_err err = {0};

    *c = (struct pb_cluster){.way = PB_WAY_SERVICES, .world = (uint32_t)(nodes * each)};
    strcpy(c->name, "test");
    strcpy(c->program, "/opt/probing");
    for (size_t i = 0; i < nodes; i++) {
        snprintf(name, sizeof(name), "n%02zu", i);
        assert_int_equal(pb_cluster_add_node(c, name, "127.0.0.1:1"), 0);
    }
    /* The last first: the list is sorted. */
    for (size_t i = nodes * each; i-- > 0;) {
        struct pb_cluster_rank rank = {.rank = (int32_t)i,
                                       .local = (int32_t)(i % each),
                                       .node = (uint32_t)(i / each),
                                       .pid = (pid_t)(100 + i),
                                       .start_time = 7 * i};
        assert_int_equal(pb_roles_compute(layout, c->world, (uint32_t)i, &rank.roles, &err), 0);
        assert_int_equal(pb_cluster_add_rank(c, &rank), 0);
    }
}

static void test_the_file_comes_back(void **state)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0}, again = {0};
    _cleanup_free_ char *text = NULL, *twice = NULL;
    size_t n, m;

    (void)state;
    make_cluster(&c, 4, 2, "tp=2,pp=*");
    strcpy(c.match, "SLURM_JOB_ID=12");
    strcpy(c.serve, "0123456789abcdef");
    strcpy(c.nodes[1].service, "10.0.0.1:7070");
    strcpy(c.nodes[1].token, "00ff");
    c.nodes[2].clock = (struct pb_cluster_clock){true, -125000, 900, 1700000000000000000};
    assert_int_equal(pb_cluster_format(&c, &text, &n), 0);
    assert_int_equal(pb_cluster_parse(text, n, &again, NULL), 0);
    assert_int_equal(again.nranks, 8);
    assert_int_equal(again.ranks[5].pid, 105);
    assert_int_equal(pb_roles_get(&again.ranks[5].roles, "pp"), 2);
    assert_int_equal(again.nodes[2].clock.offset_ns, -125000);
    assert_string_equal(again.match, c.match);
    assert_string_equal(again.serve, c.serve);
    assert_string_equal(again.nodes[1].service, "10.0.0.1:7070");
    assert_string_equal(again.nodes[1].token, "00ff");
    assert_string_equal(again.nodes[2].service, "");
    assert_int_equal(pb_cluster_format(&again, &twice, &m), 0);
    assert_string_equal(text, twice);
    /* Cut short at any place it is no file. */
    for (size_t cut = 0; cut < n; cut += 7) {
        struct pb_cluster part = {0};
        assert_true(pb_cluster_parse(text, cut, &part, NULL) < 0);
    }
}

static void select_is(const struct pb_cluster *c, const char *ranks, const char *nodes, const char *wanted,
                      size_t asked)
{
    struct pb_selection s = {0};
    struct pb_err err = {0};

    int r = pb_select(c, ranks, nodes, &s, &err);
    if (asked == 0) {
        assert_true(r < 0);
        assert_true(err.text[0]);
        return;
    }
    assert_int_equal(r, 0);
    assert_int_equal(s.asked, asked);
    if (wanted)
        assert_string_equal(s.wanted, wanted);
    else
        assert_null(s.wanted);
    pb_selection_done(&s);
}

/* A command that measures clocks has loaded the file long before it writes them. */
static void test_clocks_are_kept_without_the_rest(void **state)
{
    _cleanup_(pb_cluster_done) struct pb_cluster mine = {0}, theirs = {0}, now = {0};
    char folder[] = "/tmp/probing-test-XXXXXX", path[128];
    struct pb_err err = {0};

    (void)state;
    assert_non_null(mkdtemp(folder));
    setenv("XDG_RUNTIME_DIR", folder, 1);
    make_cluster(&mine, 2, 1, "tp=2,dp=*");
    make_cluster(&theirs, 2, 2, "tp=2,dp=*");
    strcpy(theirs.job, "another");
    strcpy(theirs.nodes[1].address, "127.0.0.1:2"); /* that node is another by now */
    assert_int_equal(pb_cluster_save(&mine, &err), 0);
    assert_int_equal(pb_cluster_save(&theirs, &err), 0);
    for (size_t i = 0; i < 2; i++)
        mine.nodes[i].clock = (struct pb_cluster_clock){true, 5, 6, 7};
    assert_int_equal(pb_cluster_save_clocks(&mine, &err), 0);
    assert_int_equal(pb_cluster_load("test", &now, &err), 0);
    assert_string_equal(now.job, "another");
    assert_int_equal(now.nranks, 4);
    assert_int_equal(now.nodes[0].clock.offset_ns, 5);
    assert_false(now.nodes[1].clock.known);
    assert_int_equal(pb_cluster_forget("test", &err), 0);
    assert_int_equal(pb_cluster_save_clocks(&mine, &err), 0);
    pb_cluster_done(&now);
    assert_int_equal(pb_cluster_load("test", &now, &err), -ENOENT);
    snprintf(path, sizeof(path), "%s/probing-clusters", folder);
    rmdir(path);
    rmdir(folder);
    unsetenv("XDG_RUNTIME_DIR");
}

static void test_selections(void **state)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {0};

    (void)state;
    make_cluster(&c, 16, 2, "tp=4,pp=2,dp=*");
    select_is(&c, NULL, NULL, NULL, 16);
    select_is(&c, "0-3,9", NULL, "0-3,9", 3);
    select_is(&c, "pp=1,tp=*,dp=0", NULL, "4-7", 2);
    select_is(&c, "tp=0", NULL, "0,4,8,12,16,20,24,28", 8);
    select_is(&c, "pp=0-1,dp=1,3", NULL, "8-15,24-31", 8);
    select_is(&c, NULL, "n[00-03],n07", NULL, 5);
    select_is(&c, "0-31", "n01", "2-3", 1);
    select_is(&c, "900", NULL, NULL, 0);
    select_is(&c, "ep=1", NULL, NULL, 0);
    select_is(&c, "1-", NULL, NULL, 0);
    select_is(&c, "3-1", NULL, NULL, 0);
    select_is(&c, NULL, "n99", NULL, 0);
    select_is(&c, NULL, "n[0", NULL, 0);
}

static void test_roles_of_a_layout(void **state)
{
    struct pb_roles r;

    (void)state;
    assert_int_equal(pb_roles_compute("tp=2,pp=4,dp=*", 32, 13, &r, NULL), 0);
    assert_int_equal(pb_roles_get(&r, "tp"), 1);
    assert_int_equal(pb_roles_get(&r, "pp"), 2);
    assert_int_equal(pb_roles_get(&r, "dp"), 1);
    assert_true(pb_roles_compute("tp=3", 32, 0, &r, NULL) < 0);
    assert_true(pb_roles_compute("tp=3,dp=*", 32, 0, &r, NULL) < 0);
    assert_true(pb_roles_compute("", 1, 0, &r, NULL) < 0);
    assert_true(pb_roles_compute("tp=*,pp=*", 32, 0, &r, NULL) < 0);
}

static void test_a_question_arrives(void **state)
{
    const char *words[] = {"command", "eval", "print(\"a\nb\")", ""};
    struct pb_node_question q = {"JOB=1", "0-7", 2000, words, 4};
    struct pb_question_in in;
    _cleanup_free_ char *line = NULL;
    size_t n;

    (void)state;
    assert_int_equal(pb_question_encode(&q, &line, &n), 0);
    assert_ptr_equal(strchr(line, '\n'), line + n - 1);
    assert_int_equal(pb_question_decode(line, n, &in, NULL), 0);
    assert_int_equal(in.q.nwords, 4);
    assert_string_equal(in.q.words[2], words[2]);
    assert_string_equal(in.q.words[3], "");
    assert_string_equal(in.q.match, "JOB=1");
    assert_string_equal(in.q.ranks, "0-7");
    assert_int_equal(in.q.limit_ms, 2000);
    pb_question_done(&in);
    assert_true(pb_question_decode(line, n / 2, &in, NULL) < 0);
}

/* An answer as a node writes it, on the heap. */
static char *write_answer(bool text, int32_t rank, size_t *ret_n)
{
    int fds[2];
    struct pb_cluster_rank r = {.rank = rank, .local = 0, .pid = 42, .start_time = 99};
    _cleanup_free_ char *bytes = calloc(1, 200000);

    assert_int_equal(pipe(fds), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 1 << 19) > 0);
    struct pb_answer_writer w = {.fd = fds[1], .text = text};
    assert_non_null(bytes);
    pb_answer_begin(&w, "n03");
    pb_answer_rank(&w, &r, 8);
    pb_answer_bytes(&w, false, "two\nlines", 9);
    pb_answer_bytes(&w, true, "oh", 2);
    pb_answer_exit(&w, 3);
    pb_answer_bytes(&w, false, bytes, 100001);
    assert_int_equal(pb_answer_end(&w, 0, ""), 0);
    close(fds[1]);
    char *all = malloc(200000);
    size_t n = 0;
    ssize_t more;
    while ((more = read(fds[0], all + n, 200000 - n)) > 0)
        n += (size_t)more;
    close(fds[0]);
    *ret_n = n;
    return all;
}

static void test_an_answer_arrives_in_any_pieces(void **state)
{
    (void)state;
    for (int text = 0; text < 2; text++)
        for (size_t piece = 1; piece < 70000; piece = piece * 5 + 2) {
            size_t n;
            _cleanup_free_ char *bytes = write_answer(text, 5, &n);
            struct pb_answer_reader r;
            int done = 0;
            pb_answer_reader_init(&r, 1 << 20, text);
            for (size_t at = 0; at < n && done == 0; at += piece)
                done = pb_answer_reader_take(&r, bytes + at, n - at < piece ? n - at : piece);
            assert_int_equal(done, 1);
            assert_string_equal(r.answer.node, "n03");
            assert_int_equal(r.answer.nranks, 1);
            assert_int_equal(r.answer.ranks[0].rank.rank, 5);
            assert_int_equal(r.answer.ranks[0].status, 3);
            assert_string_equal(r.answer.ranks[0].output.at, "two\nlines");
            assert_string_equal(r.answer.ranks[0].errors.at, "oh");
            assert_int_equal(r.answer.output.n, 100001);
            assert_int_equal(r.answer.world, 8);
            pb_answer_reader_done(&r);
        }
}

static void test_what_is_no_answer_is_named(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        int r;
    } wrong[] = {{"HTTP/1.1 200 OK\r\n", 17, -EBADMSG},
                 {"V\x07\0\0\0"
                  "9 7.0 n",
                  12, -EPROTO},
                 {"O\1\0\0\0x", 6, -EBADMSG},
                 {"V\xff\xff\xff\xff", 5, -EBADMSG}};

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct pb_answer_reader r;
        pb_answer_reader_init(&r, 1000, false);
        assert_int_equal(pb_answer_reader_take(&r, wrong[i].bytes, wrong[i].n), wrong[i].r);
        assert_true(r.why[0]);
        pb_answer_reader_done(&r);
    }
    /* More than is taken from one node. */
    size_t n;
    _cleanup_free_ char *bytes = write_answer(false, 5, &n);
    struct pb_answer_reader r;
    pb_answer_reader_init(&r, 1000, false);
    assert_int_equal(pb_answer_reader_take(&r, bytes, n), -EMSGSIZE);
    pb_answer_reader_done(&r);
}

static void test_a_rank_is_read_from_its_environment(void **state)
{
    static const char environment[] = "HOME=/\0SLURM_JOB_ID=7\0SLURM_PROCID=1\0RANK=12\0WORLD_SIZE=16\0"
                                      "LOCAL_RANK=4\0TP_RANK=3";
    struct pb_cluster_rank rank;
    uint32_t world;
    const char *launcher;

    (void)state;
    assert_true(pb_member_read(environment, sizeof(environment), "SLURM_JOB_ID=7", &rank, &world, &launcher));
    assert_int_equal(rank.rank, 12);
    assert_int_equal(rank.local, 4);
    assert_int_equal(world, 16);
    assert_string_equal(launcher, "torchrun");
    assert_int_equal(pb_roles_get(&rank.roles, "tp"), 3);
    assert_false(
        pb_member_read(environment, sizeof(environment), "SLURM_JOB_ID=71", &rank, &world, &launcher));
    assert_false(pb_member_read("RANK=x", 7, NULL, &rank, &world, &launcher));
}

/* --- services of the test's own --- */

enum manner { GOOD, CUT, ENDLESS, FOREIGN, OTHER_VERSION, UNKNOWN_PAGE, DENIED, SLOW, WRONG_RANK, MANNERS };

struct service {
    int fd;
    enum manner manner;
    pthread_t thread;
};

static void say(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t more = send(fd, bytes, n, MSG_NOSIGNAL);
        if (more <= 0)
            return;
        bytes += more;
        n -= (size_t)more;
    }
}

static void *serve(void *arg)
{
    struct service *s = arg;
    static const char ok[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    char request[8192], chunk[32];
    size_t n;

    int fd = accept(s->fd, NULL, NULL);
    if (fd < 0)
        return NULL;
    ssize_t got = recv(fd, request, sizeof(request), 0);
    _cleanup_free_ char *answer = write_answer(false, s->manner == WRONG_RANK ? 0 : (int32_t)s->manner, &n);
    if (s->manner == FOREIGN)
        say(fd, "220 mail.example ESMTP\r\n", 24);
    else if (s->manner == UNKNOWN_PAGE)
        say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 45);
    else if (s->manner == DENIED)
        say(fd, "HTTP/1.1 401 Unauthorized\r\n\r\n{\"error\":{\"message\":\"the token is wrong\"}}", 71);
    else if (got > 0)
        say(fd, ok, strlen(ok));
    if (s->manner == OTHER_VERSION)
        say(fd,
            "c\r\nV\x07\0\0\0"
            "9 7.0 n\r\n",
            17);
    if (s->manner == SLOW)
        recv(fd, request, sizeof(request), 0); /* until it is given up */
    if (s->manner == GOOD || s->manner == CUT || s->manner == ENDLESS || s->manner == WRONG_RANK) {
        int length = snprintf(chunk, sizeof(chunk), "%zx\r\n", n);
        say(fd, chunk, (size_t)length);
        say(fd, answer, s->manner == CUT ? n / 2 : s->manner == ENDLESS ? n - 100 : n);
        for (int i = 0; s->manner == ENDLESS && i < 1000; i++)
            say(fd, answer, n);
        if (s->manner == GOOD || s->manner == WRONG_RANK)
            say(fd, "\r\n0\r\n\r\n", 7);
    }
    close(fd);
    return NULL;
}

static int take_ranks(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    bool *seen = arg;
    int32_t rank = answer->ranks[0].rank.rank;

    if (seen[rank])
        return pb_fail(err, -EEXIST, "rank %d has answered (node %zu)", rank, node);
    seen[rank] = true;
    return 0;
}

static void test_every_node_ends_in_its_own_state(void **state)
{
    static const enum pb_node_state ends[MANNERS] = {
        [GOOD] = PB_NODE_ANSWERED,
        [CUT] = PB_NODE_UNREACHABLE,
        [ENDLESS] = PB_NODE_REFUSED,
        [FOREIGN] = PB_NODE_REFUSED,
        [OTHER_VERSION] = PB_NODE_OTHER_VERSION,
        [UNKNOWN_PAGE] = PB_NODE_OTHER_VERSION,
        [DENIED] = PB_NODE_REFUSED,
        [SLOW] = PB_NODE_LATE,
        [WRONG_RANK] = PB_NODE_REFUSED,
    };
    _cleanup_(pb_cluster_done) struct pb_cluster c = {.way = PB_WAY_SERVICES};
    struct service services[MANNERS];
    struct pb_selection s = {0};
    struct pb_cluster_result result;
    struct pb_err err = {0};
    bool seen[MANNERS] = {false};
    const char *words[] = {"look"};
    char name[32], address[64];

    (void)state;
    setenv("PROBING_TOKEN", "0", 1);
    for (size_t i = 0; i < MANNERS; i++) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof(in);
        services[i] = (struct service){.fd = socket(AF_INET, SOCK_STREAM, 0), .manner = (enum manner)i};
        assert_int_equal(bind(services[i].fd, (struct sockaddr *)&in, n), 0);
        assert_int_equal(listen(services[i].fd, 4), 0);
        assert_int_equal(getsockname(services[i].fd, (struct sockaddr *)&in, &n), 0);
        snprintf(name, sizeof(name), "n%zu", i);
        snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(in.sin_port));
        assert_int_equal(pb_cluster_add_node(&c, name, address), 0);
        assert_int_equal(pthread_create(&services[i].thread, NULL, serve, &services[i]), 0);
    }
    assert_int_equal(pb_cluster_add_node(&c, "gone", "127.0.0.1:1"), 0);
    seen[0] = false;
    assert_int_equal(pb_select(&c, NULL, NULL, &s, &err), 0);
    /* WRONG_RANK says rank 0 as GOOD does; whichever is first is believed. */
    struct pb_cluster_question q = {.selection = &s,
                                    .words = words,
                                    .nwords = 1,
                                    .deadline_ms = 1500,
                                    .most = 150000,
                                    .answer = take_ranks,
                                    .arg = seen};
    uint64_t begun = pb_now_ns();
    assert_int_equal(pb_cluster_ask(&c, &q, &result, &err), 0);
    assert_true(pb_now_ns() - begun < 10 * PB_NS_PER_S); /* however busy the machine is */
    for (size_t i = 0; i < MANNERS; i++) {
        if (i == GOOD || i == WRONG_RANK)
            continue;
        if (result.nodes[i].state != ends[i])
            print_error("node %zu: %s, %s\n", i, pb_node_state_name(result.nodes[i].state),
                        result.nodes[i].why);
        assert_int_equal(result.nodes[i].state, ends[i]);
        assert_true(result.nodes[i].why[0]);
    }
    assert_int_equal(result.nodes[GOOD].state == PB_NODE_ANSWERED,
                     result.nodes[WRONG_RANK].state == PB_NODE_REFUSED);
    assert_int_equal(result.nodes[MANNERS].state, PB_NODE_UNREACHABLE);
    assert_int_equal(result.answered, 1);
    assert_int_equal(result.asked, MANNERS + 1);
    for (size_t i = 0; i < MANNERS; i++) {
        shutdown(services[i].fd, SHUT_RDWR);
        pthread_join(services[i].thread, NULL);
        close(services[i].fd);
    }
    pb_cluster_result_done(&result);
    pb_selection_done(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file_comes_back),
        cmocka_unit_test(test_clocks_are_kept_without_the_rest),
        cmocka_unit_test(test_selections),
        cmocka_unit_test(test_roles_of_a_layout),
        cmocka_unit_test(test_a_question_arrives),
        cmocka_unit_test(test_an_answer_arrives_in_any_pieces),
        cmocka_unit_test(test_what_is_no_answer_is_named),
        cmocka_unit_test(test_a_rank_is_read_from_its_environment),
        cmocka_unit_test(test_every_node_ends_in_its_own_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
