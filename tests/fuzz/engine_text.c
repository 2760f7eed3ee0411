/* Statements, syntax trees and messages of any bytes: split, parsed, looked for bounds, received. */
#include "base/json.h"
#include "control/redact.h"
#include "engine/shared/bounds.h"
#include "engine/shared/known.h"
#include "engine/shared/sql_text.h"
#include "engine/shared/type_name.h"
#include "engine/shared/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *time_column(void *arg, const char *schema, const char *table)
{
    return table[0] == 't' ? "ts" : NULL;
}

static int evaluate(void *arg, const char *expression, size_t length, int64_t *ret)
{
    *ret = (int64_t)length;
    return 0;
}

static void touch(void *arg, const char *schema, const char *table, struct pb_time_range range)
{
}

static void try_text(const char *text, size_t size)
{
    const char *end = text + size;

    for (const char *p = text; p < end; p = pb_sql_statement_end(p, end) + 1)
        pb_sql_is_blank(p, end);
    free(pb_sql_qualify(text, end, pb_system_tables));
    pb_type_name_is_good(text, size);
    char *copy = malloc(size + 1);
    memcpy(copy, text, size);
    copy[size] = '\0';
    const char *inside;
    pb_sql_has_word(copy, "create");
    pb_sql_after_parentheses(copy, &inside);
    if (pb_redact_command("key,token", copy, size) > size)
        abort();
    free(copy);
}

static void try_tree(const char *text, size_t size)
{
    const struct pb_bounds_ops ops = {time_column, evaluate, touch, NULL};
    struct pb_json j;

    if (pb_json_parse(text, size, &j) < 0)
        return;
    char part[64];
    for (uint32_t i = 1; i < j.n; i++)
        if (pb_json_text(&j, i, part, sizeof(part)) >= (int)sizeof(part))
            abort();
    pb_bounds_find(&j, &ops);
    pb_bounds_names(&j, "ts");
    pb_bounds_any_order(&j);
    pb_json_done(&j);
}

static void try_message(const uint8_t *data, size_t size)
{
    struct pb_wire m = {0};
    uint32_t length;
    int pair[2];

    if (size > 60000 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return;
    if (write(pair[0], data, size) == (ssize_t)size) {
        close(pair[0]);
        while (pb_wire_receive(pair[1], &m, 0) == 0)
            while (pb_wire_ok(&m) && m.at < m.size)
                pb_wire_text(&m, &length);
    }
    pb_wire_done(&m);
    close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Copies of the exact size, so that a byte read beyond the end shows. */
    char *text = malloc(size ? size : 1);
    memcpy(text, data, size);
    try_text(text, size);
    try_tree(text, size);
    free(text);
    try_message(data, size);
    return 0;
}
