/* Rows leave the worker while the query runs, in their types; what a caller does or does not do is no matter
 * of the worker's. */
#include "engine_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

enum { TYPES = 26, SLOW_US = 2000 };

static struct pb_arena *arena;
static struct pb_table *table;
static atomic_bool stop;

/* More segments than are copied at once, recycled many times a second. */
static int make_arena(void **state)
{
    return make_stream_arena(state, 8 << 20, &arena, &table);
}

static int open_query(const char *sql, int fd, unsigned timeout_ms, int cancel_fd, struct pb_sql **ret,
                      struct pb_err *err)
{
    static struct pb_sql_source source;

    source = (struct pb_sql_source){.live = {.pid = getpid(), .arena_fd = fd}, .rank = -1};
    const struct pb_sql_query q = {.sql = sql,
                                   .length = strlen(sql),
                                   .sources = &source,
                                   .nsources = 1,
                                   .timeout_ms = timeout_ms,
                                   .cancel = {.fd = cancel_fd}};
    return pb_sql_open(&q, ret, err);
}

/* The next batch of a query. */
static int next_batch(struct pb_sql *s, struct pb_sql_event *ret, struct pb_err *err)
{
    int r;

    do
        r = pb_sql_next(s, ret, err);
    while (r > 0 && ret->kind != PB_SQL_EVENT_BATCH);
    return r;
}

static void every_type_comes_as_itself(void **state)
{
    static const char sql[] =
        "SELECT true, 1::TINYINT, 2::SMALLINT, 3::INTEGER, -4::BIGINT, 5::UTINYINT, 6::USMALLINT, "
        "7::UINTEGER, "
        "18446744073709551615::UBIGINT, -5::HUGEINT, 340282366920938463463374607431768211455::UHUGEINT, "
        "12.345::DECIMAL(9,3), 99999999999999999999999999999999999.999::DECIMAL(38,3), 0.5::FLOAT, "
        "0.25::DOUBLE, "
        "DATE '1970-01-03', TIME '00:00:01', TIMESTAMP '1970-01-01 00:00:02', "
        "TIMESTAMPTZ '1970-01-01 00:00:03+00', '1970-01-01 00:00:04'::TIMESTAMP_NS, INTERVAL '14 months 3 "
        "days', "
        "'text', '\\x00\\xFF'::BLOB, [1, NULL], {'a': 'b'}, NULL::VARCHAR UNION ALL SELECT NULL, NULL, NULL, "
        "NULL, "
        "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
        "NULL, "
        "NULL, NULL, NULL, NULL, NULL";
    static const enum pb_cell_type types[TYPES] = {
        PB_CELL_BOOL,     PB_CELL_I8,      PB_CELL_I16,       PB_CELL_I32,          PB_CELL_I64,
        PB_CELL_U8,       PB_CELL_U16,     PB_CELL_U32,       PB_CELL_U64,          PB_CELL_I128,
        PB_CELL_U128,     PB_CELL_DECIMAL, PB_CELL_DECIMAL,   PB_CELL_F32,          PB_CELL_F64,
        PB_CELL_DATE,     PB_CELL_TIME,    PB_CELL_TIMESTAMP, PB_CELL_TIMESTAMP_TZ, PB_CELL_TIMESTAMP_NS,
        PB_CELL_INTERVAL, PB_CELL_TEXT,    PB_CELL_BLOB,      PB_CELL_JSON,         PB_CELL_JSON,
        PB_CELL_TEXT};
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    struct pb_sql *s;
    uint32_t length;

    assert_int_equal(open_query(sql, -1, 20000 * TEST_SLOWNESS, 0, &s, &err), 0);
    assert_int_equal(next_batch(s, &e, &err), 1);
    assert_int_equal(e.n, TYPES);
    for (unsigned i = 0; i < TYPES; i++) {
        assert_int_equal(e.columns[i].cells, types[i]);
        assert_int_equal(pb_cells_have(&e.batch.columns[i], 0), i + 1 < TYPES);
    }
#define CELL(type, i) (((const type *)e.batch.columns[i].values)[0])
    assert_true(CELL(uint8_t, 0) == 1 && CELL(int8_t, 1) == 1 && CELL(int16_t, 2) == 2);
    assert_true(CELL(int32_t, 3) == 3 && CELL(int64_t, 4) == -4 && CELL(uint8_t, 5) == 5);
    assert_true(CELL(uint16_t, 6) == 6 && CELL(uint32_t, 7) == 7 && CELL(uint64_t, 8) == UINT64_MAX);
    assert_true(CELL(int64_t, 9) == -5 && ((const int64_t *)e.batch.columns[9].values)[1] == -1);
    assert_true(CELL(int64_t, 11) == 12345 && e.columns[11].scale == 3);
    assert_true(CELL(float, 13) == 0.5f && CELL(double, 14) == 0.25);
    assert_true(CELL(int32_t, 15) == 2 && CELL(int64_t, 16) == 1000000 && CELL(int64_t, 17) == 2000000);
    assert_true(CELL(int64_t, 18) == 3000000 && CELL(int64_t, 19) == 4000000000);
    assert_true(CELL(struct pb_cell_interval, 20).months == 14 &&
                CELL(struct pb_cell_interval, 20).days == 3);
    assert_memory_equal(pb_cells_bytes(&e.batch.columns[21], 0, &length), "text", 4);
    assert_int_equal(length, 4);
    assert_memory_equal(pb_cells_bytes(&e.batch.columns[22], 0, &length), "\0\xff", 2);
    assert_int_equal(length, 2);
    assert_memory_equal(pb_cells_bytes(&e.batch.columns[23], 0, &length), "[1, null]", 9);
    assert_string_equal(e.columns[24].type, "STRUCT(\"a\" VARCHAR)");
    /* The row of NULLs, in this batch or the next. */
    uint32_t row = e.batch.nrows - 1;
    if (row == 0) {
        assert_int_equal(next_batch(s, &e, &err), 1);
        row = e.batch.nrows - 1;
    }
    for (unsigned i = 0; i < TYPES; i++)
        assert_false(pb_cells_have(&e.batch.columns[i], row));
    assert_int_equal(next_batch(s, &e, &err), 0);
    pb_sql_close(s);
    expect(-1,
           "SELECT 99999999999999999999999999999999999.999::DECIMAL(38,3), 12.345::DECIMAL(9,3), -5::HUGEINT",
           "99999999999999999999999999999999999.999|12.345|-5\n");
}

