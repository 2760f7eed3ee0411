/* A statement over many nodes gives what it gives over the union of their rows: planned, asked of each node
 * for itself, and run over what came. The rows are random, the statements many. */
#include "engine_test.h"

#include "engine/shared/sent.h"

#include <errno.h>

enum { NODES = 3, RANKS = 2, ALL = NODES * RANKS, TABLES = 8 };

static int arenas[ALL];
static uint64_t seed = 88172645463325252u;
static uint64_t sent_bytes, sent_rows;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static const char *const words[] = {"",          "all_reduce",       "all_gather",
                                    "Broadcast", "\xc3\xa4\xc3\xb6", "o'clock \"x\""};

static void fill(struct pb_arena *arena, unsigned rank)
{
    static const struct pb_column columns[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
                                               {"a", PB_I32, 0, NULL, NULL},
                                               {"b", PB_I64, 0, NULL, NULL},
                                               {"x", PB_F64, 0, NULL, NULL},
                                               {"f", PB_F32, 0, NULL, NULL},
                                               {"s", PB_STRING, 0, NULL, NULL},
                                               {"flag", PB_BOOL, 0, NULL, NULL},
                                               {"u", PB_U64, 0, NULL, NULL}};
    static const struct pb_column other[] = {{"k", PB_I32, 0, NULL, NULL},
                                             {"label", PB_STRING, 0, NULL, NULL}};
    /* Half of the nodes have a column of another width, and one more column. */
    static const struct pb_column wide[] = {{"v", PB_I64, 0, NULL, NULL}, {"more", PB_F64, 0, NULL, NULL}};
    static const struct pb_column narrow[] = {{"v", PB_I16, 0, NULL, NULL}};
    const struct pb_table_spec first = {.name = "t", .columns = columns, .ncolumns = 8},
                               second = {.name = "python.names", .columns = other, .ncolumns = 2},
                               third = {.name = "mixed",
                                        .columns = rank < 2 ? wide : narrow,
                                        .ncolumns = rank < 2 ? 2u : 1u};
    struct pb_table *t, *n, *m;
    struct pb_row row;

    assert_int_equal(pb_table_new(arena, &first, &t), 0);
    assert_int_equal(pb_table_new(arena, &second, &n), 0);
    assert_int_equal(pb_table_new(arena, &third, &m), 0);
    unsigned rows = rank == 4 ? 0 : 200 + (unsigned)(next_random() % 300);
    for (unsigned i = 0; i < rows; i++) {
        const char *word = words[next_random() % 6];
        pb_row_begin(t, &row);
        pb_set_timestamp(&row, 0, mono_now() - (int64_t)(next_random() % 600) * SECOND);
        pb_set_i32(&row, 1, (int32_t)(next_random() % 7) - 3);
        if (next_random() % 5)
            pb_set_i64(&row, 2, (int64_t)(next_random() % 1000) - 500);
        if (next_random() % 7)
            pb_set_f64(&row, 3, (double)(int64_t)(next_random() % 4096) / 16);
        pb_set_f32(&row, 4, (float)(next_random() % 64) / 4);
        if (next_random() % 9)
            pb_set_string(&row, 5, word, strlen(word));
        pb_set_bool(&row, 6, next_random() % 2);
        pb_set_u64(&row, 7, next_random() % 3 ? next_random() % 10 : UINT64_MAX);
        pb_row_commit(&row);
    }
    for (int i = -3; i < 4; i += 1 + (int)(rank % 2)) {
        pb_row_begin(n, &row);
        pb_set_i32(&row, 0, i);
        pb_set_string(&row, 1, words[(unsigned)(i + 3) % 6], strlen(words[(unsigned)(i + 3) % 6]));
        pb_row_commit(&row);
    }
    pb_row_begin(m, &row);
    if (rank < 2) {
        pb_set_i64(&row, 0, INT64_MAX - rank);
        pb_set_f64(&row, 1, 0.5);
    } else {
        pb_set_i16(&row, 0, (int16_t)-rank);
    }
    pb_row_commit(&row);
}

