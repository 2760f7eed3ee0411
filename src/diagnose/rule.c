/* rule: see rule.h. */
#include "diagnose/rule.h"

#include "ask/query.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/time.h"
#include "diagnose/fact_tables.h"
#include "diagnose_rules.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULE_MAX = 64 << 10, FINDINGS_MAX = 256 };

/* --- reading --- */

void pb_diag_rules_done(struct pb_diag_rules *rules)
{
    for (size_t i = 0; i < rules->n; i++)
        free(rules->at[i].text);
    free(rules->at);
    *rules = (struct pb_diag_rules){0};
}

const char *pb_diag_rule_get(const struct pb_diag_rule *rule, const char *name, unsigned index, char *ret,
                             size_t size)
{
    size_t n = strlen(name);

    for (const char *line = rule->text; strncmp(line, "--", 2) == 0;) {
        const char *at = line + 2 + strspn(line + 2, " "), *end = line + strcspn(line, "\n");
        if (strncmp(at, name, n) == 0 && at[n] == ':' && index-- == 0) {
            at += n + 1;
            at += strspn(at, " ");
            snprintf(ret, size, "%.*s", (int)(end - at), at);
            return ret;
        }
        line = *end ? end + 1 : end;
    }
    ret[0] = '\0';
    return ret;
}

/* Takes text. */
static int add_rule(struct pb_diag_rules *rules, const char *name, char *text, bool own)
{
    struct pb_diag_rule *more = text ? reallocarray(rules->at, rules->n + 1, sizeof(*more)) : NULL;
    char needs[200];

    if (!more) {
        free(text);
        return -ENOMEM;
    }
    rules->at = more;
    struct pb_diag_rule *rule = &more[rules->n++];
    *rule = (struct pb_diag_rule){.text = text, .select = text, .own = own};
    snprintf(rule->name, sizeof(rule->name), "%s", name);
    rule->recorded = pb_diag_rule_get(rule, "needs", 0, needs, sizeof(needs))[0] != '\0';
    while (strncmp(rule->select, "--", 2) == 0) {
        rule->select += strcspn(rule->select, "\n");
        rule->select += *rule->select == '\n';
    }
    return 0;
}

/* What is wrong with a file of the user; NULL: nothing. */
static const char *fault_of(const struct pb_diag_rule *rule)
{
    char value[400];

    if (!pb_diag_rule_get(rule, "kind", 0, value, sizeof(value))[0])
        return "its header has no `-- kind:`";
    if (!pb_diag_rule_get(rule, "says", 0, value, sizeof(value))[0])
        return "its header has no `-- says:`";
    if (!rule->select[strspn(rule->select, " \t\r\n")])
        return "there is no SELECT below its header";
    return NULL;
}

static char *read_file(const char *folder, const char *name)
{
    char path[4096];
    char *text = NULL;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (f && (text = calloc(RULE_MAX + 1, 1)))
        text[fread(text, 1, RULE_MAX, f)] = '\0';
    if (f)
        fclose(f);
    return text;
}

static int read_folder(const struct pb_ask *ask, const char *folder, struct pb_diag_rules *rules,
                       struct pb_err *err)
{
    DIR *dir = opendir(folder);
    int r = 0;

    if (!dir)
        return pb_fail(err, -errno, "the folder of rules %s cannot be read: %s (probing.diagnose.rules)",
                       folder, strerror(errno));
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        if (n < 5 || strcmp(e->d_name + n - 4, ".sql") != 0)
            continue;
        char *text = read_file(folder, e->d_name);
        if (!text) {
            pb_ask_note(ask, "the rule %s/%s cannot be read and is skipped", folder, e->d_name);
            continue;
        }
        r = add_rule(rules, e->d_name, text, true);
        const char *fault = r == 0 ? fault_of(&rules->at[rules->n - 1]) : NULL;
        if (fault) {
            pb_ask_note(ask, "the rule %s/%s is skipped: %s", folder, e->d_name, fault);
            free(rules->at[--rules->n].text);
        }
    }
    closedir(dir);
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}

int pb_diag_rules_read(const struct pb_ask *ask, const char *folder, struct pb_diag_rules *ret,
                       struct pb_err *err)
{
    struct pb_diag_rules rules = {0};
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(embedded_files) / sizeof(embedded_files[0]); i++)
        r = add_rule(&rules, embedded_files[i].name, strdup((const char *)embedded_files[i].text), false);
    if (r < 0)
        pb_fail(err, r, "out of memory");
    if (r == 0 && folder && folder[0])
        r = read_folder(ask, folder, &rules, err);
    if (r < 0)
        pb_diag_rules_done(&rules);
    else
        *ret = rules;
    return r;
}

