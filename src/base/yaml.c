/* yaml: see yaml.h. A reader by lines: of each it knows how deep it is indented, and where its text begins.
 * What a value of a sequence or mapping has on the same line is read as if it stood on a line of its own. */
#include "base/yaml.h"

#include "base/err.h"
#include "base/json_write.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 16, KEYS_MAX = 256 };

struct yaml_line {
    const char *at, *end; /* its text, without what indents it */
    int indent;
};

struct yaml {
    struct yaml_line *lines;
    size_t n, i;    /* i: the line that is read */
    const char *at; /* in it */
    char *scalar;   /* as long as the document */
    unsigned depth;
    struct pb_json_writer w;
    struct pb_err *err;
};

static int fail_at(struct yaml *y, size_t line, const char *why)
{
    return pb_fail(y->err, -EBADMSG, "line %zu: %s", line + 1, why);
}

static int fail(struct yaml *y, const char *why)
{
    return fail_at(y, y->i < y->n ? y->i : y->n - (y->n > 0), why);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* --- lines --- */

static bool is_empty(const struct yaml_line *l)
{
    return l->at == l->end || *l->at == '#';
}

static const struct yaml_line *this_line(struct yaml *y)
{
    while (y->i < y->n && is_empty(&y->lines[y->i]))
        y->i++;
    return y->i < y->n ? &y->lines[y->i] : NULL;
}

static int cut_lines(struct yaml *y, const char *text, size_t length)
{
    const char *end = text + length;
    size_t n = 1;

    for (const char *at = text; at < end; at++)
        n += *at == '\n';
    y->lines = calloc(n, sizeof(*y->lines));
    y->scalar = malloc(length + 1);
    if (!y->lines || !y->scalar)
        return pb_fail(y->err, -ENOMEM, "out of memory");
    while (text < end) {
        struct yaml_line *l = &y->lines[y->n];
        const char *next = memchr(text, '\n', (size_t)(end - text));
        l->end = next ? next : end;
        for (l->at = text; l->at < l->end && *l->at == ' ';)
            l->at++;
        l->indent = (int)(l->at - text);
        while (l->end > l->at && (is_blank(l->end[-1]) || l->end[-1] == '\r'))
            l->end--;
        text = next ? next + 1 : end;
        y->n++;
    }
    return 0;
}

/* "---" once, before everything. */
static int skip_start(struct yaml *y)
{
    const struct yaml_line *l = this_line(y);

    if (l && l->indent == 0 && l->end - l->at == 3 && memcmp(l->at, "---", 3) == 0)
        y->i++;
    for (size_t i = y->i; i < y->n; i++) {
        l = &y->lines[i];
        bool mark = l->indent == 0 && l->end - l->at >= 3 &&
                    (memcmp(l->at, "---", 3) == 0 || memcmp(l->at, "...", 3) == 0);
        if (mark)
            return fail_at(y, i, "a second document");
    }
    return 0;
}

/* --- scalars --- */

static void put_scalar(struct yaml *y, const char *key, size_t n)
{
    if (n)
        pb_json_put_bytes(&y->w, key, y->scalar, n);
    else
        pb_json_put_null(&y->w, key);
}

/* One line end within a quoted or plain scalar: a blank, or as many line ends as lines are empty. Goes to the
 * next line. */
static int fold(struct yaml *y, int least, size_t *n)
{
    size_t empty = 0;

    while (*n && is_blank(y->scalar[*n - 1]))
        (*n)--;
    while (++y->i < y->n && y->lines[y->i].at == y->lines[y->i].end)
        empty++;
    if (y->i == y->n || y->lines[y->i].indent < least)
        return fail(y, "a quote or bracket does not end");
    if (empty)
        while (empty--)
            y->scalar[(*n)++] = '\n';
    else if (*n)
        y->scalar[(*n)++] = ' ';
    y->at = y->lines[y->i].at;
    return 0;
}

static size_t put_utf8(char *to, unsigned long code)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xc0 | code >> 6);
        to[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    to[0] = (char)(0xe0 | code >> 12);
    to[1] = (char)(0x80 | (code >> 6 & 0x3f));
    to[2] = (char)(0x80 | (code & 0x3f));
    return 3;
}

