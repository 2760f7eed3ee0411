/* The writer is single-stepped through everything it does to the file; after every instruction a reader must
 * find exactly the rows that are committed, each whole. What a kill could leave behind is thus looked at
 * exhaustively: an append, a dictionary insert, a roll, a recycling, a row that moves because the dictionary
 * is full, a late cell, an abort, a grown schema, tending, a lowered bound. The same for the copy in a file,
 * which has whole rows or fewer after every instruction, and all of them when it is up to date. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "single_step.h"
#include "table_test.h"

enum { TIME, NUMBER, SUM, TEXT, DISTINCT, LATE, COLUMNS };
enum { SEGMENT = 4096, SLOTS = 6 };

/* Sanitizers make ten instructions of one: there the test looks for their reports, not at every case again.
 * An emulated machine takes ten times as long for each, and the reader looks at every eleventh only. */
#if TEST_SELDOM
enum { ROWS_TO_ROLL = 3, ROWS_TO_FILL = 2, LOOK_EVERY = TEST_SANITIZED ? 1 : 11 };
#else
enum { ROWS_TO_ROLL = 60, ROWS_TO_FILL = 40, LOOK_EVERY = 1 };
#endif

/* What the writer says of itself: rows with a number below `committed` are there unless recycled, none from
 * `begun` on is; the same for cells filled late. */
struct witness {
    _Atomic uint64_t begun, committed, fill_begun, filled;
    atomic_bool recycles, ok;
    _Atomic uint64_t copied; /* rows below it are in the file, unless recycled */
};

static struct witness *witness;
static struct pb_arena *arena;
static struct pb_table *table;

/* --- the writer ------------------------------------------------------------------------------------- */

static size_t text_for(char *to, uint64_t number, bool distinct)
{
    uint64_t n = distinct ? number : number % 7;
    size_t i = 0;

    do
        to[i++] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    memset(to + i, 'x', 12);
    return i + 12;
}

static bool append(uint64_t number, bool distinct, struct pb_row *row)
{
    char text[64];
    size_t length = text_for(text, number, distinct);

    atomic_store(&witness->begun, number + 1);
    if (pb_row_begin(table, row) < 0)
        return false;
    pb_set_u64(row, NUMBER, number);
    pb_set_u64(row, SUM, proof_sum(1, number));
    pb_set_bool(row, DISTINCT, distinct);
    pb_set_string(row, TEXT, text, length);
    if (pb_row_commit(row) < 0)
        return false;
    atomic_store(&witness->committed, number + 1);
    return true;
}

static bool append_to(uint64_t from, uint64_t to, bool distinct)
{
    struct pb_row row;
    bool ok = true;

    for (uint64_t i = from; ok && i < to; i++)
        ok = append(i, distinct, &row);
    return ok;
}

struct scenario {
    const char *name;
    uint64_t before; /* rows appended before the stepping starts */
    bool before_distinct;
    bool (*run)(uint64_t first);
    bool copies;
};

static bool few_rows(uint64_t first)
{
    return append_to(first, first + 4, false);
}

static bool new_strings(uint64_t first)
{
    return append_to(first, first + 4, true);
}

static bool a_segment_of_rows(uint64_t first)
{
    return append_to(first, first + ROWS_TO_ROLL, false);
}

static bool a_dictionary_of_strings(uint64_t first)
{
    return append_to(first, first + ROWS_TO_FILL, true);
}

static bool late_cell(uint64_t first)
{
    struct pb_row row;
    bool ok = append(first, false, &row);

    atomic_store(&witness->fill_begun, first + 1);
    ok = ok && pb_fill_u64(arena, pb_row_ref(&row), LATE, ~first) == 0;
    atomic_store(&witness->filled, first + 1);
    return ok;
}

static bool aborted_row(uint64_t first)
{
    struct pb_row row;

    if (pb_row_begin(table, &row) < 0)
        return false;
    pb_set_u64(&row, NUMBER, 999999);
    pb_set_string(&row, TEXT, "gone", 4);
    pb_row_abort(&row);
    return append_to(first, first + 1, false);
}

static bool grown_column(uint64_t first)
{
    const struct pb_column column = {.name = "more", .type = PB_F32};
    return pb_table_grow(table, &column) == COLUMNS && append_to(first, first + 2, false);
}

static bool lowered_bound(uint64_t first)
{
    atomic_store(&witness->recycles, true);
    pb_arena_set_bound(arena, 0);
    return pb_arena_tend(arena) >= 0 && append_to(first, first + 2, false);
}

static bool copy_all(void)
{
    uint64_t committed = atomic_load(&witness->committed);

    if (pb_arena_mirror(arena) != 0)
        return false;
    atomic_store(&witness->copied, committed);
    return true;
}