static int make_arenas(void **state)
{
    if (use_own_worker(state) < 0)
        return -1;
    for (unsigned i = 0; i < ALL; i++) {
        struct pb_arena *arena;
        if (pb_arena_create(PB_ARENA_MEMFD, "t", NULL, &arena) < 0)
            return -1;
        fill(arena, i);
        arenas[i] = pb_arena_fd(arena);
    }
    return 0;
}

/* --- a plan --- */

struct plan {
    char root[8192];
    unsigned n;
    struct {
        char schema[64], name[64], sql[8192], fallback[8192];
    } at[TABLES];
};

static void copy_cell(char *to, size_t size, const struct pb_sql_cell *cell)
{
    assert_true(cell->length < size);
    memcpy(to, cell->text, cell->length);
    to[cell->length] = '\0';
}

static void take_plan(struct plan *p, const struct pb_batch *batch, bool *first)
{
    struct pb_row_text row = {0};

    for (uint32_t i = 0; i < batch->nrows; i++) {
        assert_int_equal(pb_row_text_take(&row, batch, i), 0);
        if (*first) {
            copy_cell(p->root, sizeof(p->root), &row.cells[2]);
        } else {
            assert_true(p->n < TABLES);
            copy_cell(p->at[p->n].schema, 64, &row.cells[0]);
            copy_cell(p->at[p->n].name, 64, &row.cells[1]);
            copy_cell(p->at[p->n].sql, 8192, &row.cells[2]);
            copy_cell(p->at[p->n++].fallback, 8192, &row.cells[3]);
        }
        *first = false;
    }
    pb_row_text_done(&row);
}

static int make_plan(const char *sql, bool whole, uint64_t now_us, struct plan *p, struct pb_err *err)
{
    struct pb_sql_query q = {.sql = sql,
                             .length = strlen(sql),
                             .plan = true,
                             .whole = whole,
                             .cap = 100000,
                             .now_us = now_us,
                             .timeout_ms = 20000};
    struct pb_sql_event event;
    bool first = true;
    struct pb_sql *s;

    memset(p, 0, sizeof(*p));
    int r = pb_sql_open(&q, &s, err);
    if (r < 0)
        return r;
    while ((r = pb_sql_next(s, &event, err)) > 0)
        if (event.kind == PB_SQL_EVENT_BATCH)
            take_plan(p, &event.batch, &first);
    pb_sql_close(s);
    return r;
}

/* --- a node --- */

static void put_columns(struct pb_wire *m, const struct pb_sql_column *columns, unsigned n)
{
    pb_wire_begin(m, PB_SQL_COLUMNS);
    pb_wire_put_u32(m, n);
    for (unsigned i = 0; i < n; i++) {
        pb_wire_put_text(m, columns[i].name, strlen(columns[i].name));
        pb_wire_put_text(m, columns[i].type, strlen(columns[i].type));
        pb_wire_put_u32(m, columns[i].cells);
        pb_wire_put_u32(m, columns[i].scale);
    }
}

static int ask_node(unsigned node, const char *sql, FILE *out, struct pb_err *err)
{
    struct pb_sql_source sources[RANKS];
    struct pb_sql_event event;
    struct pb_wire m = {0};
    struct pb_sql *s;

    for (unsigned i = 0; i < RANKS; i++)
        sources[i] = (struct pb_sql_source){.live = {.pid = i ? getppid() : getpid(),
                                                     .arena_fd = arenas[node * RANKS + i],
                                                     .redact = no_secrets},
                                            .rank = (int32_t)(node * RANKS + i)};
    struct pb_sql_query q = {
        .sql = sql, .length = strlen(sql), .sources = sources, .nsources = RANKS, .timeout_ms = 20000};
    int r = pb_sql_open(&q, &s, err);
    if (r < 0)
        return r;
    while ((r = pb_sql_next(s, &event, err)) > 0) {
        if (event.kind == PB_SQL_EVENT_COLUMNS)
            put_columns(&m, event.columns, event.n);
        else if (event.kind == PB_SQL_EVENT_BATCH)
            pb_batch_put(&m, &event.batch);
        else
            continue;
        assert_int_equal(pb_sent_write(out, &m), 0);
    }
    pb_sql_close(s);
    pb_wire_begin(&m, PB_SQL_DONE);
    if (r == 0)
        assert_int_equal(pb_sent_write(out, &m), 0);
    pb_wire_done(&m);
    return r;
}

