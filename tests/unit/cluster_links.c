/* Links that stay open between questions: a connection serves several of them, whether its answers have a
 * length or chunks, and one that the other end has closed meanwhile is opened anew. A service that is gone is
 * replaced by the launcher. And the question for a clock. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "cluster/questions/cluster_clock.h"

#include "test.h"

enum { ANSWERS = 2 }; /* of one connection */

struct service {
    int fd;
    atomic_uint connections, answers;
    atomic_int open; /* the connection that is served; -1: none */
};

static void say(int fd, const void *bytes, size_t n)
{
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* With a length and in chunks by turns. */
static void answer(int fd, unsigned number)
{
    struct pb_answer_writer w = {.fd = -1};
    const struct pb_cluster_rank rank = {.rank = (int32_t)number, .local = 0, .pid = 5};
    char head[128];

    pb_answer_begin(&w, "n");
    pb_answer_rank(&w, &rank, 8);
    pb_answer_exit(&w, 0);
    assert_int_equal(pb_answer_end(&w, 0, NULL), 0);
    bool chunked = number % 2;
    int n = snprintf(head, sizeof(head),
                     chunked ? "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n"
                             : "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                     w.nwaiting);
    say(fd, head, (size_t)n);
    say(fd, w.waiting, w.nwaiting);
    if (chunked)
        say(fd, "\r\n0\r\n\r\n", 7);
}

static void *serve(void *arg)
{
    struct service *s = arg;
    char request[8192];

    for (;;) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        s->connections++;
        s->open = fd;
        for (int i = 0; i < ANSWERS && recv(fd, request, sizeof(request), 0) > 0; i++) {
            answer(fd, s->answers);
            s->answers++;
        }
        s->open = -1;
        close(fd);
    }
}

static int take_rank(void *arg, size_t node, struct pb_node_answer *answer_, struct pb_err *err)
{
    (void)node, (void)err;
    *(int32_t *)arg = answer_->ranks[0].rank.rank;
    return 0;
}

static void test_a_connection_serves_several_questions(void **state)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {.way = PB_WAY_SERVICES};
    _cleanup_(pb_selection_done) struct pb_selection selection = {0};
    struct service s = {.fd = socket(AF_INET, SOCK_STREAM, 0), .open = -1};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(in);
    struct pb_err err = {0};
    struct pb_links *links;
    pthread_t thread;
    char address[64];
    int32_t rank = -1;
    const char *words[] = {"look"};

    (void)state;
    setenv("PROBING_TOKEN", "0", 1);
    assert_int_equal(bind(s.fd, (struct sockaddr *)&in, n), 0);
    assert_int_equal(listen(s.fd, 4), 0);
    assert_int_equal(getsockname(s.fd, (struct sockaddr *)&in, &n), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(in.sin_port));
    assert_int_equal(pb_cluster_add_node(&c, "n", address), 0);
    assert_int_equal(pb_select(&c, NULL, NULL, &selection, &err), 0);
    assert_int_equal(pb_links_new(&c, &links), 0);
    assert_int_equal(pthread_create(&thread, NULL, serve, &s), 0);
    struct pb_cluster_question q = {.selection = &selection,
                                    .words = words,
                                    .nwords = 1,
                                    .deadline_ms = 20000,
                                    .links = links,
                                    .answer = take_rank,
                                    .arg = &rank};
    for (int i = 0; i < 3 * ANSWERS; i++) {
        struct pb_cluster_result result;
        assert_int_equal(pb_cluster_ask(&c, &q, &result, &err), 0);
        assert_string_equal(result.nodes[0].why, "");
        assert_int_equal(result.answered, 1);
        assert_int_equal(rank, i);
        assert_true(result.nodes[0].received_ns >= result.nodes[0].sent_ns);
        pb_cluster_result_done(&result);
        /* It closes after its second answer, which is noticed only with the third question. */
        while (i % ANSWERS == ANSWERS - 1 && s.open >= 0)
            usleep(1000);
    }
    assert_int_equal(s.connections, 3);
    pb_links_free(links);
    shutdown(s.fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(s.fd);
}

static void test_a_launcher_that_fails_is_told_by_what_it_did(void **state)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {.way = PB_WAY_SSH};
    _cleanup_(pb_selection_done) struct pb_selection selection = {0};
    struct pb_err err = {0};
    struct pb_cluster_result result;
    const char *words[] = {"look"};

    (void)state;
    strcpy(c.launcher, "/bin/false");
    strcpy(c.program, "/bin/true");
    assert_int_equal(pb_cluster_add_node(&c, "n", "n"), 0);
    assert_int_equal(pb_select(&c, NULL, NULL, &selection, &err), 0);
    struct pb_cluster_question q = {
        .selection = &selection, .words = words, .nwords = 1, .deadline_ms = 20000};
    assert_int_equal(pb_cluster_ask(&c, &q, &result, &err), 0);
    assert_int_equal(result.nodes[0].state, PB_NODE_REFUSED);
    assert_non_null(strstr(result.nodes[0].why, "without an answer"));
    pb_cluster_result_done(&result);
}

