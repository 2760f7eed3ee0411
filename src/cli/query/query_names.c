/* query_names: see query_names.h. */
#include "cli/query/query_names.h"

#include "ask/query.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "base/vector.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAMES_MAX = 50000, NAME_MAX_LENGTH = 128, TIMEOUT_MS = 3000 };
static const uint64_t FRESH_NS = 3 * PB_NS_PER_S;

/* Operators are functions too, but are not typed by name. */
static const char everything[] =
    "SELECT 'c', CASE WHEN schema_name = 'main' THEN '' ELSE schema_name || '.' END || table_name, "
    "column_name "
    "FROM duckdb_columns() WHERE NOT internal "
    "UNION ALL SELECT DISTINCT 'f', NULL, function_name FROM duckdb_functions() "
    "WHERE regexp_full_match(function_name, '[a-z][a-z0-9_]*') AND function_name NOT LIKE 'pb\\_%' ESCAPE "
    "'\\' "
    "UNION ALL SELECT 'k', NULL, keyword_name FROM duckdb_keywords() ORDER BY ALL";

void pb_query_names_done(struct pb_query_names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        free(names->at[i].table);
        free(names->at[i].name);
    }
    free(names->at);
    *names = (struct pb_query_names){0};
}

/* --- reading --- */

static int take_name(struct pb_query_names *names, const struct pb_sql_cell *cells)
{
    /* A process may have any number of tables: the names are bounded. */
    if (names->n == NAMES_MAX || cells[0].length != 1 || cells[1].length > 2 * NAME_MAX_LENGTH ||
        cells[2].length > NAME_MAX_LENGTH)
        return 0;
    if (pb_grow((void **)&names->at, &names->room, names->n, sizeof(*names->at), NULL) < 0)
        return -ENOMEM;
    struct pb_query_name name = {
        .kind = cells[0].text[0],
        .table = cells[1].kind == PB_SQL_NULL ? NULL : strndup(cells[1].text, cells[1].length),
        .name = strndup(cells[2].text, cells[2].length)};
    names->at[names->n++] = name;
    return name.name && (name.table || cells[1].kind == PB_SQL_NULL) ? 0 : -ENOMEM;
}

static int take_names(struct pb_query_names *names, const struct pb_batch *batch)
{
    _cleanup_(pb_row_text_done) struct pb_row_text row = {0};
    int r = batch->ncolumns == 3 ? 0 : -EBADMSG;

    for (uint32_t i = 0; r == 0 && i < batch->nrows; i++) {
        r = pb_row_text_take(&row, batch, i);
        if (r == 0)
            r = take_name(names, row.cells);
    }
    return r;
}

int pb_query_names_read(struct pb_query_names *names, const struct pb_call *call, struct pb_err *err)
{
    const struct pb_query_request request = {
        .sql = everything, .length = sizeof(everything) - 1, .timeout_ms = TIMEOUT_MS};
    struct pb_query_names read = {0};
    struct pb_sql_event event;
    struct pb_query *query;

    if (names->read_at && pb_now_ns() - names->read_at < FRESH_NS)
        return 0;
    int r = pb_query_open(&call->ask, &call->targets, &request, &query, err);
    if (r < 0)
        return r;
    while ((r = pb_query_next(query, &event, err)) > 0)
        if (event.kind == PB_SQL_EVENT_BATCH && (r = take_names(&read, &event.batch)) < 0)
            break;
    pb_query_close(query);
    if (r == 0) {
        struct pb_query_names old = *names;
        *names = read;
        names->read_at = pb_now_ns();
        read = old;
    }
    pb_query_names_done(&read);
    return r;
}

bool pb_query_names_has_table(const struct pb_query_names *names, const char *table)
{
    for (size_t i = 0; i < names->n; i++)
        if (names->at[i].table && strcasecmp(names->at[i].table, table) == 0)
            return true;
    return false;
}

/* --- a half-written statement --- */

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '"' || (unsigned char)c >= 0x80;
}

/* The next word from *at on; its length, 0 at the end. */
static size_t next_word(const char *text, size_t end, size_t *at)
{
    while (*at < end && !in_name(text[*at]))
        ++*at;
    size_t n = 0;
    while (*at + n < end && in_name(text[*at + n]))
        n++;
    return n;
}

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && strncasecmp(text, word, n) == 0;
}

static bool is_one_of(const char *text, size_t n, const char *const words[])
{
    for (size_t i = 0; words[i]; i++)
        if (is_word(text, n, words[i]))
            return true;
    return false;
}

static const struct pb_query_name *table_named(const struct pb_query_names *names, const char *text, size_t n)
{
    for (size_t i = 0; i < names->n; i++)
        if (names->at[i].table && is_word(text, n, names->at[i].table))
            return &names->at[i];
    return NULL;
}

/* The table that `alias` stands for: a table of that name, or one that the statement gives this alias. NULL:
 * none. */
