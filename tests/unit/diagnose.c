/* Where chains of waits end, over threads and ranks; which finding explains which. */
#include "ask/step_lines.h"
#include "base/cleanup.h"
#include "diagnose/finding.h"
#include "diagnose/graph_leak.h"
#include "diagnose/rule.h"
#include "diagnose/script_end.h"
#include "diagnose/since.h"

#include "test.h"

enum { RANKS = 4 };

/* A job of four ranks with two threads each, all main threads in the same collective. */
struct fake {
    struct pb_diag_job job;
    struct pb_diag_process processes[RANKS];
    struct pb_diag_thread threads[2 * RANKS];
};

static void in_collective(struct pb_diag_thread *t, const char *name)
{
    t->wait.kind = PB_WAIT_COLLECTIVE;
    snprintf(t->wait.text, sizeof(t->wait.text), "%s", name);
}

static void make(struct fake *f)
{
    memset(f, 0, sizeof(*f));
    f->job = (struct pb_diag_job){.ranks = true,
                                  .world = RANKS,
                                  .processes = f->processes,
                                  .nprocesses = RANKS,
                                  .threads = f->threads,
                                  .nthreads = 2 * RANKS};
    for (size_t i = 0; i < RANKS; i++) {
        f->processes[i] = (struct pb_diag_process){
            .pid = 100 + (pid_t)i, .rank = (int)i, .parent = PB_NOBODY, .state = 'S', .first = 2 * i, .n = 2};
        for (size_t k = 0; k < 2; k++)
            f->threads[2 * i + k] = (struct pb_diag_thread){.process = i,
                                                            .tid = 100 + (pid_t)i + 1000 * (pid_t)k,
                                                            .main = k == 0,
                                                            .python = true,
                                                            .state = 'S',
                                                            .still = 9,
                                                            .peer = -1,
                                                            .wait = {.kind = PB_WAIT_SLEEP}};
        in_collective(&f->threads[2 * i], "all_reduce");
    }
}

static void done(struct fake *f)
{
    for (size_t i = 0; i < f->job.nends; i++)
        free(f->job.ends[i].blocked);
    free(f->job.ends);
    free(f->job.edges);
}

/* The end that most ranks are blocked by. */
static const struct pb_diag_end *main_end(struct fake *f)
{
    const struct pb_diag_end *most = NULL;

    assert_int_equal(pb_diag_follow(&f->job), 0);
    for (size_t i = 0; i < f->job.nends; i++)
        if (!most || f->job.ends[i].nblocked > most->nblocked)
            most = &f->job.ends[i];
    assert_non_null(most);
    return most;
}

static void test_a_rank_that_sleeps_is_the_end(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    f.threads[4].wait = (struct pb_wait){.kind = PB_WAIT_SLEEP};
    const struct pb_diag_end *e = main_end(&f);
    assert_int_equal(e->kind, PB_END_BLOCKED);
    assert_int_equal(e->process, 2);
    assert_int_equal(e->nblocked, 3);
}

static void test_a_lock_leads_to_its_holder(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    f.threads[4].wait = (struct pb_wait){.kind = PB_WAIT_PYTHON_LOCK, .holder_pid = 102, .holder_tid = 1102};
    const struct pb_diag_end *e = main_end(&f);
    assert_int_equal(e->kind, PB_END_BLOCKED);
    assert_int_equal(e->thread, 5);
    assert_int_equal(e->waiter, 4);
    assert_int_equal(e->nblocked, 4); /* the rank's own main thread too */
}

static void test_two_locks_are_a_circle(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    f.threads[4].wait = (struct pb_wait){.kind = PB_WAIT_PYTHON_LOCK, .holder_pid = 102, .holder_tid = 1102};
    f.threads[5].wait = (struct pb_wait){.kind = PB_WAIT_PYTHON_LOCK, .holder_pid = 102, .holder_tid = 102};
    const struct pb_diag_end *e = main_end(&f);
    assert_int_equal(e->kind, PB_END_CIRCLE);
    assert_int_equal(e->ncircle, 2);
    assert_int_equal(e->circle[0], 4);
    assert_int_equal(e->circle[1], 5);
}