/* A service that says something and closes, once; NULL: it listens no more. */
struct brief {
    int fd;
    const char *says;
};

static void *serve_once(void *arg)
{
    const struct brief *b = arg;
    char request[8192];

    int fd = accept(b->fd, NULL, NULL);
    if (fd >= 0 && recv(fd, request, sizeof(request), 0) > 0 && b->says[0])
        say(fd, b->says, strlen(b->says));
    if (fd >= 0)
        close(fd);
    return NULL;
}

/* A launcher that answers for one rank, and notes that it was started. */
static void write_launcher(const char *folder, char program[PB_CLUSTER_TEXT])
{
    struct pb_answer_writer w = {.fd = -1};
    const struct pb_cluster_rank rank = {.rank = 7, .local = 0, .pid = 5};
    char path[300];

    pb_answer_begin(&w, "n");
    pb_answer_rank(&w, &rank, 8);
    pb_answer_exit(&w, 0);
    assert_int_equal(pb_answer_end(&w, 0, NULL), 0);
    snprintf(path, sizeof(path), "%s/answer", folder);
    FILE *file = fopen(path, "we");
    assert_int_equal(fwrite(w.waiting, 1, w.nwaiting, file), w.nwaiting);
    fclose(file);
    snprintf(program, PB_CLUSTER_TEXT, "%s/probing", folder);
    file = fopen(program, "we");
    fprintf(file, "#!/bin/sh\ncat >/dev/null\necho >>%s/started\ncat %s/answer\n", folder, folder);
    fclose(file);
    assert_int_equal(chmod(program, 0700), 0);
}

/* Asks a node whose service says that; the result has how it ended, *ret_rank the rank that answered. */
static struct pb_node_result ask_brief(const char *folder, const char *says, int32_t *ret_rank)
{
    _cleanup_(pb_cluster_done) struct pb_cluster c = {.way = PB_WAY_LOCAL};
    _cleanup_(pb_selection_done) struct pb_selection selection = {0};
    struct brief b = {.fd = socket(AF_INET, SOCK_STREAM, 0), .says = says};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(in);
    struct pb_cluster_result result;
    struct pb_err err = {0};
    const char *words[] = {"look"};
    pthread_t thread;

