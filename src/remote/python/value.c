/* value: see value.h. */
#include "remote/python/value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "remote/python/dict.h"

#define DIGITS_MAX                                                                                           \
    600 /* 30-bit digits of an int that is printed: 5,400 decimal digits would not fit anyway */

enum {
    TYPE_INT = 1 << 24,
    TYPE_LIST = 1 << 25,
    TYPE_TUPLE = 1 << 26,
    TYPE_BYTES = 1 << 27,
    TYPE_STR = 1 << 28,
    TYPE_DICT = 1 << 29,
};
#define TYPE_TYPE (1u << 31)

void pb_py_redact(struct pb_py *py, const char *words)
{
    snprintf(py->redact, sizeof(py->redact), "%s", words);
}

bool pb_py_is_secret(const struct pb_py *py, const char *name)
{
    return pb_redact_name(py->redact, name, strlen(name));
}

void pb_py_put(struct value_out *o, const char *text)
{
    size_t n = strlen(text);

    if (o->full)
        return;
    if (o->len + n + 3 > o->size) {
        n = o->size - o->len - 3;
        while (n && ((unsigned char)text[n] & 0xc0) == 0x80) /* not within a character */
            n--;
        o->full = true;
    }
    memcpy(o->buf + o->len, text, n);
    o->len += n;
    if (o->full) {
        memcpy(o->buf + o->len, "..", 2);
        o->len += 2;
    }
    o->buf[o->len] = '\0';
}

void pb_py_putf(struct value_out *o, const char *format, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    pb_py_put(o, text);
}

/* A string of Python may hold NUL: its length counts. */
static void put_quoted(struct value_out *o, const char *text, size_t len, bool cut)
{
    char one[8];

    pb_py_put(o, "'");
    for (const char *p = text; p < text + len && !o->full; p++) {
        if (*p == '\'' || *p == '\\')
            snprintf(one, sizeof(one), "\\%c", *p);
        else if (*p == '\n')
            snprintf(one, sizeof(one), "\\n");
        else if ((unsigned char)*p < ' ' || *p == 127)
            snprintf(one, sizeof(one), "\\x%02x", (unsigned char)*p);
        else {
            size_t n = 1;
            while (((unsigned char)p[n] & 0xc0) == 0x80 && n < 4)
                n++;
            snprintf(one, sizeof(one), "%.*s", (int)n, p);
            p += n - 1;
        }
        pb_py_put(o, one);
    }
    pb_py_put(o, cut ? "'.." : "'");
}

static void put_str(struct value_out *o, uint64_t addr)
{
    char text[VALUE_SIZE];
    bool cut;

    if (o->masked) {
        pb_py_put(o, "<redacted>");
        return;
    }
    int len = pb_py_text(o->py, addr, text, sizeof(text), &cut);
    if (len < 0)
        pb_py_put(o, "<str?>");
    else
        put_quoted(o, text, (size_t)len, cut);
}

static void put_bytes(struct value_out *o, uint64_t addr)
{
    const struct pb_py_layout *l = &o->py->layout;
    uint8_t bytes[64];
    uint64_t size;

    if (o->masked || read_u64(o->py, addr + l->bytes.size, &size) < 0) {
        pb_py_put(o, o->masked ? "<redacted>" : "<bytes?>");
        return;
    }
    uint64_t n = size < sizeof(bytes) ? size : sizeof(bytes);
    if (n && pb_source_read(o->py->source, addr + l->bytes.data, bytes, n) < 0) {
        pb_py_put(o, "<bytes?>");
        return;
    }
    pb_py_put(o, "b'");
    for (uint64_t i = 0; i < n; i++)
        pb_py_putf(o, isprint(bytes[i]) && bytes[i] != '\'' && bytes[i] != '\\' ? "%c" : "\\x%02x", bytes[i]);
    pb_py_put(o, "'");
    if (n < size)
        pb_py_putf(o, ".. (%" PRIu64 " bytes)", size);
}