/* Its whole answer to a plan, as it would travel. false: it could not be had. */
static bool answer_of_node(unsigned node, const struct plan *p, char **ret, size_t *ret_size)
{
    FILE *out = open_memstream(ret, ret_size);
    struct pb_wire m = {0};
    struct pb_err err;

    pb_sent_hello(&m, "test");
    pb_sent_write(out, &m);
    for (unsigned i = 0; i < p->n; i++) {
        char *part = NULL;
        size_t size = 0;
        FILE *one = open_memstream(&part, &size);
        int r = ask_node(node, p->at[i].sql, one, &err);
        if (r < 0 && p->at[i].fallback[0]) {
            fclose(one);
            free(part);
            one = open_memstream(&part, &size);
            r = ask_node(node, p->at[i].fallback, one, &err);
        }
        fclose(one);
        if (r < 0) {
            pb_wire_begin(&m, PB_SQL_ERROR);
            pb_wire_put_u32(&m, (uint32_t)-r);
            pb_wire_put_text(&m, err.text, strlen(err.text));
            pb_sent_write(out, &m);
        } else {
            fwrite(part, 1, size, out);
        }
        free(part);
    }
    pb_wire_done(&m);
    return fclose(out) == 0;
}

/* --- both ways --- */

static int64_t now_in_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static struct answer over;

/* Runs it over the nodes. */
static int run_over_nodes(const char *sql, bool whole, bool *ret_split)
{
    static const struct pb_sql_rank roles[NODES][RANKS] = {
        {{0, "pp=0"}, {1, "pp=0"}}, {{2, "pp=1"}, {3, "pp=1"}}, {{4, NULL}, {5, "pp=2"}}};
    static const char *const nodes[] = {"n0", "n1", "n2"};
    static struct plan p;
    struct pb_sql_sent sent[NODES * TABLES];
    struct pb_sql_table tables[TABLES];
    struct pb_sent_part parts[TABLES];
    char *answers[NODES] = {0};
    uint64_t now = (uint64_t)now_in_us();
    unsigned n = 0;

    memset(&over, 0, sizeof(over));
    int r = make_plan(sql, whole, now, &p, &over.err);
    if (r < 0)
        return r;
    *ret_split = p.root[0];
    for (unsigned node = 0; node < NODES; node++) {
        int32_t ranks[] = {(int32_t)(node * RANKS), (int32_t)(node * RANKS + 1)};
        struct pb_sent_check check = {.version = "test", .nparts = p.n, .ranks = ranks, .nranks = RANKS};
        size_t size;
        assert_true(answer_of_node(node, &p, &answers[node], &size));
        sent_bytes += size;
        int good = pb_sent_read((const uint8_t *)answers[node], size, &check, parts, &over.err);
        assert_string_equal(over.err.text, "");
        assert_int_equal(good, 0);
        for (unsigned i = 0; i < p.n; i++) {
            if (parts[i].error && *ret_split)
                r = -EAGAIN;
            sent_rows += parts[i].rows;
            if (!parts[i].error)
                sent[n++] = (struct pb_sql_sent){.table = i,
                                                 .node = nodes[node],
                                                 .ranks = roles[node],
                                                 .nranks = RANKS,
                                                 .frames = parts[i].frames,
                                                 .size = parts[i].size};
        }
    }
    for (unsigned i = 0; i < p.n; i++)
        tables[i] = (struct pb_sql_table){.schema = p.at[i].schema, .name = p.at[i].name};
    struct pb_sql_table own = {"cluster", "nodes", "SELECT * FROM (VALUES ('n0', 1), ('n1', 2)) t(name, ms)"};
    struct pb_sql_node_rows rows = {
        .tables = tables, .ntables = p.n, .own = &own, .nown = 1, .sent = sent, .nsent = n};
    const char *root = p.root[0] ? p.root : sql;
    struct pb_sql_query q = {
        .sql = root, .length = strlen(root), .node_rows = &rows, .now_us = now, .timeout_ms = 20000};
    if (r == 0)
        r = take_all(&q, &over, &over.err);
    for (unsigned node = 0; node < NODES; node++)
        free(answers[node]);
    /* What cannot be merged after all is asked as rows. */
    return r < 0 && p.root[0] && !whole ? run_over_nodes(sql, true, ret_split) : r;
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Rows in an order of their own, where the statement has none. */
static void sort_rows(char *rows)
{
    char *lines[8192], copy[1 << 16];
    size_t n = 0;

    strcpy(copy, rows);
    for (char *line = strtok(copy, "\n"); line && n < 8192; line = strtok(NULL, "\n"))
        lines[n++] = line;
    qsort(lines, n, sizeof(*lines), compare_lines);
    rows[0] = '\0';
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)sprintf(rows + at, "%s\n", lines[i]);
}

