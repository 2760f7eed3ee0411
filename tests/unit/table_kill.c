/* A writer with several threads is killed at random moments, a thousand times. Whatever it had committed
 * reads back from its memory, and no row is there that was not begun or is not whole. The same holds for the
 * copy in a file, but that it may lack what was committed since it was last brought up to date. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "table_test.h"

#if TEST_SELDOM
enum { KILLS = 60 };
#else
enum { KILLS = 1000 };
#endif
enum { THREADS = 3, MAX_ROWS = 400000 };

/* What the writer says of itself, in memory that outlives it. */
struct witness {
    _Atomic uint64_t begun[THREADS], committed[THREADS], copied[THREADS];
    atomic_bool ready;
};

static struct witness *witness;
static struct pb_table *table;
static struct pb_arena *arena;

static void *append(void *arg)
{
    uint32_t writer = (uint32_t)(uintptr_t)arg;

    for (uint64_t i = 0; i < MAX_ROWS; i++) {
        struct pb_row row;
        atomic_store(&witness->begun[writer], i + 1);
        if (proof_begin(table, writer, i, &row) < 0 || pb_row_commit(&row) < 0)
            _exit(1);
        atomic_store(&witness->committed[writer], i + 1);
        if (i % 16 == 0)
            pb_fill_u64(arena, pb_row_ref(&row), PROOF_LATE, ~i);
    }
    pause();
    return NULL;
}

static void write_until_killed(int dirfd, uint64_t bound)
{
    struct pb_arena_options o = {
        .bound = bound, .segment_size = 16384, .max_tables = 4, .schema_bytes = 4096};
    pthread_t thread;

    if (pb_arena_create(dirfd, "arena", &o, &arena) < 0 || proof_table(arena, "t", 1, &table) < 0)
        _exit(1);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&thread, NULL, append, (void *)i);
    atomic_store(&witness->ready, true);
    for (unsigned turn = 0;; turn++) {
        uint64_t before[THREADS];
        pb_arena_tend(arena);
        for (int i = 0; i < THREADS; i++)
            before[i] = atomic_load(&witness->committed[i]);
        int r = pb_arena_mirror(arena);
        if (r < 0)
            _exit(2);
        for (int i = 0; r == 0 && i < THREADS; i++)
            atomic_store(&witness->copied[i], before[i]);
        if (turn % 8 == 0)
            usleep(200);
    }
}

struct found {
    uint64_t rows[THREADS];
    long torn, unbegun, twice;
    unsigned char *seen[THREADS];
};

static void check(const struct pb_view *v, uint32_t row, void *arg)
{
    struct found *f = arg;

    if (!proof_holds(v, row)) {
        f->torn++;
        return;
    }
    uint32_t writer = CELL(v, PROOF_WRITER, row, uint32_t);
    uint64_t number = CELL(v, PROOF_NUMBER, row, uint64_t);
    if (writer >= THREADS || number >= atomic_load(&witness->begun[writer])) {
        f->unbegun++;
        return;
    }
    f->twice += f->seen[writer][number];
    f->seen[writer][number] = 1;
    f->rows[writer] += number < atomic_load(&witness->committed[writer]);
}

static long total_rows, copied_rows;

static long read_rows(int fd, struct found *f)
{
    memset(f->rows, 0, sizeof(f->rows));
    for (int i = 0; i < THREADS; i++)
        memset(f->seen[i], 0, atomic_load(&witness->begun[i]));
    return each_row(fd, "t", check, f);
}

/* One writer, one kill. Where nothing is recycled every committed row must be there. */
static void kill_once(const char *dir, bool recycles, struct found *f)
{
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY), status;
    const struct timespec life = {.tv_nsec = rand() % 4000000};

    memset(witness, 0, sizeof(*witness));
    pid_t pid = fork();
    if (pid == 0)
        write_until_killed(dirfd, recycles ? 1 << 20 : 1 << 28);
    while (!atomic_load(&witness->ready) && waitpid(pid, &status, WNOHANG) == 0)
        sched_yield();
    int live = open_live(pid);
    assert_true(live >= 0);
    nanosleep(&life, NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    long rows = read_rows(live, f);
    assert_true(rows >= 0);
    total_rows += rows;
    for (int i = 0; i < THREADS && !recycles; i++)
        assert_int_equal(f->rows[i], atomic_load(&witness->committed[i]));
    close(live);

    int fd = openat(dirfd, "arena", O_RDONLY);
    rows = read_rows(fd, f); /* the table itself may not have been there when it was killed */
    copied_rows += rows > 0 ? rows : 0;
    for (int i = 0; i < THREADS && !recycles; i++)
        assert_true(f->rows[i] >= atomic_load(&witness->copied[i]));
    close(fd);
    unlinkat(dirfd, "arena", 0);
    close(dirfd);
}

static void a_killed_writer_leaves_whole_rows_and_all_of_them(void **state)
{
    char shm[] = "/dev/shm/pb-kill-XXXXXX", tmp[] = "/tmp/pb-kill-XXXXXX", *dir = mkdtemp(shm);
    struct found f = {0};

    if (!dir)
        dir = mkdtemp(tmp);
    assert_non_null(dir);
    witness = mmap(NULL, sizeof(*witness), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(witness != MAP_FAILED);
    for (int i = 0; i < THREADS; i++)
        f.seen[i] = malloc(MAX_ROWS);
    srand((unsigned)time(NULL));
    for (int i = 0; i < KILLS; i++) {
        kill_once(dir, i % 2, &f);
        if (f.torn || f.unbegun || f.twice)
            break;
    }
    rmdir(dir);
    print_message("%d kills, %ld rows read back, %ld of them from copies\n", KILLS, total_rows, copied_rows);
    assert_int_equal(f.torn, 0);
    assert_int_equal(f.unbegun, 0);
    assert_int_equal(f.twice, 0);
    assert_true(total_rows > KILLS && copied_rows > KILLS);
    for (int i = 0; i < THREADS; i++)
        free(f.seen[i]);
    munmap(witness, sizeof(*witness));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_writer_leaves_whole_rows_and_all_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
