/* What the archive keeps in names: what is written is read back, and nothing else is taken for ours. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/archive/archive_count.h"
#include "engine/shared/archive.h"

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
    uint64_t serials[400], back[PB_ARCHIVE_BATCH];
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
        assert_memory_equal(back, serials, packed * sizeof(back[0]));
    }
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
        cmocka_unit_test(a_partition_is_one_folder_a_value),
        cmocka_unit_test(columns_keep_names_units_and_comments),
    };
    return cmocka_run_group_tests_name("engine_archive", tests, NULL, NULL);
}