/* Behind a backslash. */
static int read_escape(struct yaml *y, const char *end, size_t *n)
{
    static const char names[] = "nrt\"\\/ ", values[] = "\n\r\t\"\\/ ";
    const char *known = y->at < end ? strchr(names, *y->at) : NULL;
    char digits[5] = "";
    int most = y->at < end && *y->at == 'x' ? 2 : y->at < end && *y->at == 'u' ? 4 : 0;

    if (known && *known) {
        y->scalar[(*n)++] = values[known - names];
        y->at++;
        return 0;
    }
    if (!most || end - y->at <= most)
        return fail(y, "an escape that is not known");
    memcpy(digits, y->at + 1, (size_t)most);
    unsigned long code = strtoul(digits, NULL, 16);
    if (strspn(digits, "0123456789abcdefABCDEF") != (size_t)most || code == 0 ||
        (code >= 0xd800 && code < 0xe000))
        return fail(y, "an escape that is not known");
    *n += put_utf8(y->scalar + *n, code);
    y->at += most + 1;
    return 0;
}

/* y->at is at the quote; afterwards behind its end. */
static int read_quoted(struct yaml *y, int least, size_t *ret)
{
    char quote = *y->at++;
    size_t n = 0;
    int r;

    for (;;) {
        const char *end = y->lines[y->i].end;
        if (y->at == end) {
            if ((r = fold(y, least, &n)) < 0)
                return r;
        } else if (*y->at == quote && quote == '\'' && y->at + 1 < end && y->at[1] == quote) {
            y->scalar[n++] = quote;
            y->at += 2;
        } else if (*y->at == quote) {
            y->at++;
            *ret = n;
            return 0;
        } else if (*y->at == '\\' && quote == '"') {
            y->at++;
            if ((r = read_escape(y, end, &n)) < 0)
                return r;
        } else {
            y->scalar[n++] = *y->at++;
        }
    }
}

/* Why a scalar without quotes may not begin so; NULL: it may. */
static const char *why_not_plain(const char *at, const char *end)
{
    if (at < end && *at == '\t')
        return "a tab indents";
    if (at < end && strchr("&*", *at))
        return "anchors and aliases are not read";
    if (at < end && *at == '!')
        return "tags are not read";
    if (at < end && strchr("@`%|>", *at))
        return "a text that begins so needs quotes";
    if (at + 1 < end && (*at == '?' || *at == ':') && is_blank(at[1]))
        return "a key that is no text";
    return NULL;
}

/* Up to the end of the line or a comment; in brackets, to what stands between values. */
static const char *plain_end(const char *at, const char *end, bool flow)
{
    const char *last = at;

    for (; at < end; at++) {
        if (*at == '#' && is_blank(at[-1]))
            break;
        if (flow && (strchr(",[]{}", *at) || (*at == ':' && (at + 1 == end || is_blank(at[1])))))
            break;
        if (!is_blank(*at))
            last = at + 1;
    }
    return last;
}

static bool has_key(const char *at, const char *end);

/* A plain scalar, which may go on in lines that are indented by `least`. */
static int read_plain(struct yaml *y, int least, size_t *ret)
{
    const char *end = y->lines[y->i].end, *why = why_not_plain(y->at, end);
    const char *last = plain_end(y->at, end, false);
    size_t n = (size_t)(last - y->at);

    if (why)
        return fail(y, why);
    if (has_key(y->at, end))
        return fail(y, "a text with \": \" in it needs quotes");
    memcpy(y->scalar, y->at, n);
    for (bool comment = last < end; !comment;) {
        const struct yaml_line *next = y->i + 1 < y->n ? &y->lines[y->i + 1] : NULL;
        if (!next || next->indent < least || is_empty(next))
            break;
        if (has_key(next->at, next->end))
            return fail_at(y, y->i + 1, "indented deeper than what it belongs to");
        last = plain_end(next->at, next->end, false);
        comment = last < next->end;
        y->scalar[n++] = ' ';
        memcpy(y->scalar + n, next->at, (size_t)(last - next->at));
        n += (size_t)(last - next->at);
        y->i++;
    }
    *ret = n == 1 && y->scalar[0] == '~' ? 0 : n;
    y->i++;
    return 0;
}

