/* rows: see rows.h. */
#include "cli/rows.h"

#include "table/reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum kind { CELL_NULL, CELL_TEXT, CELL_NUMBER };

struct pb_cell {
    enum kind kind;
    char *text;
};

void pb_rows_init(struct pb_rows *rows, const char *const *columns, size_t ncolumns)
{
    *rows = (struct pb_rows){.columns = columns, .ncolumns = ncolumns};
}

void pb_rows_done(struct pb_rows *rows)
{
    for (size_t i = 0; i < rows->n; i++)
        free(rows->cells[i].text);
    free(rows->cells);
    *rows = (struct pb_rows){0};
}

static void add(struct pb_rows *rows, enum kind kind, const char *text)
{
    if (rows->n == rows->cap) {
        size_t cap = rows->cap ? 2 * rows->cap : 64;
        struct pb_cell *more = realloc(rows->cells, cap * sizeof(*more));
        if (!more) {
            rows->failed = true;
            return;
        }
        rows->cells = more;
        rows->cap = cap;
    }
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) {
        rows->failed = true;
        return;
    }
    rows->cells[rows->n++] = (struct pb_cell){kind, copy};
}

void pb_rows_text(struct pb_rows *rows, const char *text)
{
    add(rows, text ? CELL_TEXT : CELL_NULL, text);
}

void pb_rows_number(struct pb_rows *rows, const char *format, ...)
{
    char text[64];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    add(rows, CELL_NUMBER, text);
}

bool pb_color(void)
{
    const char *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no && *no);
}

/* Length of the UTF-8 sequence at p, 0 where there is none. */
static size_t sequence(const unsigned char *p)
{
    size_t n = p[0] < 0x80                   ? 1
               : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
               : (p[0] & 0xf0) == 0xe0       ? 3
               : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                             : 0;

    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return pb_utf8_valid((const char *)p, n) ? n : 0;
}

/* What a terminal takes as a command: C0, DEL, and C1 in its UTF-8 form. */
static bool is_control(const unsigned char *p)
{
    return *p < 0x20 || *p == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

/* Characters, as a terminal counts them for most of the world's text. */
static size_t width(const char *text)
{
    size_t n = 0;

    for (const unsigned char *p = (const unsigned char *)text; *p; n++) {
        size_t len = sequence(p);
        p += len ? len : 1;
    }
    return n;
}

/* Writes up to max characters of one line; what a terminal would take as a command is shown as '?'. */
static void put_clipped(const char *text, size_t max)
{
    bool clip = width(text) > max;
    size_t room = clip ? max - 1 : max;

    for (const unsigned char *p = (const unsigned char *)text; *p && room > 0; room--) {
        size_t len = sequence(p);
        if (len == 0 || is_control(p))
            putchar('?');
        else
            fwrite(p, 1, len, stdout);
        p += len ? len : 1;
    }
    if (clip)
        fputs("…", stdout);
}

void pb_put_plain(FILE *to, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        size_t len = sequence(p);
        if (len == 0 || (is_control(p) && *p != '\n' && *p != '\t'))
            putc('?', to);
        else
            fwrite(p, 1, len, to);
        p += len ? len : 1;
    }
}

static void pad(size_t n)
{
    while (n-- > 0)
        putchar(' ');
}

