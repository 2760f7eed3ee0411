/* Values come out of a query as they went in: every type, NULL, NaN and infinities, times before 1970, what
 * is no UTF-8; what DuckDB computes comes out exact. */
#include "engine_test.h"

#include <limits.h>
#include <math.h>

static struct pb_arena *arena;
static int arena_fd;

enum { AT, I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, FLAG, NAME, DATA, COLUMNS };

static const struct pb_column columns[COLUMNS] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
    {"i8", PB_I8, 0, NULL, NULL},
    {"i16", PB_I16, 0, NULL, NULL},
    {"i32", PB_I32, 0, NULL, NULL},
    {"i64", PB_I64, 0, NULL, NULL},
    {"u8", PB_U8, 0, NULL, NULL},
    {"u16", PB_U16, 0, NULL, NULL},
    {"u32", PB_U32, 0, NULL, NULL},
    {"u64", PB_U64, 0, NULL, NULL},
    {"f32", PB_F32, 0, NULL, NULL},
    {"f64", PB_F64, 0, NULL, NULL},
    {"flag", PB_BOOL, 0, NULL, NULL},
    {"name", PB_STRING, 0, NULL, NULL},
    {"data", PB_BYTES, 0, NULL, NULL},
};

/* CLOCK_MONOTONIC of a time in UTC. */
static int64_t mono_of(int64_t utc)
{
    struct timespec mono, real;
    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME, &real);
    return utc - ((real.tv_sec - mono.tv_sec) * SECOND + real.tv_nsec - mono.tv_nsec);
}

static int fill(void **state)
{
    const struct pb_table_spec spec = {.name = "python.types", .columns = columns, .ncolumns = COLUMNS};
    struct pb_table *t;
    struct pb_row row;

    if (use_own_worker(state) < 0 || pb_arena_create(PB_ARENA_MEMFD, "t", NULL, &arena) < 0 ||
        pb_table_new(arena, &spec, &t) < 0)
        return -1;
    arena_fd = pb_arena_fd(arena);
    /* The least of everything, the most of everything, and nothing. */
    pb_row_begin(t, &row);
    pb_set_timestamp(&row, AT, mono_of(-SECOND * 86400 * 365));
    pb_set_i8(&row, I8, INT8_MIN);
    pb_set_i16(&row, I16, INT16_MIN);
    pb_set_i32(&row, I32, INT32_MIN);
    pb_set_i64(&row, I64, INT64_MIN);
    pb_set_f32(&row, F32, -INFINITY);
    pb_set_f64(&row, F64, NAN);
    pb_set_bool(&row, FLAG, false);
    pb_set_string(&row, NAME, "", 0);
    pb_set_bytes(&row, DATA, "\0\xff'a", 4);
    pb_row_commit(&row);
    pb_row_begin(t, &row);
    pb_set_i8(&row, I8, INT8_MAX);
    pb_set_i16(&row, I16, INT16_MAX);
    pb_set_i32(&row, I32, INT32_MAX);
    pb_set_i64(&row, I64, INT64_MAX);
    pb_set_u8(&row, U8, UINT8_MAX);
    pb_set_u16(&row, U16, UINT16_MAX);
    pb_set_u32(&row, U32, UINT32_MAX);
    pb_set_u64(&row, U64, UINT64_MAX);
    pb_set_f32(&row, F32, 0.1f);
    pb_set_f64(&row, F64, 0.1);
    pb_set_bool(&row, FLAG, true);
    pb_set_string(&row, NAME, "\xc3\xa9t\xc3\xa9", 5);
    pb_row_commit(&row);
    pb_row_begin(t, &row);
    return pb_row_commit(&row);
}

static void integers_are_exact_and_nulls_are_null(void **state)
{
    expect(arena_fd, "SELECT i8, i16, i32, i64, u8, u16, u32, u64 FROM python.types",
           "-128|-32768|-2147483648|-9223372036854775808|NULL|NULL|NULL|NULL\n"
           "127|32767|2147483647|9223372036854775807|255|65535|4294967295|18446744073709551615\n"
           "NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL\n");
    assert_string_equal(
        ask(arena_fd, "SELECT i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, flag, data, timestamp FROM "
                      "python.types LIMIT 0")
            ->types,
        "TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE BOOLEAN BLOB "
        "TIMESTAMP ");
}