/* "| and >" with "-" or "+": lines that are indented deeper than `parent`. */
static int read_block_scalar(struct yaml *y, int parent, size_t *ret)
{
    bool folded = *y->at++ == '>', more = false;
    const char *end = y->lines[y->i].end;
    char chomp = y->at < end && strchr("+-", *y->at) ? *y->at++ : '\0';
    size_t n = 0, empty = 0;
    int indent = -1;

    while (y->at < end && is_blank(*y->at))
        y->at++;
    if (y->at < end && *y->at != '#')
        return fail(y, "what follows | or > is not known (+ or -, and a text in lines below it)");
    for (y->i++; y->i < y->n; y->i++) {
        const struct yaml_line *l = &y->lines[y->i];
        if (l->at == l->end) {
            empty++;
            continue;
        }
        if (l->indent <= parent || (indent >= 0 && l->indent < indent && *l->at == '#'))
            break;
        if (indent < 0)
            indent = l->indent;
        if (l->indent < indent)
            return fail(y, "indented less than the lines above it");
        bool deeper = l->indent > indent || *l->at == '\t', join = folded && n && !more && !deeper;
        if (n && !(join && !empty))
            y->scalar[n++] = '\n';
        else if (n)
            y->scalar[n++] = ' ';
        for (size_t k = join && empty ? 1 : 0; k < empty; k++)
            y->scalar[n++] = '\n';
        memset(y->scalar + n, ' ', (size_t)(l->indent - indent));
        n += (size_t)(l->indent - indent);
        memcpy(y->scalar + n, l->at, (size_t)(l->end - l->at));
        n += (size_t)(l->end - l->at);
        empty = 0;
        more = deeper;
    }
    if (n && chomp != '-')
        y->scalar[n++] = '\n';
    for (; n && chomp == '+' && empty; empty--)
        y->scalar[n++] = '\n';
    *ret = n;
    return 0;
}

/* --- keys --- */

/* Where the colon of a key stands: before a blank or the end of the line, outside of quotes. NULL: none. */
static const char *find_colon(const char *at, const char *end)
{
    char quote = at < end && strchr("\"'", *at) ? *at : '\0';

    if (quote) {
        for (at++; at < end && *at != quote; at++)
            at += *at == '\\' && quote == '"';
        at += at < end;
        while (at < end && is_blank(*at))
            at++;
        return at < end && *at == ':' && (at + 1 == end || is_blank(at[1])) ? at : NULL;
    }
    for (const char *from = at; at < end; at++) {
        if (*at == '#' && at > from && is_blank(at[-1]))
            return NULL;
        if (*at == ':' && (at + 1 == end || is_blank(at[1])))
            return at;
    }
    return NULL;
}

static bool has_key(const char *at, const char *end)
{
    return at < end && !strchr("[{", *at) && find_colon(at, end);
}

struct keys {
    char *at[KEYS_MAX];
    size_t n;
};

static void keys_done(struct keys *keys)
{
    for (size_t i = 0; i < keys->n; i++)
        free(keys->at[i]);
}

/* Takes what stands in y->scalar. NULL: y->err says why. */
static const char *add_key(struct yaml *y, struct keys *keys, size_t n)
{
    char *key =
        n && n < 200 && keys->n < KEYS_MAX && !memchr(y->scalar, '\0', n) ? strndup(y->scalar, n) : NULL;

    if (!key) {
        fail(y, "a key that is empty or too long, or too many of them");
        return NULL;
    }
    for (size_t i = 0; i < keys->n; i++)
        if (strcmp(keys->at[i], key) == 0) {
            free(key);
            fail(y, "this key was there before");
            return NULL;
        }
    return keys->at[keys->n++] = key;
}

/* --- in brackets --- */

static int read_flow(struct yaml *y, const char *key, int least);

/* Blanks, comments and line ends. */
static int skip_in_flow(struct yaml *y, int least)
{
    size_t unused = 0;

    for (;;) {
        const char *end = y->lines[y->i].end;
        while (y->at < end && is_blank(*y->at))
            y->at++;
        if (y->at < end && (*y->at != '#' || (y->at > y->lines[y->i].at && !is_blank(y->at[-1]))))
            return 0;
        int r = fold(y, least, &unused);
        if (r < 0)
            return r;
    }
}

