/* original: see original.h. */
#include "serve/original.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "print/records.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

/* --- requests --- */

static bool is_select(const char *sql)
{
    sql += strspn(sql, " \t\r\n(");
    return strncasecmp(sql, "select", 6) == 0 || strncasecmp(sql, "with", 4) == 0 ||
           strncasecmp(sql, "from", 4) == 0;
}

int pb_original_sql(const char *body, size_t length, char **ret, struct pb_err *err)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    _cleanup_free_ char *sql = malloc(length + 1);
    char limit[24];
    int r = sql ? 0 : -ENOMEM;

    if (r == 0 && pb_json_parse(body, length, &j) < 0)
        r = -EBADMSG;
    if (r < 0)
        return pb_fail(err, r, r == -ENOMEM ? "out of memory" : "the body is no JSON");
    uint32_t payload = pb_json_get(&j, 1, "payload"), at = pb_json_get(&j, payload, "expr") ? payload : 1;
    uint32_t expr = pb_json_get(&j, at, "expr");
    if (!expr || j.nodes[expr].kind != '"' || pb_json_text(&j, expr, sql, length + 1) <= 0)
        return pb_fail(err, -EBADMSG, "the body has no expr, the SQL");
    uint32_t opts = pb_json_get(&j, pb_json_get(&j, at, "opts"), "limit");
    bool limited = opts && !j.nodes[opts].kind && pb_json_text(&j, opts, limit, sizeof(limit)) > 0 &&
                   strspn(limit, "0123456789") == strlen(limit);
    size_t n = strlen(sql);
    while (n && strchr("; \t\r\n", sql[n - 1]))
        sql[--n] = '\0';
    if (!limited || !is_select(sql) || strchr(sql, ';'))
        *ret = strdup(sql);
    else if (asprintf(ret, "SELECT * FROM (%s\n) LIMIT %s", sql, limit) < 0)
        *ret = NULL;
    return *ret ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

/* --- data frames --- */

/* Lines of JSON as one array, since newlines stand between values only. */
static char *join_lines(const char *printed, size_t length, size_t *ret_length)
{
    while (length && printed[length - 1] == '\n')
        length--;
    char *text = malloc(length + 3);
    if (!text)
        return NULL;
    text[0] = '[';
    for (size_t i = 0; i < length; i++)
        text[1 + i] = (char)(printed[i] == '\n' ? ',' : printed[i]);
    text[1 + length] = ']';
    text[2 + length] = '\0';
    *ret_length = length + 2;
    return text;
}

static const char *sequence_of(const char *type)
{
    static const char *const types[][2] = {
        {"BOOLEAN", "SeqBOOL"}, {"TINYINT", "SeqI32"},  {"SMALLINT", "SeqI32"},
        {"INTEGER", "SeqI32"},  {"UTINYINT", "SeqI32"}, {"USMALLINT", "SeqI32"},
        {"BIGINT", "SeqI64"},   {"UINTEGER", "SeqI64"}, {"UBIGINT", "SeqI64"},
        {"FLOAT", "SeqF32"},    {"DOUBLE", "SeqF64"},   {"TIMESTAMP", "SeqDateTime"}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i][0], type) == 0)
            return types[i][1];
    return "SeqText";
}

static int64_t microseconds(const char *text)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
    double part = rest && *rest == '.' ? strtod(rest, NULL) : 0;

    return rest ? (int64_t)timegm(&tm) * 1000000 + (int64_t)(part * 1e6 + 0.5) : 0;
}

/* Those sequences have no NULL: it is 0, false and "". */
static void put_cell(FILE *out, const struct pb_json *j, uint32_t node, const char *sequence)
{
    const struct pb_json_node *n = &j->nodes[node];
    bool null = !node || (n->kind == 0 && n->length == 4 && memcmp(n->at, "null", 4) == 0);
    size_t length = 0;
    char text[64];

    const char *span = null ? "" : pb_json_span(j, node, &length);
    if (strcmp(sequence, "SeqText") == 0) {
        if (null || n->kind == '"')
            fprintf(out, "%.*s", null ? 2 : (int)length, null ? "\"\"" : span);
        else
            pb_put_json(out, span, length);
    } else if (strcmp(sequence, "SeqDateTime") == 0) {
        fprintf(out, "%" PRId64,
                null || pb_json_text(j, node, text, sizeof(text)) < 0 ? 0 : microseconds(text));
    } else if (strcmp(sequence, "SeqBOOL") == 0) {
        fputs(!null && length == 4 ? "true" : "false", out);
    } else {
        fprintf(out, "%.*s", null || n->kind ? 1 : (int)length, null || n->kind ? "0" : span);
    }
}

/* A member as it stands, or null. */
static void put_member(FILE *out, const struct pb_json *j, uint32_t row, const char *key)
{
    size_t size = 4;
    uint32_t node = pb_json_get(j, row, key);
    const char *span = node ? pb_json_span(j, node, &size) : "null";

    fprintf(out, "%.*s", (int)size, span);
}

