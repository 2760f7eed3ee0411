/* registered: see registered.h. Answers of the process are untrusted: lines are bounded, names and types
 * checked, and reading stops at the first invalid line. */
#include "ask/registered.h"

#include "ask/parts.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "control/message.h"
#include "engine/shared/known.h"
#include "table/arena.h"
#include "table/clock.h"
#include "table/names.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST         "probing.registered"
#define FILENAME     "<probing live>"
#define MOST_BYTES   (64u << 20)
#define LIMIT_MS     10000u /* where the query has no time limit */
#define GRACE_MS     6000u  /* to interrupt a function; a fifth of the query's limit if it has one */
#define OBJECTS_SIZE 128

struct failure {
    char table[128]; /* "": none */
    struct pb_err err;
};

/* The answer being read, and the arena that it is written to. */
struct registered_reading {
    char *text;
    size_t length;
    struct pb_arena *arena;
    struct pb_table *table;
    struct pb_column columns[PB_MAX_COLUMNS];
    char names[PB_MAX_COLUMNS][48];
    unsigned n;
    char name[128];
    struct failure failed; /* the first one */
};

static bool has_registered(int arena_fd)
{
    struct pb_reader *reader;

    if (arena_fd < 0 || pb_reader_open(arena_fd, &reader, NULL) < 0)
        return false;
    bool has = pb_reader_find(reader, LIST) >= 0;
    pb_reader_close(reader);
    return has;
}

static int add_text(struct registered_reading *r, const struct pb_field *field)
{
    if (field->size > MOST_BYTES - r->length)
        return -EMSGSIZE;
    char *more = realloc(r->text, r->length + field->size + 1);
    if (!more)
        return -ENOMEM;
    memcpy(more + r->length, field->data, field->size);
    r->text = more;
    r->length += field->size;
    r->text[r->length] = '\0';
    return 0;
}

/* Reads lines until the end of the answer. */
static int collect_answer(struct pb_client *client, pid_t pid, uint32_t id, struct registered_reading *ret,
                          struct pb_err *err)
{
    struct pb_frame frame;
    struct pb_field text;

    for (;;) {
        int r = pb_client_next(client, &frame, -1);
        if (r < 0)
            return pb_fail(err, r, "it does not answer: %s", strerror(-r));
        if (frame.id != id)
            continue;
        bool has_text = pb_field_find(&frame, PB_TAG_TEXT, &text) == 0;
        if (frame.type != PB_MSG_OUTPUT)
            return pb_reply_end(pid, 0, &frame, err);
        if (has_text && pb_field_u64(&frame, PB_TAG_STREAM, 0) == PB_STREAM_OUT &&
            (r = add_text(ret, &text)) < 0)
            return pb_fail(err, r, "its rows are too large");
    }
}

/* mode: PB_RUN_LIVE for the table of a registered function, PB_RUN_SCRIPT for live objects. */
static int ask_agent(const struct pb_live_source *source, const char *request, enum pb_run_mode mode,
                     struct registered_reading *ret, struct pb_err *err)
{
    _cleanup_free_ uint8_t *buf = malloc(PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD);
    unsigned limit = source->left_ms && source->left_ms < LIMIT_MS ? source->left_ms : LIMIT_MS;
    struct pb_session session;
    struct pb_frame_writer w;

    if (!buf)
        return pb_fail(err, -ENOMEM, "out of memory");
    pb_frame_begin(&w, buf, PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD);
    pb_frame_put_str(&w, PB_TAG_CODE, request);
    pb_frame_put_str(&w, PB_TAG_FILENAME, FILENAME);
    pb_frame_put_u64(&w, PB_TAG_MODE, mode);
    pb_frame_put_u64(&w, PB_TAG_TIMEOUT_MS, limit);
    int r = pb_parts_session(source->arg, source->pid, true, limit, &session, err);
    if (r < 0)
        return r;
    pb_client_limit(&session.client, limit + (source->left_ms ? limit / 5 : GRACE_MS));
    int64_t id = pb_client_request(&session.client, &w, PB_MSG_RUN);
    r = id < 0 ? pb_fail(err, (int)id, "the agent does not take the query: %s", strerror((int)-id))
               : collect_answer(&session.client, source->pid, (uint32_t)id, ret, err);
    pb_session_done(&session);
    return r;
}

