/* What is written into a table is what is read from it: types, NULLs, strings, late cells, grown schemas. */
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "table_test.h"

enum { I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, BOOL, TIME, STRING, BYTES, NTYPES };

static struct pb_arena *arena_of(uint32_t segment_size)
{
    struct pb_arena *a;
    assert_int_equal(
        pb_arena_create(PB_ARENA_MEMFD, "test", &(struct pb_arena_options){.segment_size = segment_size}, &a),
        0);
    return a;
}

static struct pb_table *table_of(struct pb_arena *a, const char *name, const struct pb_column *columns,
                                 unsigned n)
{
    struct pb_table *t;
    assert_int_equal(
        pb_table_new(a, &(struct pb_table_spec){.name = name, .columns = columns, .ncolumns = n}, &t), 0);
    return t;
}

/* Loads the only segment of the table. */
static void load_only(struct pb_arena *a, const char *table, struct pb_reader **r, struct pb_view *v)
{
    struct pb_segment_info *list;
    assert_int_equal(pb_reader_open(pb_arena_fd(a), r, NULL), 0);
    assert_int_equal(pb_reader_segments(*r, (unsigned)pb_reader_find(*r, table), &list), 1);
    assert_int_equal(pb_view_load(*r, &list[0], v), 0);
    free(list);
}

static const struct pb_column every_type[NTYPES] = {
    {.name = "i8", .type = PB_I8},       {.name = "i16", .type = PB_I16},
    {.name = "i32", .type = PB_I32},     {.name = "i64", .type = PB_I64},
    {.name = "u8", .type = PB_U8},       {.name = "u16", .type = PB_U16},
    {.name = "u32", .type = PB_U32},     {.name = "u64", .type = PB_U64},
    {.name = "f32", .type = PB_F32},     {.name = "f64", .type = PB_F64},
    {.name = "bool", .type = PB_BOOL},   {.name = "time", .type = PB_TIMESTAMP},
    {.name = "text", .type = PB_STRING}, {.name = "bytes", .type = PB_BYTES}};

static void set_every_type(struct pb_row *row)
{
    pb_set_i8(row, I8, INT8_MIN);
    pb_set_i16(row, I16, INT16_MIN);
    pb_set_i32(row, I32, INT32_MIN);
    pb_set_i64(row, I64, INT64_MIN);
    pb_set_u8(row, U8, UINT8_MAX);
    pb_set_u16(row, U16, UINT16_MAX);
    pb_set_u32(row, U32, UINT32_MAX);
    pb_set_u64(row, U64, UINT64_MAX);
    pb_set_f32(row, F32, 1.5f);
    pb_set_f64(row, F64, -INFINITY);
    pb_set_bool(row, BOOL, true);
    pb_set_string(row, STRING, "text", 4);
    pb_set_bytes(row, BYTES, "\0\1\2", 3);
}