static void test_another_collective_differs(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    in_collective(&f.threads[6], "broadcast");
    assert_int_equal(main_end(&f)->kind, PB_END_DIFFERS);
    assert_false(main_end(&f)->moved);
}

static void test_all_in_one_collective_are_together(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    assert_int_equal(main_end(&f)->kind, PB_END_TOGETHER);
}

static void test_a_receive_waits_for_its_sender_alone(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    for (size_t i = 0; i < RANKS; i++)
        f.threads[2 * i].wait = (struct pb_wait){.kind = PB_WAIT_SLEEP};
    in_collective(&f.threads[0], "recv");
    f.threads[0].peer = 3;
    const struct pb_diag_end *e = main_end(&f);
    assert_int_equal(e->process, 3);
    assert_int_equal(e->nblocked, 1);
}

static void test_a_rank_that_has_ended_is_the_end(void **state)
{
    _cleanup_(done) struct fake f;

    make(&f);
    f.processes[1].state = 'Z';
    f.processes[1].n = 0;
    f.job.nthreads = 2 * RANKS;
    f.threads[2].wait = f.threads[3].wait = (struct pb_wait){.kind = PB_WAIT_NONE};
    const struct pb_diag_end *e = main_end(&f);
    assert_int_equal(e->kind, PB_END_DEAD);
    assert_int_equal(e->process, 1);
}

static void add(struct pb_diag_findings *all, const char *kind, int rank, int explains,
                enum pb_diag_sure sure)
{
    struct pb_diag_finding *f = &all->at[all->n++];

    *f = (struct pb_diag_finding){.rank = rank, .explains = explains, .sure = sure, .since = 10};
    snprintf(f->kind, sizeof(f->kind), "%s", kind);
}

static void test_a_cause_stands_before_its_consequence(void **state)
{
    struct pb_diag_finding room[4];
    struct pb_diag_findings all = {.at = room};

    add(&all, "not_joined", 2, 3, PB_DIAG_LIKELY);
    add(&all, "lock_held", 2, 3, PB_DIAG_CERTAIN);
    const struct pb_diag_finding *verdict = pb_diag_explain(&all);
    assert_string_equal(verdict->kind, "lock_held");
    assert_false(all.at[1].root);
}

static void test_a_remark_is_never_a_verdict(void **state)
{
    struct pb_diag_finding room[4];
    struct pb_diag_findings all = {.at = room};

    add(&all, "stopped", 2, 3, PB_DIAG_REMARK);
    assert_null(pb_diag_explain(&all));
}

static bool leads_to(const char *from, const char *to, int depth)
{
    bool found = false;

    for (size_t i = 0; depth && i < pb_diag_ntable; i++)
        if (strcmp(pb_diag_table[i].cause, from) == 0)
            found |=
                strcmp(pb_diag_table[i].effect, to) == 0 || leads_to(pb_diag_table[i].effect, to, depth - 1);
    return found;
}

static void test_no_kind_explains_itself(void **state)
{
    for (size_t i = 0; i < pb_diag_nkinds; i++)
        assert_false(leads_to(pb_diag_kinds[i], pb_diag_kinds[i], 8));
}