static size_t terminal_width(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");

    if (!isatty(STDOUT_FILENO))
        return SIZE_MAX;
    if (columns && atoi(columns) > 0)
        return (size_t)atoi(columns);
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

#define GAP 2

/* Takes from the widest column until the line fits: the one that has most to give is seldom the one that
 * matters. */
static void fit(size_t widths[], size_t n)
{
    size_t room = terminal_width(), total = GAP * (n - 1);

    for (size_t i = 0; i < n; i++)
        total += widths[i];
    while (total > room) {
        size_t widest = 0;
        for (size_t i = 1; i < n; i++)
            if (widths[i] > widths[widest])
                widest = i;
        if (widths[widest] <= 4)
            return;
        widths[widest]--;
        total--;
    }
}

static const char *shown(const struct pb_rows *rows, size_t i)
{
    const struct pb_cell *cell = &rows->cells[i];
    return cell->kind != CELL_NULL ? cell->text : rows->null ? rows->null : "-";
}

static int print_table(const struct pb_rows *rows)
{
    size_t n = rows->ncolumns, *widths = calloc(n, sizeof(*widths));
    bool color = pb_color();

    if (!widths)
        return -ENOMEM;

    for (size_t i = 0; i < n; i++)
        widths[i] = width(rows->columns[i]);
    for (size_t i = 0; i < rows->n; i++)
        if (width(shown(rows, i)) > widths[i % n])
            widths[i % n] = width(shown(rows, i));
    fit(widths, n);
    fputs(color ? "\033[1m" : "", stdout);
    for (size_t i = 0; i < n; i++) {
        bool right = rows->n && rows->cells[i].kind == CELL_NUMBER;
        size_t w = width(rows->columns[i]);
        pad(right && w < widths[i] ? widths[i] - w : 0);
        put_clipped(rows->columns[i], widths[i]);
        pad(i + 1 < n ? (right || w > widths[i] ? 0 : widths[i] - w) + GAP : 0);
    }
    fputs(color ? "\033[0m\n" : "\n", stdout);
    for (size_t i = 0; i < rows->n; i++) {
        const struct pb_cell *cell = &rows->cells[i];
        size_t column = i % n, w = width(shown(rows, i)), space = w < widths[column] ? widths[column] - w : 0;
        pad(cell->kind == CELL_NUMBER ? space : 0);
        put_clipped(shown(rows, i), widths[column]);
        if (column + 1 < n)
            pad((cell->kind == CELL_NUMBER ? 0 : space) + GAP);
        else
            putchar('\n');
    }
    free(widths);
    return 0;
}

void pb_put_json(const char *text)
{
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        size_t len = sequence(p);
        if (*p == '"' || *p == '\\')
            printf("\\%c", *p);
        else if (len == 0)
            fputs("\xef\xbf\xbd", stdout); /* U+FFFD: JSON has no other way to say it */
        else if (*p < 0x20)
            printf("\\u%04x", *p);
        else
            fwrite(p, 1, len, stdout);
        p += len ? len : 1;
    }
    putchar('"');
}

static void print_json(const struct pb_rows *rows)
{
    putchar('[');
    for (size_t i = 0; i < rows->n; i++) {
        const struct pb_cell *cell = &rows->cells[i];
        size_t column = i % rows->ncolumns;
        fputs(column ? ", " : i ? ",\n {" : "\n {", stdout);
        pb_put_json(rows->columns[column]);
        fputs(": ", stdout);
        if (cell->kind == CELL_TEXT)
            pb_put_json(cell->text);
        else
            fputs(cell->kind == CELL_NULL ? "null" : cell->text, stdout);
        if (column + 1 == rows->ncolumns)
            putchar('}');
    }
    fputs(rows->n ? "\n]\n" : "]\n", stdout);
}

static void put_csv(const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (const char *p = text; *p; p++)
        printf(*p == '"' ? "\"\"" : "%c", *p);
    putchar('"');
}

/* Tabs, newlines and backslashes as PostgreSQL's COPY writes them. */
static void put_tsv(const char *text)
{
    for (const char *p = text; *p; p++)
        switch (*p) {
        case '\t':
            fputs("\\t", stdout);
            break;
        case '\n':
            fputs("\\n", stdout);
            break;
        case '\\':
            fputs("\\\\", stdout);
            break;
        default:
            putchar(*p);
        }
}

static void print_separated(const struct pb_rows *rows, char separator, void (*put)(const char *))
{
    for (size_t i = 0; i < rows->ncolumns; i++) {
        put(rows->columns[i]);
        putchar(i + 1 < rows->ncolumns ? separator : '\n');
    }
    for (size_t i = 0; i < rows->n; i++) {
        if (rows->cells[i].kind != CELL_NULL)
            put(rows->cells[i].text);
        putchar((i + 1) % rows->ncolumns ? separator : '\n');
    }
}

int pb_rows_print(const struct pb_rows *rows, enum pb_format format, const char *empty, struct pb_err *err)
{
    int r = rows->failed ? -ENOMEM : 0;

    if (r == 0 && format == PB_FORMAT_TABLE && (rows->n || !empty))
        r = print_table(rows);
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    if (format == PB_FORMAT_TABLE && rows->n == 0 && empty)
        puts(empty);
    else if (format == PB_FORMAT_JSON)
        print_json(rows);
    else if (format == PB_FORMAT_CSV)
        print_separated(rows, ',', put_csv);
    else if (format == PB_FORMAT_TSV)
        print_separated(rows, '\t', put_tsv);
    return fflush(stdout) != 0 ? pb_fail(err, -errno, "the output cannot be written: %s", strerror(errno))
                               : 0;
}
