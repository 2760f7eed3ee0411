/* sql_text: see sql_text.h. */
#include "engine/shared/sql_text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static const char *find_text(const char *p, const char *end, const char *what)
{
    const char *at = p < end ? memmem(p, (size_t)(end - p), what, strlen(what)) : NULL;
    return at ? at + strlen(what) : end;
}

static const char *after_block_comment(const char *p, const char *end)
{
    int depth = 0;

    /* Block comments nest, as in PostgreSQL. */
    while (p < end) {
        if (end - p >= 2 && p[0] == '/' && p[1] == '*') {
            depth++;
            p += 2;
        } else if (end - p >= 2 && p[0] == '*' && p[1] == '/') {
            p += 2;
            if (--depth == 0)
                return p;
        } else {
            p++;
        }
    }
    return end;
}

static const char *after_dollar_quote(const char *p, const char *end)
{
    char tag[64];
    const char *q = p + 1;

    while (q < end && is_word(*q))
        q++;
    size_t n = (size_t)(q - p) + 1;
    if (q >= end || *q != '$' || n >= sizeof(tag) || (q > p + 1 && isdigit((unsigned char)p[1])))
        return p + 1;
    memcpy(tag, p, n);
    tag[n] = '\0';
    return find_text(q + 1, end, tag);
}

/* The end of the token at p. */
static const char *after_token(const char *p, const char *end)
{
    if (*p == '\'' || *p == '"') {
        const char *q = memchr(p + 1, *p, (size_t)(end - p - 1));
        return q ? q + 1 : end;
    }
    if (*p == '-' && end - p >= 2 && p[1] == '-') {
        while (p < end && *p != '\n' && *p != '\r')
            p++;
        return p;
    }
    if (*p == '/' && end - p >= 2 && p[1] == '*')
        return after_block_comment(p, end);
    if (*p == '$')
        return after_dollar_quote(p, end);
    if ((*p == 'e' || *p == 'E') && end - p >= 2 && p[1] == '\'') {
        for (p += 2; p < end && *p != '\''; p++)
            if (*p == '\\')
                p++;
        return p < end ? p + 1 : end;
    }
    if (is_word(*p)) {
        while (p < end && (is_word(*p) || *p == '$'))
            p++;
        return p;
    }
    return p + 1;
}

const char *pb_sql_statement_end(const char *text, const char *end)
{
    const char *p = text;

    while (p < end && *p != ';')
        p = after_token(p, end);
    return p;
}

static bool is_comment(const char *p, const char *end)
{
    return end - p >= 2 && ((p[0] == '-' && p[1] == '-') || (p[0] == '/' && p[1] == '*'));
}

bool pb_sql_is_blank(const char *text, const char *end)
{
    const char *p = text;

    while (p < end) {
        if (!isspace((unsigned char)*p) && *p != ';' && !is_comment(p, end))
            return false;
        p = after_token(p, end);
    }
    return true;
}

static bool is_one_of(const char *p, const char *end, const char *const names[])
{
    for (size_t i = 0; names[i]; i++)
        if (strlen(names[i]) == (size_t)(end - p) && strncasecmp(p, names[i], (size_t)(end - p)) == 0)
            return true;
    return false;
}

/* Whether "system.NAME" begins at p, as the start of a qualified name. */
static bool is_system_table(const char *text, const char *p, const char *end, const char *const names[])
{
    const char *dot = p + 6;

    if (end - p < 8 || strncasecmp(p, "system", 6) != 0 || *dot != '.' || (p > text && p[-1] == '.'))
        return false;
    const char *name = dot + 1, *after = name;
    while (after < end && is_word(*after))
        after++;
    return is_one_of(name, after, names);
}

char *pb_sql_qualify(const char *text, const char *end, const char *const names[])
{
    char *copy = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&copy, &size);

    if (!out)
        return NULL;
    for (const char *p = text; p < end;) {
        const char *next = after_token(p, end);
        if (is_system_table(text, p, end, names))
            fputs("memory.", out);
        fwrite(p, 1, (size_t)(next - p), out);
        p = next;
    }
    if (fclose(out) != 0) {
        free(copy);
        return NULL;
    }
    return copy;
}

static const char *after_blanks(const char *text, const char *end)
{
    while (text < end && (isspace((unsigned char)*text) || is_comment(text, end)))
        text = after_token(text, end);
    return text;
}

const char *pb_sql_after_word(const char *text, const char *word)
{
    size_t n = strlen(word);

    text = after_blanks(text, text + strlen(text));
    return strncasecmp(text, word, n) == 0 && !is_word(text[n]) ? text + n : NULL;
}

const char *pb_sql_after_parentheses(const char *text, const char **ret_inside)
{
    const char *end = text + strlen(text), *p = after_blanks(text, end);
    int depth = 0;

    if (*p != '(')
        return NULL;
    *ret_inside = p + 1;
    for (; p < end; p = after_token(p, end)) {
        depth += *p == '(' ? 1 : *p == ')' ? -1 : 0;
        if (depth == 0)
            return p + 1;
    }
    return NULL;
}

bool pb_sql_has_word(const char *text, const char *word)
{
    const char *end = text + strlen(text);
    size_t n = strlen(word);

    for (const char *p = text, *next; p < end; p = next) {
        next = after_token(p, end);
        if ((size_t)(next - p) == n && strncasecmp(p, word, n) == 0)
            return true;
    }
    return false;
}

#define NAME_MAX_LENGTH 63

int pb_name_distance(const char *a, const char *b)
{
    int row[NAME_MAX_LENGTH + 1];
    int n = (int)strnlen(a, NAME_MAX_LENGTH), m = (int)strnlen(b, NAME_MAX_LENGTH);

    for (int k = 0; k <= m; k++)
        row[k] = k;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int k = 1; k <= m; k++) {
            int replace = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[k - 1]));
            int best = row[k] < row[k - 1] ? row[k] + 1 : row[k - 1] + 1;
            diagonal = row[k];
            row[k] = best < replace ? best : replace;
        }
    }
    return row[m];
}

void pb_put_quoted(FILE *out, const char *text, char quote)
{
    putc(quote, out);
    for (; *text; text++) {
        if (*text == quote)
            putc(quote, out);
        putc(*text, out);
    }
    putc(quote, out);
}