int pb_diag_rules_part(const struct pb_diag_rules *rules, bool recorded, struct pb_diag_rules *ret)
{
    *ret = (struct pb_diag_rules){.at = calloc(rules->n + 1, sizeof(*ret->at))};
    if (!ret->at)
        return -ENOMEM;
    for (size_t i = 0; i < rules->n; i++)
        if (rules->at[i].recorded == recorded)
            ret->at[ret->n++] = rules->at[i];
    return 0;
}

/* --- a row as a finding --- */

struct rule_row {
    const struct pb_sql_column *columns;
    const struct pb_sql_cell *cells;
    unsigned n;
};

static const struct pb_sql_cell *find_cell(const struct rule_row *row, const char *name, size_t length)
{
    for (unsigned i = 0; i < row->n; i++)
        if (strlen(row->columns[i].name) == length && strncasecmp(row->columns[i].name, name, length) == 0)
            return row->cells[i].kind == PB_SQL_NULL ? NULL : &row->cells[i];
    return NULL;
}

static const char *get(const struct rule_row *row, const char *name, char *ret, size_t size)
{
    const struct pb_sql_cell *c = find_cell(row, name, strlen(name));

    snprintf(ret, size, "%.*s", c ? (int)c->length : 0, c ? c->text : "");
    pb_text_clean(ret);
    return ret;
}

static double get_number(const struct rule_row *row, const char *name, double otherwise)
{
    char value[64];

    return get(row, name, value, sizeof(value))[0] ? strtod(value, NULL) : otherwise;
}

/* False: a column that the template names is NULL, or is not there. */
static bool fill_in(const struct rule_row *row, const char *template, char *ret, size_t size)
{
    size_t len = 0;
    bool whole = true;

    for (const char *at = template; *at && len + 1 < size;) {
        const char *end = *at == '{' ? strchr(at, '}') : NULL;
        if (!end) {
            ret[len++] = *at++;
            continue;
        }
        const struct pb_sql_cell *c = find_cell(row, at + 1, (size_t)(end - at) - 1);
        if (!c) {
            whole = false;
        } else {
            size_t from = len;
            len += (size_t)snprintf(ret + len, size - len, "%.*s", (int)c->length, c->text);
            len = len < size ? len : size - 1;
            if (isupper((unsigned char)at[1]) && from < len)
                ret[from] = (char)toupper((unsigned char)ret[from]);
        }
        at = end + 1;
    }
    ret[len] = '\0';
    pb_text_clean(ret);
    return whole;
}

static void add_evidence(struct pb_diag_finding *f, const struct rule_row *row, const char *template)
{
    struct pb_diag_evidence *e = &f->evidence[f->nevidence];
    char text[1200];

    if (f->nevidence == PB_DIAG_EVIDENCE || !fill_in(row, template, text, sizeof(text)))
        return;
    char *at = text;
    for (size_t i = 0; i < PB_DIAG_FIELDS && at; i++) {
        char *bar = i + 1 < PB_DIAG_FIELDS ? strstr(at, " | ") : NULL;
        if (bar)
            *bar = '\0';
        while (*at == ' ')
            at++;
        snprintf(e->field[i], sizeof(e->field[i]), "%s", at);
        for (size_t n = strlen(e->field[i]); n && e->field[i][n - 1] == ' ';)
            e->field[i][--n] = '\0';
        at = bar ? bar + 3 : NULL;
    }
    f->nevidence++;
}

static void make_finding(const struct pb_diag_rule *rule, const struct rule_row *row,
                         struct pb_diag_finding *f)
{
    char value[1200];

    *f = (struct pb_diag_finding){.rank = (int)get_number(row, "rank", -1),
                                  .pid = (pid_t)get_number(row, "pid", 0),
                                  .since = get_number(row, "since", -1),
                                  .cost = get_number(row, "cost", 0),
                                  .explains = (int)get_number(row, "explains", 0)};
    get(row, "kind", f->kind, sizeof(f->kind));
    if (!f->kind[0])
        pb_diag_rule_get(rule, "kind", 0, f->kind, sizeof(f->kind));
    get(row, "cause", f->cause, sizeof(f->cause));
    get(row, "ranks", f->ranks, sizeof(f->ranks));
    get(row, "thread", f->thread, sizeof(f->thread));
    get(row, "file", f->place.file, sizeof(f->place.file));
    get(row, "function", f->place.function, sizeof(f->place.function));
    get(row, "source", f->place.source, sizeof(f->place.source));
    f->place.line = (int)get_number(row, "line", 0);
    if (!get(row, "sure", value, sizeof(value))[0])
        pb_diag_rule_get(rule, "sure", 0, value, sizeof(value));
    f->sure = strcmp(value, "certain") == 0  ? PB_DIAG_CERTAIN
              : strcmp(value, "likely") == 0 ? PB_DIAG_LIKELY
                                             : PB_DIAG_REMARK;
    fill_in(row, pb_diag_rule_get(rule, "says", 0, value, sizeof(value)), f->says, sizeof(f->says));
    fill_in(row, pb_diag_rule_get(rule, "why", 0, value, sizeof(value)), f->why, sizeof(f->why));
    fill_in(row, pb_diag_rule_get(rule, "next", 0, value, sizeof(value)), f->next, sizeof(f->next));
    fill_in(row, pb_diag_rule_get(rule, "more", 0, value, sizeof(value)), f->more, sizeof(f->more));
    for (unsigned i = 0; pb_diag_rule_get(rule, "evidence", i, value, sizeof(value))[0]; i++)
        add_evidence(f, row, value);
}