static void ask_both(const char *sql, bool *ret_split, struct answer **ret_direct)
{
    struct answer *direct = *ret_direct = ask_all(arenas, ALL, sql, 20000);

    if (direct->r < 0)
        print_error("direct: %s: %s\n", sql, direct->err.text);
    assert_int_equal(direct->r, 0);
    int r = run_over_nodes(sql, false, ret_split);
    if (r < 0)
        print_error("over nodes: %s: %s\n", sql, over.err.text);
    assert_int_equal(r, 0);
    if (!strstr(sql, "ORDER BY")) {
        sort_rows(direct->rows);
        sort_rows(over.rows);
    }
}

static void expect_same(const char *sql, bool *ret_split)
{
    struct answer *direct;

    ask_both(sql, ret_split, &direct);
    /* A row may have become too old between the two. */
    if (strcmp(over.rows, direct->rows) != 0 && strstr(sql, "now()"))
        ask_both(sql, ret_split, &direct);
    if (strcmp(over.rows, direct->rows) != 0)
        print_error("%s\n", sql);
    assert_string_equal(over.rows, direct->rows);
}

static void given_statements_give_what_the_union_gives(void **state)
{
    static const struct {
        bool split;
        const char *sql;
    } all[] = {
        {true, "SELECT count(*) FROM t"},
        {true, "SELECT rank, sum(b) FROM t GROUP BY rank ORDER BY rank"},
        {true, "SELECT rank, avg(x), min(s), max(s), count(x), sum(f) FROM t GROUP BY ALL ORDER BY rank"},
        {true, "SELECT a, avg(x) FROM t"},
        {true,
         "SELECT a % 2 AS odd, sum(b) + 1, round(avg(x), 3) FROM t WHERE b > 0 GROUP BY a % 2 ORDER BY odd"},
        {true,
         "SELECT s, count(*) AS n FROM t GROUP BY s HAVING count(*) > 3 ORDER BY n DESC, s LIMIT 4 OFFSET 1"},
        {true, "SELECT q.s, max(q.x) FILTER (WHERE q.flag) FROM t AS q WHERE q.a >= 0 GROUP BY 1 ORDER BY 1"},
        {true, "SELECT sum(b), min(b), max(b), avg(b), count(b) FROM t WHERE a > 100"},
        {true, "SELECT sum(u), max(u) FROM t"},
        {true, "SELECT count(*) FROM t WHERE timestamp > now() - INTERVAL '5 minutes'"},
        {true, "SELECT count(*) FROM t WHERE timestamp > current_timestamp - INTERVAL '5 minutes' AND now() "
               "> timestamp"},
        {false, "SELECT count(DISTINCT s), sum(DISTINCT a) FROM t"},
        {false, "SELECT rank, median(x), round(stddev(b), 6) FROM t GROUP BY rank ORDER BY rank"},
        {false, "SELECT s, list(a ORDER BY a, rank) FROM t WHERE a > 1 GROUP BY s ORDER BY s"},
        {false, "SELECT COLUMNS(lambda c: c NOT IN ('node', 'role', 'target_pid')) FROM t WHERE a = 1"},
        {false,
         "SELECT rank, a, b FROM t WHERE b > 0 AND (s LIKE 'all%' OR flag) ORDER BY rank, b, a, x LIMIT 20"},
        {false, "SELECT a, b, x FROM t ORDER BY x DESC, b, a LIMIT 7"},
        {false, "SELECT rank, v FROM mixed ORDER BY v"},
        {false, "SELECT rank, v, more FROM mixed WHERE more IS NULL OR v > 5 ORDER BY rank"},
        {false,
         "SELECT t.rank, n.label, sum(t.b) FROM t JOIN python.names n ON n.k = t.a AND n.rank = t.rank WHERE "
         "t.b > 10 AND n.k < 3 GROUP BY ALL ORDER BY 1, 2"},
        {false, "SELECT x.rank, y.rank, count(*) FROM t x JOIN t y ON x.b = y.b AND x.rank < y.rank WHERE "
                "x.a = 1 AND "
                "y.a = 2 GROUP BY ALL ORDER BY 1, 2"},
        {false, "SELECT count(*) FROM t LEFT JOIN python.names n ON n.k = t.a AND n.rank = t.rank WHERE n.k "
                "IS NULL"},
        {false, "SELECT count(*) FROM t LEFT JOIN python.names n ON n.k = t.a WHERE t.a < 0 AND n.label = "
                "'Broadcast'"},
        {false,
         "WITH m AS (SELECT rank, avg(x) AS mean FROM t GROUP BY rank) SELECT count(*) FROM t JOIN m USING "
         "(rank) WHERE t.x > m.mean"},
        {false, "WITH t AS (SELECT * FROM t WHERE a = 2) SELECT count(*), min(b) FROM t"},
        {false, "SELECT rank, x, row_number() OVER (PARTITION BY s ORDER BY x, b, rank, a, f) AS n FROM t "
                "WHERE x > 200 "
                "QUALIFY n <= 2 ORDER BY ALL"},
        {false, "SELECT a FROM t WHERE b = (SELECT max(b) FROM t)"},
        {false, "SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM python.names WHERE k = a AND label = s)"},
        {false, "SELECT a FROM t WHERE a > 1 UNION SELECT k FROM python.names WHERE k < 0 ORDER BY 1"},
        {false, "SELECT count(*) FROM (SELECT a, b FROM t WHERE x > 100 LIMIT 1000000)"},
        {false, "SELECT b + 1 AS c FROM t WHERE c > 480 ORDER BY 1"},
        {false, "SELECT DISTINCT a, flag FROM t ORDER BY ALL"},
        {false, "SELECT a, count(*) FROM t GROUP BY ROLLUP (a, flag) ORDER BY 1, 2"},
        {false, "SELECT k AS q FROM python.names names WHERE names.k > 1"},
        {false, "FROM t SELECT max(b) OVER () - b ORDER BY 1 LIMIT 3"},
        {false, "SELECT d FROM (SELECT a AS d, b FROM t) WHERE d > 1 AND b < 0"},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        bool split;
        expect_same(all[i].sql, &split);
        if (split != all[i].split)
            print_error("%s was %ssplit\n", all[i].sql, split ? "" : "not ");
        assert_int_equal(split, all[i].split);
    }
}

