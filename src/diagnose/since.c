/* since: see since.h. The tables that a rule names in its header become parts of its WITH, and its SELECT
 * names those. */
#include "diagnose/since.h"

#include "diagnose/rule.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TABLES = 8 };

struct needed {
    char text[400];
    const char *name[TABLES];
    size_t n;
};

static void read_needs(const struct pb_diag_rule *rule, struct needed *ret)
{
    char *rest = NULL;

    ret->n = 0;
    pb_diag_rule_get(rule, "needs", 0, ret->text, sizeof(ret->text));
    for (char *at = strtok_r(ret->text, ", ", &rest); at && ret->n < TABLES; at = strtok_r(NULL, ", ", &rest))
        ret->name[ret->n++] = at;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The table whose name stands there as a whole word; n: none. */
static size_t table_at(const struct needed *needs, const char *text, const char *at)
{
    size_t i = 0;

    if (at > text && (is_word(at[-1]) || at[-1] == '.' || at[-1] == '\''))
        return needs->n;
    while (i < needs->n &&
           (strncmp(at, needs->name[i], strlen(needs->name[i])) != 0 || is_word(at[strlen(needs->name[i])])))
        i++;
    return i;
}

static void put_since(FILE *to, const struct pb_diag_rule *rule, const struct needed *needs, double seconds)
{
    const char *select = rule->select + strspn(rule->select, " \t\r\n");
    bool with = strncasecmp(select, "WITH", 4) == 0 && isspace((unsigned char)select[4]);

    fwrite(rule->text, 1, (size_t)(rule->select - rule->text), to);
    for (size_t i = 0; i < needs->n; i++)
        fprintf(to,
                "%s pb_since_%zu AS (SELECT * FROM %s WHERE timestamp > now() - to_milliseconds(CAST(%.0f AS "
                "BIGINT)))",
                i ? "," : "WITH", i, needs->name[i], seconds * 1e3);
    fputs(with ? "," : "", to);
    select += with ? 4 : 0;
    fputc('\n', to);
    for (const char *at = select; *at;) {
        size_t i = table_at(needs, select, at);
        if (i == needs->n) {
            fputc(*at++, to);
            continue;
        }
        fprintf(to, "pb_since_%zu", i);
        at += strlen(needs->name[i]);
    }
}

int pb_diag_rules_since(struct pb_diag_rules *rules, double seconds)
{
    struct needed needs;

    for (size_t i = 0; i < rules->n; i++) {
        struct pb_diag_rule *rule = &rules->at[i];
        size_t header = (size_t)(rule->select - rule->text), size = 0;
        char *text = NULL;
        read_needs(rule, &needs);
        if (!needs.n)
            continue;
        FILE *to = open_memstream(&text, &size);
        if (!to)
            return -ENOMEM;
        put_since(to, rule, &needs, seconds);
        if (fclose(to) != 0) {
            free(text);
            return -ENOMEM;
        }
        free(rule->text);
        rule->text = text;
        rule->select = text + header;
    }
    return 0;
}