static void floats_truths_texts_and_bytes_come_out_as_they_are(void **state)
{
    expect(
        arena_fd, "SELECT f32, f64, flag, name, data FROM python.types",
        "-inf|nan|false||\\x00\\xFF\\x27a\n0.1|0.1|true|\xc3\xa9t\xc3\xa9|NULL\nNULL|NULL|NULL|NULL|NULL\n");
    expect(arena_fd, "SELECT isnan(f64), f64 = 0.1::DOUBLE, f32 = '-inf'::FLOAT FROM python.types LIMIT 2",
           "true|false|true\nfalse|true|false\n");
}

static void a_time_before_1970_is_itself(void **state)
{
    struct answer *a = ask(arena_fd, "SELECT timestamp FROM python.types ORDER BY timestamp LIMIT 1");
    /* The clocks are read a moment apart. */
    assert_true(strncmp(a->rows, "1969-01-01 00:00:00", 19) == 0 ||
                strncmp(a->rows, "1968-12-31 23:59:59.99", 22) == 0);
    expect(arena_fd, "SELECT year(timestamp - interval '1 day') FROM python.types ORDER BY timestamp LIMIT 1",
           "1968\n");
}

static void strings_order_and_compare_as_strings(void **state)
{
    const char *const names[] = {"pear", "apple", "Zebra", "fig", "app", "apple"};
    const struct pb_column one[] = {{"name", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "fruits", .columns = one, .ncolumns = 1};
    struct pb_table *t;
    struct pb_row row;

    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    for (size_t i = 0; i < 6; i++) {
        pb_row_begin(t, &row);
        pb_set_string(&row, 0, names[i], strlen(names[i]));
        pb_row_commit(&row);
    }
    expect(arena_fd, "SELECT name, count(*) FROM fruits GROUP BY name ORDER BY name",
           "Zebra|1\napp|1\napple|2\nfig|1\npear|1\n");
    expect(arena_fd, "SELECT min(name), max(name) FROM fruits WHERE name > 'a' AND name <> 'nowhere'",
           "app|pear\n");
    expect(arena_fd, "SELECT count(*) FROM fruits WHERE name = 'nowhere' OR name LIKE 'a%'", "3\n");
    expect(arena_fd, "SELECT upper(name) || '!' FROM fruits LIMIT 1", "PEAR!\n");
    assert_non_null(strstr(ask(arena_fd, "DESCRIBE fruits")->rows, "name|VARCHAR"));
}

static void bytes_that_are_no_text_do_no_harm(void **state)
{
    const struct pb_column one[] = {{"name", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "dirty", .columns = one, .ncolumns = 1};
    struct pb_table *t;
    struct pb_row row;

    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    pb_row_begin(t, &row);
    pb_set_string(&row, 0, "a\xff\xfe", 3);
    pb_row_commit(&row);
    pb_row_begin(t, &row);
    pb_set_string(&row, 0, "b\0c", 3);
    pb_row_commit(&row);
    struct answer *a = ask(arena_fd, "SELECT name, length(name) FROM dirty");
    assert_int_equal(a->r, 0);
    assert_true(strncmp(a->rows, "a\\xff\\xfe|9\n", 12) == 0);
    expect(arena_fd, "SELECT count(*) FROM dirty WHERE name = 'b' || chr(0) || 'c'", "1\n");
}

static void what_duckdb_computes_is_exact(void **state)
{
    expect(-1,
           "SELECT 170141183460469231731687303715884105727::HUGEINT, "
           "(-170141183460469231731687303715884105728)::HUGEINT",
           "170141183460469231731687303715884105727|-170141183460469231731687303715884105728\n");
    expect(-1,
           "SELECT 340282366920938463463374607431768211455::UHUGEINT, 1.5::DECIMAL(4,2), "
           "(-0.05)::DECIMAL(4,2), 0::DECIMAL(38,10)",
           "340282366920938463463374607431768211455|1.50|-0.05|0.0000000000\n");
    expect(-1,
           "SELECT 1e300, 0.1 + 0.2::DOUBLE, 5e-324, 123456789.123456789::DOUBLE, 1::DOUBLE, 16777217::FLOAT",
           "1e+300|0.30000000000000004|4.94065645841247e-324|123456789.12345679|1.0|16777216.0\n");
    expect(
        -1,
        "SELECT DATE '2024-02-29', DATE '0001-01-01', DATE '-0004-03-01', TIME '23:59:59.5', DATE 'infinity'",
        "2024-02-29|0001-01-01|0005-03-01 (BC)|23:59:59.5|infinity\n");
    expect(-1,
           "SELECT TIMESTAMP '1969-12-31 23:59:59.999999', TIMESTAMP_NS '2024-01-01 00:00:00.123456789', "
           "TIMESTAMPTZ '2024-01-01 00:00:00+02', TIMESTAMP '-infinity'",
           "1969-12-31 23:59:59.999999|2024-01-01 00:00:00.123456789|2023-12-31 22:00:00+00|-infinity\n");
    expect(-1, "SELECT INTERVAL '1 year 2 months 3 days 4 hours', INTERVAL '-5 seconds', INTERVAL '0 days'",
           "1 year 2 months 3 days 04:00:00|-00:00:05|00:00:00\n");
    expect(-1, "SELECT '12345678-9abc-def0-1234-56789abcdef0'::UUID",
           "12345678-9abc-def0-1234-56789abcdef0\n");
}

static void nested_values_are_json(void **state)
{
    expect(-1,
           "SELECT [1, NULL, 3], {'a': 'x\"y', 'b': [true]}, MAP {'k': 1.5}, MAP {1: 'v'}, []::INTEGER[], "
           "[1, 2]::INTEGER[2]",
           "[1, null, 3]|{\"a\": \"x\\\"y\", \"b\": [true]}|{\"k\": 1.5}|[[1, \"v\"]]|[]|[1, 2]\n");
    expect(-1,
           "SELECT union_value(n := 5), NULL::INTEGER[], {'a': NULL::DOUBLE, 'b': 'nan'::DOUBLE}, list({'d': "
           "DATE '2024-01-01'})",
           "5|NULL|{\"a\": null, \"b\": \"nan\"}|[{\"d\": \"2024-01-01\"}]\n");
    assert_string_equal(ask(-1, "SELECT [{'a b': 1}]")->types, "STRUCT(\"a b\" INTEGER)[] ");
}

static void several_sources_are_one_table_with_ranks(void **state)
{
    struct pb_arena *other;
    struct pb_table *t;
    struct pb_row row;
    const struct pb_column more[] = {{"extra", PB_I64, 0, NULL, NULL}, {"name", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "fruits", .columns = more, .ncolumns = 2};

    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "t", NULL, &other), 0);
    assert_int_equal(pb_table_new(other, &spec, &t), 0);
    pb_row_begin(t, &row);
    pb_set_i64(&row, 0, 7);
    pb_set_string(&row, 1, "kiwi", 4);
    pb_row_commit(&row);
    const int fds[] = {arena_fd, pb_arena_fd(other)};
    struct answer *a = ask_all(
        fds, 2, "SELECT rank, name, extra FROM fruits WHERE name IN ('fig', 'kiwi') ORDER BY rank", 10000);
    assert_int_equal(a->r, 0);
    assert_string_equal(a->rows, "0|fig|NULL\n1|kiwi|7\n");
    a = ask_all(fds, 2, "SELECT rank, count(*) FROM system.process GROUP BY rank ORDER BY rank", 10000);
    assert_string_equal(a->rows, "0|1\n1|1\n");
    pb_arena_close(other);
}

static void a_table_that_appears_is_seen_by_the_next_query(void **state)
{
    const struct pb_column one[] = {{"v", PB_I64, 0, NULL, NULL}}, two = {"w", PB_I64, 0, NULL, NULL};
    const struct pb_table_spec spec = {.name = "newcomer", .columns = one, .ncolumns = 1};
    struct pb_table *t;

    assert_int_equal(ask(arena_fd, "SELECT * FROM newcomer")->r, -ENOENT);
    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    expect(arena_fd, "SELECT count(*), count(v) FROM newcomer", "0|0\n");
    assert_true(pb_table_grow(t, &two) >= 0);
    expect(arena_fd, "SELECT count(w) FROM newcomer", "0\n");
    /* And one of another process is not. */
    assert_int_equal(ask(-1, "SELECT * FROM newcomer")->r, -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_exact_and_nulls_are_null),
        cmocka_unit_test(floats_truths_texts_and_bytes_come_out_as_they_are),
        cmocka_unit_test(a_time_before_1970_is_itself),
        cmocka_unit_test(strings_order_and_compare_as_strings),
        cmocka_unit_test(bytes_that_are_no_text_do_no_harm),
        cmocka_unit_test(what_duckdb_computes_is_exact),
        cmocka_unit_test(nested_values_are_json),
        cmocka_unit_test(several_sources_are_one_table_with_ranks),
        cmocka_unit_test(a_table_that_appears_is_seen_by_the_next_query),
    };
    return cmocka_run_group_tests(tests, fill, remove_own_directory);
}