static void long_texts_go_in_several_batches_and_stay_whole(void **state)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    uint64_t rows = 0, batches = 0;
    struct pb_sql *s;
    uint32_t length;
    int r;

    /* 200 MB: more than one message may be. */
    assert_int_equal(
        open_query("SELECT range, CASE WHEN range % 3 = 0 THEN NULL ELSE repeat('x', 100000 + range) "
                   "END FROM range(2000)",
                   -1, 60000 * TEST_SLOWNESS, 0, &s, &err),
        0);
    for (; (r = next_batch(s, &e, &err)) > 0; batches++)
        for (uint32_t i = 0; i < e.batch.nrows; i++, rows++) {
            assert_int_equal(((const int64_t *)e.batch.columns[0].values)[i], rows);
            assert_int_equal(pb_cells_have(&e.batch.columns[1], i), rows % 3 != 0);
            const char *text = pb_cells_bytes(&e.batch.columns[1], i, &length);
            assert_int_equal(length, rows % 3 ? 100000 + rows : 0);
            assert_true(length == 0 || (text[0] == 'x' && text[length - 1] == 'x'));
        }
    assert_int_equal(r, 0);
    assert_int_equal(rows, 2000);
    assert_true(batches >= 2000 * 100000ull / PB_SQL_MAX_MESSAGE);
    pb_sql_close(s);
    assert_int_equal(open_query("SELECT repeat('x', 70000000)", -1, 20000 * TEST_SLOWNESS, 0, &s, &err), 0);
    assert_true(next_batch(s, &e, &err) < 0);
    assert_non_null(strstr(err.text, "a row is larger than 64 MB"));
    pb_sql_close(s);
}

static void first_rows_are_there_long_before_the_last(void **state)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    struct pb_sql *s;

    assert_int_equal(
        open_query("SELECT range FROM range(1000000000000)", -1, 20000 * TEST_SLOWNESS, 0, &s, &err), 0);
    assert_int_equal(next_batch(s, &e, &err), 1);
    assert_int_equal(*(const int64_t *)e.batch.columns[0].values, 0);
    pb_sql_close(s);
    expect(-1, "SELECT 1", "1\n");
}

static void *write_on(void *arg)
{
    for (int64_t n = 0; !stop; n++) {
        struct pb_row row;
        while (pb_row_begin(table, &row) < 0)
            ;
        pb_set_i64(&row, 1, n);
        pb_set_i64(&row, 2, n * 31 + 7);
        pb_set_string(&row, 3, n % 2 ? "odd" : "even", n % 2 ? 3 : 4);
        pb_row_commit(&row);
    }
    return NULL;
}

/* Every row after the other, from some row on, whole: pulled so slowly that the table is overwritten many
 * times meanwhile. */
static uint64_t take_suffix(const char *sql)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    struct pb_sql *s;
    int64_t before = -1;
    uint64_t rows = 0;
    int r;

    assert_int_equal(open_query(sql, pb_arena_fd(arena), 60000 * TEST_SLOWNESS, 0, &s, &err), 0);
    while ((r = next_batch(s, &e, &err)) > 0) {
        const int64_t *n = e.batch.columns[0].values, *proof = e.batch.columns[1].values;
        for (uint32_t i = 0; i < e.batch.nrows; i++, rows++) {
            assert_true(before < 0 || n[i] == before + 1);
            assert_true(proof[i] == n[i] * 31 + 7);
            before = n[i];
        }
        usleep(SLOW_US);
    }
    if (r < 0)
        print_error("%s: %s\n", sql, err.text);
    assert_int_equal(r, 0);
    pb_sql_close(s);
    return rows;
}