    write_launcher(folder, c.program);
    assert_int_equal(bind(b.fd, (struct sockaddr *)&in, n), 0);
    assert_int_equal(getsockname(b.fd, (struct sockaddr *)&in, &n), 0);
    if (says)
        assert_int_equal(listen(b.fd, 4), 0);
    assert_int_equal(pb_cluster_add_node(&c, "n", "n"), 0);
    snprintf(c.nodes[0].service, sizeof(c.nodes[0].service), "127.0.0.1:%d", ntohs(in.sin_port));
    strcpy(c.nodes[0].token, "00");
    assert_int_equal(pb_select(&c, NULL, NULL, &selection, &err), 0);
    if (says)
        assert_int_equal(pthread_create(&thread, NULL, serve_once, &b), 0);
    *ret_rank = -1;
    const struct pb_cluster_question q = {.selection = &selection,
                                          .words = words,
                                          .nwords = 1,
                                          .deadline_ms = 20000,
                                          .answer = take_rank,
                                          .arg = ret_rank};
    assert_int_equal(pb_cluster_ask(&c, &q, &result, &err), 0);
    struct pb_node_result node = result.nodes[0];
    pb_cluster_result_done(&result);
    if (says)
        pthread_join(thread, NULL);
    close(b.fd);
    return node;
}

static void test_a_node_whose_service_is_gone_is_asked_by_the_launcher(void **state)
{
    char folder[] = "/tmp/probing-unit-XXXXXX", path[300];
    int32_t rank;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/started", folder);
    /* Nobody listens; another user's service, or one with another token; a service that ends. */
    assert_int_equal(ask_brief(folder, NULL, &rank).state, PB_NODE_ANSWERED);
    assert_int_equal(rank, 7);
    assert_int_equal(
        ask_brief(folder, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}", &rank).state,
        PB_NODE_ANSWERED);
    assert_int_equal(rank, 7);
    assert_int_equal(unlink(path), 0);
    /* It took the question, and may have done what that asked for: it is not done twice. */
    assert_true(ask_brief(folder, "", &rank).state != PB_NODE_ANSWERED);
    assert_true(ask_brief(folder, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", &rank).state !=
                PB_NODE_ANSWERED);
    assert_int_equal(rank, -1);
    assert_int_equal(access(path, F_OK), -1);
    static const char *const names[] = {"answer", "probing"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void test_a_question_for_the_clock_is_told_from_others(void **state)
{
    const char *words[] = {PB_CLOCK_WORD};
    struct pb_node_question q = {.limit_ms = 100, .words = words, .nwords = 1};
    struct pb_answer_writer w = {.fd = -1};
    _cleanup_free_ char *line = NULL, *other = NULL;
    struct pb_answer_reader reader;
    long long came, left;
    size_t n, m;

    (void)state;
    assert_int_equal(pb_question_encode(&q, &line, &n), 0);
    words[0] = "stacks";
    assert_int_equal(pb_question_encode(&q, &other, &m), 0);
    assert_false(pb_clock_answer(other, m, "n1", 77, &w));
    assert_false(pb_clock_answer("", 0, "n1", 77, &w));
    assert_int_equal(w.nwaiting, 0);
    assert_true(pb_clock_answer(line, n, "n1", 77, &w));
    pb_answer_reader_init(&reader, 4096, false);
    assert_int_equal(pb_answer_reader_take(&reader, w.waiting, w.nwaiting), 1);
    assert_string_equal(reader.answer.node, "n1");
    assert_int_equal(sscanf(reader.answer.output.at, "%lld %lld", &came, &left), 2);
    assert_int_equal(came, 77);
    assert_true(left > 77);
    pb_answer_reader_done(&reader);
}

static void test_an_old_offset_is_less_exact(void **state)
{
    const struct pb_cluster_clock clock = {true, 5, 1000, 10000000000};

    (void)state;
    assert_int_equal(pb_clock_error_at(&clock, clock.at_ns), 1000);
    assert_int_equal(pb_clock_error_at(&clock, clock.at_ns + 1000000000), 51000);
    assert_int_equal(pb_clock_error_at(&clock, clock.at_ns - 1000000000), 51000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_connection_serves_several_questions),
        cmocka_unit_test(test_a_launcher_that_fails_is_told_by_what_it_did),
        cmocka_unit_test(test_a_node_whose_service_is_gone_is_asked_by_the_launcher),
        cmocka_unit_test(test_a_question_for_the_clock_is_told_from_others),
        cmocka_unit_test(test_an_old_offset_is_less_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
