/* What the archive keeps in names: what is written is read back, and nothing else is taken for ours. */
#include "engine/archive/archive_count.h"
#include "engine/archive/archive_merge.h"
#include "engine/shared/archive.h"

#include "test.h"

static const struct pb_archive_name example = {.run = "0123456789abcdef",
                                               .first = -62135596800000000,
                                               .last = 1794750973018023,
                                               .part = 1,
                                               .parts = 2,
                                               .ncolumns = 9,
                                               .total = 45144,
                                               .serials = "85ggz_1f"};

static void a_name_tells_what_was_written(void **state)
{
    struct pb_archive_name back;
    char text[256];

    pb_archive_name_write(&example, text, sizeof(text));
    assert_string_equal(
        text, "0123456789abcdef-n62135596800000000-1794750973018023-1of2-c9-r45144-85ggz_1f.parquet");
    assert_int_equal(pb_archive_name_read(text, &back), 0);
    assert_string_equal(back.run, example.run);
    assert_string_equal(back.serials, example.serials);
    assert_true(back.first == example.first && back.last == example.last && back.part == 1 &&
                back.parts == 2);
    assert_true(back.ncolumns == 9 && back.total == 45144);
}

/* version, a schema of one element, num_rows: as the format's definition has them. */
static const uint8_t footer[] = {0x15, 4,   0x19, 0x1c, 0x48, 6,    's',  'c',
                                 'h',  'e', 'm',  'a',  0,    0x16, 0x8a, 1};

static void rows_are_counted_from_footers(void **state)
{
    uint8_t bad[sizeof(footer)];

    assert_int_equal(pb_parquet_footer_rows(footer, sizeof(footer)), 69);
    for (size_t n = 0; n < sizeof(footer); n++)
        assert_int_equal(pb_parquet_footer_rows(footer, n), -EBADMSG);
    /* Whatever stands there, it ends, within its bounds. */
    for (size_t i = 0; i < sizeof(footer); i++)
        for (int value = 0; value < 256; value++) {
            memcpy(bad, footer, sizeof(bad));
            bad[i] = (uint8_t)value;
            assert_true(pb_parquet_footer_rows(bad, sizeof(bad)) >= -EBADMSG);
        }
    uint8_t deep[4096];
    memset(deep, 0x1c, sizeof(deep));
    assert_int_equal(pb_parquet_footer_rows(deep, sizeof(deep)), -EBADMSG);
    memset(deep, 0x19, sizeof(deep));
    assert_int_equal(pb_parquet_footer_rows(deep, sizeof(deep)), -EBADMSG);
}

static void other_names_are_not_ours(void **state)
{
    static const char *const others[] = {"",
                                         "notes.parquet",
                                         "0123456789abcdef.parquet",
                                         "0123456789abcdef-1-2-1of1-c9-r4-.parquet",
                                         "0123456789ABCDEF-1-2-1of1-c9-r4-85.parquet",
                                         "0123456789abcdef-1-2-2of1-c9-r4-85.parquet",
                                         "0123456789abcdef-1-2-0of1-c9-r4-85.parquet",
                                         "0123456789abcdef-1-2-1of9-c9-r4-85.parquet",
                                         "0123456789abcdef-1-2-1of1-c0-r4-85.parquet",
                                         "0123456789abcdef-1-2-1of1-c999-r4-85.parquet",
                                         "0123456789abcdef-1-2-1of1-c9-r4-0.parquet",
                                         "0123456789abcdef-1-2-1of1-c9-r4-85G.parquet",
                                         "0123456789abcdef-1-2-1of1-c9-r4-85_.parquet",
                                         "0123456789abcdef-1-2-1of1-c9-r4-85.parquet.tmp",
                                         "0123456789abcdef-1--2-1of1-c9-r4-85.parquet",
                                         "0123456789abcdef-1-99999999999999999999-1of1-c9-r4-85.parquet",
                                         "0123456789abcdef-1-2-1of1-c9-r4-ffffffffffg.parquet",
                                         "x0123456789abcdef-1-2-1of1-c9-r4-85.parquet"};
    struct pb_archive_name back;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_int_equal(pb_archive_name_read(others[i], &back), -EINVAL);
}

