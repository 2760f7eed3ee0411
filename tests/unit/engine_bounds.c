/* Segments that a time range excludes are not read, and those that it might not are. Rows are written in
 * batches, with seconds between the early and the late ones; each test counts the segments read. */
#include "engine_test.h"

enum { BATCHES = 8, EARLY = 6, PER_BATCH = 2000, LATE_AFTER_S = 3 * TEST_SLOWNESS };

static int arena_fd;
static uint64_t all_segments;
static int64_t cut; /* UTC ns between the early batches and the late ones */

static int64_t utc_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static int append(struct pb_table *table, int n)
{
    struct pb_row row;

    for (int i = 0; i < n; i++) {
        if (pb_row_begin(table, &row) < 0)
            return -1;
        pb_set_i64(&row, 1, i);
        pb_set_timestamp(&row, 2, mono_now());
        pb_row_commit(&row);
    }
    return 0;
}

static int fill(void **state)
{
    const struct pb_arena_options options = {.bound = 64 << 20, .segment_size = 4096};
    const struct pb_column columns[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
                                        {"n", PB_I64, 0, NULL, NULL},
                                        {"late", PB_TIMESTAMP, 0, NULL, NULL}};
    const char *const names[] = {"events", "others"};
    struct pb_table *tables[2];
    struct pb_arena *arena;

    if (use_own_worker(state) < 0 || pb_arena_create(PB_ARENA_MEMFD, "t", &options, &arena) < 0)
        return -1;
    for (int t = 0; t < 2; t++) {
        const struct pb_table_spec spec = {.name = names[t], .columns = columns, .ncolumns = 3};
        if (pb_table_new(arena, &spec, &tables[t]) < 0)
            return -1;
    }
    arena_fd = pb_arena_fd(arena);
    /* A worker that is warm, so that the first test comes soon after the last batch. */
    ask(arena_fd, "SELECT 1");
    for (int i = 0; i < BATCHES; i++) {
        if (append(tables[0], PER_BATCH) < 0 || append(tables[1], PER_BATCH) < 0)
            return -1;
        if (i + 1 == EARLY) {
            usleep(500000);
            cut = utc_now();
            usleep(LATE_AFTER_S * 1000000);
        }
        usleep(20000);
    }
    all_segments = ask(arena_fd, "SELECT count(*) FROM events")->stats.segments_read;
    return 0;
}

/* $CUT is the time between early and late, $AGO the same as now() less so much: later by what passes until
 * the statement runs, for which there are LATE_AFTER_S seconds. */
static const char *with_times(const char *sql, char *ret, size_t size)
{
    ret[0] = '\0';
    while (*sql) {
        char text[96];
        time_t s = (time_t)(cut / SECOND);
        struct tm tm;
        if (strncmp(sql, "$CUT", 4) == 0) {
            size_t n = strftime(text, sizeof(text), "TIMESTAMP '%Y-%m-%d %H:%M:%S", gmtime_r(&s, &tm));
            snprintf(text + n, sizeof(text) - n, ".%06d'", (int)(cut / 1000 % 1000000));
        } else if (strncmp(sql, "$AGO", 4) == 0) {
            snprintf(text, sizeof(text), "now() - interval '%lld microseconds'",
                     (long long)(utc_now() - cut) / 1000);
        } else {
            add_text(ret, size, sql++, 1);
            continue;
        }
        add_text(ret, size, text, strlen(text));
        sql += 4;
    }
    return ret;
}

static struct answer *run(const char *sql)
{
    char text[2048];
    struct answer *a = ask(arena_fd, with_times(sql, text, sizeof(text)));
    if (a->r < 0)
        print_error("%s: %s\n", text, a->err.text);
    assert_int_equal(a->r, 0);
    assert_true(a->n > 0);
    return a;
}