static int read_flow_scalar(struct yaml *y, int least, size_t *ret)
{
    const char *end = y->lines[y->i].end, *why = why_not_plain(y->at, end);

    if (strchr("\"'", *y->at))
        return read_quoted(y, least, ret);
    if (why)
        return fail(y, why);
    const char *last = plain_end(y->at, end, true);
    *ret = (size_t)(last - y->at);
    if (*ret == 0)
        return fail(y, "a value is missing in brackets");
    memcpy(y->scalar, y->at, *ret);
    y->at = last;
    return 0;
}

/* A key, its colon, and the blanks behind it. */
static const char *read_flow_key(struct yaml *y, struct keys *keys, int least)
{
    size_t n;
    const char *key;

    if (read_flow_scalar(y, least, &n) < 0 || !(key = add_key(y, keys, n)) || skip_in_flow(y, least) < 0)
        return NULL;
    if (*y->at != ':') {
        fail(y, "there is no colon behind a key");
        return NULL;
    }
    y->at++;
    return skip_in_flow(y, least) < 0 ? NULL : key;
}

static int read_flow_list(struct yaml *y, const char *key, int least, struct keys *keys)
{
    char open = *y->at++, close = open == '[' ? ']' : '}';
    const char *name = NULL;
    int r = 0;

    pb_json_open(&y->w, key, open);
    while (r == 0 && (r = skip_in_flow(y, least)) == 0 && *y->at != close) {
        if (open == '{' && !(name = read_flow_key(y, keys, least)))
            return -EBADMSG;
        r = read_flow(y, name, least);
        if (r == 0 && (r = skip_in_flow(y, least)) == 0 && *y->at != close && *y->at++ != ',')
            r = fail(y, "there is no comma between two values");
    }
    if (r == 0)
        y->at++;
    pb_json_close(&y->w);
    return r;
}

static int read_flow(struct yaml *y, const char *key, int least)
{
    struct keys keys = {.n = 0};
    size_t n;
    int r;

    if (strchr("[{", *y->at)) {
        if (++y->depth > DEPTH_MAX)
            return fail(y, "nested too deeply");
        r = read_flow_list(y, key, least, &keys);
        keys_done(&keys);
        y->depth--;
        return r;
    }
    if ((r = read_flow_scalar(y, least, &n)) == 0)
        put_scalar(y, key, n);
    return r;
}

/* --- blocks --- */

static int read_block(struct yaml *y, const char *key, int least);

/* After a bracket or quote only a comment may stand. */
static int end_line(struct yaml *y)
{
    const char *end = y->lines[y->i].end;

    while (y->at < end && is_blank(*y->at))
        y->at++;
    if (y->at < end && *y->at != '#')
        return fail(y, "something stands behind the end of a value");
    y->i++;
    return 0;
}

/* A value that begins at y->at, of what is indented by parent. */
static int read_value(struct yaml *y, const char *key, int parent)
{
    size_t n = 0;
    int r;

    if (strchr("[{", *y->at)) {
        r = read_flow(y, key, parent + 1);
        return r < 0 ? r : end_line(y);
    }
    if (strchr("|>", *y->at)) {
        r = read_block_scalar(y, parent, &n);
    } else if (strchr("\"'", *y->at)) {
        r = read_quoted(y, parent + 1, &n);
        if (r == 0)
            r = end_line(y);
    } else {
        r = read_plain(y, parent + 1, &n);
    }
    if (r == 0)
        put_scalar(y, key, n);
    return r;
}

/* A value that stands in the lines below. least: how deep they are indented at least. */
static int read_below(struct yaml *y, const char *key, int least)
{
    y->i++;
    const struct yaml_line *l = this_line(y);
    if (l && l->indent >= least)
        return read_block(y, key, least);
    pb_json_put_null(&y->w, key);
    return 0;
}

static bool is_item(const struct yaml_line *l)
{
    return *l->at == '-' && (l->at + 1 == l->end || is_blank(l->at[1]));
}

