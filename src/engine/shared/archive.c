/* archive: see archive.h. */
#include "engine/shared/archive.h"

#include "base/err.h"
#include "table/reader.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define SUFFIX   ".parquet"
#define NO_VALUE "__HIVE_DEFAULT_PARTITION__"

/* --- names --- */

/* Reads a decimal number, n for a minus, up to the given mark, which is skipped. */
static int read_number(const char **p, const char *mark, int64_t *ret)
{
    bool negative = **p == 'n';
    char *end;

    *p += negative;
    if (!isdigit((unsigned char)**p))
        return -EINVAL;
    errno = 0;
    *ret = strtoll(*p, &end, 10);
    if (errno || strncmp(end, mark, strlen(mark)) != 0)
        return -EINVAL;
    *ret = negative ? -*ret : *ret;
    *p = end + strlen(mark);
    return 0;
}

int pb_archive_name_read(const char *text, struct pb_archive_name *ret)
{
    struct pb_archive_name name = {0};
    int64_t part, parts, columns, total;
    struct pb_archive_span spans[PB_ARCHIVE_BATCH];
    const char *p = text + PB_ARCHIVE_RUN;

    if (strspn(text, "0123456789abcdef") != PB_ARCHIVE_RUN - 1 || text[PB_ARCHIVE_RUN - 1] != '-')
        return -EINVAL;
    memcpy(name.run, text, PB_ARCHIVE_RUN - 1);
    if (read_number(&p, "-", &name.first) < 0 || read_number(&p, "-", &name.last) < 0 ||
        read_number(&p, "of", &part) < 0 || read_number(&p, "-c", &parts) < 0 ||
        read_number(&p, "-r", &columns) < 0 || read_number(&p, "-", &total) < 0)
        return -EINVAL;
    size_t n = strlen(p);
    if (part < 1 || part > parts || parts > PB_ARCHIVE_PARTS || columns < 1 || columns > PB_MAX_COLUMNS ||
        total < 0 || n <= strlen(SUFFIX) || n - strlen(SUFFIX) > PB_ARCHIVE_SERIALS ||
        strcmp(p + n - strlen(SUFFIX), SUFFIX) != 0)
        return -EINVAL;
    memcpy(name.serials, p, n - strlen(SUFFIX));
    name.part = (unsigned)part;
    name.parts = (unsigned)parts;
    name.ncolumns = (unsigned)columns;
    name.total = (uint64_t)total;
    int nspans = pb_archive_serials_unpack(name.serials, spans);
    if (nspans <= 0)
        return -EINVAL;
    name.first_serial = spans[0].first;
    name.last_serial = spans[nspans - 1].last;
    *ret = name;
    return 0;
}

static void put_number(char *ret, size_t size, int64_t value)
{
    uint64_t magnitude = value < 0 ? -(uint64_t)value : (uint64_t)value;
    snprintf(ret, size, "%s%" PRIu64, value < 0 ? "n" : "", magnitude);
}

void pb_archive_name_write(const struct pb_archive_name *name, char *ret, size_t size)
{
    char first[32], last[32];

    put_number(first, sizeof(first), name->first);
    put_number(last, sizeof(last), name->last);
    snprintf(ret, size, "%s-%s-%s-%uof%u-c%u-r%" PRIu64 "-%s" SUFFIX, name->run, first, last, name->part,
             name->parts, name->ncolumns, name->total, name->serials);
}

/* The first serial in hexadecimal; then the difference to each next: g to z are 1 to 20, larger is _HEX. */
enum { LETTERS = 'z' - 'g' + 1 };

size_t pb_archive_serials_pack(const uint64_t *serials, size_t n, char ret[PB_ARCHIVE_SERIALS + 1])
{
    size_t i = 0, length = 0;

    for (; i < n && i < PB_ARCHIVE_BATCH; i++) {
        uint64_t more = i ? serials[i] - serials[i - 1] : 0;
        char one[24];
        if (i && more <= LETTERS)
            snprintf(one, sizeof(one), "%c", (char)('g' + more - 1));
        else
            snprintf(one, sizeof(one), "%s%" PRIx64, i ? "_" : "", i ? more : serials[0]);
        if (length + strlen(one) > PB_ARCHIVE_SERIALS)
            break;
        memcpy(ret + length, one, strlen(one));
        length += strlen(one);
    }
    ret[length] = '\0';
    return i;
}