/* Repeated division of base 2^30 by 10^9; digits are the target's, least significant first. */
static void put_decimal(struct value_out *o, uint32_t *digits, size_t n, bool negative)
{
    uint32_t parts[DIGITS_MAX * 30 / 29 + 2];
    size_t nparts = 0;

    while (n) {
        uint64_t rest = 0;
        for (size_t i = n; i-- > 0;) {
            rest = rest << 30 | (digits[i] & 0x3fffffff);
            digits[i] = (uint32_t)(rest / 1000000000);
            rest %= 1000000000;
        }
        parts[nparts++] = (uint32_t)rest;
        while (n && digits[n - 1] == 0)
            n--;
    }
    if (negative)
        pb_py_put(o, "-");
    pb_py_putf(o, "%" PRIu32, nparts ? parts[nparts - 1] : 0);
    for (size_t i = nparts; i-- > 1 && !o->full;)
        pb_py_putf(o, "%09" PRIu32, parts[i - 1]);
}

static void put_int(struct value_out *o, uint64_t addr, bool boolean)
{
    const struct pb_py_layout *l = &o->py->layout;
    uint32_t digits[DIGITS_MAX];
    uint64_t tag;

    if (read_u64(o->py, addr + l->integer.tag, &tag) < 0) {
        pb_py_put(o, "<int?>");
        return;
    }
    /* 3.12 on: sign in the two lowest bits, count of digits above the third; before, a count with a sign. */
    bool negative = l->version >= 0x030c ? (tag & 3) == 2 : (int64_t)tag < 0;
    uint64_t n = l->version >= 0x030c ? tag >> 3 : negative ? -tag : tag;
    if (n > DIGITS_MAX) {
        pb_py_putf(o, "<int of %" PRIu64 " bits>", n * 30);
        return;
    }
    if (n && pb_source_read(o->py->source, addr + l->integer.digits, digits, n * sizeof(digits[0])) < 0)
        pb_py_put(o, "<int?>");
    else if (boolean)
        pb_py_put(o, n && digits[0] ? "True" : "False");
    else
        put_decimal(o, digits, n, negative);
}

static void put_float(struct value_out *o, uint64_t addr)
{
    double value;
    char text[40];

    if (pb_source_read(o->py->source, addr + o->py->layout.float_value, &value, sizeof(value)) < 0) {
        pb_py_put(o, "<float?>");
        return;
    }
    /* The shortest text that reads back the same, as Python does. */
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof(text), "%.*g", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    pb_py_put(o, text);
    if (strspn(text, "-0123456789") == strlen(text))
        pb_py_put(o, ".0");
}

static void put_sequence(struct value_out *o, uint64_t addr, bool list, int depth)
{
    const struct pb_py_layout *l = &o->py->layout;
    uint64_t n = 0, items = addr + l->tuple.data, item;
    int r = read_u64(o->py, addr + (list ? l->list.size : l->tuple.size), &n);

    if (r == 0 && list)
        r = read_u64(o->py, addr + l->list.data, &items);
    pb_py_put(o, list ? "[" : "(");
    for (uint64_t i = 0; r == 0 && i < n && !o->full; i++) {
        if (i)
            pb_py_put(o, ", ");
        if (i == VALUE_ITEMS) {
            pb_py_putf(o, ".. %" PRIu64 " in all", n);
            break;
        }
        r = read_u64(o->py, items + 8 * i, &item);
        if (r == 0)
            pb_py_put_value(o, item, depth - 1);
    }
    pb_py_put(o, list ? "]" : n == 1 ? ",)" : ")");
}

static void put_set(struct value_out *o, uint64_t addr, int depth)
{
    const struct pb_py_layout *l = &o->py->layout;
    uint64_t used, mask, table, entry[2];

    if (read_u64(o->py, addr + l->set.used, &used) < 0 || read_u64(o->py, addr + l->set.mask, &mask) < 0 ||
        read_u64(o->py, addr + l->set.table, &table) < 0 || mask > 1u << 24) {
        pb_py_put(o, "<set?>");
        return;
    }
    pb_py_put(o, "{");
    uint64_t shown = 0;
    /* A slot that was emptied holds a dummy whose hash is -1. */
    for (uint64_t i = 0; i <= mask && i < 4096 && shown < used && !o->full; i++) {
        if (i % 1024 == 1023 && is_late(&o->py->budget))
            break;
        if (pb_source_read(o->py->source, table + 16 * i, entry, sizeof(entry)) < 0)
            break;
        if (!entry[0] || entry[1] == UINT64_MAX)
            continue;
        if (shown == VALUE_ITEMS) {
            pb_py_putf(o, ", .. %" PRIu64 " in all", used);
            break;
        }
        pb_py_put(o, shown++ ? ", " : "");
        pb_py_put_value(o, entry[0], depth - 1);
    }
    pb_py_put(o, "}");
}