static void test_a_rule_sees_only_the_newest_rows(void **state)
{
    (void)state;
    static const char with[] =
        "-- kind: a\n-- needs: python.t, memory_usage\nWITH x AS (SELECT t.a FROM "
        "python.t AS t) SELECT 'python.t', python.tall, memory_usage.b FROM x, memory_usage\n",
                      plain[] = "-- kind: b\nSELECT * FROM ends\n";
    struct pb_diag_rule at[] = {{.text = strdup(with)}, {.text = strdup(plain)}};
    struct pb_diag_rules rules = {at, 2};

    at[0].select = strstr(at[0].text, "WITH");
    at[1].select = strstr(at[1].text, "SELECT");
    assert_int_equal(pb_diag_rules_since(&rules, 600), 0);
    assert_string_equal(
        at[0].select,
        "WITH pb_since_0 AS (SELECT * FROM python.t WHERE timestamp > now() - to_milliseconds(CAST(600000 AS "
        "BIGINT))), pb_since_1 AS (SELECT * FROM memory_usage WHERE timestamp > now() - "
        "to_milliseconds(CAST(600000 AS BIGINT))),\n x AS (SELECT t.a FROM pb_since_0 AS t) SELECT "
        "'python.t', "
        "python.tall, pb_since_1.b FROM x, pb_since_1\n");
    assert_memory_equal(at[0].text, "-- kind: a\n", 11);
    assert_string_equal(at[1].text, plain);
    free(at[0].text);
    free(at[1].text);
}

/* A main thread whose outermost frame is a hook, below no module. */
static struct pb_diag_thread look_at_hook(const char *held)
{
    struct pb_py_code hook = {.file = "<probing>/_catch.py", .name = "hold"};
    struct pb_shown_frame frame = {.code = &hook};
    const struct pb_shown_thread shown = {.python = true, .frames = &frame, .nframes = 1};
    struct pb_diag_thread found = {.main = true};

    snprintf(found.held, sizeof(found.held), "%s", held);
    pb_diag_find_end(&shown, &found);
    return found;
}

static void test_a_main_thread_below_no_module_ends(void **state)
{
    assert_true(look_at_hook("").finalizing);
}

static void test_a_process_that_catch_holds_does_not_end(void **state)
{
    assert_false(look_at_hook("catch").finalizing);
}

static void test_kept_results_are_many_and_more_with_each_look(void **state)
{
    static const long few[] = {49, 60, 70}, same[] = {50, 60, 60}, more[] = {50, 60, 70};

    assert_false(pb_graph_leak_grows(few, 1)); /* no second look is worth its second then */
    assert_false(pb_graph_leak_grows(few, 3));
    assert_true(pb_graph_leak_grows(same, 2));
    assert_false(pb_graph_leak_grows(same, 3));
    assert_true(pb_graph_leak_grows(more, 3));
}

static void test_a_line_is_judged_by_enough_looks(void **state)
{
    const struct pb_own_code once = {.outside = 1, .hits = 1}, rare = {.outside = 40, .hits = 12},
                             often = {.outside = 30, .hits = 12};

    assert_false(pb_own_code_is_mostly(&once, 1));
    assert_false(pb_own_code_is_mostly(&rare, 12));
    assert_false(pb_own_code_is_mostly(&often, 5));
    assert_true(pb_own_code_is_mostly(&often, 6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_sleeps_is_the_end),
        cmocka_unit_test(test_a_lock_leads_to_its_holder),
        cmocka_unit_test(test_two_locks_are_a_circle),
        cmocka_unit_test(test_another_collective_differs),
        cmocka_unit_test(test_all_in_one_collective_are_together),
        cmocka_unit_test(test_a_receive_waits_for_its_sender_alone),
        cmocka_unit_test(test_a_rank_that_has_ended_is_the_end),
        cmocka_unit_test(test_a_cause_stands_before_its_consequence),
        cmocka_unit_test(test_a_remark_is_never_a_verdict),
        cmocka_unit_test(test_no_kind_explains_itself),
        cmocka_unit_test(test_a_rule_sees_only_the_newest_rows),
        cmocka_unit_test(test_a_main_thread_below_no_module_ends),
        cmocka_unit_test(test_a_process_that_catch_holds_does_not_end),
        cmocka_unit_test(test_kept_results_are_many_and_more_with_each_look),
        cmocka_unit_test(test_a_line_is_judged_by_enough_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