static void every_type_reads_back_and_null_is_null(void **state)
{
    struct pb_arena *a = arena_of(0);
    struct pb_table *t = table_of(a, "all", every_type, NTYPES);
    struct pb_row row;
    struct pb_reader *r;
    struct pb_view v = {0};

    assert_int_equal(pb_row_begin(t, &row), 0);
    set_every_type(&row);
    assert_int_equal(pb_row_commit(&row), 0);
    assert_int_equal(pb_row_begin(t, &row), 0);
    assert_int_equal(pb_row_commit(&row), 0);

    load_only(a, "all", &r, &v);
    assert_int_equal(v.nrows, 2);
    assert_int_equal(v.ncolumns, NTYPES);
    assert_int_equal(CELL(&v, I8, 0, int8_t), INT8_MIN);
    assert_int_equal(CELL(&v, I16, 0, int16_t), INT16_MIN);
    assert_int_equal(CELL(&v, I32, 0, int32_t), INT32_MIN);
    assert_true(CELL(&v, I64, 0, int64_t) == INT64_MIN);
    assert_int_equal(CELL(&v, U8, 0, uint8_t), UINT8_MAX);
    assert_int_equal(CELL(&v, U16, 0, uint16_t), UINT16_MAX);
    assert_int_equal(CELL(&v, U32, 0, uint32_t), UINT32_MAX);
    assert_true(CELL(&v, U64, 0, uint64_t) == UINT64_MAX);
    assert_true(CELL(&v, F32, 0, float) == 1.5f);
    assert_true(isinf(CELL(&v, F64, 0, double)));
    assert_true(CELL(&v, BOOL, 0, bool));
    struct pb_text text = v.strings[CELL(&v, STRING, 0, uint16_t)], bytes = pb_view_bytes(&v, BYTES, 0);
    assert_int_equal(text.length, 4);
    assert_memory_equal(text.data, "text", 4);
    assert_int_equal(bytes.length, 3);
    assert_memory_equal(bytes.data, "\0\1\2", 3);
    for (unsigned c = 0; c < NTYPES; c++) {
        assert_false(pb_view_is_null(&v, c, 0));
        assert_int_equal(pb_view_is_null(&v, c, 1), c != TIME);
        assert_int_equal(v.columns[c].nulls, c != TIME);
    }
    pb_view_done(&v);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void times_read_as_utc(void **state)
{
    struct pb_arena *a = arena_of(0);
    struct pb_table *t = table_of(a, "all", every_type, NTYPES);
    struct pb_reader *r;
    struct pb_view v = {0};
    struct pb_table_stats stats;
    struct pb_row row;
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    int64_t before = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    assert_int_equal(pb_row_begin(t, &row), 0);
    assert_int_equal(pb_row_commit(&row), 0);
    load_only(a, "all", &r, &v);
    int64_t off = CELL(&v, TIME, 0, int64_t) - before;
    assert_true(off > -1000000 && off < 1000000000);
    assert_int_equal(pb_reader_stats(r, 0, &stats), 0);
    assert_int_equal(stats.rows, 1);
    assert_true(stats.first == stats.last && stats.first == CELL(&v, TIME, 0, int64_t));
    pb_view_done(&v);
    pb_reader_close(r);
    pb_arena_close(a);
}

/* Cell i of row i was set at once, the next one late; all others are NULL. */
static void expect_two_cells(const struct pb_view *v, uint32_t row, void *arg)
{
    unsigned first = 0, set = 0;

    while (pb_view_is_null(v, first, row) || CELL(v, first, row, uint16_t) >= 1000)
        first++;
    assert_int_equal(CELL(v, first, row, uint16_t), first);
    for (unsigned c = 0; c < PB_MAX_COLUMNS; c++)
        set += !pb_view_is_null(v, c, row);
    assert_int_equal(set, 2);
    assert_false(pb_view_is_null(v, (first + 1) % PB_MAX_COLUMNS, row));
    assert_int_equal(CELL(v, (first + 1) % PB_MAX_COLUMNS, row, uint16_t), first + 1000);
}

/* Columns on both sides of what a commit word holds, and of the first and second word after it. */
static void a_hundred_and_twenty_eight_columns_keep_their_nulls_apart(void **state)
{
    struct pb_column columns[PB_MAX_COLUMNS];
    char names[PB_MAX_COLUMNS][8];
    struct pb_arena *a = arena_of(0);
    struct pb_row row;

    for (unsigned c = 0; c < PB_MAX_COLUMNS; c++) {
        snprintf(names[c], sizeof(names[c]), "c%u", c);
        columns[c] = (struct pb_column){.name = names[c], .type = PB_U16, .flags = PB_COL_LATE};
    }
    struct pb_table *t = table_of(a, "wide", columns, PB_MAX_COLUMNS);
    for (unsigned i = 0; i < PB_MAX_COLUMNS; i++) {
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_u16(&row, i, (uint16_t)i);
        assert_int_equal(pb_row_commit(&row), 0);
        uint16_t late = (uint16_t)(i + 1000);
        unsigned other = (i + 1) % PB_MAX_COLUMNS;
        assert_int_equal(pb_fill(a, pb_row_ref(&row), other, PB_U16, &late, sizeof(late)), 0);
        assert_int_equal(pb_fill(a, pb_row_ref(&row), other, PB_U16, &late, sizeof(late)), -EALREADY);
        assert_int_equal(pb_fill(a, pb_row_ref(&row), i, PB_U16, &late, sizeof(late)), -EALREADY);
    }
    assert_int_equal(each_row(pb_arena_fd(a), "wide", expect_two_cells, NULL), PB_MAX_COLUMNS);
    pb_arena_close(a);
}

static void a_grown_column_is_null_in_older_rows(void **state)
{
    struct pb_arena *a = arena_of(0);
    struct pb_table *t;
    struct pb_reader *r;
    struct pb_segment_info *list;
    struct pb_view v = {0};
    struct pb_row row;
    const struct pb_column extra = {.name = "extra", .type = PB_STRING, .unit = "s", .comment = "new"};

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_int_equal(proof_append(t, 1, 1), 0);
    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    assert_int_equal(pb_table_grow(t, &extra), PROOF_COLUMNS);
    assert_int_equal(pb_table_grow(t, &extra), PROOF_COLUMNS);
    assert_int_equal(pb_table_grow(t, &(struct pb_column){.name = "extra", .type = PB_I8}), -EEXIST);
    assert_int_equal(proof_begin(t, 1, 2, &row), 0);
    pb_set_string(&row, PROOF_COLUMNS, "x", 1);
    assert_int_equal(pb_row_commit(&row), 0);

    /* A reader from before finds the new schema by itself. */
    assert_int_equal(pb_reader_segments(r, 0, &list), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pb_view_load(r, &list[i], &v), 0);
        assert_int_equal(v.nrows, 1);
        assert_int_equal(v.ncolumns, PROOF_COLUMNS + 1);
        assert_true(proof_holds(&v, 0));
        assert_int_equal(pb_view_is_null(&v, PROOF_COLUMNS, 0), i == 1);
    }
    free(list);
    pb_view_done(&v);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void late_cells_are_filled_once_and_only_where_they_may(void **state)
{
    struct pb_arena *a = arena_of(0);
    struct pb_table *t;
    struct pb_reader *r;
    struct pb_view v = {0};
    struct pb_row row;

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_int_equal(proof_begin(t, 1, 7, &row), 0);
    struct pb_row_ref ref = pb_row_ref(&row);
    assert_int_equal(pb_fill_u64(a, ref, PROOF_LATE, ~UINT64_C(7)), -EAGAIN);
    assert_int_equal(pb_row_commit(&row), 0);
    assert_int_equal(pb_fill_u64(a, ref, PROOF_SUM, 1), -EINVAL);
    assert_int_equal(pb_fill_i64(a, ref, PROOF_LATE, 1), -EINVAL);
    assert_int_equal(pb_fill_u64(a, ref, PB_MAX_COLUMNS, 1), -EINVAL);
    /* Of several the first failure is told, and keeps no other from being filled. */
    const uint64_t late = ~UINT64_C(7);
    const struct pb_late both[] = {{PROOF_SUM, PB_U64, &late, sizeof(late)},
                                   {PROOF_LATE, PB_U64, NULL, 0},
                                   {PROOF_LATE, PB_U64, &late, sizeof(late)}};
    assert_int_equal(pb_fill_all(a, ref, both, 3), -EINVAL);
    assert_int_equal(pb_fill_all(a, ref, both + 2, 1), -EALREADY);
    assert_int_equal(pb_fill_u64(a, ref, PROOF_LATE, 1), -EALREADY);
    assert_int_equal(proof_begin(t, 1, 8, &row), 0);
    pb_row_abort(&row);
    assert_int_equal(pb_fill_u64(a, pb_row_ref(&row), PROOF_LATE, 1), -EINVAL);

    load_only(a, "t", &r, &v);
    assert_int_equal(v.nrows, 1);
    assert_true(proof_holds(&v, 0));
    assert_false(pb_view_is_null(&v, PROOF_LATE, 0));
    pb_view_done(&v);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void a_late_cell_of_a_recycled_row_is_stale_and_counted(void **state)
{
    struct pb_arena *a;
    struct pb_table *t;
    struct pb_row row;
    struct pb_reader *r;
    struct pb_table_info info;

    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "test",
                                     &(struct pb_arena_options){.segment_size = 4096, .bound = 1}, &a),
                     0);
    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_int_equal(proof_begin(t, 1, 0, &row), 0);
    assert_int_equal(pb_row_commit(&row), 0);
    for (uint64_t i = 1; i < 1000; i++)
        assert_int_equal(proof_append(t, 1, i), 0);
    const uint64_t late = 1;
    const struct pb_late cell = {PROOF_LATE, PB_U64, &late, sizeof(late)};
    assert_int_equal(pb_fill_all(a, pb_row_ref(&row), &cell, 1), -ESTALE);
    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    assert_int_equal(pb_reader_table(r, 0, &info), 0);
    assert_int_equal(info.cells_lost, 1);
    struct pb_table_stats stats;
    assert_int_equal(pb_reader_stats(r, 0, &stats), 0);
    assert_int_equal(info.recycled + stats.rows, 1000);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void any_bytes_are_a_string_and_the_reader_says_whether_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t length;
        bool utf8;
    } cases[] = {{"", 0, true},
                 {"a\0b", 3, true},
                 {"\xff\xfe", 2, false},
                 {"\xc3\xa9", 2, true},
                 {"\xc3", 1, false},
                 {"\xed\xa0\x80", 3, false},
                 {"\xc0\x80", 2, false},
                 {"\xf4\x90\x80\x80", 4, false},
                 {"\xf0\x9f\x8e\x89", 4, true},
                 {"long enough\xff to be", 18, false}};
    const struct pb_column columns[] = {{.name = "s", .type = PB_STRING}};
    struct pb_arena *a = arena_of(0);
    struct pb_table *t = table_of(a, "s", columns, 1);
    struct pb_reader *r;
    struct pb_view v = {0};
    struct pb_row row;
    const size_t n = sizeof(cases) / sizeof(cases[0]);

    for (size_t i = 0; i < 2 * n; i++) {
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_string(&row, 0, cases[i % n].text, cases[i % n].length);
        assert_int_equal(pb_row_commit(&row), 0);
    }
    load_only(a, "s", &r, &v);
    assert_int_equal(v.nstrings, n);
    for (size_t i = 0; i < 2 * n; i++) {
        struct pb_text text = v.strings[CELL(&v, 0, i, uint16_t)];
        assert_int_equal(text.length, cases[i % n].length);
        assert_memory_equal(text.data, cases[i % n].text, text.length);
        assert_int_equal(text.utf8, cases[i % n].utf8);
    }
    pb_view_done(&v);
    pb_reader_close(r);
    pb_arena_close(a);
}