/* --- random statements --- */

static const char *pick(const char *const *from, size_t n)
{
    return from[next_random() % n];
}

#define PICK(list) pick(list, sizeof(list) / sizeof((list)[0]))

static void random_statement(char *to, size_t size)
{
    static const char *const filters[] = {"a > 0",
                                          "b IS NOT NULL",
                                          "s = 'all_reduce'",
                                          "x BETWEEN 10 AND 200",
                                          "flag",
                                          "a IN (1, 2, -3)",
                                          "lower(s) LIKE 'b%'",
                                          "rank >= 2",
                                          "NOT flag OR b < 0",
                                          "coalesce(b, 7) % 3 = 0",
                                          "length(s) > 3",
                                          "timestamp > now() - INTERVAL '7 minutes'",
                                          "CASE WHEN flag THEN a ELSE b END > 0"};
    static const char *const groups[] = {"rank",     "a",         "s",        "flag", "a % 2",
                                         "lower(s)", "b IS NULL", "rank % 2", "u > 5"};
    static const char *const aggregates[] = {"count(*)",
                                             "count(b)",
                                             "sum(a)",
                                             "sum(b)",
                                             "min(x)",
                                             "max(b)",
                                             "avg(a)",
                                             "avg(x)",
                                             "min(s)",
                                             "max(s)",
                                             "sum(f)",
                                             "max(flag)",
                                             "count(*) FILTER (WHERE flag)",
                                             "sum(b * a)",
                                             "avg(b) FILTER (WHERE a > 0)",
                                             "count(DISTINCT s)",
                                             "sum(b) + count(*)"};
    size_t n = 0;
    const char *one = PICK(groups), *two = PICK(groups);
    bool grouped = next_random() % 4, both = grouped && next_random() % 2 && strcmp(one, two) != 0;

    n += (size_t)snprintf(to + n, size - n, "SELECT ");
    if (grouped)
        n += (size_t)snprintf(to + n, size - n, both ? "%s AS g1, %s AS g2, " : "%s AS g1, ", one, two);
    for (unsigned i = 0, k = 1 + (unsigned)(next_random() % 3); i < k; i++)
        n += (size_t)snprintf(to + n, size - n, "%s%s", i ? ", " : "", PICK(aggregates));
    n += (size_t)snprintf(to + n, size - n, " FROM t");
    for (unsigned i = 0, k = (unsigned)(next_random() % 3); i < k; i++)
        n += (size_t)snprintf(to + n, size - n, "%s (%s)",
                              i ? (next_random() % 2 ? " AND" : " OR") : " WHERE", PICK(filters));
    if (grouped)
        n += (size_t)snprintf(to + n, size - n, both ? " GROUP BY %s, %s" : " GROUP BY %s", one, two);
    if (grouped && next_random() % 3 == 0)
        n += (size_t)snprintf(to + n, size - n, " HAVING count(*) > 5");
    snprintf(to + n, size - n, grouped ? (both ? " ORDER BY 1, 2" : " ORDER BY 1") : "");
}