/* Items of a dict or attributes of an instance. Text under the name of a secret is left out, at any depth. */
static void put_items(struct value_out *o, struct items *it, bool attributes, int depth)
{
    uint64_t key, value;
    char name[PB_PY_NAME_MAX];

    for (int shown = 0; !o->full && pb_py_items_next(o->py, it, &key, &value) == 1; shown++) {
        if (shown)
            pb_py_put(o, ", ");
        if (shown == VALUE_ITEMS) {
            pb_py_put(o, "..");
            break;
        }
        size_t begin = o->len;
        if (attributes)
            pb_py_put(o, pb_py_text(o->py, key, name, sizeof(name), NULL) >= 0 ? name : "?");
        else
            pb_py_put_value(o, key, depth - 1);
        /* As shown: keys may be bytes or tuples too. */
        bool outer = o->masked;
        o->masked |= pb_redact_name(o->py->redact, o->buf + begin, o->len - begin);
        pb_py_put(o, attributes ? "=" : ": ");
        pb_py_put_value(o, value, depth - 1);
        o->masked = outer;
    }
}

static void put_dict(struct value_out *o, uint64_t addr, int depth)
{
    struct items it;

    pb_py_put(o, "{");
    if (pb_py_items_of_dict(o->py, addr, &it) == 0)
        put_items(o, &it, false, depth);
    else
        pb_py_put(o, "?");
    pb_py_put(o, "}");
}

static void put_object(struct value_out *o, uint64_t addr, const char *type, int depth)
{
    struct items it;
    const char *dot = strrchr(type, '.');

    if (pb_py_put_callable(o, addr, type) || pb_py_put_array(o, addr, type))
        return;
    if (depth <= 0 || pb_py_items_of_instance(o->py, addr, &it) < 0) {
        pb_py_putf(o, "<%s at 0x%" PRIx64 ">", dot ? dot + 1 : type, addr);
        return;
    }
    pb_py_putf(o, "%s(", dot ? dot + 1 : type);
    put_items(o, &it, true, depth);
    pb_py_put(o, ")");
}

static int read_type(struct pb_py *py, uint64_t addr, uint64_t *ret_flags, char *name, size_t size)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t type, at;

    int r = read_u64(py, addr + l->object.type, &type);
    if (r == 0)
        r = read_u64(py, type + l->type.flags, ret_flags);
    if (r == 0)
        r = read_u64(py, type + l->type.name, &at);
    for (size_t want = size - 1; r == 0 && want; want /= 2) {
        /* Near the end of a mapping there are fewer bytes. */
        memset(name, 0, size);
        if (pb_source_read(py->source, at, name, want) == 0)
            break;
    }
    if (r == 0)
        pb_text_clean(name);
    return r;
}

void pb_py_put_value(struct value_out *o, uint64_t addr, int depth)
{
    uint64_t flags;
    char name[64];

    if (!addr || is_late(&o->py->budget) || read_type(o->py, addr, &flags, name, sizeof(name)) < 0) {
        pb_py_put(o, "<?>");
        return;
    }
    bool container = flags & (TYPE_LIST | TYPE_TUPLE | TYPE_DICT) || strcmp(name, "set") == 0 ||
                     strcmp(name, "frozenset") == 0;
    if (container && depth <= 0)
        pb_py_put(o, flags & TYPE_LIST ? "[..]" : flags & TYPE_TUPLE ? "(..)" : "{..}");
    else if (strcmp(name, "NoneType") == 0)
        pb_py_put(o, "None");
    else if (flags & TYPE_STR)
        put_str(o, addr);
    else if (flags & TYPE_INT)
        put_int(o, addr, strcmp(name, "bool") == 0);
    else if (flags & TYPE_BYTES)
        put_bytes(o, addr);
    else if (flags & TYPE_LIST || flags & TYPE_TUPLE)
        put_sequence(o, addr, flags & TYPE_LIST, depth);
    else if (flags & TYPE_DICT)
        put_dict(o, addr, depth);
    else if (strcmp(name, "float") == 0)
        put_float(o, addr);
    else if (strcmp(name, "set") == 0 || strcmp(name, "frozenset") == 0)
        put_set(o, addr, depth);
    else
        put_object(o, addr, name, flags & TYPE_TYPE ? 0 : depth);
}