static void serials_come_back_as_they_went_in(void **state)
{
    struct pb_archive_span back[PB_ARCHIVE_BATCH];
    uint64_t serials[400];
    char text[PB_ARCHIVE_SERIALS + 1];

    srandom(1);
    for (int turn = 0; turn < 2000; turn++) {
        size_t n = 1 + (size_t)random() % 400;
        serials[0] = 1 + (uint64_t)random();
        for (size_t i = 1; i < n; i++)
            serials[i] = serials[i - 1] + 1 + (uint64_t)random() % (turn % 3 ? 3 : 300);
        size_t packed = pb_archive_serials_pack(serials, n, text);
        assert_true(packed >= 1 && packed <= n && strlen(text) <= PB_ARCHIVE_SERIALS);
        assert_int_equal(pb_archive_serials_unpack(text, back), packed);
        for (size_t i = 0; i < packed; i++)
            assert_true(back[i].first == serials[i] && back[i].last == serials[i]);
        /* Spans in any order hold what was put in, and nothing beside it. */
        for (size_t i = packed; i > 1; i--) {
            struct pb_archive_span *other = &back[(size_t)random() % i], one = back[i - 1];
            back[i - 1] = *other;
            *other = one;
        }
        size_t spans = pb_archive_spans_join(back, packed);
        for (size_t i = 0, k = 0; k < packed && i < 2000; i++) {
            bool there = serials[k] == serials[0] + i;
            assert_true(pb_archive_spans_hold(back, spans, serials[0] + i) == there);
            k += there;
        }
        assert_false(pb_archive_spans_hold(back, spans, serials[0] - 1));
        assert_false(pb_archive_spans_hold(back, spans, serials[packed - 1] + 1));
    }
}

static void a_merged_file_stands_for_a_range(void **state)
{
    struct pb_archive_name merged = example, back;
    struct pb_archive_span spans[PB_ARCHIVE_BATCH];
    char text[256];

    pb_archive_serials_pack_all(0x85, 0x1085, merged.serials);
    pb_archive_name_write(&merged, text, sizeof(text));
    assert_int_equal(pb_archive_name_read(text, &back), 0);
    assert_true(pb_archive_is_merged(&back) && !pb_archive_is_merged(&example));
    assert_true(back.first_serial == 0x85 && back.last_serial == 0x1085);
    assert_int_equal(pb_archive_serials_unpack("85~", spans), -EINVAL);
    assert_int_equal(pb_archive_serials_unpack("85~1g", spans), -EINVAL);
    assert_int_equal(pb_archive_serials_unpack("85~ffffffffffffffff", spans), -EINVAL);
    struct pb_archive_span some[] = {{20, 30}, {1, 10}, {5, 7}, {11, 12}, {25, 40}};
    assert_int_equal(pb_archive_spans_join(some, 5), 2);
    assert_true(some[0].first == 1 && some[0].last == 12 && some[1].first == 20 && some[1].last == 40);
    assert_false(pb_archive_spans_hold(NULL, 0, 1));
}

/* Files of a day, each with one segment, and their sizes. */
static size_t choose(struct pb_archive_file *at, const uint64_t *bytes, size_t n,
                     struct pb_archive_merge *ret)
{
    const struct pb_archive_files files = {.at = at, .n = n};
    return pb_merge_choose(&files, bytes, ret);
}

