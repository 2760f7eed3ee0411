/* Arbitrary bytes as an arena: whatever the reader gives must lie within what it was given, and text it calls
 * UTF-8 must be. Before the first input it writes seeds into the corpus folder named by PROBING_CORPUS, if
 * that is set:
 *
 *   mkdir corpus && PROBING_CORPUS=corpus fuzz-table_reader -runs=1 corpus && fuzz-table_reader corpus */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "table/arena.h"
#include "table/reader.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "the reader gave %s\n", what);
        abort();
    }
}

/* --- seeds ------------------------------------------------------------------------------------------- */

static void append(struct pb_table *t, unsigned i)
{
    struct pb_row row;

    if (pb_row_begin(t, &row) < 0)
        return;
    pb_set_u32(&row, 1, i);
    pb_set_string(&row, 2, "caf\xc3\xa9 \xff", i % 8);
    pb_set_bytes(&row, 3, "\0\1\2\3\4\5\6\7", i % 9);
    pb_set_bool(&row, 4, i % 2);
    if (i % 6 == 0)
        pb_row_abort(&row);
    else
        pb_row_commit(&row);
}

static void write_seed(const char *folder, unsigned rows, bool grown)
{
    const struct pb_column columns[] = {{.name = "time", .type = PB_TIMESTAMP},
                                        {.name = "number", .type = PB_U32},
                                        {.name = "text", .type = PB_STRING},
                                        {.name = "bytes", .type = PB_BYTES},
                                        {.name = "truth", .type = PB_BOOL}};
    const struct pb_column more = {.name = "more", .type = PB_STRING, .flags = PB_COL_LATE};
    struct pb_arena_options o = {.segment_size = 4096, .max_tables = 2, .schema_bytes = 4096, .bound = 1};
    struct pb_arena *a;
    struct pb_table *t;
    char path[4096];
    char name[64];

    snprintf(name, sizeof(name), "seed-%u-%d", rows, grown);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    unlink(path);
    int dirfd = open(folder, O_RDONLY | O_DIRECTORY);
    if (dirfd < 0 || pb_arena_create(dirfd, name, &o, &a) < 0)
        return;
    struct pb_table_spec spec = {.name = "t", .columns = columns, .ncolumns = 5};
    if (pb_table_new(a, &spec, &t) == 0) {
        for (unsigned i = 0; i < rows; i++)
            append(t, i);
        if (grown && pb_table_grow(t, &more) >= 0)
            append(t, rows + 1);
    }
    pb_arena_close(a);
    close(dirfd);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *folder = getenv("PROBING_CORPUS");

    if (folder) {
        write_seed(folder, 0, false);
        write_seed(folder, 5, false);
        write_seed(folder, 5, true);
        write_seed(folder, 200, true);
    }
    return 0;
}

/* --- the reader ---------------------------------------------------------------------------------------- */

static void use_text(struct pb_text text, const char *from, size_t size)
{
    must(text.length == 0 || (text.data >= from && text.length <= size - (size_t)(text.data - from)),
         "text outside of its segment");
    for (uint32_t i = 0; i < text.length; i++)
        sink += (unsigned char)text.data[i];
}

static void use_column(const struct pb_view *v, unsigned column)
{
    const struct pb_view_column *c = &v->columns[column];

    for (uint32_t row = 0; row < v->nrows; row++) {
        if (pb_view_is_null(v, column, row))
            continue;
        const unsigned char *cell = (const unsigned char *)c->cells + (size_t)row * pb_type_width(c->type);
        for (unsigned i = 0; i < pb_type_width(c->type); i++)
            sink += cell[i];
        if (c->type == PB_STRING) {
            uint16_t id;
            memcpy(&id, cell, sizeof(id));
            must(id < v->nstrings, "a string that is not there");
            use_text(v->strings[id], v->heap, v->heap_size);
        } else if (c->type == PB_BYTES) {
            use_text(pb_view_bytes(v, column, row), v->heap, v->heap_size);
        } else if (c->type == PB_BOOL) {
            must(*cell <= 1, "a truth that is neither");
        }
    }
}

static void use_view(const struct pb_view *v)
{
    for (uint32_t i = 0; i < v->nstrings; i++) {
        use_text(v->strings[i], v->heap, v->heap_size);
        must(v->strings[i].utf8 == pb_utf8_valid(v->strings[i].data, v->strings[i].length),
             "UTF-8 that is none");
    }
    for (unsigned i = 0; i < v->ncolumns; i++)
        use_column(v, i);
}

static void use_table(struct pb_reader *r, unsigned table, struct pb_view *v)
{
    struct pb_segment_info *list = NULL;
    struct pb_table_stats stats;
    struct pb_table_info info;

    if (pb_reader_table(r, table, &info) < 0)
        return;
    sink += strlen(info.name) + strlen(info.comment);
    for (unsigned i = 0; i < info.ncolumns; i++)
        sink += strlen(info.columns[i].name) + strlen(info.columns[i].unit) + strlen(info.columns[i].comment);
    pb_reader_find(r, info.name);
    pb_reader_stats(r, table, &stats);
    int n = pb_reader_segments(r, table, &list);
    for (int i = 0; i < n; i++)
        if (pb_view_load(r, &list[i], v) == 0) {
            use_view(v);
            must(pb_view_still_valid(r, v), "a view that was never valid");
        }
    free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_reader *r;
    struct pb_reader_info info;
    struct pb_view v = {0};
    char why[PB_WHY_SIZE];

    if (pb_reader_open_memory(data, size, &r, why) < 0) {
        sink += strlen(why);
        return 0;
    }
    pb_reader_info(r, &info);
    for (unsigned i = 0; i < pb_reader_ntables(r); i++)
        use_table(r, i, &v);
    pb_view_done(&v);
    pb_reader_close(r);
    return 0;
}
