/* registered: see registered.h. Answers of the process are untrusted: lines are bounded, names and types
 * checked, and reading stops at the first invalid line. */
#include "ask/registered.h"

#include "ask/parts.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "control/message.h"
#include "table/arena.h"
#include "table/clock.h"
#include "table/names.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LIST         "probing.registered"
#define FILENAME     "<probing live>"
#define MOST_BYTES   (64u << 20)
#define LIMIT_MS     10000u /* where the query has no time limit */
#define GRACE_MS     6000u
#define OBJECTS_SIZE 128

/* The answer being read, and the arena that it is written to. */
struct reading {
    char *text;
    size_t length;
    struct pb_arena *arena;
    struct pb_table *table;
    struct pb_column columns[PB_MAX_COLUMNS];
    char names[PB_MAX_COLUMNS][48];
    unsigned n;
    char name[128];
    bool skipped;                        /* the current lines are of a table whose function fails later */
    struct pb_registered_failure failed; /* the first failure */
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

static int add_text(struct reading *r, const struct pb_field *field)
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
static int collect_answer(struct pb_client *client, pid_t pid, uint32_t id, struct reading *ret,
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

/* The end of a quoted text whose first character is at `from`. The quote twice is part of it. */
static size_t end_of_quoted(const char *sql, size_t length, size_t from, char quote, bool escapes)
{
    for (size_t i = from; i < length; i++) {
        if (sql[i] == quote && (i + 1 == length || sql[i + 1] != quote))
            return i + 1;
        i += sql[i] == quote || (escapes && sql[i] == '\\');
    }
    return length;
}

/* Comments may be nested. */
static size_t end_of_comment(const char *sql, size_t length, size_t from)
{
    unsigned depth = 1;

    for (size_t i = from; i + 1 < length; i++) {
        bool opens = sql[i] == '/' && sql[i + 1] == '*', closes = sql[i] == '*' && sql[i + 1] == '/';
        depth += opens;
        depth -= closes;
        if (depth == 0)
            return i + 2;
        i += opens || closes;
    }
    return length;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c & 0x80;
}

/* $$text$$ or $tag$text$tag$. 0: there is none at i. */
static size_t end_of_dollars(const char *sql, size_t length, size_t i)
{
    size_t n = 1;

    if (i > 0 && is_word(sql[i - 1]))
        return 0;
    while (i + n < length && is_word(sql[i + n]))
        n++;
    if (i + n >= length || sql[i + n++] != '$' || (sql[i + 1] >= '0' && sql[i + 1] <= '9'))
        return 0;
    const char *found = memmem(sql + i + n, length - i - n, sql + i, n);
    return found ? (size_t)(found - sql) + n : length;
}

/* Blanks strings and comments, so that no function is called for a word in them. Quoted names stay. */
static void keep_names(char *sql, size_t length)
{
    for (size_t i = 0, end; i < length; i = end) {
        char next = i + 1 < length ? sql[i + 1] : '\0';
        bool escapes = i > 0 && (sql[i - 1] == 'e' || sql[i - 1] == 'E') && (i < 2 || !is_word(sql[i - 2]));
        const char *line_end = sql[i] == '-' && next == '-' ? memchr(sql + i, '\n', length - i) : NULL;
        end = sql[i] == '\''                 ? end_of_quoted(sql, length, i + 1, '\'', escapes)
              : sql[i] == '/' && next == '*' ? end_of_comment(sql, length, i + 2)
              : sql[i] == '-' && next == '-' ? (line_end ? (size_t)(line_end - sql) : length)
              : sql[i] == '$'                ? end_of_dollars(sql, length, i)
                                             : 0;
        if (end)
            memset(sql + i, ' ', end - i);
        else
            end = sql[i] == '"' ? end_of_quoted(sql, length, i + 1, '"', false) : i + 1;
    }
}

/* Names in SQL are case-insensitive. */
static bool names_word(const char *sql, size_t length, const char *word)
{
    size_t n = strlen(word), i = 0;

    while (i + n <= length && strncasecmp(sql + i, word, n) != 0)
        i++;
    return i + n <= length;
}

/* The tables of live objects that a query names, as a request to the agent's Python part (_live.py): a word
 * and names. "": none. Last the column that is filled only where it is named, since it waits for a step. */
static void find_objects(const char *sql, size_t length, char ret[OBJECTS_SIZE])
{
    static const char *const names[] = {"python.modules", "python.tensors", "python.optimizers", "grad_norm"};

    ret[0] = '\0';
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        if (names_word(sql, length, names[k]) && (k < 3 || ret[0]))
            snprintf(ret + strlen(ret), OBJECTS_SIZE - strlen(ret), "%s%s", ret[0] ? " " : "objects ",
                     names[k]);
    }
}

/* mode: PB_RUN_LIVE for tables of registered functions. The request for live objects is not SQL and for
 * Python alone: PB_RUN_SCRIPT. */
static int ask_agent(const struct pb_ask *ask, pid_t pid, const char *names, size_t length,
                     enum pb_run_mode mode, unsigned timeout_ms, struct reading *ret, struct pb_err *err)
{
    _cleanup_free_ uint8_t *buf = malloc(PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD);
    unsigned limit = timeout_ms && timeout_ms < LIMIT_MS ? timeout_ms : LIMIT_MS;
    struct pb_session session;
    struct pb_frame_writer w;

