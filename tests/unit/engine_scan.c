/* A large table is read as it is scanned, a small one or one that several statements read is copied first:
 * both ways give the same, whatever is in it. What a scan finds out too late makes the statement run again.
 */
#include "engine_test.h"
#include <fcntl.h>
#include <sys/stat.h>

enum { ROWS = 60000, NAMES = 300, GROWN_AT = 40000, LATE_ROWS = 100 };
enum { AT, N, NAME, KIND, DATA, TRUTH, LATE, QUOTED, COLUMNS, GROWN = COLUMNS };

static struct pb_arena *arena;
static struct pb_row_ref late_rows[LATE_ROWS];

static void put(struct pb_row *row, unsigned column, const char *text, int n)
{
    pb_set_string(row, column, text, (size_t)n);
}

static int append(struct pb_table *t, int i)
{
    struct pb_row row;
    char text[64];

    if (pb_row_begin(t, &row) < 0)
        return -1;
    pb_set_i64(&row, N, i);
    put(&row, NAME, text, snprintf(text, sizeof(text), "name-%d", i * 7919 % NAMES));
    if (i % 3)
        put(&row, KIND, i % 2 ? "odd" : "even", i % 2 ? 3 : 4);
    if (i % 5 == 0)
        pb_set_bytes(&row, DATA, &i, sizeof(i));
    if (i % 7)
        pb_set_bool(&row, TRUTH, i % 2);
    pb_set_i64(&row, QUOTED, -i);
    if (i >= GROWN_AT)
        put(&row, GROWN, "grown", 5);
    if (i < LATE_ROWS)
        late_rows[i] = pb_row_ref(&row);
    /* Rows that never were leave gaps among those that are. */
    if (i % 1000 == 999) {
        pb_row_abort(&row);
        return 0;
    }
    return pb_row_commit(&row);
}

static int fill(void **state)
{
    const struct pb_arena_options options = {.bound = 64 << 20, .segment_size = 1 << 16};
    const struct pb_column columns[COLUMNS] = {
        {"timestamp", PB_TIMESTAMP, 0, NULL, NULL}, {"n", PB_I64, 0, NULL, NULL},
        {"name", PB_STRING, 0, NULL, NULL},         {"kind", PB_STRING, 0, NULL, NULL},
        {"data", PB_BYTES, 0, NULL, NULL},          {"truth", PB_BOOL, 0, NULL, NULL},
        {"late", PB_I64, PB_COL_LATE, NULL, NULL},  {"a\"b", PB_I64, 0, NULL, NULL}};
    const struct pb_column grown = {"grown", PB_STRING, 0, NULL, NULL};
    const struct pb_table_spec spec = {.name = "big", .columns = columns, .ncolumns = COLUMNS};
    struct pb_table *t;

    if (use_own_worker(state) < 0 || pb_arena_create(PB_ARENA_MEMFD, "t", &options, &arena) < 0 ||
        pb_table_new(arena, &spec, &t) < 0)
        return -1;
    for (int i = 0; i < ROWS; i++) {
        if (i == GROWN_AT && pb_table_grow(t, &grown) != GROWN)
            return -1;
        if (append(t, i) < 0)
            return -1;
    }
    return 0;
}

/* What the statement gives when it stands alone is what it gives beside another, where tables are copied. */
static void same_both_ways(const char *sql)
{
    char both[1024], expected[sizeof(((struct answer *)0)->rows)];

    snprintf(both, sizeof(both), "SELECT 'first'; %s", sql);
    struct answer *a = ask(pb_arena_fd(arena), both);
    if (a->r < 0)
        print_error("%s: %s\n", sql, a->err.text);
    assert_int_equal(a->r, 0);
    assert_int_equal(strncmp(a->rows, "first\n", 6), 0);
    memcpy(expected, a->rows + 6, sizeof(expected) - 6);
    assert_true(strlen(expected) > 2);
    expect(pb_arena_fd(arena), sql, expected);
}

static void a_table_is_the_same_copied_or_read_in_place(void **state)
{
    assert_true(ask(pb_arena_fd(arena), "SELECT count(*) FROM big")->stats.segments_read > 40);
    same_both_ways("SELECT count(*), sum(n), min(timestamp), max(timestamp) FROM big");
    same_both_ways("SELECT name, count(*), sum(n) FROM big GROUP BY name ORDER BY name LIMIT 50");
    same_both_ways("SELECT kind, count(*), count(kind), min(name) FROM big GROUP BY kind ORDER BY kind");
    same_both_ways("SELECT count(data), min(data), max(octet_length(data)), sum(hash(data) % 1000) FROM big");
    same_both_ways("SELECT count(truth), count(*) FILTER (truth), sum(n) FILTER (NOT truth) FROM big");
    same_both_ways("SELECT grown, count(*), min(n) FROM big GROUP BY grown ORDER BY grown");
    same_both_ways("SELECT count(*) FROM big WHERE name = 'name-6' AND kind IS NULL");
    same_both_ways("SELECT sum(hash(name::VARCHAR, kind::VARCHAR, grown::VARCHAR, truth, n, \"a\"\"b\") % "
                   "100003) FROM big");
    same_both_ways("SELECT count(*) FROM big a JOIN big b USING (n) WHERE a.name = b.name");
}

static void rows_come_as_they_were_written(void **state)
{
    expect(pb_arena_fd(arena), "SELECT n FROM big LIMIT 3", "0\n1\n2\n");
    expect(pb_arena_fd(arena), "TABLE big LIMIT 0", "");
    /* An aggregate in a subquery does not make the order of all rows irrelevant. */
    struct answer *a = ask(pb_arena_fd(arena), "SELECT n FROM big WHERE n % 97 = (SELECT min(n) FROM big)");
    long before = -1, rows = 0;
    for (char *p = a->rows; *p; rows++) {
        long n = strtol(p, &p, 10);
        assert_true(n > before);
        before = n;
        p++;
    }
    assert_true(rows > 500);
}