static void put_columns(FILE *out, const struct pb_json *j, uint32_t columns, uint32_t *cursors, size_t nrows)
{
    char type[128];

    for (uint32_t c = j->nodes[columns].child, first = c; c; c = j->nodes[c].next) {
        if (pb_json_text(j, pb_json_get(j, c, "type"), type, sizeof(type)) < 0)
            type[0] = '\0';
        const char *sequence = sequence_of(type);
        fprintf(out, "%s{\"%s\":[", c == first ? "" : ",", sequence);
        for (size_t i = 0; i < nrows; i++) {
            fputs(i ? "," : "", out);
            put_cell(out, j, cursors[i], sequence);
            cursors[i] = cursors[i] ? j->nodes[cursors[i]].next : 0;
        }
        fputs("]}", out);
    }
}

/* {"names", "cols", "size"}. False: there is none. */
static bool put_frame(FILE *out, const char *printed, size_t length)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    size_t size = 0, nrows = 0;
    _cleanup_free_ char *text = join_lines(printed, length, &size);

    if (!text || pb_json_parse(text, size, &j) < 0)
        return false;
    uint32_t head = j.nodes[1].child, columns = pb_json_get(&j, head, "columns");
    if (!columns)
        return false;
    for (uint32_t row = j.nodes[head].next; row; row = j.nodes[row].next)
        nrows++;
    _cleanup_free_ uint32_t *cursors = calloc(nrows + 1, sizeof(*cursors));
    if (!cursors)
        return false;
    for (uint32_t row = j.nodes[head].next, i = 0; row; row = j.nodes[row].next)
        cursors[i++] = j.nodes[row].child;
    fputs("{\"names\":[", out);
    for (uint32_t c = j.nodes[columns].child, first = c; c; c = j.nodes[c].next) {
        fputs(c == first ? "" : ",", out);
        put_member(out, &j, c, "name");
    }
    fputs("],\"cols\":[", out);
    put_columns(out, &j, columns, cursors, nrows);
    fprintf(out, "],\"size\":%zu}", nrows);
    return true;
}

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* What a frame is wrapped in; without a frame, what stands for none. */
static void put_wrapped(FILE *out, const char *printed, size_t length, const char *before, const char *after,
                        const char *none)
{
    char *frame = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&frame, &size);
    bool any = to && put_frame(to, printed, length);

    if (to)
        fclose(to);
    if (any)
        fprintf(out, "%s%.*s%s", before, (int)size, frame, after);
    else
        fputs(none, out);
    free(frame);
}

static void begin_message(FILE *out)
{
    fprintf(out,
            "{\"version\":{\"major\":0,\"minor\":1,\"patch\":0},\"message_id\":null,\"timestamp\":%" PRId64
            ",\"payload\":",
            now_us());
}

void pb_original_failure(const char *code, const char *message, FILE *out)
{
    begin_message(out);
    fprintf(out, "{\"Error\":{\"code\":\"%s\",\"message\":", code);
    pb_put_json(out, message, strlen(message));
    fputs(",\"details\":null}}}\n", out);
}

bool pb_original_message(const char *printed, size_t length, const char *chosen, FILE *out)
{
    begin_message(out);
    put_wrapped(out, printed, length, "{\"DataFrame\":", "}", "\"Nil\"");
    fputs("}\n", out);
    return true;
}

bool pb_original_dto(const char *printed, size_t length, const char *chosen, FILE *out)
{
    fputs("{\"payload\":", out);
    put_wrapped(out, printed, length, "{\"type\":\"DataFrame\",\"value\":", "}", "{\"type\":\"Nil\"}");
    fprintf(out, ",\"timestamp\":%" PRId64 ",\"success\":true,\"message\":null}\n", now_us());
    return true;
}

bool pb_original_cluster(const char *printed, size_t length, const char *chosen, FILE *out)
{
    fputs("{\"dataframe\":", out);
    put_wrapped(out, printed, length, "", "", "null");
    fputs(",\"meta\":{\"nodes_queried\":1,\"nodes_failed\":0,\"partial\":false}}\n", out);
    return true;
}

/* --- lists --- */

bool pb_original_first(const char *printed, size_t length, const char *chosen, FILE *out)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    size_t size;

    if (pb_json_parse(printed, length, &j) < 0 || j.nodes[1].kind != '[' || !j.nodes[1].child) {
        fputs("null\n", out);
        return true;
    }
    const char *span = pb_json_span(&j, j.nodes[1].child, &size);
    fprintf(out, "%.*s\n", (int)size, span);
    return true;
}

bool pb_original_events(const char *printed, size_t length, const char *chosen, FILE *out)
{
    (void)chosen;
    fprintf(out, "{\"traceEvents\":%.*s,\"displayTimeUnit\":\"ms\"}\n", (int)length, length ? printed : "[]");
    return true;
}

/* --- stacks --- */

static void put_place(FILE *out, const struct pb_json *j, uint32_t frame)
{
    static const char *const members[][2] = {{"file", "file"}, {"func", "function"}, {"lineno", "line"}};

    for (size_t i = 0; i < 3; i++) {
        fprintf(out, "%s\"%s\":", i ? "," : "", members[i][0]);
        put_member(out, j, frame, members[i][1]);
    }
}