static void random_statements_give_what_the_union_gives(void **state)
{
    const char *many = getenv("PROBING_TEST_STATEMENTS");
    int n = many ? atoi(many) : 60, nsplit = 0;

    for (int i = 0; i < n; i++) {
        char sql[2048];
        bool split;
        random_statement(sql, sizeof(sql));
        expect_same(sql, &split);
        nsplit += split;
    }
    /* Most of them have nothing that cannot be split. */
    assert_true(nsplit > n / 2);
}

static void nodes_and_roles_are_columns(void **state)
{
    bool split;

    assert_int_equal(run_over_nodes("SELECT rank, node, role, v FROM mixed ORDER BY rank", false, &split), 0);
    assert_string_equal(over.rows,
                        "0|n0|pp=0|9223372036854775807\n1|n0|pp=0|9223372036854775806\n2|n1|pp=1|-2\n"
                        "3|n1|pp=1|-3\n4|n2|NULL|-4\n5|n2|pp=2|-5\n");
    assert_int_equal(
        run_over_nodes("SELECT node, count(*) FROM mixed WHERE role <> 'pp=2' GROUP BY node ORDER BY 1",
                       false, &split),
        0);
    assert_true(split);
    assert_string_equal(over.rows, "n0|2\nn1|2\n");
    assert_int_equal(run_over_nodes("SELECT * EXCLUDE (target_pid) FROM mixed JOIN cluster.nodes ON name = "
                                    "node ORDER BY rank LIMIT 1",
                                    false, &split),
                     0);
    assert_string_equal(over.rows, "0|n0|pp=0|9223372036854775807|0.5|n0|1\n");
    /* And nothing of it is left for the next request. */
    expect(arenas[0], "SELECT count(*) FROM mixed", "1\n");
    assert_true(ask(arenas[0], "SELECT * FROM cluster.nodes")->r < 0);
    assert_true(ask(arenas[0], "SELECT node FROM mixed")->r < 0);
}