static const char *table_of(const struct pb_query_names *names, const char *text, size_t length,
                            const char *alias, size_t n)
{
    const struct pb_query_name *found = table_named(names, alias, n);

    for (size_t at = 0, w; !found && (w = next_word(text, length, &at)) > 0;) {
        const struct pb_query_name *table = table_named(names, text + at, w);
        size_t next = at + w, m = next_word(text, length, &next);
        if (m && is_word(text + next, m, "as")) {
            next += m;
            m = next_word(text, length, &next);
        }
        if (table && m == n && strncasecmp(text + next, alias, n) == 0)
            found = table;
        at += w;
    }
    return found ? found->table : NULL;
}

static bool begins(const char *name, const char *word, size_t n)
{
    return strncasecmp(name, word, n) == 0;
}

/* Offers a name, quoted where SQL needs it, after the text before it. */
static void offer(struct pb_line_words *to, const char *before, size_t n, const char *name, const char *after)
{
    bool plain = isalpha((unsigned char)name[0]) || name[0] == '_';
    char word[5 * NAME_MAX_LENGTH];

    for (const char *p = name; *p; p++)
        plain = plain && (isalnum((unsigned char)*p) || *p == '_' || *p == '.');
    if (plain)
        snprintf(word, sizeof(word), "%.*s%s%s", (int)n, before, name, after);
    else if (!strchr(name, '"'))
        snprintf(word, sizeof(word), "%.*s\"%s\"%s", (int)n, before, name, after);
    else
        return;
    pb_line_offer(to, word);
}

/* Whether the column belongs to a table that the statement names: then only such columns are offered. */
static bool is_of_a_named_table(const struct pb_query_name *column, const char *text, size_t length)
{
    for (size_t at = 0, n; (n = next_word(text, length, &at)) > 0; at += n)
        if (is_word(text + at, n, column->table))
            return true;
    return false;
}

static bool names_any_table(const struct pb_query_names *names, const char *text, size_t length)
{
    for (size_t at = 0, n; (n = next_word(text, length, &at)) > 0; at += n)
        if (table_named(names, text + at, n))
            return true;
    return false;
}

static void offer_tables(const struct pb_query_names *names, const char *word, size_t n,
                         struct pb_line_words *to)
{
    for (size_t i = 0; i < names->n; i++)
        if (names->at[i].table && begins(names->at[i].table, word, n))
            offer(to, "", 0, names->at[i].table, "");
}

/* Offers a keyword in the letter case of the typed letters. */
static void offer_keyword(const char *name, const char *word, size_t n, struct pb_line_words *to)
{
    char text[NAME_MAX_LENGTH + 1];
    bool capital = n > 0 && isupper((unsigned char)word[0]);
    size_t i = 0;

    for (; name[i]; i++)
        text[i] = (char)(capital ? toupper((unsigned char)name[i]) : tolower((unsigned char)name[i]));
    text[i] = '\0';
    pb_line_offer(to, text);
}

static void offer_anything(const struct pb_query_names *names, const char *text, size_t length,
                           const char *word, size_t n, struct pb_line_words *to)
{
    bool named = names_any_table(names, text, length);

    for (size_t i = 0; i < names->n; i++) {
        const struct pb_query_name *name = &names->at[i];
        if (!begins(name->name, word, n))
            continue;
        if (name->kind == 'c' && (!named || is_of_a_named_table(name, text, length)))
            offer(to, "", 0, name->name, "");
        else if (name->kind == 'f' && n > 0)
            offer(to, "", 0, name->name, "(");
        else if (name->kind == 'k' && n > 0)
            offer_keyword(name->name, word, n, to);
    }
}

/* The last whole word before the one being typed. */
static size_t word_before(const char *text, size_t from, const char **ret)
{
    size_t end = from;

    while (end > 0 && isspace((unsigned char)text[end - 1]))
        end--;
    size_t begin = end;
    while (begin > 0 && in_name(text[begin - 1]))
        begin--;
    *ret = text + begin;
    return end - begin;
}

size_t pb_query_names_complete(const struct pb_query_names *names, const char *text, size_t cursor,
                               struct pb_line_words *to)
{
    static const char *const before_table[] = {"from",    "join", "describe", "summarize",
                                               ".schema", "desc", "table",    NULL};
    size_t from = cursor, length = strlen(text);
    const char *before;

    while (from > 0 && in_name(text[from - 1]))
        from--;
    const char *word = text + from, *dot = memrchr(word, '.', cursor - from);
    size_t n = cursor - from, nbefore = word_before(text, from, &before);
    if (is_one_of(before, nbefore, before_table)) {
        offer_tables(names, word, n, to);
        return from;
    }
    size_t ahead = dot ? (size_t)(dot - word) : 0;
    const char *table = dot ? table_of(names, text, length, word, ahead) : NULL;
    for (size_t i = 0; table && i < names->n; i++)
        if (names->at[i].table && strcmp(names->at[i].table, table) == 0 &&
            begins(names->at[i].name, dot + 1, n - ahead - 1))
            offer(to, word, ahead + 1, names->at[i].name, "");
    if (!table) {
        offer_anything(names, text, length, word, n, to);
        offer_tables(names, word, n, to);
    }
    return from;
}