/* A writer that gets more of the CPU than the reader leaves it few rows: then once more. */
static void take_long_suffix(const char *sql)
{
    for (int i = 0; i < 20; i++)
        if (take_suffix(sql) * 16 > 1 << 20) /* more than is held back */
            return;
    fail_msg("%s: only short suffixes", sql);
}

static void a_slow_reader_under_a_writer_sees_a_suffix_all_the_same(void **state)
{
    pthread_t writer;

    stop = false;
    assert_int_equal(pthread_create(&writer, NULL, write_on, NULL), 0);
    usleep(500000);
    take_long_suffix("SELECT n, proof FROM stream");
    /* Two scans, of which the second asks for columns when rows of the first are long gone. */
    take_long_suffix("SELECT #2, #3 FROM stream");
    take_long_suffix("SELECT n, proof FROM (SELECT * FROM stream WHERE n % 2 = 1 OR name = 'even')");
    stop = true;
    pthread_join(writer, NULL);
}

static void one_snapshot_serves_both_branches_of_a_union(void **state)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    uint64_t rows[2] = {0};
    struct pb_sql *s;
    pthread_t writer;
    int r;

    stop = false;
    assert_int_equal(pthread_create(&writer, NULL, write_on, NULL), 0);
    usleep(300000);
    assert_int_equal(open_query("SELECT 0, n FROM stream UNION ALL SELECT 1, proof FROM stream",
                                pb_arena_fd(arena), 60000 * TEST_SLOWNESS, 0, &s, &err),
                     0);
    while ((r = next_batch(s, &e, &err)) > 0) {
        for (uint32_t i = 0; i < e.batch.nrows; i++)
            rows[((const int32_t *)e.batch.columns[0].values)[i]]++;
        usleep(SLOW_US);
    }
    stop = true;
    pthread_join(writer, NULL);
    assert_int_equal(r, 0);
    assert_true(rows[0] > 0 && rows[0] == rows[1]);
    pb_sql_close(s);
}

static void *raise_soon(void *arg)
{
    usleep(300000);
    eventfd_write(*(int *)arg, 1);
    return NULL;
}

static void another_thread_cancels_by_a_descriptor(void **state)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    struct pb_sql *s;
    pthread_t other;
    int fd = eventfd(0, EFD_CLOEXEC);

    assert_int_equal(pthread_create(&other, NULL, raise_soon, &fd), 0);
    assert_int_equal(open_query("SELECT count(*) FROM range(1000000000000)", -1, 0, fd, &s, &err), 0);
    int64_t began = mono_now();
    assert_int_equal(next_batch(s, &e, &err), -ECANCELED);
    assert_true(mono_now() - began < 5 * SECOND * TEST_SLOWNESS);
    pb_sql_close(s);
    pthread_join(other, NULL);
    close(fd);
    expect(-1, "SELECT 1", "1\n");
}

static void a_caller_that_pulls_too_slowly_is_told_so(void **state)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    struct pb_sql *s;
    int r;

    assert_int_equal(open_query("SELECT range FROM range(1000000000000)", -1, 500, 0, &s, &err), 0);
    assert_int_equal(next_batch(s, &e, &err), 1);
    usleep(1000000);
    while ((r = next_batch(s, &e, &err)) > 0)
        ;
    assert_int_equal(r, -ETIMEDOUT);
    assert_non_null(strstr(err.text, "not read fast enough"));
    pb_sql_close(s);
    expect(-1, "SELECT 1", "1\n");
}

static void a_failure_in_the_middle_comes_after_the_rows_before_it(void **state)
{
    struct pb_sql_event e = {0};
    struct pb_err err = {0};
    uint64_t rows = 0;
    struct pb_sql *s;
    int r;

    assert_int_equal(open_query("SELECT CASE WHEN range = 3000000 THEN error('boom') ELSE range::VARCHAR END "
                                "FROM range(4000000)",
                                -1, 60000 * TEST_SLOWNESS, 0, &s, &err),
                     0);
    while ((r = next_batch(s, &e, &err)) > 0)
        rows += e.batch.nrows;
    assert_true(r < 0 && rows > 1000000 && rows <= 3000000);
    assert_non_null(strstr(err.text, "boom"));
    /* It stays over. */
    assert_int_equal(pb_sql_next(s, &e, &err), 0);
    pb_sql_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_comes_as_itself),
        cmocka_unit_test(long_texts_go_in_several_batches_and_stay_whole),
        cmocka_unit_test(first_rows_are_there_long_before_the_last),
        cmocka_unit_test(a_slow_reader_under_a_writer_sees_a_suffix_all_the_same),
        cmocka_unit_test(one_snapshot_serves_both_branches_of_a_union),
        cmocka_unit_test(another_thread_cancels_by_a_descriptor),
        cmocka_unit_test(a_caller_that_pulls_too_slowly_is_told_so),
        cmocka_unit_test(a_failure_in_the_middle_comes_after_the_rows_before_it),
    };
    return cmocka_run_group_tests(tests, make_arena, remove_own_directory);
}
