/* Files that are no arena, from another version, cut or corrupted anywhere: an error or fewer rows, never a
 * crash, and never bytes beyond what the file holds. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "table_test.h"

struct image {
    char *data;
    size_t size;
    long rows;
};

/* The bytes of an arena with a few tables of all kinds of columns. */
static struct image make_image(void)
{
    const struct pb_column columns[] = {{.name = "time", .type = PB_TIMESTAMP},
                                        {.name = "text", .type = PB_STRING},
                                        {.name = "bytes", .type = PB_BYTES},
                                        {.name = "truth", .type = PB_BOOL},
                                        {.name = "small", .type = PB_I8, .flags = PB_COL_LATE}};
    struct pb_arena_options o = {.segment_size = 4096, .max_tables = 4, .schema_bytes = 8192};
    struct pb_arena *a;
    struct pb_table *proof, *mixed;
    struct pb_row row;
    struct pb_file_header header;
    struct image image;

    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "test", &o, &a), 0);
    assert_int_equal(proof_table(a, "proof", 1, &proof), 0);
    assert_int_equal(
        pb_table_new(a, &(struct pb_table_spec){.name = "mixed", .columns = columns, .ncolumns = 5}, &mixed),
        0);
    for (uint64_t i = 0; i < 150; i++) {
        assert_int_equal(proof_append(proof, 1, i), 0);
        assert_int_equal(pb_row_begin(mixed, &row), 0);
        pb_set_string(&row, 1, "some text\xff", i % 11);
        pb_set_bytes(&row, 2, "some bytes", i % 7);
        pb_set_bool(&row, 3, i % 3 == 0);
        if (i % 5 == 0)
            pb_row_abort(&row);
        else
            assert_int_equal(pb_row_commit(&row), 0);
    }
    image.rows = 150 + 120;
    assert_int_equal(pread(pb_arena_fd(a), &header, sizeof(header), 0), sizeof(header));
    image.size = (size_t)(header.segments_offset + header.nslots * header.segment_size);
    image.data = malloc(image.size);
    assert_int_equal(pread(pb_arena_fd(a), image.data, image.size, 0), image.size);
    pb_arena_close(a);
    return image;
}

/* Uses everything the reader gives, so that a bad pointer shows. Returns the rows. */
static long use(struct pb_reader *r, uint64_t *sum)
{
    struct pb_view v = {0};
    long rows = 0;

    for (unsigned t = 0; t < pb_reader_ntables(r); t++) {
        struct pb_segment_info *list = NULL;
        struct pb_table_info info;
        struct pb_table_stats stats;
        if (pb_reader_table(r, t, &info) < 0)
            continue;
        *sum += strlen(info.name) + strlen(info.comment);
        pb_reader_stats(r, t, &stats);
        int n = pb_reader_segments(r, t, &list);
        for (int i = 0; i < n; i++) {
            if (pb_view_load(r, &list[i], &v) < 0)
                continue;
            rows += v.nrows;
            for (unsigned c = 0; c < v.ncolumns; c++)
                for (uint32_t k = 0; k < v.nrows; k++) {
                    if (pb_view_is_null(&v, c, k))
                        continue;
                    struct pb_text text = {0};
                    if (v.columns[c].type == PB_STRING)
                        text = v.strings[CELL(&v, c, k, uint16_t)];
                    else if (v.columns[c].type == PB_BYTES)
                        text = pb_view_bytes(&v, c, k);
                    else
                        *sum += CELL(&v, c, k, uint8_t);
                    for (uint32_t b = 0; b < text.length; b++)
                        *sum += (unsigned char)text.data[b];
                }
        }
        free(list);
    }
    pb_view_done(&v);
    return rows;
}

static long read_memory(const char *data, size_t size, int *error)
{
    struct pb_reader *r;
    uint64_t sum = 0;

    *error = pb_reader_open_memory(data, size, &r, NULL);
    if (*error < 0)
        return 0;
    long rows = use(r, &sum);
    pb_reader_close(r);
    return rows;
}

static void a_whole_file_reads_whole(void **state)
{
    struct image image = make_image();
    int error;

    assert_int_equal(read_memory(image.data, image.size, &error), image.rows);
    assert_int_equal(error, 0);
    free(image.data);
}

