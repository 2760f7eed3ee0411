/* json: see json.h. */
#include "base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 2000 };

struct parser {
    struct pb_json *j;
    const char *at;
    unsigned depth;
};

static void skip_blanks(struct parser *p)
{
    while (p->at < p->j->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

static uint32_t new_node(struct parser *p)
{
    struct pb_json *j = p->j;

    if (j->n == j->room) {
        uint32_t room = j->room ? j->room * 2 : 256;
        struct pb_json_node *more = realloc(j->nodes, room * sizeof(*more));
        if (!more)
            return 0;
        j->nodes = more;
        j->room = room;
    }
    j->nodes[j->n] = (struct pb_json_node){0};
    return j->n++;
}

/* Parses a string up to its closing quote; p->at is its opening quote. */
static int parse_string(struct parser *p, const char **ret, uint32_t *ret_length)
{
    const char *start = ++p->at;

    for (; p->at < p->j->end && *p->at != '"'; p->at++)
        if (*p->at == '\\')
            p->at++;
    if (p->at >= p->j->end)
        return -EBADMSG;
    *ret = start;
    *ret_length = (uint32_t)(p->at - start);
    p->at++;
    return 0;
}

static int parse_value(struct parser *p, uint32_t *ret);

static int parse_members(struct parser *p, uint32_t parent, char close)
{
    uint32_t last = 0, child;

    for (skip_blanks(p); p->at < p->j->end && *p->at != close; skip_blanks(p)) {
        const char *key = NULL;
        uint32_t key_length = 0;
        if (close == '}') {
            if (*p->at != '"' || parse_string(p, &key, &key_length) < 0)
                return -EBADMSG;
            skip_blanks(p);
            if (p->at >= p->j->end || *p->at++ != ':')
                return -EBADMSG;
        }
        int r = parse_value(p, &child);
        if (r < 0)
            return r;
        p->j->nodes[child].key = key;
        p->j->nodes[child].key_length = key_length;
        if (last)
            p->j->nodes[last].next = child;
        else
            p->j->nodes[parent].child = child;
        last = child;
        skip_blanks(p);
        if (p->at < p->j->end && *p->at == ',')
            p->at++;
        else if (p->at >= p->j->end || *p->at != close)
            return -EBADMSG;
    }
    if (p->at >= p->j->end)
        return -EBADMSG;
    p->at++;
    return 0;
}

static int parse_value(struct parser *p, uint32_t *ret)
{
    skip_blanks(p);
    uint32_t node = new_node(p);
    if (!node)
        return -ENOMEM;
    if (p->at >= p->j->end || p->depth > MAX_DEPTH)
        return -EBADMSG;
    const char *start = p->at;
    int r = 0;
    if (*start == '"') {
        const char *inside;
        uint32_t length;
        r = parse_string(p, &inside, &length);
        if (r == 0) {
            p->j->nodes[node].at = inside;
            p->j->nodes[node].length = length;
        }
    } else if (*start == '{' || *start == '[') {
        p->at++;
        p->depth++;
        r = parse_members(p, node, *start == '{' ? '}' : ']');
        p->depth--;
    } else {
        while (p->at < p->j->end && !strchr(",]} \n\t\r", *p->at))
            p->at++;
    }
    if (r < 0)
        return r;
    struct pb_json_node *n = &p->j->nodes[node];
    n->kind = strchr("\"{[", *start) ? *start : 0;
    if (n->kind != '"') {
        n->at = start;
        n->length = (uint32_t)(p->at - start);
    }
    *ret = node;
    return n->length || n->kind ? 0 : -EBADMSG;
}

int pb_json_parse(const char *text, size_t length, struct pb_json *ret)
{
    struct pb_json j = {.text = text, .end = text + length};
    struct parser p = {.j = &j, .at = text};
    uint32_t root;

    if (length > UINT32_MAX)
        return -EBADMSG;
    /* Node 0 is unused, so that 0 can mean "no node". */
    new_node(&p);
    int r = j.n ? parse_value(&p, &root) : -ENOMEM;
    if (r < 0) {
        free(j.nodes);
        return r;
    }
    *ret = j;
    return 0;
}

void pb_json_done(struct pb_json *j)
{
    free(j->nodes);
    *j = (struct pb_json){0};
}

uint32_t pb_json_get(const struct pb_json *j, uint32_t node, const char *key)
{
    size_t length = strlen(key);

    if (!node || j->nodes[node].kind != '{')
        return 0;
    for (uint32_t c = j->nodes[node].child; c; c = j->nodes[c].next)
        if (j->nodes[c].key_length == length && memcmp(j->nodes[c].key, key, length) == 0)
            return c;
    return 0;
}

bool pb_json_is(const struct pb_json *j, uint32_t node, const char *text)
{
    size_t length = strlen(text);
    return node && j->nodes[node].kind == '"' && j->nodes[node].length == length &&
           memcmp(j->nodes[node].at, text, length) == 0;
}

const char *pb_json_span(const struct pb_json *j, uint32_t node, size_t *ret_length)
{
    bool quoted = j->nodes[node].kind == '"';
    *ret_length = j->nodes[node].length + (quoted ? 2u : 0u);
    return j->nodes[node].at - (quoted ? 1 : 0);
}

static int digits_of(const char *at, const char *end, unsigned *ret)
{
    *ret = 0;
    if (end - at < 4)
        return -EBADMSG;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = at[i] ? strchr(digits, at[i] | (at[i] >= 'A' ? 0x20 : 0)) : NULL;
        if (!digit)
            return -EBADMSG;
        *ret = *ret << 4 | (unsigned)(digit - digits);
    }
    return 0;
}

static size_t put_utf8(unsigned c, char ret[4])
{
    if (c < 0x80) {
        ret[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        ret[i] = (char)(0x80 | (c & 0x3f));
    ret[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* Decodes one escape; at points to its backslash. Writes *ret_bytes bytes of UTF-8 to ret and returns the
 * length of the escape. */
static int read_escape(const char *at, const char *end, char ret[4], size_t *ret_bytes)
{
    static const char letters[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    unsigned c, low;

    if (end - at < 2)
        return -EBADMSG;
    const char *letter = at[1] ? strchr(letters, at[1]) : NULL;
    if (letter) {
        ret[0] = means[letter - letters];
        *ret_bytes = 1;
        return 2;
    }
    if (at[1] != 'u' || digits_of(at + 2, end, &c) < 0 || c == 0)
        return -EBADMSG;
    bool pair = c >= 0xd800 && c < 0xdc00;
    if (pair && (end - at < 12 || at[6] != '\\' || at[7] != 'u' || digits_of(at + 8, end, &low) < 0 ||
                 low < 0xdc00 || low > 0xdfff))
        return -EBADMSG;
    if (!pair && c >= 0xdc00 && c < 0xe000)
        return -EBADMSG;
    *ret_bytes = put_utf8(pair ? 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00) : c, ret);
    return pair ? 12 : 6;
}

int pb_json_text(const struct pb_json *j, uint32_t node, char *ret, size_t size)
{
    size_t n = 0, bytes;
    char c[4];

    if (!node)
        return -ENOENT;
    const char *at = j->nodes[node].at, *end = at + j->nodes[node].length;
    bool string = j->nodes[node].kind == '"';
    while (at < end) {
        int taken = 1;
        c[0] = *at;
        bytes = 1;
        if (string && *at == '\\')
            taken = read_escape(at, end, c, &bytes);
        if (taken < 0 || !*at)
            return -EBADMSG;
        if (n + bytes >= size)
            break;
        memcpy(ret + n, c, bytes);
        n += bytes;
        at += taken;
    }
    ret[n] = '\0';
    return (int)n;
}