    if (!buf)
        return pb_fail(err, -ENOMEM, "out of memory");
    pb_frame_begin(&w, buf, PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD);
    pb_frame_put(&w, PB_TAG_CODE, names, length);
    pb_frame_put_str(&w, PB_TAG_FILENAME, FILENAME);
    pb_frame_put_u64(&w, PB_TAG_MODE, mode);
    pb_frame_put_u64(&w, PB_TAG_TIMEOUT_MS, limit);
    int r = pb_parts_session(ask, pid, true, limit, &session, err);
    if (r < 0)
        return r;
    pb_client_limit(&session.client, limit + GRACE_MS);
    int64_t id = pb_client_request(&session.client, &w, PB_MSG_RUN);
    r = id < 0 ? pb_fail(err, (int)id, "the agent does not take the query: %s", strerror((int)-id))
               : collect_answer(&session.client, pid, (uint32_t)id, ret, err);
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

static int add_column(struct reading *r, char *line)
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

static int add_row(struct reading *r, char *line)
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
static int make_table(struct reading *r)
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

/* Whether a later line says that the table's function failed: it may have given rows before. */
static bool fails_later(const char *text, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = text; (at = strstr(at, "E\t")); at += 2)
        if ((at == text || at[-1] == '\n') && strncmp(at + 2, name, n) == 0 && at[2 + n] == '\t')
            return true;
    return false;
}

static void keep_failure(struct reading *r, char *rest)
{
    const char *name = next_field(&rest);

    if (r->failed.table[0])
        return;
    if (rest)
        unescape(rest);
    snprintf(r->failed.table, sizeof(r->failed.table), "%.127s", name);
    pb_fail(&r->failed.err, -EIO, "table %s: %s", r->failed.table, rest ? rest : "its function failed");
}

static int read_line(struct reading *r, char *line, const char *after)
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
        r->skipped = after && fails_later(after, rest);
        snprintf(r->name, sizeof(r->name), "%s", r->skipped ? "" : rest);
        r->table = NULL;
        r->n = 0;
        return 0;
    }
    if (r->skipped)
        return 0;
    if (kind == 'C') {
        int error = r->table ? -EPROTO : add_column(r, rest);
        return error;
    }
    if (kind != 'R')
        return -EPROTO;
    int error = r->table ? 0 : make_table(r);
    return error < 0 ? error : add_row(r, rest);
}

static int read_lines(struct reading *r, struct pb_err *err)
{
    int error = 0;

    for (char *line = r->text, *end; error == 0 && line && *line; line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        if ((line[0] == 'T' || line[0] == 'E') && r->name[0] && !r->table)
            make_table(r); /* a table without rows */
        error = read_line(r, line, end);
    }
    if (error == 0 && r->name[0] && !r->table)
        make_table(r);
    if (error < 0)
        pb_fail(err, error, "the process's answer about its registered tables cannot be understood");
    return error;
}

static int ask_source(const struct pb_ask *ask, struct pb_live_source *live, const char *names, size_t length,
                      unsigned timeout_ms, struct pb_registered_failure *ret, struct pb_err *err)
{
    struct reading r = {0};
    struct pb_err senseless;
    char objects[OBJECTS_SIZE];
    int error = 0;

    find_objects(names, length, objects);
    if (has_registered(live->arena_fd))
        error = ask_agent(ask, live->pid, names, length, PB_RUN_LIVE, timeout_ms, &r, err);
    if (error == 0 && objects[0])
        error = ask_agent(ask, live->pid, objects, strlen(objects), PB_RUN_SCRIPT, timeout_ms, &r, err);
    /* A function that was stopped by the time limit was named before the end of the answer. */
    int read = read_lines(&r, error < 0 ? &senseless : err);
    if (error == 0 || r.failed.table[0])
        error = read;
    if (error == 0 && r.failed.table[0])
        *ret = r.failed;
    if (error == 0 && r.arena && live->nmore < PB_LIVE_MORE) {
        int fd = fcntl(pb_arena_fd(r.arena), F_DUPFD_CLOEXEC, 3);
        if (fd >= 0)
            live->more[live->nmore++] = fd;
    }
    if (r.arena)
        pb_arena_close(r.arena);
    free(r.text);
    return error;
}

int pb_registered_ask(const struct pb_ask *ask, struct pb_query_sources *sources, const char *sql,
                      size_t length, unsigned timeout_ms, struct pb_registered_failure *ret,
                      struct pb_err *err)
{
    _cleanup_free_ char *names = malloc(length + 1);
    char objects[OBJECTS_SIZE];

    if (!names)
        return pb_fail(err, -ENOMEM, "out of memory");
    memcpy(names, sql, length);
    keep_names(names, length);
    find_objects(names, length, objects);
    for (unsigned i = 0; i < sources->n; i++) {
        struct pb_live_source *live = &sources->at[i].live;
        char name[64];
        if (live->dead || live->pid <= 0 || live->arena_fd < 0 ||
            !(objects[0] || has_registered(live->arena_fd)))
            continue;
        struct pb_registered_failure failed = {0};
        int r = ask_source(ask, live, names, length, timeout_ms, &failed, err);
        if (r == 0 && !failed.table[0])
            continue;
        if (sources->n == 1) {
            *ret = failed;
            return r;
        }
        pb_live_name(live, name, sizeof(name));
        pb_ask_note(ask, "%s: %s", name, r < 0 ? err->text : failed.err.text);
        err->text[0] = '\0';
    }
    return 0;
}