static void conditions_columns_and_limits_go_to_the_nodes(void **state)
{
    bool split;

    sent_rows = sent_bytes = 0;
    assert_int_equal(run_over_nodes("SELECT * FROM t LIMIT 2", false, &split), 0);
    assert_true(sent_rows <= 6);
    sent_rows = 0;
    assert_int_equal(run_over_nodes("SELECT a FROM t WHERE b > 2000", false, &split), 0);
    assert_int_equal(sent_rows, 0);
    sent_rows = sent_bytes = 0;
    assert_int_equal(run_over_nodes("SELECT count(*), rank FROM t GROUP BY rank", false, &split), 0);
    assert_true(sent_rows <= ALL);
    sent_bytes = 0;
    assert_int_equal(run_over_nodes("SELECT s FROM t", false, &split), 0);
    uint64_t narrow = sent_bytes;
    assert_int_equal(run_over_nodes("SELECT * FROM t", false, &split), 0);
    assert_true(2 * narrow < sent_bytes - narrow);
}

static void what_is_wrong_is_said(void **state)
{
    bool split;

    assert_int_equal(run_over_nodes("SELECT nothing FROM t", false, &split), -EINVAL);
    assert_non_null(strstr(over.err.text, "nothing"));
    assert_int_equal(run_over_nodes("SELECT * FROM no_such_table", false, &split), -ENOENT);
    assert_non_null(strstr(over.err.text, "no_such_table"));
    assert_int_equal(run_over_nodes("SELEC 1", false, &split), -EINVAL);
    assert_int_equal(run_over_nodes("DROP TABLE t", false, &split), -EINVAL);
    assert_int_equal(run_over_nodes("SELECT 1", false, &split), 0);
    assert_string_equal(over.rows, "1\n");
}

/* --- answers that lie --- */

static int read_answer(const char *data, size_t size, struct pb_err *err)
{
    static const int32_t ranks[] = {2, 3};
    struct pb_sent_check check = {.version = "test", .nparts = 1, .ranks = ranks, .nranks = 2, .most = 1000};
    struct pb_sent_part part;

    return pb_sent_read((const uint8_t *)data, size, &check, &part, err);
}

static void an_answer_that_lies_is_named(void **state)
{
    static struct plan p;
    struct pb_err err = {0};
    char *data;
    size_t size;

    assert_int_equal(make_plan("SELECT * FROM t", false, 0, &p, &err), 0);
    assert_true(answer_of_node(1, &p, &data, &size));
    assert_int_equal(read_answer(data, size, &err), 0);
    for (size_t cut = 0; cut < size; cut += 1 + size / 200)
        assert_int_equal(read_answer(data, cut, &err), -EBADMSG);
    /* Any byte may be another: it is an answer all the same, or is refused. */
    for (size_t i = 0; i < size; i += 1 + size / 3000) {
        data[i] = (char)~data[i];
        int r = read_answer(data, size, &err);
        assert_true(r == 0 || r == -EBADMSG || r == -EPROTO || r == -EPERM || r == -E2BIG);
        data[i] = (char)~data[i];
    }
    free(data);
    assert_true(answer_of_node(0, &p, &data, &size));
    assert_int_equal(read_answer(data, size, &err), -EPERM);
    assert_non_null(strstr(err.text, "rank 0"));
    memcpy(data + 16, "TEST", 4);
    assert_int_equal(read_answer(data, size, &err), -EPROTO);
    assert_non_null(strstr(err.text, "TEST"));
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(given_statements_give_what_the_union_gives),
        cmocka_unit_test(random_statements_give_what_the_union_gives),
        cmocka_unit_test(nodes_and_roles_are_columns),
        cmocka_unit_test(conditions_columns_and_limits_go_to_the_nodes),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(an_answer_that_lies_is_named),
    };
    return cmocka_run_group_tests(tests, make_arenas, remove_own_directory);
}