static void small_neighbours_are_merged_and_nothing_else(void **state)
{
    enum { N = 100 };
    struct pb_archive_file *at = calloc(N, sizeof(*at));
    uint64_t bytes[N], total = 0;
    struct pb_archive_merge m;

    for (unsigned i = 0; i < N; i++) {
        at[i].name = (struct pb_archive_name){.first = 1000 + i,
                                              .last = 1005 + i,
                                              .part = 1,
                                              .parts = 1,
                                              .ncolumns = 9,
                                              .total = total += 10,
                                              .first_serial = 7 + 3 * i,
                                              .last_serial = 8 + 3 * i};
        bytes[i] = 1000;
    }
    assert_int_equal(choose(at, bytes, 15, &m), 0);
    assert_int_equal(choose(at, bytes, N, &m), PB_ARCHIVE_MERGE_MOST);
    assert_int_equal(choose(at, bytes, 20, &m), 20);
    assert_true(m.first == 0 && m.name.first == 1000 && m.name.last == 1024 && m.name.total == 200);
    assert_string_equal(m.name.serials, "7~3a"); /* to 8 + 3 * 19 */
    /* One that is large, in pieces, of other columns or out of order parts them. */
    bytes[10] = 2 << 20;
    assert_int_equal(choose(at, bytes, 26, &m), 0);
    assert_int_equal(choose(at, bytes, 27, &m), 16);
    assert_int_equal(m.first, 11);
    bytes[10] = 1000;
    at[10].name.parts = 2;
    assert_int_equal(choose(at, bytes, 26, &m), 0);
    at[10].name.parts = 1;
    at[10].name.ncolumns = 8;
    assert_int_equal(choose(at, bytes, 25, &m), 0);
    at[10].name.ncolumns = 9;
    at[10].name.first_serial = at[9].name.last_serial;
    assert_int_equal(choose(at, bytes, 25, &m), 0);
    /* Few that make a large one; what is large stays. */
    for (unsigned i = 0; i < N; i++)
        bytes[i] = i < 5 ? 20 << 20 : 65 << 20;
    assert_int_equal(choose(at, bytes, 3, &m), 0);
    assert_int_equal(choose(at, bytes, N, &m), 5);
    assert_int_equal(choose(at + 5, bytes + 5, N - 5, &m), 0);
    free(at);
}

static void a_partition_is_one_folder_a_value(void **state)
{
    char path[PB_ARCHIVE_PATH], tight[16];

    assert_int_equal(pb_archive_partition("../a b:c", "", "3", path, sizeof(path)), 0);
    assert_string_equal(path, "job=..%2Fa%20b%3Ac/node=__HIVE_DEFAULT_PARTITION__/rank=3");
    assert_int_equal(pb_archive_partition("a long name of a job", "n", "3", tight, sizeof(tight)),
                     -ENAMETOOLONG);
}

static void columns_keep_names_units_and_comments(void **state)
{
    struct pb_archive_columns in = {.n = 5}, *back = calloc(1, sizeof(*back));
    char *text = NULL;
    size_t size;

    in.at[0] =
        (struct pb_archive_column){.type = PB_I64, .name = "tab\there", .unit = "ms", .comment = "100%\n"};
    in.at[1] = (struct pb_archive_column){.type = PB_TIMESTAMP, .late = true, .name = "end"};
    in.at[2] = (struct pb_archive_column){.type = PB_TIMESTAMP, .name = "timestamp"};
    in.at[3] = (struct pb_archive_column){.type = PB_STRING, .name = "TAB\there"};
    in.at[4] = (struct pb_archive_column){.type = PB_I64, .name = "END_ns"};
    FILE *out = open_memstream(&text, &size);
    pb_archive_columns_write(out, &in);
    fclose(out);
    pb_archive_columns_read(text, size, back);
    assert_int_equal(back->n, 5);
    assert_string_equal(back->at[0].name, "tab\there");
    assert_string_equal(back->at[0].comment, "100%\n");
    assert_true(back->at[1].late && back->time == 2);
    assert_true(back->at[0].stored && !back->at[3].stored); /* two that differ in case only */
    assert_true(pb_archive_column_ns(back, 2, NULL) && !pb_archive_column_ns(back, 1, NULL));
    free(text);
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_tells_what_was_written),
        cmocka_unit_test(rows_are_counted_from_footers),
        cmocka_unit_test(other_names_are_not_ours),
        cmocka_unit_test(serials_come_back_as_they_went_in),
        cmocka_unit_test(a_merged_file_stands_for_a_range),
        cmocka_unit_test(small_neighbours_are_merged_and_nothing_else),
        cmocka_unit_test(a_partition_is_one_folder_a_value),
        cmocka_unit_test(columns_keep_names_units_and_comments),
    };
    return cmocka_run_group_tests_name("engine_archive", tests, NULL, NULL);
}