struct seen {
    long rows, wrong;
    uint64_t next;
};

static void expect_numbers(const struct pb_view *v, uint32_t row, void *arg)
{
    struct seen *s = arg;
    char want[64];
    uint64_t number = CELL(v, 0, row, uint64_t);
    int n = snprintf(want, sizeof(want), "distinct string %llu", (unsigned long long)number);
    struct pb_text text = v->strings[CELL(v, 1, row, uint16_t)], bytes = pb_view_bytes(v, 2, row);

    s->rows++;
    s->wrong += text.length != (uint32_t)n || memcmp(text.data, want, (size_t)n) != 0 ||
                bytes.length != (uint32_t)n || memcmp(bytes.data, want, (size_t)n) != 0;
}

static void a_full_dictionary_takes_the_row_to_a_new_segment(void **state)
{
    const struct pb_column columns[] = {{.name = "n", .type = PB_U64},
                                        {.name = "s", .type = PB_STRING},
                                        {.name = "b", .type = PB_BYTES},
                                        {.name = "time", .type = PB_TIMESTAMP}};
    struct pb_arena *a = arena_of(4096);
    struct pb_table *t = table_of(a, "d", columns, 4);
    struct pb_row row;
    struct seen seen = {0};
    char text[64];

    for (uint64_t i = 0; i < 2000; i++) {
        int n = snprintf(text, sizeof(text), "distinct string %llu", (unsigned long long)i);
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_u64(&row, 0, i);
        pb_set_bytes(&row, 2, text, (size_t)n);
        pb_set_string(&row, 1, text, (size_t)n);
        assert_int_equal(pb_row_commit(&row), 0);
    }
    assert_int_equal(each_row(pb_arena_fd(a), "d", expect_numbers, &seen), 2000);
    assert_int_equal(seen.wrong, 0);
    pb_arena_close(a);
}