static int read_hex(const char **p, uint64_t *ret)
{
    char *end;

    if (!isxdigit((unsigned char)**p))
        return -EINVAL;
    errno = 0;
    *ret = strtoull(*p, &end, 16);
    *p = end;
    return errno || *ret == 0 || *ret > PB_SERIAL_MAX ? -EINVAL : 0;
}

void pb_archive_serials_pack_all(uint64_t first, uint64_t last, char ret[PB_ARCHIVE_SERIALS + 1])
{
    snprintf(ret, PB_ARCHIVE_SERIALS + 1, "%" PRIx64 "~%" PRIx64, first, last - first);
}

bool pb_archive_is_merged(const struct pb_archive_name *name)
{
    return strchr(name->serials, '~');
}

int pb_archive_serials_unpack(const char *text, struct pb_archive_span ret[PB_ARCHIVE_BATCH])
{
    uint64_t more, at;
    int n = 0;

    if (read_hex(&text, &at) < 0)
        return -EINVAL;
    ret[n++] = (struct pb_archive_span){at, at};
    if (*text == '~') {
        text++;
        if (read_hex(&text, &more) < 0 || *text || more > PB_SERIAL_MAX - at)
            return -EINVAL;
        ret[0].last = at + more;
        return 1;
    }
    while (*text) {
        if (n == PB_ARCHIVE_BATCH)
            return -EINVAL;
        if (*text >= 'g' && *text <= 'z')
            more = (uint64_t)*text++ - 'g' + 1;
        else if (*text++ != '_' || read_hex(&text, &more) < 0)
            return -EINVAL;
        at += more;
        if (at > PB_SERIAL_MAX)
            return -EINVAL;
        ret[n++] = (struct pb_archive_span){at, at};
    }
    return n;
}

static int by_first(const void *a, const void *b)
{
    const struct pb_archive_span *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : 0;
}

size_t pb_archive_spans_join(struct pb_archive_span *spans, size_t n)
{
    size_t kept = 0;

    if (n)
        qsort(spans, n, sizeof(*spans), by_first);
    for (size_t i = 0; i < n; i++) {
        struct pb_archive_span *before = kept ? &spans[kept - 1] : NULL;
        if (!before || spans[i].first > before->last + 1)
            spans[kept++] = spans[i];
        else if (spans[i].last > before->last)
            before->last = spans[i].last;
    }
    return kept;
}

bool pb_archive_spans_hold(const struct pb_archive_span *spans, size_t n, uint64_t serial)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (spans[middle].first <= serial)
            low = middle + 1;
        else
            high = middle;
    }
    return low && serial <= spans[low - 1].last;
}

void pb_archive_date(int64_t day, char ret[PB_ARCHIVE_DATE])
{
    time_t seconds = (time_t)(day * 86400);
    struct tm tm = {0};

    if (day == PB_ARCHIVE_UNDATED) {
        snprintf(ret, PB_ARCHIVE_DATE, "date=" NO_VALUE);
        return;
    }
    gmtime_r(&seconds, &tm);
    snprintf(ret, PB_ARCHIVE_DATE, "date=%04d-%02d-%02d", (tm.tm_year + 1900) % 10000, (tm.tm_mon + 1) % 100,
             tm.tm_mday % 100);
}

int pb_archive_folder_usual(char *ret, size_t size)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool own = data && *data == '/';

    if (!own && (!home || *home != '/'))
        return -ENOENT;
    int n = snprintf(ret, size, "%s%s/probing/archive", own ? data : home, own ? "" : "/.local/share");
    return n < (int)size ? 0 : -ENAMETOOLONG;
}

int pb_archive_folder(const char *given, char *ret, size_t size, struct pb_err *err)
{
    const char *set = getenv("PROBING_ARCHIVE");
    int n = 0, r = 0;

    if (strcmp(given && *given ? given : set ? set : "", "none") == 0)
        return pb_fail(err, -ENOENT, "the archive is 'none' (give a folder: --to DIR, or PROBING_ARCHIVE)");
    if (given && *given)
        n = snprintf(ret, size, "%s", given);
    else if (set && *set)
        n = snprintf(ret, size, "%s", set);
    else
        r = pb_archive_folder_usual(ret, size);
    if (r == -ENOENT)
        return pb_fail(err, r, "no folder for the archive (give one: --to DIR, or PROBING_ARCHIVE)");
    if (r < 0 || n >= (int)size)
        return pb_fail(err, -ENAMETOOLONG, "the path of the archive is too long");
    /* DuckDB would read it as a pattern. */
    if (strpbrk(ret, "*?["))
        return pb_fail(err, -EINVAL, "the path of an archive may not contain *, ? or [: %s", ret);
    return 0;
}