/* --- lines ----------------------------------------------------------------------------------------- */

/* The next field of a line, NUL-terminated in place; NULL: none. */
static char *next_field(char **at)
{
    char *field = *at, *end;

    if (!field)
        return NULL;
    end = strchr(field, '\t');
    if (end)
        *end = '\0';
    *at = end ? end + 1 : NULL;
    return field;
}

/* Removes the escapes in place; returns the length. */
static size_t unescape(char *text)
{
    char *to = text;

    for (const char *from = text; *from; from++) {
        if (*from == '\\' && from[1]) {
            from++;
            *to++ = (char)(*from == 't' ? '\t' : *from == 'n' ? '\n' : *from == '0' ? '\0' : *from);
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
    return (size_t)(to - text);
}

static int add_column(struct registered_reading *r, char *line)
{
    const char *name = next_field(&line), *type = next_field(&line);
    int code = type ? atoi(type) : 0;

    if (r->n == PB_MAX_COLUMNS || !name || !pb_name_is_column(name) || code <= 0 || code >= PB_TYPE_END)
        return -EPROTO;
    snprintf(r->names[r->n], sizeof(r->names[0]), "%s", name);
    /* Set late: otherwise the first time column would become the table's own, set to now and used to skip
     * segments. */
    r->columns[r->n] = (struct pb_column){
        .name = r->names[r->n], .type = (enum pb_type)code, .flags = code == PB_TIMESTAMP ? PB_COL_LATE : 0};
    r->n++;
    return 0;
}

/* A float from its text, or from the bits of a double: x and 16 digits. */
static double float_of(const char *cell)
{
    uint64_t bits;
    double d;

    if (cell[0] != 'x')
        return strtod(cell, NULL);
    bits = strtoull(cell + 1, NULL, 16);
    memcpy(&d, &bits, sizeof(d));
    return d;
}

static unsigned digit_of(char c)
{
    return (unsigned)(c >= 'a' ? c - 'a' + 10 : c - '0') & 15;
}

/* Decodes hexadecimal digits in place; returns the number of bytes. */
static size_t unhex(char *text)
{
    size_t n = strlen(text) / 2;

    for (size_t i = 0; i < n; i++)
        text[i] = (char)(digit_of(text[2 * i]) << 4 | digit_of(text[2 * i + 1]));
    return n;
}

static void set_cell(struct pb_row *row, unsigned column, enum pb_type type, char *cell)
{
    int64_t mono, real;

    switch (type) {
    case PB_I8:
        pb_set_i8(row, column, (int8_t)atoi(cell));
        break;
    case PB_I16:
        pb_set_i16(row, column, (int16_t)atoi(cell));
        break;
    case PB_I32:
        pb_set_i32(row, column, (int32_t)atoi(cell));
        break;
    case PB_I64:
        pb_set_i64(row, column, strtoll(cell, NULL, 10));
        break;
    case PB_U8:
        pb_set_u8(row, column, (uint8_t)atoi(cell));
        break;
    case PB_U16:
        pb_set_u16(row, column, (uint16_t)atoi(cell));
        break;
    case PB_U32:
        pb_set_u32(row, column, (uint32_t)strtoul(cell, NULL, 10));
        break;
    case PB_U64:
        pb_set_u64(row, column, strtoull(cell, NULL, 10));
        break;
    case PB_F32:
        pb_set_f32(row, column, (float)float_of(cell));
        break;
    case PB_F64:
        pb_set_f64(row, column, float_of(cell));
        break;
    case PB_BOOL:
        pb_set_bool(row, column, cell[0] == '1');
        break;
    case PB_TIMESTAMP:
        pb_clock_both(&mono, &real);
        pb_set_timestamp(row, column, (int64_t)((uint64_t)strtoll(cell, NULL, 10) - (uint64_t)(real - mono)));
        break;
    case PB_BYTES:
        pb_set_bytes(row, column, cell, unhex(cell));
        break;
    default:
        pb_set_string(row, column, cell, unescape(cell));
    }
}

static int add_row(struct registered_reading *r, char *line)
{
    struct pb_row row;

    int error = r->table ? pb_row_begin(r->table, &row) : -EPROTO;
    if (error < 0)
        return error;
    for (unsigned i = 0; i < r->n; i++) {
        char *cell = next_field(&line);
        if (cell && strcmp(cell, "\\N") != 0)
            set_cell(&row, i, r->columns[i].type, cell);
    }
    return pb_row_commit(&row);
}

/* Creates the table that the lines so far describe. */
static int make_table(struct registered_reading *r)
{
    const struct pb_table_spec spec = {.name = r->name,
                                       .comment = "rows of a function, at the moment of the query",
                                       .columns = r->columns,
                                       .ncolumns = r->n,
                                       .heap_percent = 50};
    const struct pb_arena_options how = {.bound = 4ull * MOST_BYTES, .segment_size = 1u << 20};

    if (!r->name[0] || !r->n)
        return r->name[0] ? -ENODATA : -EPROTO;
    int error = r->arena ? 0 : pb_arena_create(PB_ARENA_MEMFD, "registered", &how, &r->arena);
    return error < 0 ? error : pb_table_new(r->arena, &spec, &r->table);
}

static void keep_failure(struct registered_reading *r, char *rest)
{
    const char *name = next_field(&rest);

    if (r->failed.table[0])
        return;
    if (rest)
        unescape(rest);
    snprintf(r->failed.table, sizeof(r->failed.table), "%.127s", name);
    pb_fail(&r->failed.err, -EIO, "table %s: %s", r->failed.table, rest ? rest : "its function failed");
}

static int read_line(struct registered_reading *r, char *line)
{
    char kind = line[0], *rest = line[0] && line[1] == '\t' ? line + 2 : NULL;

    if (!rest)
        return -EPROTO;
    if (kind == 'E') {
        keep_failure(r, rest);
        r->name[0] = '\0';
        return 0;
    }
    if (kind == 'T') {
        if (!pb_name_is_table(rest))
            return -EPROTO;
        snprintf(r->name, sizeof(r->name), "%s", rest);
        r->table = NULL;
        r->n = 0;
        return 0;
    }
    if (kind == 'C') {
        int error = r->table ? -EPROTO : add_column(r, rest);
        return error;
    }
    if (kind != 'R')
        return -EPROTO;
    int error = r->table ? 0 : make_table(r);
    return error < 0 ? error : add_row(r, rest);
}

static int read_lines(struct registered_reading *r, struct pb_err *err)
{
    int error = 0;

    for (char *line = r->text, *end; error == 0 && line && *line; line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        if ((line[0] == 'T' || line[0] == 'E') && r->name[0] && !r->table)
            make_table(r); /* a table without rows */
        error = read_line(r, line);
    }
    if (error == 0 && r->name[0] && !r->table)
        make_table(r);
    if (error < 0)
        pb_fail(err, error, "the process's answer about its registered tables cannot be understood");
    return error;
}

/* An agent that has just come may have none yet. */
static int ask_table(const struct pb_live_source *source, const char *table, struct registered_reading *ret,
                     struct pb_err *err)
{
    const struct pb_known *known = pb_known_find(table);
    char objects[OBJECTS_SIZE];

    if (known) {
        snprintf(objects, sizeof(objects), "objects %s%s", table,
                 pb_live_names(source, "grad_norm") ? " grad_norm" : "");
        return ask_agent(source, objects, PB_RUN_SCRIPT, ret, err);
    }
    return has_registered(source->arena_fd) ? ask_agent(source, table, PB_RUN_LIVE, ret, err) : 0;
}

int pb_registered_table(const struct pb_live_source *source, const char *table, struct pb_err *err)
{
    struct registered_reading r = {0};
    struct pb_err senseless;
    int fd = -ENOENT;

    if (source->dead || source->pid <= 0 || source->arena_fd < 0)
        return -ENOENT;
    int error = ask_table(source, table, &r, err);
    /* A function that was stopped by the time limit was named before the end of the answer. */
    int read = read_lines(&r, error < 0 ? &senseless : err);
    if (error == 0 || r.failed.table[0])
        error = read;
    if (error == 0 && r.failed.table[0]) {
        *err = r.failed.err;
        error = -EIO;
    }
    if (error == 0 && r.arena)
        fd = fcntl(pb_arena_fd(r.arena), F_DUPFD_CLOEXEC, 3);
    if (r.arena)
        pb_arena_close(r.arena);
    free(r.text);
    return error < 0 ? error : fd;
}