/* Strings whose places are kept read the same as those that are looked up each time, across segments. */
static void a_string_by_its_place_is_the_string(void **state)
{
    const struct pb_column columns[] = {{.name = "n", .type = PB_U64},
                                        {.name = "s", .type = PB_STRING},
                                        {.name = "b", .type = PB_BYTES},
                                        {.name = "time", .type = PB_TIMESTAMP}};
    struct pb_arena *a = arena_of(4096);
    struct pb_table *t = table_of(a, "d", columns, 4);
    struct pb_string_place places[50] = {0};
    struct pb_row row;
    struct seen seen = {0};
    char text[64];

    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t which = i * i % 50;
        int n = snprintf(text, sizeof(text), "distinct string %llu", (unsigned long long)which);
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_u64(&row, 0, which);
        pb_set_string_again(&row, 1, text, (size_t)n, &places[which]);
        pb_set_bytes(&row, 2, text, (size_t)n);
        assert_int_equal(pb_row_commit(&row), 0);
    }
    assert_int_equal(each_row(pb_arena_fd(a), "d", expect_numbers, &seen), 2000);
    assert_int_equal(seen.wrong, 0);
    pb_arena_close(a);
}

static void what_fits_no_segment_is_refused_and_counted(void **state)
{
    const struct pb_column columns[] = {{.name = "s", .type = PB_STRING}, {.name = "b", .type = PB_BYTES}};
    struct pb_arena *a = arena_of(4096);
    struct pb_table *t = table_of(a, "big", columns, 2);
    struct pb_reader *r;
    struct pb_table_info info;
    struct pb_row row;
    static char big[1 << 20];

    for (int i = 0; i < 3; i++) {
        /* Alone too large; two that only together are; one beyond any segment. */
        static const size_t sizes[3][2] = {{3000, 1}, {1500, 1500}, {1, sizeof(big)}};
        assert_int_equal(pb_row_begin(t, &row), 0);
        pb_set_string(&row, 0, big, sizes[i][0]);
        pb_set_bytes(&row, 1, big, sizes[i][1]);
        assert_int_equal(pb_row_commit(&row), -EMSGSIZE);
    }
    assert_int_equal(each_row(pb_arena_fd(a), "big", NULL, NULL), 0);
    assert_int_equal(pb_row_begin(t, &row), 0);
    pb_set_bytes(&row, 1, big, 2000);
    assert_int_equal(pb_row_commit(&row), 0);
    assert_int_equal(each_row(pb_arena_fd(a), "big", NULL, NULL), 1);
    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    assert_int_equal(pb_reader_table(r, 0, &info), 0);
    assert_int_equal(info.dropped, 3);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void a_wrong_setter_voids_the_row(void **state)
{
    struct pb_arena *a = arena_of(0);
    struct pb_table *t;
    struct pb_row row;

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_int_equal(pb_row_begin(t, &row), 0);
    pb_set_u64(&row, PROOF_WRITER, 1);
    assert_int_equal(pb_row_commit(&row), -EINVAL);
    assert_int_equal(pb_row_begin(t, &row), 0);
    pb_set_u64(&row, PROOF_COLUMNS, 1);
    assert_int_equal(pb_row_commit(&row), -EINVAL);
    assert_int_equal(pb_row_begin(t, &row), 0);
    pb_set_string(&row, PROOF_SUM, "", 0);
    assert_int_equal(pb_row_commit(&row), -EINVAL);
    assert_int_equal(each_row(pb_arena_fd(a), "t", NULL, NULL), 0);
    pb_arena_close(a);
}

static void segments_say_which_times_they_hold(void **state)
{
    struct pb_arena *a = arena_of(4096);
    struct pb_table *t;
    struct pb_reader *r;
    struct pb_segment_info *list;
    struct pb_view v = {0};
    struct pb_row row;
    struct timespec ts;

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t now = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    for (uint64_t i = 0; i < 500; i++) {
        assert_int_equal(proof_begin(t, 1, i, &row), 0);
        if (i % 50 == 49)
            pb_set_timestamp(&row, PROOF_TIME, now + (i % 100 == 99 ? 1 : -1) * INT64_C(3600000000000));
        assert_int_equal(pb_row_commit(&row), 0);
    }
    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    int n = pb_reader_segments(r, 0, &list), sealed = 0;
    assert_true(n > 5);
    for (int i = 0; i < n; i++) {
        assert_int_equal(pb_view_load(r, &list[i], &v), 0);
        assert_true(i == 0 || list[i].serial < list[i - 1].serial);
        sealed += list[i].last != INT64_MAX;
        assert_int_equal(v.complete, !list[i].open);
        for (uint32_t k = 0; k < v.nrows; k++) {
            int64_t time = CELL(&v, PROOF_TIME, k, int64_t);
            assert_true(time >= list[i].first && time <= list[i].last);
        }
    }
    assert_true(sealed >= n - 2);
    free(list);
    pb_view_done(&v);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void tables_are_found_again_and_misfits_refused(void **state)
{
    struct pb_arena *a;
    struct pb_table *t, *again;
    const struct pb_column one = {.name = "x", .type = PB_U8}, bad = {.name = "x", .type = PB_TYPE_END};
    char name[16];

    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "test", &(struct pb_arena_options){.max_tables = 3}, &a),
                     0);
    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_int_equal(proof_table(a, "t", 1, &again), 0);
    assert_ptr_equal(t, again);
    assert_ptr_equal(pb_table_find(a, "t"), t);
    assert_null(pb_table_find(a, "u"));
    struct pb_table_spec spec = {.name = "t", .columns = &one, .ncolumns = 1};
    assert_int_equal(pb_table_new(a, &spec, &again), -EEXIST);
    spec.name = "";
    assert_int_equal(pb_table_new(a, &spec, &again), -EINVAL);
    spec = (struct pb_table_spec){.name = "u", .columns = &bad, .ncolumns = 1};
    assert_int_equal(pb_table_new(a, &spec, &again), -EINVAL);
    spec = (struct pb_table_spec){.name = "u", .columns = &one, .ncolumns = 0};
    assert_int_equal(pb_table_new(a, &spec, &again), -EINVAL);
    for (int i = 1; i <= 3; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        assert_int_equal(proof_table(a, name, 1, &again), i < 3 ? 0 : -ENOSPC);
    }
    pb_arena_close(a);
}

