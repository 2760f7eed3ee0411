/* table_test: what the arena's tests share: a table whose rows prove themselves, and a loop over what is
 * read. */
#pragma once

#include <dirent.h>
#include <fcntl.h>

#include "table/arena.h"
#include "table/reader.h"

#include "slow.h"
#include "test.h"

/* Under sanitizers tests look for their reports on fewer rows. */
#if defined(__has_feature)
#define TEST_HAS(feature) __has_feature(feature)
#else
#define TEST_HAS(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || TEST_HAS(thread_sanitizer)
#define TEST_TSAN 1
#else
#define TEST_TSAN 0
#endif
#if TEST_TSAN || defined(__SANITIZE_ADDRESS__) || TEST_HAS(address_sanitizer)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif
/* Where a thousand times is too often. */
#define TEST_SELDOM (TEST_SANITIZED || TEST_SLOWNESS > 1)

/* Rows of which every cell follows from writer and number: a torn or misplaced one shows. */
enum { PROOF_TIME, PROOF_WRITER, PROOF_NUMBER, PROOF_SUM, PROOF_NAME, PROOF_LATE, PROOF_COLUMNS };

static inline uint64_t proof_sum(uint32_t writer, uint64_t number)
{
    uint64_t h = (number + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)writer << 32;
    return h ^ h >> 29;
}

static inline size_t proof_name(char *to, size_t size, uint32_t writer, uint64_t number)
{
    return (size_t)snprintf(to, size, "name-%u-%u", writer, (unsigned)(number % 23));
}

static inline int proof_table(struct pb_arena *a, const char *name, unsigned share, struct pb_table **ret)
{
    const struct pb_column columns[] = {
        {.name = "timestamp", .type = PB_TIMESTAMP}, {.name = "writer", .type = PB_U32},
        {.name = "number", .type = PB_U64},          {.name = "sum", .type = PB_U64},
        {.name = "name", .type = PB_STRING},         {.name = "late", .type = PB_U64, .flags = PB_COL_LATE}};
    struct pb_table_spec spec = {.name = name, .columns = columns, .ncolumns = PROOF_COLUMNS, .share = share};
    return pb_table_new(a, &spec, ret);
}

static inline int proof_begin(struct pb_table *t, uint32_t writer, uint64_t number, struct pb_row *row)
{
    char name[64];
    int r = pb_row_begin(t, row);

    if (r < 0)
        return r;
    pb_set_u32(row, PROOF_WRITER, writer);
    pb_set_u64(row, PROOF_NUMBER, number);
    pb_set_u64(row, PROOF_SUM, proof_sum(writer, number));
    pb_set_string(row, PROOF_NAME, name, proof_name(name, sizeof(name), writer, number));
    return 0;
}

static inline int proof_append(struct pb_table *t, uint32_t writer, uint64_t number)
{
    struct pb_row row;
    int r = proof_begin(t, writer, number, &row);
    return r < 0 ? r : pb_row_commit(&row);
}

/* The cells of one row of a view, as a value. */
#define CELL(view, column, row, type) (((const type *)(view)->columns[column].cells)[row])

/* Whether the row is one that proof_append wrote. */
static inline bool proof_holds(const struct pb_view *v, uint32_t row)
{
    char name[64];
    if (pb_view_is_null(v, PROOF_TIME, row) || pb_view_is_null(v, PROOF_WRITER, row) ||
        pb_view_is_null(v, PROOF_NUMBER, row) || pb_view_is_null(v, PROOF_SUM, row) ||
        pb_view_is_null(v, PROOF_NAME, row))
        return false;
    uint32_t writer = CELL(v, PROOF_WRITER, row, uint32_t);
    uint64_t number = CELL(v, PROOF_NUMBER, row, uint64_t);
    size_t length = proof_name(name, sizeof(name), writer, number);
    struct pb_text text = v->strings[CELL(v, PROOF_NAME, row, uint16_t)];
    bool late = pb_view_is_null(v, PROOF_LATE, row) || CELL(v, PROOF_LATE, row, uint64_t) == ~number;
    return CELL(v, PROOF_SUM, row, uint64_t) == proof_sum(writer, number) && text.length == length &&
           memcmp(text.data, name, length) == 0 && text.utf8 && late;
}

/* The memory of the arena "arena" of another process, as a tool gets it: read-only. -1: it has none. */
static inline int open_live(int pid)
{
    char path[64], link[64];
    int found = -1;

    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && found < 0 && (e = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        if (strncmp(link, "/memfd:arena", 12) == 0)
            found = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
    }
    if (dir)
        closedir(dir);
    return found;
}

typedef void (*row_fn)(const struct pb_view *v, uint32_t row, void *arg);

/* Calls fn for every row of the table, newest segment first. Returns their number; -1 where the table or
 * arena cannot be read. A segment that went away meanwhile is passed over. */
static inline long each_row(int fd, const char *table, row_fn fn, void *arg)
{
    struct pb_reader *r;
    struct pb_segment_info *list = NULL;
    struct pb_view v = {0};
    long rows = 0;

    if (pb_reader_open(fd, &r, NULL) < 0)
        return -1;
    int t = pb_reader_find(r, table), n = t < 0 ? -1 : pb_reader_segments(r, (unsigned)t, &list);
    for (int i = 0; i < n; i++) {
        if (pb_view_load(r, &list[i], &v) < 0)
            continue;
        for (uint32_t row = 0; fn && row < v.nrows; row++)
            fn(&v, row, arg);
        rows += v.nrows;
    }
    free(list);
    pb_view_done(&v);
    pb_reader_close(r);
    return n < 0 ? -1 : rows;
}