static bool copied_rows(uint64_t first)
{
    return append_to(first, first + 3, true) && copy_all() && append_to(first + 3, first + 5, true) &&
           copy_all();
}

static bool copied_late_cell(uint64_t first)
{
    struct pb_row row;
    bool ok = append(first, false, &row) && copy_all();

    atomic_store(&witness->fill_begun, first + 1);
    ok = ok && pb_fill_u64(arena, pb_row_ref(&row), LATE, ~first) == 0 && copy_all();
    return ok;
}

static bool copied_recycling(uint64_t first)
{
    bool ok = copy_all();

    for (uint64_t i = 0; ok && i < 2; i++, first += ROWS_TO_ROLL)
        ok = append_to(first, first + ROWS_TO_ROLL, false) && copy_all();
    return ok;
}

static bool copied_schema(uint64_t first)
{
    return copy_all() && grown_column(first) && copy_all();
}

static bool copied_lower_bound(uint64_t first)
{
    return copy_all() && lowered_bound(first) && copy_all();
}

static const struct scenario scenarios[] = {
    {"the first rows of an arena", 0, false, few_rows, false},
    {"append", 10, false, few_rows, false},
    {"append to a thread's own segment", 100, false, few_rows, false},
    {"dictionary insert", 10, true, new_strings, false},
    {"roll", 20, false, a_segment_of_rows, false},
    {"recycle", 1000, false, a_segment_of_rows, false},
    {"full dictionary", 10, true, a_dictionary_of_strings, false},
    {"full dictionary and recycle", 1000, true, a_dictionary_of_strings, false},
    {"late cell", 10, false, late_cell, false},
    {"aborted row", 10, false, aborted_row, false},
    {"grown schema", 10, false, grown_column, false},
    {"lowered bound", 300, false, lowered_bound, false},
    {"copy of rows", 10, true, copied_rows, true},
    {"copy of a late cell", 10, false, copied_late_cell, true},
    {"copy while segments are recycled", 1000, false, copied_recycling, true},
    {"copy of a grown schema", 10, false, copied_schema, true},
    {"copy and a lowered bound", 300, false, copied_lower_bound, true},
};

static void be_stepped(int dirfd, const struct scenario *s)
{
    const struct pb_column columns[COLUMNS] = {
        {.name = "time", .type = PB_TIMESTAMP}, {.name = "number", .type = PB_U64},
        {.name = "sum", .type = PB_U64},        {.name = "text", .type = PB_STRING},
        {.name = "distinct", .type = PB_BOOL},  {.name = "late", .type = PB_U64, .flags = PB_COL_LATE}};
    /* The header takes two pages, a page of schemas more. */
    struct pb_arena_options o = {
        .segment_size = SEGMENT, .bound = 12288 + SLOTS * SEGMENT, .max_tables = 2, .schema_bytes = 4096};

    if (pb_arena_create(dirfd, "arena", &o, &arena) < 0 ||
        pb_table_new(arena, &(struct pb_table_spec){.name = "t", .columns = columns, .ncolumns = COLUMNS},
                     &table) < 0)
        _exit(2);
    bool ok = append_to(0, s->before, s->before_distinct);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    ok = ok && s->run(s->before);
    atomic_store(&witness->ok, ok);
    _exit(ok ? 0 : 1);
}

/* --- the reader, after every instruction --------------------------------------------------------------- */

struct found {
    uint64_t min, max, rows;
    long wrong;
};

static void check_row(const struct pb_view *v, uint32_t row, struct found *f)
{
    char text[64];
    uint64_t number = CELL(v, NUMBER, row, uint64_t);

    for (unsigned c = TIME; c < LATE; c++)
        if (pb_view_is_null(v, c, row)) {
            f->wrong++;
            return;
        }
    size_t length = text_for(text, number, CELL(v, DISTINCT, row, bool));
    struct pb_text got = v->strings[CELL(v, TEXT, row, uint16_t)];
    bool late = !pb_view_is_null(v, LATE, row);
    f->wrong +=
        CELL(v, SUM, row, uint64_t) != proof_sum(1, number) || got.length != length ||
        memcmp(got.data, text, length) != 0 || (late && CELL(v, LATE, row, uint64_t) != ~number) ||
        (late && number >= atomic_load(&witness->fill_begun)) ||
        (!late && number < atomic_load(&witness->filled) && number + 1 == atomic_load(&witness->fill_begun));
    f->min = number < f->min ? number : f->min;
    f->max = number > f->max ? number : f->max;
    f->rows++;
}

static void read_all(struct pb_reader *r, struct pb_view *v, struct found *f)
{
    struct pb_segment_info *list = NULL;
    int n = pb_reader_segments(r, 0, &list);

    for (int i = 0; i < n; i++) {
        if (pb_view_load(r, &list[i], v) < 0) {
            f->wrong++;
            continue;
        }
        for (uint32_t row = 0; row < v->nrows; row++)
            check_row(v, row, f);
    }
    f->wrong += n < 0;
    free(list);
}