static void the_directory_describes_tables_and_columns(void **state)
{
    const struct pb_column columns[] = {
        {.name = "t", .type = PB_TIMESTAMP},
        {.name = "size", .type = PB_U64, .unit = "bytes", .comment = "how much"}};
    const struct pb_table_spec spec = {
        .name = "python.things", .comment = "what there is", .columns = columns, .ncolumns = 2, .share = 3};
    struct pb_arena *a = arena_of(0);
    struct pb_table *t;
    struct pb_reader *r;
    struct pb_table_info info;
    struct pb_reader_info about;

    assert_int_equal(pb_table_new(a, &spec, &t), 0);
    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    assert_int_equal(pb_reader_ntables(r), 1);
    assert_int_equal(pb_reader_find(r, "nothing"), -ENOENT);
    assert_int_equal(pb_reader_table(r, 1, &info), -ENOENT);
    assert_int_equal(pb_reader_table(r, 0, &info), 0);
    assert_string_equal(info.name, "python.things");
    assert_string_equal(info.comment, "what there is");
    assert_int_equal(info.share, 3);
    assert_int_equal(info.ncolumns, 2);
    assert_int_equal(info.time_column, 0);
    assert_string_equal(info.columns[1].name, "size");
    assert_string_equal(info.columns[1].unit, "bytes");
    assert_string_equal(info.columns[1].comment, "how much");
    pb_reader_info(r, &about);
    assert_int_equal(about.pid, getpid());
    assert_true(about.start_time > 0 && about.created > INT64_C(1600000000000000000));
    pb_reader_close(r);
    pb_arena_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_reads_back_and_null_is_null),
        cmocka_unit_test(times_read_as_utc),
        cmocka_unit_test(a_hundred_and_twenty_eight_columns_keep_their_nulls_apart),
        cmocka_unit_test(a_grown_column_is_null_in_older_rows),
        cmocka_unit_test(late_cells_are_filled_once_and_only_where_they_may),
        cmocka_unit_test(a_late_cell_of_a_recycled_row_is_stale_and_counted),
        cmocka_unit_test(any_bytes_are_a_string_and_the_reader_says_whether_utf8),
        cmocka_unit_test(a_full_dictionary_takes_the_row_to_a_new_segment),
        cmocka_unit_test(a_string_by_its_place_is_the_string),
        cmocka_unit_test(what_fits_no_segment_is_refused_and_counted),
        cmocka_unit_test(a_wrong_setter_voids_the_row),
        cmocka_unit_test(segments_say_which_times_they_hold),
        cmocka_unit_test(tables_are_found_again_and_misfits_refused),
        cmocka_unit_test(the_directory_describes_tables_and_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