/* --- text --- */

/* Writes a text as one component of a path or one field of a line: separators become %XX. */
static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || strchr("_-.", c))
            putc(c, out);
        else
            fprintf(out, "%%%02X", c);
    }
}

static int hex_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower(c) - 'a' + 10 : -1;
}

void pb_archive_unescape(char *text)
{
    char *to = text;

    for (; *text; text++) {
        int high = *text == '%' ? hex_digit(text[1]) : -1, low = high >= 0 ? hex_digit(text[2]) : -1;
        *to++ = low >= 0 ? (char)(high << 4 | low) : *text;
        text += low >= 0 ? 2 : 0;
    }
    *to = '\0';
}

int pb_archive_partition(const char *job, const char *node, const char *rank, char *ret, size_t size)
{
    const char *const names[] = {"job=", "/node=", "/rank="}, *const values[] = {job, node, rank};

    FILE *out = fmemopen(ret, size, "w");
    if (!out)
        return -ENOMEM;
    for (int i = 0; i < 3; i++) {
        fputs(names[i], out);
        if (values[i][0])
            put_escaped(out, values[i]);
        else
            fputs(NO_VALUE, out);
    }
    putc('\0', out);
    return fclose(out) == 0 && memchr(ret, 0, size) ? 0 : -ENAMETOOLONG;
}

/* --- columns --- */

/* The next field of a line, unescaped, NUL-terminated in place of the tab or newline. */
static const char *take_field(char **p)
{
    char *field = *p;
    size_t n = strcspn(field, "\t\n");

    *p = field + n + (field[n] != '\0');
    field[n] = '\0';
    pb_archive_unescape(field);
    return field;
}

void pb_archive_columns_read(const char *text, size_t length, struct pb_archive_columns *ret)
{
    char *copy = strndup(text, length), *p = copy;

    ret->n = 0;
    while (p && *p && ret->n < PB_MAX_COLUMNS) {
        struct pb_archive_column *c = &ret->at[ret->n];
        long type = strtol(take_field(&p), NULL, 10);
        if (type <= 0 || type >= PB_TYPE_END)
            break;
        *c = (struct pb_archive_column){.type = (enum pb_type)type};
        c->late = *take_field(&p) == 'l';
        snprintf(c->name, sizeof(c->name), "%s", take_field(&p));
        snprintf(c->unit, sizeof(c->unit), "%s", take_field(&p));
        snprintf(c->comment, sizeof(c->comment), "%s", take_field(&p));
        ret->n++;
    }
    free(copy);
    pb_archive_columns_judge(ret);
}

void pb_archive_columns_write(FILE *out, const struct pb_archive_columns *columns)
{
    for (unsigned i = 0; i < columns->n; i++) {
        const struct pb_archive_column *c = &columns->at[i];
        const char *const texts[] = {c->name, c->unit, c->comment};
        fprintf(out, "%d\t%s", (int)c->type, c->late ? "late" : "-");
        for (int k = 0; k < 3; k++) {
            putc('\t', out);
            put_escaped(out, texts[k]);
        }
        putc('\n', out);
    }
}

void pb_archive_columns_judge(struct pb_archive_columns *columns)
{
    columns->time = -1;
    for (unsigned i = 0; i < columns->n; i++) {
        struct pb_archive_column *c = &columns->at[i];
        c->stored = c->name[0] && pb_utf8_valid(c->name, strlen(c->name));
        for (unsigned k = 0; c->stored && k < i; k++)
            c->stored = strcasecmp(columns->at[k].name, c->name) != 0;
        if (columns->time < 0 && c->type == PB_TIMESTAMP && !c->late)
            columns->time = c->stored ? (int)i : -1;
    }
}

bool pb_archive_column_ns(const struct pb_archive_columns *columns, unsigned i, char ret[72])
{
    char name[72];

    if (columns->at[i].type != PB_TIMESTAMP || !columns->at[i].stored)
        return false;
    snprintf(name, sizeof(name), "%s_ns", columns->at[i].name);
    for (unsigned k = 0; k < columns->n; k++)
        if (strcasecmp(columns->at[k].name, name) == 0)
            return false;
    if (ret)
        memcpy(ret, name, sizeof(name));
    return true;
}