/* Reads a part of the table, and finds what a whole scan finds. */
static void skips(const char *condition)
{
    char sql[1024], whole[1024], expected[256];

    /* A condition on a subquery is no bound of the table in it. */
    snprintf(whole, sizeof(whole),
             "SELECT count(*), min(n), max(n) FROM (SELECT * FROM events) events WHERE %s", condition);
    struct answer *a = run(whole);
    assert_int_equal(a->stats.segments_read, all_segments);
    snprintf(expected, sizeof(expected), "%s", a->rows);
    snprintf(sql, sizeof(sql), "SELECT count(*), min(n), max(n) FROM events WHERE %s", condition);
    a = run(sql);
    if (a->stats.segments_read >= all_segments * 7 / 8 || strncmp(a->rows, "0|", 2) == 0)
        print_error("%s: %u of %u segments, %s\n", condition, (unsigned)a->stats.segments_read,
                    (unsigned)all_segments, a->rows);
    assert_string_equal(a->rows, expected);
    assert_int_not_equal(strncmp(a->rows, "0|", 2), 0);
    assert_true(a->stats.segments_read < all_segments * 7 / 8);
    assert_int_equal(a->stats.segments_read + a->stats.segments_skipped, all_segments);
}

static void reads_all(const char *sql)
{
    assert_int_equal(run(sql)->stats.segments_read, all_segments);
}

static void has_many_segments(void **state)
{
    assert_true(all_segments > 100);
}

static void skips_by_a_number_of_seconds(void **state)
{
    struct answer *a = run("SELECT count(*) FROM events WHERE timestamp > now() - 3");
    assert_int_equal(atoi(a->rows), (BATCHES - EARLY) * PER_BATCH);
    assert_true(a->stats.segments_read < all_segments / 2);
}

static void skips_what_a_comparison_excludes(void **state)
{
    skips("timestamp > $CUT");
    skips("timestamp >= $AGO");
    skips("$AGO < timestamp");
    skips("timestamp < $CUT");
    skips("events.timestamp > $CUT AND n % 2 = 0");
    skips("TIMESTAMP > $CUT - to_milliseconds(1)");
    skips("timestamp > $CUT - INTERVAL 1 MILLISECOND");
    skips("timestamp > ($CUT)::VARCHAR::TIMESTAMP");
    skips("timestamp BETWEEN $CUT AND now()");
    skips("timestamp > $CUT OR timestamp BETWEEN $AGO AND now()");
    skips("timestamp > $CUT OR (timestamp > $CUT AND n > 5)");
    skips("timestamp > current_timestamp - interval '1 hour' AND timestamp > $CUT");
    skips("timestamp BETWEEN now() - 3600 AND $CUT");
    skips("NOT timestamp > $CUT");
}

static void skips_in_ctes_joins_and_subqueries(void **state)
{
    static const char recent[] =
        "WITH recent AS (SELECT * FROM events WHERE timestamp > $CUT) SELECT count(*) FROM recent";
    static const char joined[] = "SELECT count(*) FROM events a JOIN events b USING (n) WHERE a.timestamp > "
                                 "$CUT AND b.timestamp > $CUT";
    static const char inside[] = "SELECT (SELECT max(n) FROM events WHERE timestamp > $CUT)";
    static const char both[] =
        "SELECT n FROM events WHERE timestamp > $CUT UNION ALL SELECT n FROM events WHERE timestamp > $AGO";
    static const char outer[] =
        "SELECT count(*) FROM events a LEFT JOIN events b USING (n) WHERE a.timestamp > $CUT "
        "AND b.timestamp > $CUT";
    static const char twice[] =
        "WITH r AS (SELECT * FROM events WHERE timestamp > $CUT OR timestamp > now() - 1) "
        "SELECT count(*) FROM r a JOIN r b USING (n)";
    const char *const queries[] = {recent, joined, inside, both, outer, twice};
    for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]); i++)
        assert_true(run(queries[i])->stats.segments_read < all_segments / 2);
}