static int read_sequence(struct yaml *y, const char *key, int indent)
{
    const struct yaml_line *l;
    int r = 0;

    pb_json_open(&y->w, key, '[');
    while (r == 0 && (l = this_line(y)) && l->indent == indent && is_item(l)) {
        struct yaml_line *own = &y->lines[y->i];
        const char *from = own->at++;
        while (own->at < own->end && is_blank(*own->at))
            if (*own->at++ == '\t')
                return fail(y, "a tab indents");
        own->indent += (int)(own->at - from);
        r = is_empty(own) ? read_below(y, NULL, indent + 1) : read_block(y, NULL, indent + 1);
    }
    pb_json_close(&y->w);
    return r;
}

/* The key of a line, into keys; y->at is behind its colon. */
static const char *read_key(struct yaml *y, const struct yaml_line *l, struct keys *keys)
{
    const char *colon = find_colon(l->at, l->end), *why = why_not_plain(l->at, l->end);
    size_t n = 0;

    y->at = l->at;
    if (!colon || why) {
        fail(y, why ? why : "there is no key here");
        return NULL;
    }
    if (strchr("\"'", *l->at)) {
        if (read_quoted(y, l->indent, &n) < 0)
            return NULL;
    } else {
        for (n = (size_t)(colon - l->at); n && is_blank(l->at[n - 1]);)
            n--;
        memcpy(y->scalar, l->at, n);
    }
    y->at = colon + 1;
    while (y->at < l->end && is_blank(*y->at))
        y->at++;
    return add_key(y, keys, n);
}

static int read_mapping(struct yaml *y, const char *key, int indent, struct keys *keys)
{
    const struct yaml_line *l;
    int r = 0;

    pb_json_open(&y->w, key, '{');
    while (r == 0 && (l = this_line(y)) && l->indent == indent && !is_item(l)) {
        const char *name = read_key(y, l, keys);
        if (!name)
            return -EBADMSG;
        if (y->at < l->end && *y->at != '#') {
            r = read_value(y, name, indent);
            continue;
        }
        /* A sequence may stand as deep as its key. */
        size_t before = y->i++;
        const struct yaml_line *next = this_line(y);
        bool items = next && next->indent == indent && is_item(next);
        y->i = before;
        r = read_below(y, name, items ? indent : indent + 1);
    }
    pb_json_close(&y->w);
    return r;
}

static int read_block(struct yaml *y, const char *key, int least)
{
    const struct yaml_line *l = this_line(y);
    struct keys keys = {.n = 0};
    int r, indent = l->indent;

    if (*l->at == '\t')
        return fail(y, "a tab indents");
    if (++y->depth > DEPTH_MAX)
        return fail(y, "nested too deeply");
    if (is_item(l)) {
        r = read_sequence(y, key, indent);
    } else if (has_key(l->at, l->end)) {
        r = read_mapping(y, key, indent, &keys);
        keys_done(&keys);
    } else {
        y->at = l->at;
        r = read_value(y, key, least - 1);
    }
    y->depth--;
    l = r == 0 ? this_line(y) : NULL;
    if (l && l->indent >= least && l->indent != indent)
        return fail(y, l->indent > indent ? "indented deeper than what it belongs to"
                                          : "indented less than what it belongs to");
    return r;
}

int pb_yaml_to_json(const char *text, size_t length, char **ret, size_t *ret_length, struct pb_err *err)
{
    struct yaml y = {.err = err};
    char *json = NULL;
    size_t size = 0;

    if (length > PB_YAML_MAX)
        return pb_fail(err, -EFBIG, "longer than %d KB", PB_YAML_MAX >> 10);
    int r = cut_lines(&y, text, length);
    if (r == 0 && memchr(text, '\0', length))
        r = pb_fail(err, -EBADMSG, "it has a NUL in it");
    if (r == 0)
        r = skip_start(&y);
    if (r == 0 && !this_line(&y))
        r = pb_fail(err, -EBADMSG, "it is empty");
    if (r == 0 && !(y.w.out = open_memstream(&json, &size)))
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = read_block(&y, NULL, 0);
    if (r == 0 && this_line(&y))
        r = fail(&y, "something stands behind the end of the document");
    if (y.w.out) {
        bool failed = ferror(y.w.out);
        if ((fclose(y.w.out) != 0 || failed) && r == 0)
            r = pb_fail(err, -ENOMEM, "out of memory");
    }
    free(y.lines);
    free(y.scalar);
    if (r < 0) {
        free(json);
        return r;
    }
    *ret = json;
    *ret_length = size;
    return 0;
}
