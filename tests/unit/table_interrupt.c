/* A signal handler that appends is delivered after each instruction of an append in turn: one that finds its
 * string, one that inserts it, one that rolls and recycles, one that moves because the dictionary is full.
 * The handler appends the same string to the same table. Both rows must be there, whole, once. */
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "single_step.h"
#include "table_test.h"

enum { TIME, WRITER, NUMBER, SUM, TEXT, COLUMNS };
enum { MAIN = 1, HANDLER = 2 };

/* Sanitizers make ten instructions of one and a process slow to start; emulation does the latter. */
#if TEST_SANITIZED
enum { STRIDE = 997 };
#elif TEST_SELDOM
enum { STRIDE = 199 };
#else
enum { STRIDE = 23 };
#endif

static struct pb_arena *arena;
static struct pb_table *table;
static uint64_t current; /* the row that is interrupted */
static bool distinct;

/* --- the writer ------------------------------------------------------------------------------------- */

static size_t text_for(char *to, uint64_t number, bool is_distinct)
{
    uint64_t n = is_distinct ? number : 0;
    size_t i = 0;

    do
        to[i++] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    memset(to + i, 'x', 9);
    return i + 9;
}

static int append(uint32_t writer, uint64_t number, uint32_t *slot)
{
    struct pb_row row;
    char text[64];
    size_t length = text_for(text, number, distinct);
    int r = pb_row_begin(table, &row);

    if (r < 0)
        return r;
    pb_set_u32(&row, WRITER, writer);
    pb_set_u64(&row, NUMBER, number);
    pb_set_u64(&row, SUM, proof_sum(writer, number));
    pb_set_string(&row, TEXT, text, length);
    r = pb_row_commit(&row);
    *slot = pb_row_ref(&row).slot;
    return r;
}

static void on_signal(int sig)
{
    uint32_t slot;
    if (append(HANDLER, current, &slot) < 0)
        _exit(3);
}

struct scenario {
    const char *name;
    bool distinct;
    bool rolls; /* the interrupted row is the one that needs a new segment */
    int stride; /* instructions between two deliveries */
};

static const struct scenario scenarios[] = {
    {"append", false, false, 1},
    {"dictionary insert", true, false, 1},
    {"roll and recycle", false, true, 2},
    {"full dictionary and recycle", true, true, 3},
};

/* Fills the arena and stops so that the next row is the first of a segment, or one well inside. */
static uint64_t lead_up(const struct scenario *s)
{
    uint32_t slot = 0, last = 0;
    uint64_t n = 0, began = 0, length = 0;

    for (int rolls = 0; rolls < 12; n++) {
        if (append(MAIN, n, &slot) < 0)
            _exit(4);
        if (slot != last) {
            length = n - began;
            began = n;
            rolls++;
        }
        last = slot;
    }
    uint64_t until = s->rolls ? began + length : began + length / 2;
    for (; n < until; n++)
        if (append(MAIN, n, &slot) < 0)
            _exit(5);
    return n;
}

static void be_interrupted(const struct scenario *s)
{
    const struct pb_column columns[COLUMNS] = {{.name = "time", .type = PB_TIMESTAMP},
                                               {.name = "writer", .type = PB_U32},
                                               {.name = "number", .type = PB_U64},
                                               {.name = "sum", .type = PB_U64},
                                               {.name = "text", .type = PB_STRING}};
    struct pb_arena_options o = {.segment_size = 4096, .bound = 1, .max_tables = 2, .schema_bytes = 4096};
    struct sigaction sa = {.sa_handler = on_signal};
    uint32_t slot;

    sigaction(SIGUSR1, &sa, NULL);
    distinct = s->distinct;
    if (pb_arena_create(PB_ARENA_MEMFD, "arena", &o, &arena) < 0 ||
        pb_table_new(arena, &(struct pb_table_spec){.name = "t", .columns = columns, .ncolumns = COLUMNS},
                     &table) < 0)
        _exit(2);
    current = lead_up(s);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    int r = append(MAIN, current, &slot);
    _exit(r < 0 ? 6 : 0);
}

/* --- the reader --------------------------------------------------------------------------------------- */

struct found {
    uint64_t newest;
    long wrong, main_rows, handler_rows, last_rows;
};

static void check_row(const struct pb_view *v, uint32_t row, void *arg)
{
    struct found *f = arg;
    char text[64];

    for (unsigned c = 0; c < COLUMNS; c++)
        if (pb_view_is_null(v, c, row)) {
            f->wrong++;
            return;
        }
    uint32_t writer = CELL(v, WRITER, row, uint32_t);
    uint64_t number = CELL(v, NUMBER, row, uint64_t);
    struct pb_text got = v->strings[CELL(v, TEXT, row, uint16_t)];
    size_t same = text_for(text, number, false);
    bool right = got.length == same && memcmp(got.data, text, same) == 0;
    size_t other = text_for(text, number, true);
    right |= got.length == other && memcmp(got.data, text, other) == 0;
    f->wrong += !right || CELL(v, SUM, row, uint64_t) != proof_sum(writer, number);
    f->main_rows += writer == MAIN;
    f->handler_rows += writer == HANDLER;
    if (writer == MAIN && number >= f->newest) {
        f->last_rows = number == f->newest ? f->last_rows + 1 : 1;
        f->newest = number;
    }
}

/* One writer, interrupted after that many instructions. False: it was done before. */
static bool interrupt_after(const struct scenario *s, long instructions)
{
    int status;
    struct found f = {0};
    bool interrupted = true;

    pid_t pid = fork();
    if (pid == 0)
        be_interrupted(s);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    int fd = open_live(pid);
    for (long i = 0; i < instructions && interrupted; i++) {
        assert_true(step_once(pid, &status));
        interrupted = !WIFEXITED(status);
    }
    if (interrupted) {
        ptrace(PTRACE_CONT, pid, NULL, (void *)(uintptr_t)SIGUSR1);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);

    long rows = each_row(fd, "t", check_row, &f);
    bool good = f.wrong == 0 && f.handler_rows == interrupted && f.last_rows == 1 && rows > 20;
    if (!good)
        print_message(
            "%s, after %ld instructions: %ld wrong, %ld of the handler, %ld of the interrupted row\n",
            s->name, instructions, f.wrong, f.handler_rows, f.last_rows);
    assert_true(good);
    close(fd);
    return interrupted;
}

static void a_handler_may_append_at_every_instruction(void **state)
{
    long coarser = STRIDE, start = getpid() % STRIDE;

    if (TEST_TSAN) {
        print_message("ThreadSanitizer holds signals back and makes hundreds of instructions of one\n");
        skip();
    }
    if (getenv("PROBING_SOAK")) {
        coarser = 1;
        start = 0;
    }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        long n = start, delivered = 0;
        for (; interrupt_after(&scenarios[i], n); n += scenarios[i].stride * coarser)
            delivered++;
        print_message("%-30s %5ld signals within %5ld instructions\n", scenarios[i].name, delivered, n);
        assert_true(delivered > 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handler_may_append_at_every_instruction),
    };

    step_on_one_cpu();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
