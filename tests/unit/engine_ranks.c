/* Ranks that recorded one column in different types, or have different time columns: every value is what it
 * was, or the query is refused and names both. */
#include "engine_test.h"

#include "engine/shared/widen.h"

#include <errno.h>

static int arenas[2];

static struct pb_table *make_table(struct pb_arena *arena, const char *name, const struct pb_column *columns,
                                   unsigned n)
{
    const struct pb_table_spec spec = {.name = name, .columns = columns, .ncolumns = n};
    struct pb_table *t;

    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    return t;
}

static void fill_first(struct pb_arena *arena)
{
    static const struct pb_column columns[] = {{"moment", PB_TIMESTAMP, 0, NULL, NULL},
                                               {"n", PB_I32, 0, NULL, NULL},
                                               {"x", PB_F32, 0, NULL, NULL},
                                               {"u", PB_U32, 0, NULL, NULL},
                                               {"clash", PB_I64, 0, NULL, NULL}};
    static const struct pb_column timed[] = {{"moment", PB_TIMESTAMP, 0, NULL, NULL},
                                             {"v", PB_I32, 0, NULL, NULL}};
    struct pb_row row;

    pb_row_begin(make_table(arena, "mixed", columns, 5), &row);
    pb_set_i32(&row, 1, -7);
    pb_set_f32(&row, 2, 0.5f);
    pb_set_u32(&row, 3, UINT32_MAX);
    pb_set_i64(&row, 4, 11);
    pb_row_commit(&row);
    pb_row_begin(make_table(arena, "timed", timed, 2), &row);
    pb_set_i32(&row, 1, 1);
    pb_row_commit(&row);
}

static void fill_second(struct pb_arena *arena)
{
    static const struct pb_column columns[] = {{"moment", PB_TIMESTAMP, 0, NULL, NULL},
                                               {"n", PB_I64, 0, NULL, NULL},
                                               {"x", PB_F64, 0, NULL, NULL},
                                               {"u", PB_I32, 0, NULL, NULL},
                                               {"clash", PB_STRING, 0, NULL, NULL}};
    /* Rows of long ago, if `started` were taken for the time of the table. */
    static const struct pb_column timed[] = {{"started", PB_TIMESTAMP, 0, NULL, NULL},
                                             {"moment", PB_TIMESTAMP, 0, NULL, NULL},
                                             {"v", PB_I32, 0, NULL, NULL}};
    struct pb_row row;

    pb_row_begin(make_table(arena, "mixed", columns, 5), &row);
    pb_set_i64(&row, 1, INT64_MAX);
    pb_set_f64(&row, 2, 1e300);
    pb_set_i32(&row, 3, -1);
    pb_set_string(&row, 4, "text", 4);
    pb_row_commit(&row);
    pb_row_begin(make_table(arena, "timed", timed, 3), &row);
    pb_set_timestamp(&row, 0, mono_now() - 86400 * SECOND);
    pb_set_timestamp(&row, 1, mono_now());
    pb_set_i32(&row, 2, 2);
    pb_row_commit(&row);
}

static int make_arenas(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct pb_arena *arena;
        if ((i == 0 && use_own_worker(state) < 0) || pb_arena_create(PB_ARENA_MEMFD, "t", NULL, &arena) < 0)
            return -1;
        (i ? fill_second : fill_first)(arena);
        arenas[i] = pb_arena_fd(arena);
    }
    return 0;
}

static struct answer *ask_both(const char *sql)
{
    return ask_all(arenas, 2, sql, 20000);
}

static void expect_both(const char *sql, const char *rows)
{
    struct answer *a = ask_both(sql);
    if (a->r < 0)
        print_error("%s: %s\n", sql, a->err.text);
    assert_int_equal(a->r, 0);
    assert_string_equal(a->rows, rows);
}

static void numbers_are_widened_exactly(void **state)
{
    expect_both("SELECT rank, n, x, u FROM mixed ORDER BY rank",
                "0|-7|0.5|4294967295\n1|9223372036854775807|1e+300|-1\n");
    expect_both("SELECT sum(u), count(n), count(x) FROM mixed", "4294967294|2|2\n");
    assert_string_equal(ask_both("SELECT n, x, u FROM mixed")->types, "BIGINT DOUBLE BIGINT ");
}

static void what_has_no_one_type_is_refused_and_both_are_named(void **state)
{
    char first[32], second[32];
    struct answer *a = ask_both("SELECT * FROM mixed");

    snprintf(first, sizeof(first), "rank 0 (process %d)", (int)getpid());
    snprintf(second, sizeof(second), "rank 1 (process %d)", (int)getppid());
    assert_true(a->r < 0);
    assert_non_null(strstr(a->err.text, "clash"));
    assert_non_null(strstr(a->err.text, "mixed"));
    assert_non_null(strstr(a->err.text, first));
    assert_non_null(strstr(a->err.text, second));
    assert_non_null(strstr(a->err.text, "BIGINT"));
    assert_non_null(strstr(a->err.text, "VARCHAR"));
    /* The rest of the table can be read, and each process alone. */
    expect_both("SELECT count(*) FROM mixed WHERE n IS NOT NULL", "2\n");
    expect(arenas[1], "SELECT clash FROM mixed", "text\n");
}

static void rows_are_not_lost_by_another_time_column(void **state)
{
    expect_both("SELECT v FROM timed WHERE moment > now() - INTERVAL '1 hour' ORDER BY v", "1\n2\n");
}

static void every_pair_of_types_keeps_every_value(void **state)
{
    static const struct {
        enum pb_type a, b, both;
    } facts[] = {{PB_I8, PB_I64, PB_I64},  {PB_U8, PB_U16, PB_U16},  {PB_U8, PB_I8, PB_I16},
                 {PB_U32, PB_I32, PB_I64}, {PB_U64, PB_I64, 0},      {PB_U32, PB_U64, PB_U64},
                 {PB_I16, PB_F32, PB_F32}, {PB_I32, PB_F32, PB_F64}, {PB_I64, PB_F64, 0},
                 {PB_F32, PB_F64, PB_F64}, {PB_BOOL, PB_I8, 0},      {PB_TIMESTAMP, PB_I64, 0},
                 {PB_STRING, PB_BYTES, 0}};

    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        assert_int_equal(pb_widen_type(facts[i].a, facts[i].b), facts[i].both);
        assert_int_equal(pb_widen_type(facts[i].b, facts[i].a), facts[i].both);
    }
}

/* More than the kernel passes on at a time, twice over: recorded tables, and one that is read now. */
static void every_one_of_many_sources_is_read(void **state)
{
    enum { MANY = 601 };
    int fds[MANY];

    for (int i = 0; i < MANY; i++)
        fds[i] = arenas[0];
    struct answer *a =
        ask_all(fds, MANY, "SELECT count(*), count(DISTINCT rank), min(n), max(n) FROM mixed", 120000);
    assert_string_equal(a->err.text, "");
    assert_string_equal(a->rows, "601|601|-7|-7\n");
    a = ask_all(fds, MANY, "SELECT count(*), count(DISTINCT rank) FROM probing.sources", 120000);
    assert_string_equal(a->err.text, "");
    assert_string_equal(a->notes, "");
    assert_string_equal(a->rows, "601|601\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_widened_exactly),
        cmocka_unit_test(what_has_no_one_type_is_refused_and_both_are_named),
        cmocka_unit_test(rows_are_not_lost_by_another_time_column),
        cmocka_unit_test(every_pair_of_types_keeps_every_value),
        cmocka_unit_test(every_one_of_many_sources_is_read),
    };
    return cmocka_run_group_tests(tests, make_arenas, NULL);
}