static void put_python_frame(FILE *out, const struct pb_json *j, uint32_t frame)
{
    uint32_t locals = pb_json_get(j, frame, "locals");
    bool first = true;

    fputs("{\"PyFrame\":{", out);
    put_place(out, j, frame);
    fputs(",\"locals\":{", out);
    for (uint32_t l = locals ? j->nodes[locals].child : 0; l; l = j->nodes[l].next) {
        size_t size;
        const char *value = pb_json_span(j, l, &size);
        fprintf(out,
                "%s\"%.*s\":{\"id\":0,\"class\":\"\",\"shape\":null,\"dtype\":null,\"device\":null,\"value\":"
                "%.*s}",
                first ? "" : ",", (int)j->nodes[l].key_length, j->nodes[l].key, (int)size, value);
        first = false;
    }
    fputs("}}}", out);
}

static void put_native_frame(FILE *out, const struct pb_json *j, uint32_t frame)
{
    fputs("{\"CFrame\":{\"ip\":", out);
    put_member(out, j, frame, "pc");
    putc(',', out);
    put_place(out, j, frame);
    fputs(",\"lang\":\"C\"}}", out);
}

static uint32_t nth_child(const struct pb_json *j, uint32_t list, size_t n)
{
    uint32_t c = list ? j->nodes[list].child : 0;

    while (c && n--)
        c = j->nodes[c].next;
    return c;
}

/* The thread of that number; without one that of the process's number. 0: there is none. */
static uint32_t find_thread(const struct pb_json *j, uint32_t process, const char *chosen)
{
    uint32_t threads = pb_json_get(j, process, "threads"), pid = pb_json_get(j, process, "pid");
    char wanted[24], tid[24];

    if (chosen)
        snprintf(wanted, sizeof(wanted), "%s", chosen);
    else if (pb_json_text(j, pid, wanted, sizeof(wanted)) < 0)
        return 0;
    for (uint32_t t = threads ? j->nodes[threads].child : 0; t; t = j->nodes[t].next)
        if (pb_json_text(j, pb_json_get(j, t, "tid"), tid, sizeof(tid)) > 0 && strcmp(tid, wanted) == 0)
            return t;
    return 0;
}

bool pb_original_callstack(const char *printed, size_t length, const char *chosen, FILE *out)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    size_t n = 0;

    putc('[', out);
    if (pb_json_parse(printed, length, &j) == 0 && j.nodes[1].child) {
        uint32_t thread = find_thread(&j, j.nodes[1].child, chosen),
                 frames = pb_json_get(&j, thread, "frames"), merged = pb_json_get(&j, thread, "stack");
        for (uint32_t f = nth_child(&j, merged ? merged : frames, 0); f; f = j.nodes[f].next) {
            uint32_t kind = pb_json_get(&j, f, "kind");
            char number[24];
            fputs(n++ ? "," : "", out);
            if (kind && pb_json_is(&j, kind, "native"))
                put_native_frame(out, &j, f);
            else if (kind && pb_json_text(&j, pb_json_get(&j, f, "frame"), number, sizeof(number)) > 0)
                put_python_frame(out, &j, nth_child(&j, frames, strtoul(number, NULL, 10)));
            else
                put_python_frame(out, &j, f);
        }
    }
    fputs("]\n", out);
    return true;
}

/* --- steps --- */

bool pb_original_steps(const char *printed, size_t length, const char *chosen, FILE *out)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};
    char host[128] = "";
    uint64_t ranks = 0, low = UINT64_MAX, high = 0;
    size_t n = 0;

    gethostname(host, sizeof(host) - 1);
    fputs("{\"samples\":[", out);
    uint32_t row = pb_json_parse(printed, length, &j) < 0 ? 0 : j.nodes[1].child;
    for (; row; row = j.nodes[row].next) {
        static const char *const members[] = {"rank", "local_step", "coord_step", "duration_ms"};
        char text[32];
        for (size_t i = 0; i < 4; i++) {
            fprintf(out, "%s\"%s\":", i ? "," : n ? ",{" : "{", members[i]);
            put_member(out, &j, row, members[i]);
        }
        fputs(",\"addr\":null,\"host\":", out);
        pb_put_json(out, host, strlen(host));
        putc('}', out);
        if (pb_json_text(&j, pb_json_get(&j, row, "rank"), text, sizeof(text)) > 0) {
            uint64_t rank = strtoull(text, NULL, 10);
            ranks = rank >= ranks ? rank + 1 : ranks;
        }
        if (pb_json_text(&j, pb_json_get(&j, row, "local_step"), text, sizeof(text)) > 0) {
            uint64_t step = strtoull(text, NULL, 10);
            low = step < low ? step : low;
            high = step > high ? step : high;
        }
        n++;
    }
    fprintf(out,
            "],\"rank_count\":%" PRIu64 ",\"step_count\":%" PRIu64
            ",\"cluster\":false,\"partial\":false,\"nodes_queried\":1,\"nodes_failed\":0}\n",
            ranks, low > high ? 0 : high - low + 1);
    return true;
}
