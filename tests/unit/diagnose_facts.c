/* What nodes send of a job is read back as it was, joined as one job, and refused where it is malformed. */
#include "base/err.h"
#include "diagnose/facts_wire.h"

#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Two ranks: the first waits in a collective, the second for a lock that its other thread holds. */
static char *write_part(int first, size_t *ret_length)
{
    struct pb_diag_process processes[2] = {
        {.pid = 10, .rank = first, .parent = PB_NOBODY, .state = 'S', .n = 1},
        {.pid = 11, .rank = first + 1, .parent = PB_NOBODY, .state = 'S', .first = 1, .n = 2}};
    int group[] = {0, 1, 2, 3};
    struct pb_diag_thread threads[3] = {
        {.process = 0, .tid = 10, .main = true, .python = true, .state = 'S', .still = 9, .peer = -1},
        {.process = 1, .tid = 11, .main = true, .python = true, .state = 'S', .still = 9, .peer = -1},
        {.process = 1, .tid = 12, .python = true, .state = 'S', .still = 9, .peer = -1}};
    struct pb_diag_job job = {.name = "train.py",
                              .world = 4,
                              .ranks = true,
                              .processes = processes,
                              .nprocesses = 2,
                              .threads = threads,
                              .nthreads = 3};
    struct pb_diag_finding finding = {.kind = "nan",
                                      .rank = first,
                                      .since = 3,
                                      .sure = PB_DIAG_LIKELY,
                                      .says = "the loss \"is\" nan",
                                      .evidence = {{{"step", "3517"}}},
                                      .nevidence = 1};
    struct pb_diag_answer a = {.job = &job, .findings = {&finding, 1}};
    char *text = NULL;

    threads[0].wait = (struct pb_wait){
        .kind = PB_WAIT_COLLECTIVE, .group_ranks = group, .ngroup_ranks = 4, .object = 0x7f00deadbeefull};
    strcpy(threads[0].wait.text, "all_reduce");
    strcpy(threads[1].own.file, "/job/train.py");
    threads[1].own.line = 14;
    threads[1].wait = (struct pb_wait){.kind = PB_WAIT_PYTHON_LOCK, .holder_pid = 11, .holder_tid = 12};
    threads[2].wait.kind = PB_WAIT_SLEEP;
    FILE *out = open_memstream(&text, ret_length);
    assert_non_null(out);
    pb_diag_facts_write(out, &a);
    fclose(out);
    return text;
}

static void free_job(struct pb_diag_job *job, struct pb_diag_findings *findings)
{
    for (size_t i = 0; i < job->nthreads; i++)
        free(job->threads[i].wait.group_ranks);
    for (size_t i = 0; i < job->nends; i++)
        free(job->ends[i].blocked);
    free(job->threads);
    free(job->processes);
    free(job->ends);
    free(job->edges);
    free(findings->at);
}

static void the_parts_of_two_nodes_are_one_job(void **state)
{
    struct pb_diag_job job = {.joined = true};
    struct pb_diag_findings findings = {0};
    struct pb_err err = {0};
    size_t n, most = 0;

    (void)state;
    for (int node = 0; node < 2; node++) {
        char *text = write_part(2 * node, &n);
        assert_int_equal(pb_diag_facts_add(&job, &findings, node ? "b" : "a", text, n, &err), 0);
        free(text);
    }
    assert_int_equal(job.nprocesses, 4);
    assert_int_equal(job.nthreads, 6);
    assert_int_equal(findings.n, 2);
    assert_string_equal(findings.at[1].says, "the loss \"is\" nan");
    assert_string_equal(findings.at[1].evidence[0].field[1], "3517");
    assert_int_equal(job.threads[3].process, 2);
    assert_true(job.threads[3].wait.object == 0x7f00deadbeefull);
    assert_int_equal(job.threads[3].wait.group_ranks[3], 3);
    assert_int_equal(job.threads[4].own.line, 14);
    assert_string_equal(job.processes[2].node, "b");
    /* Both nodes have a thread 12: that of the own node is the holder. */
    assert_int_equal(pb_diag_follow(&job), 0);
    for (size_t i = 0; i < job.nedges; i++)
        if (job.edges[i].from == 4)
            assert_int_equal(job.edges[i].to, 5);
    for (size_t i = 0; i < job.nends; i++)
        most = job.ends[i].nblocked > most ? job.ends[i].nblocked : most;
    assert_int_equal(most, 3);
    free_job(&job, &findings);
}

/* A launcher that is judged with its ranks has none itself. */
static void what_has_no_rank_may_be_on_each_node(void **state)
{
    struct pb_diag_job job = {.joined = true};
    struct pb_diag_findings findings = {0};
    struct pb_err err = {0};
    size_t n;

    (void)state;
    for (int node = 0; node < 2; node++) {
        char *text = write_part(2 * node - 1, &n); /* ranks -1 and 0, then 1 and 2 */
        char *rank = node ? strstr(text, "\"rank\": 1") : NULL;
        if (node) {
            assert_non_null(rank);
            memcpy(rank, "\"rank\":-1", 9);
        }
        assert_int_equal(pb_diag_facts_add(&job, &findings, node ? "b" : "a", text, n, &err), 0);
        free(text);
    }
    assert_int_equal(job.nprocesses, 4);
    assert_int_equal(job.processes[2].rank, -1);
    free_job(&job, &findings);
}

static void what_is_malformed_adds_nothing(void **state)
{
    static const char *const wrong[][2] = {{"\"rank\": 0", "\"rank\": \"0\""},
                                           {"\"parent\": -1", "\"parent\": 7"},
                                           {"\"process\": 1", "\"process\": 2"},
                                           {"\"wait.kind\"", "\"wait.kinds\""},
                                           {"\"wait.kind\": 13", "\"wait.kind\": 99"},
                                           {"\"still\": 9.000000", "\"still\": nan"},
                                           {"\"threads\": [", "\"threads\": {}, \"x\": ["},
                                           {"\"sure\": 1", "\"sure\": -2"},
                                           {"{", "["}};
    struct pb_diag_job job = {.joined = true};
    struct pb_diag_findings findings = {0};
    struct pb_err err = {0};
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char *text = write_part(0, &n), *at = strstr(text, wrong[i][0]), *bad = malloc(n + 64);
        if (!at)
            fail_msg("%s is not in %s", wrong[i][0], text);
        assert_non_null(bad);
        int length = sprintf(bad, "%.*s%s%s", (int)(at - text), text, wrong[i][1], at + strlen(wrong[i][0]));
        assert_int_equal(pb_diag_facts_add(&job, &findings, "a", bad, (size_t)length, &err), -EBADMSG);
        for (size_t cut = 1; cut < n; cut += 97)
            assert_int_equal(pb_diag_facts_add(&job, &findings, "a", text, cut, &err), -EBADMSG);
        free(bad);
        free(text);
    }
    char *text = write_part(0, &n);
    assert_int_equal(pb_diag_facts_add(&job, &findings, "a", text, n, &err), 0);
    assert_int_equal(pb_diag_facts_add(&job, &findings, "b", text, n, &err),
                     -EBADMSG); /* the same ranks again */
    assert_int_equal(job.nprocesses, 2);
    assert_int_equal(job.nthreads, 3);
    free(text);
    free_job(&job, &findings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_two_nodes_are_one_job),
        cmocka_unit_test(what_has_no_rank_may_be_on_each_node),
        cmocka_unit_test(what_is_malformed_adds_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