/* Rows are one unbroken run of numbers that ends with the last committed one (or the one under way), and what
 * was recycled is the oldest, and no more than the bound demands. */
static bool agrees(struct pb_reader *r, struct pb_view *v, uint64_t *most)
{
    struct found f = {.min = UINT64_MAX};
    uint64_t committed = atomic_load(&witness->committed), begun = atomic_load(&witness->begun);

    read_all(r, v, &f);
    uint64_t end = f.rows ? f.max + 1 : 0;
    bool whole = f.rows == 0 || f.rows == f.max - f.min + 1;
    bool kept = f.rows * 2 >= *most || atomic_load(&witness->recycles);
    *most = f.rows > *most ? f.rows : *most;
    if (f.wrong == 0 && whole && kept && end >= committed && end <= begun)
        return true;
    print_message("%ld wrong rows; rows %lu to %lu, %lu of them; begun %lu, committed %lu\n", f.wrong,
                  (unsigned long)f.min, (unsigned long)f.max, (unsigned long)f.rows, (unsigned long)begun,
                  (unsigned long)committed);
    return false;
}

/* Of the copy: no row that is not whole or was not begun, and none missing that was copied. */
static bool copy_agrees(int fd, struct pb_view *v)
{
    struct found f = {.min = UINT64_MAX};
    struct pb_reader *r;
    uint64_t copied = atomic_load(&witness->copied), begun = atomic_load(&witness->begun);

    if (pb_reader_open(fd, &r, NULL) < 0)
        return copied == 0;
    if (pb_reader_ntables(r))
        read_all(r, v, &f);
    pb_reader_close(r);
    uint64_t end = f.rows ? f.max + 1 : 0;
    if (f.wrong == 0 && end >= copied && end <= begun)
        return true;
    print_message("the copy has %ld wrong rows; rows %lu to %lu, %lu of them; begun %lu, copied %lu\n",
                  f.wrong, (unsigned long)f.min, (unsigned long)f.max, (unsigned long)f.rows,
                  (unsigned long)begun, (unsigned long)copied);
    return false;
}

/* Steps to the end; returns the instructions, or -1 where the reader disagreed. */
static long step_through(pid_t pid, const struct scenario *s, int fd, int copy)
{
    struct pb_reader *r;
    struct pb_view v = {0};
    uint64_t most = 0;
    long steps = 0;
    int status;

    assert_int_equal(pb_reader_open(fd, &r, NULL), 0);
    bool good = true;
    while (good) {
        assert_true(step_once(pid, &status));
        if (WIFEXITED(status))
            break;
        assert_true(WIFSTOPPED(status));
        steps++;
        if (steps % LOOK_EVERY == getpid() % LOOK_EVERY) /* others in each run */
            good = agrees(r, &v, &most);
        /* Only a system call changes the file, and two of them are further apart. */
        if (s->copies && steps % (8 * LOOK_EVERY) == 0)
            good = good && copy_agrees(copy, &v);
    }
    if (good)
        assert_int_equal(WEXITSTATUS(status), 0);
    pb_view_done(&v);
    pb_reader_close(r);
    return good ? steps : -1;
}

static long run_scenario(const char *dir, const struct scenario *s)
{
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY), status;

    memset(witness, 0, sizeof(*witness));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        be_stepped(dirfd, s);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    int fd = open_live(pid), copy = openat(dirfd, "arena", O_RDONLY);
    assert_true(fd >= 0 && copy >= 0);
    long steps = step_through(pid, s, fd, copy);
    if (steps < 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    } else {
        assert_true(atomic_load(&witness->ok));
    }
    close(copy);
    close(fd);
    unlinkat(dirfd, "arena", 0);
    close(dirfd);
    return steps;
}

static void a_reader_agrees_after_every_instruction(void **state)
{
    char dir[] = "/tmp/pb-step-XXXXXX";
    long total = 0;

    if (TEST_TSAN) {
        print_message("ThreadSanitizer holds signals back and makes hundreds of instructions of one\n");
        skip();
    }
    assert_non_null(mkdtemp(dir));
    witness = mmap(NULL, sizeof(*witness), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(witness != MAP_FAILED);
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        long steps = run_scenario(dir, &scenarios[i]);
        print_message("%-34s %7ld instructions\n", scenarios[i].name, steps);
        assert_true(steps > 100);
        total += steps;
    }
    print_message("%-34s %7ld instructions\n", "in all", total);
    rmdir(dir);
    munmap(witness, sizeof(*witness));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_agrees_after_every_instruction),
    };

    step_on_one_cpu();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