/* --- running --- */

struct running {
    const struct pb_diag_rules *rules;
    const struct pb_diag_job *job;
    size_t first,
        at; /* the rule that the present result is of; first of the statement, PB_NOBODY: none yet */
    struct pb_diag_findings *ret;
    const struct pb_sql_column *columns;
    struct pb_row_text row;
};

static int take_batch(struct running *run, const struct pb_sql_column *columns, unsigned n,
                      const struct pb_batch *batch)
{
    for (uint32_t i = 0; i < batch->nrows && run->ret->n < FINDINGS_MAX; i++) {
        int r = pb_row_text_take(&run->row, batch, i);
        struct pb_diag_finding *more =
            r < 0 ? NULL : reallocarray(run->ret->at, run->ret->n + 1, sizeof(*more));
        if (!more)
            return -ENOMEM;
        run->ret->at = more;
        const struct rule_row row = {columns, run->row.cells, n};
        make_finding(&run->rules->at[run->at], &row, &more[run->ret->n++]);
    }
    return 0;
}

/* Runs rules from `first` to `last` as one query. *ret_done: how many gave a result. */
static int run_some(const struct pb_ask *ask, struct running *run, const struct pb_targets *targets,
                    size_t first, size_t last, unsigned timeout_ms, size_t *ret_done, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    size_t size = 0, results = 0;
    struct pb_query *q;
    struct pb_sql_event event;
    const struct pb_sql_column *columns = NULL;
    unsigned ncolumns = 0;

    FILE *out = open_memstream(&sql, &size);
    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = first; i < last; i++) {
        pb_diag_put_tables(out, run->job, run->rules->at[i].select);
        fprintf(out, "SELECT * FROM (\n%s\n);\n", run->rules->at[i].select);
    }
    if (fclose(out) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    const struct pb_query_request request = {.sql = sql, .length = size, .timeout_ms = timeout_ms};
    *ret_done = 0;
    int r = pb_query_open(ask, targets, &request, &q, err);
    if (r < 0)
        return r;
    while ((r = pb_query_next(q, &event, err)) > 0) {
        if (event.kind == PB_SQL_EVENT_COLUMNS) {
            run->at = first + results++;
            columns = event.columns;
            ncolumns = event.n;
        } else if (event.kind == PB_SQL_EVENT_BATCH && columns && run->at < last) {
            if ((r = take_batch(run, columns, ncolumns, &event.batch)) < 0)
                break;
        }
    }
    pb_query_close(q);
    *ret_done = results;
    return r;
}

int pb_diag_rules_run(const struct pb_ask *ask, const struct pb_diag_rules *rules,
                      const struct pb_diag_job *job, const struct pb_targets *targets, unsigned timeout_ms,
                      struct pb_diag_findings *ret, struct pb_err *err)
{
    struct running run = {.rules = rules, .job = job, .ret = ret};
    uint64_t until = pb_now_ns() + timeout_ms * PB_NS_PER_MS;
    size_t done, nbroken = 0;
    int r = 0;

    for (size_t i = 0; i < rules->n;) {
        uint64_t now = pb_now_ns();
        unsigned left_ms = now < until ? (unsigned)((until - now) / PB_NS_PER_MS) + 1 : 1;
        r = run_some(ask, &run, targets, i, rules->n, left_ms, &done, err);
        if (r >= 0)
            break;
        /* The rule after the last that gave a result is the broken one; those after it are run without it.
         * That statements are checked before the first is run makes the broken one the first: then one by
         * one. */
        if (r != -EINVAL && r != -EPERM && r != -ENOENT)
            break;
        size_t broken = i + done;
        if (done == 0) {
            size_t one;
            for (broken = i; broken < rules->n; broken++)
                if ((r = run_some(ask, &run, targets, broken, broken + 1, left_ms, &one, err)) < 0)
                    break;
            if (broken == rules->n)
                break;
        }
        pb_ask_note(ask, "the rule %s is skipped: %s", rules->at[broken].name, pb_err_text(err, r));
        i = broken + 1;
        if (++nbroken == rules->n) /* then it is no rule that is wrong */
            break;
        r = 0;
    }
    pb_row_text_done(&run.row);
    return r;
}
