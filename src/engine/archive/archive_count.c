/* archive_count: see archive_count.h. */
#include "engine/archive/archive_count.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "engine/archive/archive_list.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FOOTER = 4 << 20, MAX_DEPTH = 8, NUM_ROWS = 3 };

/* --- footers --- */

/* Types of thrift's compact protocol. */
enum { STOP, YES, NO, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT };

/* The type of the next field; *id becomes its number (a difference in the file). */
static uint8_t next_field(struct pb_cursor *c, int64_t *id)
{
    uint8_t head = pb_u8(c);

    if (head >> 4) {
        *id += head >> 4;
    } else if (head & 0xf) {
        uint64_t zigzag = pb_uleb(c);
        *id = (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
    }
    return c->bad ? STOP : head & 0xf;
}

static void skip_value(struct pb_cursor *c, uint8_t type, unsigned depth);

/* Each element takes at least one byte, so that the file's size bounds their number. */
static void skip_list(struct pb_cursor *c, unsigned depth)
{
    uint8_t head = pb_u8(c), type = head & 0xf;
    uint64_t n = head >> 4 == 15 ? pb_uleb(c) : head >> 4;

    for (uint64_t i = 0; i < n && !c->bad; i++)
        if (type == YES || type == NO)
            pb_skip(c, 1);
        else
            skip_value(c, type, depth + 1);
}

static void skip_value(struct pb_cursor *c, uint8_t type, unsigned depth)
{
    int64_t id = 0;
    uint8_t inner;

    c->bad = c->bad || depth > MAX_DEPTH;
    switch (type) {
    case YES:
    case NO:
        return;
    case BYTE:
        pb_skip(c, 1);
        return;
    case I16:
    case I32:
    case I64:
        pb_uleb(c);
        return;
    case DOUBLE:
        pb_skip(c, 8);
        return;
    case BINARY:
        pb_skip(c, pb_uleb(c));
        return;
    case LIST:
    case SET:
        skip_list(c, depth);
        return;
    case STRUCT:
        while (!c->bad && (inner = next_field(c, &id)) != STOP)
            skip_value(c, inner, depth + 1);
        return;
    default: /* Parquet has no maps */
        c->bad = true;
    }
}

int64_t pb_parquet_footer_rows(const uint8_t *footer, size_t size)
{
    struct pb_cursor c = {.at = footer, .end = footer + size};
    int64_t id = 0;
    uint8_t type;

    while ((type = next_field(&c, &id)) != STOP) {
        if (id == NUM_ROWS && type == I64) {
            uint64_t zigzag = pb_uleb(&c);
            return c.bad || zigzag & 1 ? -EBADMSG : (int64_t)(zigzag >> 1);
        }
        skip_value(&c, type, 0);
    }
    return -EBADMSG;
}

int64_t pb_parquet_file_rows(int fd, uint64_t *ret_bytes)
{
    uint8_t tail[8];
    struct stat st;
    uint32_t size;

    if (fstat(fd, &st) < 0)
        return -errno;
    *ret_bytes = (uint64_t)st.st_size;
    if (st.st_size < 12 || pread(fd, tail, sizeof(tail), st.st_size - 8) != sizeof(tail) ||
        memcmp(tail + 4, "PAR1", 4) != 0)
        return -EBADMSG;
    memcpy(&size, tail, sizeof(size));
    if (size > MAX_FOOTER || size > (uint64_t)st.st_size - 8)
        return -EBADMSG;
    _cleanup_free_ uint8_t *footer = malloc(size + 1);
    if (!footer)
        return -ENOMEM;
    if (pread(fd, footer, size, st.st_size - 8 - (off_t)size) != (ssize_t)size)
        return -EBADMSG;
    return pb_parquet_footer_rows(footer, size);
}

static int64_t count_file(int top, const char *path, uint64_t *ret_bytes)
{
    _cleanup_close_ int fd = openat(top, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 ? -errno : pb_parquet_file_rows(fd, ret_bytes);
}

/* --- rows in both places --- */

/* The serials in the names of files, joined, in an array from malloc. */
static struct pb_archive_span *list_spans(const struct pb_archive_files *files, size_t *ret_n)
{
    struct pb_archive_span *all = malloc((files->n + 1) * PB_ARCHIVE_BATCH * sizeof(*all));
    size_t nspans = 0;

    for (size_t i = 0; all && i < files->n; i++) {
        int n = pb_archive_serials_unpack(files->at[i].name.serials, all + nspans);
        nspans += n > 0 ? (size_t)n : 0;
    }
    *ret_n = pb_archive_spans_join(all, nspans);
    return all;
}

static int subtract_archived(const struct pb_archive_files *files, struct pb_reader *reader, unsigned index,
                             struct pb_table_stats *stats)
{
    const uint64_t nothing[PB_MAX_COLUMNS / 64] = {0};
    _cleanup_free_ struct pb_segment_info *list = NULL;
    size_t nspans;

    _cleanup_free_ struct pb_archive_span *spans = list_spans(files, &nspans);
    if (!spans)
        return -ENOMEM;
    int n = pb_reader_segments(reader, index, &list);
    for (int i = 0; i < n; i++) {
        struct pb_view v = {.wanted = nothing};
        if (pb_archive_spans_hold(spans, nspans, list[i].serial) && pb_view_load(reader, &list[i], &v) == 0)
            stats->rows -= v.nrows < stats->rows ? v.nrows : stats->rows;
        pb_view_done(&v);
    }
    return n < 0 ? n : 0;
}

int pb_archive_count(const char *folder, const struct pb_archive_run *run, const char *table,
                     struct pb_reader *reader, unsigned index, struct pb_table_stats *stats)
{
    _cleanup_(pb_archive_files_done) struct pb_archive_files files = {0};

    /* While the archive is held, a recorder that merges files removes none. */
    _cleanup_close_ int top = pb_archive_hold(folder);
    int r = top < 0 ? top : pb_archive_files_read(folder, run, table, &files, NULL);
    if (r < 0)
        return r;
    if (reader && files.n)
        r = subtract_archived(&files, reader, index, stats);
    for (size_t i = 0; r == 0 && i < files.n; i++) {
        const struct pb_archive_name *name = &files.at[i].name;
        uint64_t bytes = 0;
        int64_t rows = count_file(top, files.at[i].path, &bytes);
        if (rows <= 0)
            continue;
        stats->rows += (uint64_t)rows;
        stats->bytes += bytes;
        if (name->first > INT64_MIN / 1000 && (!stats->first || name->first * 1000 < stats->first))
            stats->first = name->first * 1000;
        if (name->last < INT64_MAX / 1000 && name->last * 1000 > stats->last)
            stats->last = name->last * 1000;
    }
    return r;
}