static void columns_that_the_text_does_not_name_are_read_too(void **state)
{
    expect(pb_arena_fd(arena), "SELECT #2 FROM big LIMIT 2", "0\n1\n");
    expect(pb_arena_fd(arena), "SELECT sum(\"a\"\"b\") < 0, max(\"a\"\"b\") FROM big", "true|0\n");
    expect(pb_arena_fd(arena), "SELECT b.n FROM (SELECT row FROM big row LIMIT 2) x(b)", "0\n1\n");
    expect(pb_arena_fd(arena), "SELECT max(b['n']) FROM (SELECT row FROM big row) x(b)", "59998\n");
}

static void late_cells_are_the_same_in_all_scans_of_a_query(void **state)
{
    for (int i = 0; i < LATE_ROWS; i++)
        assert_int_equal(pb_fill_i64(arena, late_rows[i], LATE, i), 0);
    struct answer *a =
        ask(pb_arena_fd(arena), "SELECT (SELECT count(late) FROM big), (SELECT sum(late) FROM big "
                                "WHERE n >= 0)");
    assert_string_equal(a->rows, "100|4950\n");
    /* The second scan was told to read a copy. */
    assert_int_equal(a->stats.reruns, 1);
    a = ask(pb_arena_fd(arena), "SELECT sum(late) FROM big");
    assert_string_equal(a->rows, "4950\n");
    assert_int_equal(a->stats.reruns, 0);
}

static void bytes_that_are_no_text_are_shown_in_a_large_table(void **state)
{
    const struct pb_column columns[] = {{"n", PB_I64, 0, NULL, NULL}, {"name", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "dirty", .columns = columns, .ncolumns = 2};
    struct pb_table *t;
    struct pb_row row;

    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    for (int i = 0; i < ROWS * 5; i++) {
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_i64(&row, 0, i);
        pb_set_string(&row, 1, i % 2 ? "a\xff" : "b", i % 2 ? 2 : 1);
        pb_row_commit(&row);
    }
    assert_true(ask(pb_arena_fd(arena), "SELECT count(*) FROM dirty")->stats.segments_read > 40);
    expect(pb_arena_fd(arena), "SELECT name, count(*) FROM dirty GROUP BY name ORDER BY name",
           "a\\xff|150000\nb|150000\n");
}

static void more_strings_than_an_enum_holds_are_strings(void **state)
{
    const struct pb_column columns[] = {{"text", PB_STRING, 0, NULL, NULL},
                                        {"level", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "lines", .columns = columns, .ncolumns = 2};
    struct pb_table *t;
    struct pb_row row;
    char text[32];

    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    for (int i = 0; i < 70000; i++) {
        assert_int_equal(pb_row_begin(t, &row), 0);
        put(&row, 0, text, snprintf(text, sizeof(text), "line %d", i));
        put(&row, 1, i % 9 ? "info" : "error", i % 9 ? 4 : 5);
        pb_row_commit(&row);
    }
    expect(pb_arena_fd(arena),
           "SELECT level, count(DISTINCT text), min(text) FROM lines GROUP BY level ORDER BY level",
           "error|7778|line 0\ninfo|62222|line 1\n");
}

/* Changes the file as its process could: the table's newest schema says another type than when it was listed.
 */
static void a_column_that_changes_its_type_is_not_read(void **state)
{
    const struct pb_column columns[] = {{"small", PB_I8, 0, NULL, NULL}, {"text", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "turncoat", .columns = columns, .ncolumns = 2};
    struct pb_file_header h;
    struct pb_table *t;
    struct pb_row row;
    char path[64];
    int fd = pb_arena_fd(arena);

    /* Readers have it read-only; its owner may change that. */
    assert_int_equal(fchmod(fd, 0600), 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int writable = open(path, O_RDWR | O_CLOEXEC);
    assert_true(writable >= 0);
    assert_int_equal(pb_table_new(arena, &spec, &t), 0);
    for (int i = 0; i < ROWS * 20; i++) {
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_i8(&row, 0, 1);
        pb_row_commit(&row);
    }
    expect(fd, "SELECT sum(small) FROM turncoat", "1200000\n");
    assert_int_equal(pread(fd, &h, sizeof(h), 0), sizeof(h));
    off_t type = (off_t)(h.schemas_offset + h.schemas_used - 2 * sizeof(struct pb_file_column) +
                         offsetof(struct pb_file_column, type));
    for (int i = 0; i < 200; i++) {
        char wide = i % 2 ? PB_I8 : PB_I64;
        assert_int_equal(pwrite(writable, &wide, 1, type), 1);
        if (i % 20 == 0) {
            struct answer *a = ask(fd, "SELECT count(small) FROM turncoat");
            assert_int_equal(a->r, 0);
        }
    }
    expect(fd, "SELECT sum(small) FROM turncoat", "1200000\n");
    close(writable);
}

static int empty(void **state)
{
    pb_arena_close(arena);
    return remove_own_directory(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_the_same_copied_or_read_in_place),
        cmocka_unit_test(rows_come_as_they_were_written),
        cmocka_unit_test(columns_that_the_text_does_not_name_are_read_too),
        cmocka_unit_test(late_cells_are_the_same_in_all_scans_of_a_query),
        cmocka_unit_test(bytes_that_are_no_text_are_shown_in_a_large_table),
        cmocka_unit_test(more_strings_than_an_enum_holds_are_strings),
        cmocka_unit_test(a_column_that_changes_its_type_is_not_read),
    };
    return cmocka_run_group_tests(tests, fill, empty);
}