static void a_bound_of_one_side_of_a_join_is_not_the_others(void **state)
{
    reads_all("SELECT count(*) FROM events a JOIN events b USING (n) WHERE a.timestamp > $CUT");
    struct answer *a =
        run("SELECT count(*) FROM events JOIN others o ON events.n = o.n WHERE o.timestamp > $CUT");
    assert_true(a->stats.segments_read >= all_segments && a->stats.segments_read < all_segments * 3 / 2);
}

static void bounds_that_must_not_be_used_are_not(void **state)
{
    reads_all("SELECT count(*) FROM events WHERE timestamp > $CUT OR n = 1");
    reads_all("SELECT count(*) FROM events WHERE (timestamp > $CUT) IS NOT TRUE");
    reads_all("SELECT count(*) FROM events WHERE timestamp <> $CUT");
    reads_all("SELECT count(*) FROM events WHERE late > $CUT");
    reads_all("SELECT count(*) FROM events e(a, b, timestamp) WHERE timestamp > $CUT");
    reads_all("SELECT count(*) FROM events WHERE timestamp > (SELECT $CUT)");
    reads_all("SELECT count(*) FROM events WHERE timestamp > $CUT - to_microseconds(n)");
    reads_all("SELECT count(*) FILTER (WHERE timestamp > $CUT) FROM events");
    reads_all("SELECT max(timestamp) FROM events HAVING max(timestamp) > $CUT");
    reads_all("SELECT count(*) FROM events WHERE timestamp + interval '1 day' > $CUT");
    reads_all("SELECT count(*) FROM (SELECT $CUT AS timestamp) x, events e WHERE x.timestamp <= $CUT");
    reads_all("SELECT count(*) FROM events a ASOF JOIN events b ON a.timestamp >= b.timestamp WHERE "
              "b.timestamp > $CUT");
    reads_all("SELECT before FROM (SELECT *, lag(n) OVER (ORDER BY timestamp) AS before FROM events) WHERE "
              "timestamp > $CUT LIMIT 1");
    reads_all("SELECT count(*) FROM query_table('events') WHERE timestamp > $CUT");
    reads_all("SELECT count(*) FROM events WHERE NOT (timestamp > $CUT AND n > 5)");
    reads_all("SELECT count(*) FROM events WHERE timestamp NOT BETWEEN $CUT AND now()");
    reads_all("SELECT count(*) FROM events a LEFT JOIN events b ON a.n = b.n AND b.timestamp > $CUT");
    reads_all("SELECT count(*) FROM (SELECT * FROM events) events WHERE events.timestamp > $CUT");
    reads_all("SELECT n, max(timestamp) t FROM events GROUP BY n HAVING max(timestamp) > $CUT LIMIT 1");
    reads_all("SELECT count(*) FROM events a SEMI JOIN events b ON a.n = b.n WHERE a.timestamp > $CUT");
    /* What gets smaller while the statement waits for its turn. */
    reads_all("SELECT count(*) FROM events WHERE timestamp > $CUT - (now() - $CUT)");
}

static void says_from_when_on_there_is_data(void **state)
{
    assert_non_null(
        strstr(run("SELECT count(*) FROM events WHERE timestamp > now() - interval '2 hours'")->notes,
               "holds rows from"));
    assert_string_equal(run("SELECT count(*) FROM events WHERE timestamp > $CUT")->notes, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_many_segments),
        cmocka_unit_test(skips_by_a_number_of_seconds),
        cmocka_unit_test(skips_what_a_comparison_excludes),
        cmocka_unit_test(skips_in_ctes_joins_and_subqueries),
        cmocka_unit_test(a_bound_of_one_side_of_a_join_is_not_the_others),
        cmocka_unit_test(bounds_that_must_not_be_used_are_not),
        cmocka_unit_test(says_from_when_on_there_is_data),
    };
    return cmocka_run_group_tests(tests, fill, remove_own_directory);
}