static void a_cut_file_gives_an_error_or_fewer_rows(void **state)
{
    struct image image = make_image();
    long errors = 0, fewer = 0;

    for (size_t size = 0; size < image.size; size += size < 200 ? 1 : 509) {
        /* In memory of its own exact size: a sanitizer sees a read beyond it. */
        char *cut = malloc(size ? size : 1);
        int error;
        memcpy(cut, image.data, size);
        long rows = read_memory(cut, size, &error);
        assert_true(rows <= image.rows);
        errors += error < 0;
        fewer += error == 0 && rows < image.rows;
        free(cut);
    }
    assert_true(errors > 100 && fewer > 10);
    free(image.data);
}

static void a_file_cut_under_the_reader_is_no_sigbus(void **state)
{
    struct image image = make_image();
    struct pb_reader *r;
    uint64_t sum = 0;
    int fd = memfd_create("cut", MFD_CLOEXEC);

    assert_int_equal(pwrite(fd, image.data, image.size, 0), image.size);
    assert_int_equal(pb_reader_open(fd, &r, NULL), 0);
    assert_int_equal(use(r, &sum), image.rows);
    assert_int_equal(ftruncate(fd, (off_t)image.size - 5000), 0);
    long rows = use(r, &sum);
    assert_true(rows < image.rows);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(use(r, &sum), 0);
    pb_reader_close(r);
    close(fd);
    free(image.data);
}

static void every_flipped_byte_of_the_headers_is_survived(void **state)
{
    struct image image = make_image();
    const struct pb_file_header *h = (const struct pb_file_header *)(void *)image.data;
    size_t first = h->segments_offset, end = first + 400;
    long errors = 0, other = 0;
    int error;

    for (size_t i = 0; i < end; i++) {
        static const unsigned char flips[] = {0xff, 0x80, 0x01};
        if (i >= sizeof(*h) && i < first && image.data[i] == 0 && i % 16)
            continue; /* zeros after the texts */
        for (size_t k = 0; k < sizeof(flips); k++) {
            image.data[i] = (char)(image.data[i] ^ flips[k]);
            long rows = read_memory(image.data, image.size, &error);
            errors += error < 0;
            other += error == 0 && rows != image.rows;
            image.data[i] = (char)(image.data[i] ^ flips[k]);
        }
    }
    print_message("%ld errors, %ld times other rows\n", errors, other);
    assert_true(errors > 100 && other > 100);
    assert_int_equal(read_memory(image.data, image.size, &error), image.rows);
    free(image.data);
}

static void random_bytes_anywhere_are_survived(void **state)
{
    struct image image = make_image();
    char *copy = malloc(image.size);
    long changed = 0;
    int error;

    srand(1);
    for (int round = 0; round < 2000; round++) {
        memcpy(copy, image.data, image.size);
        for (int i = 0; i < 1 + round % 64; i++)
            copy[(size_t)rand() % image.size] = (char)rand();
        changed += read_memory(copy, image.size, &error) != image.rows;
    }
    assert_true(changed > 10);
    free(copy);
    free(image.data);
}

static void the_error_says_what_is_wrong(void **state)
{
    struct image image = make_image();
    struct pb_file_header *h = (struct pb_file_header *)(void *)image.data;
    struct pb_reader *r;
    char why[PB_WHY_SIZE];

    assert_int_equal(pb_reader_open_memory("", 0, &r, why), -EBADMSG);
    assert_non_null(strstr(why, "not an arena"));
    assert_int_equal(pb_reader_open_memory(image.data, 100, &r, why), -ENODATA);
    assert_non_null(strstr(why, "truncated"));
    h->major++;
    assert_int_equal(pb_reader_open_memory(image.data, image.size, &r, why), -EPROTONOSUPPORT);
    assert_non_null(strstr(why, "format 2.0"));
    assert_non_null(strstr(why, "newer"));
    h->major--;
    h->minor++;
    assert_int_equal(pb_reader_open_memory(image.data, image.size, &r, why), 0);
    pb_reader_close(r);
    h->segment_size = 12345;
    assert_int_equal(pb_reader_open_memory(image.data, image.size, &r, why), -EBADMSG);
    assert_non_null(strstr(why, "damaged"));
    image.data[0] = 'x';
    assert_int_equal(pb_reader_open_memory(image.data, image.size, &r, why), -EBADMSG);
    assert_string_equal(why, "not an arena");
    assert_int_equal(pb_reader_open(-1, &r, why), -EBADF);
    free(image.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_reads_whole),
        cmocka_unit_test(a_cut_file_gives_an_error_or_fewer_rows),
        cmocka_unit_test(a_file_cut_under_the_reader_is_no_sigbus),
        cmocka_unit_test(every_flipped_byte_of_the_headers_is_survived),
        cmocka_unit_test(random_bytes_anywhere_are_survived),
        cmocka_unit_test(the_error_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
