/* tsan: no (the scribbler races with every store on purpose)
 *
 * Random bytes are written all over the shared memory of an arena while four threads append, roll, move rows
 * and fill late cells: what a stray write of the program may do, and more. The writer must stay within the
 * mapping: guard pages around what it maps, canaries in the program's own memory, and under the address
 * sanitizer every load. It must not crash, divide by zero or loop. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "table_test.h"

enum { THREADS = 4, SEGMENT = 16384, MAPPINGS = 16, BURSTS = 4 };

/* Words written at a time: many garble all there is, few leave room to recycle. */
static const int bursts[BURSTS] = {20000, 1000, 50, 2};

static struct pb_arena *arena;
static struct pb_table *tables[2];
static atomic_bool stop;
static _Atomic uint64_t rows, refused;
static int burst;

struct mapping {
    char *from, *to;
};

/* The shared mappings of the arena in this process. */
static int find_mappings(struct mapping *ret)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    while (f && n < MAPPINGS && fgets(line, sizeof(line), f)) {
        void *from, *to;
        if (strstr(line, "memfd:scribbled") && sscanf(line, "%p-%p", &from, &to) == 2)
            ret[n++] = (struct mapping){from, to};
    }
    if (f)
        fclose(f);
    return n;
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static __attribute__((no_sanitize("address"))) void *scribble(void *unused)
{
    struct mapping all[MAPPINGS];
    uint64_t seed = 88172645463325252u;

    for (unsigned round = 0; !atomic_load(&stop); round++) {
        int n = find_mappings(all);
        for (int i = 0; i < burst && n; i++) {
            struct mapping *m = &all[next_random(&seed) % (unsigned)n];
            /* The parts that are in use: the header, and the first segments of each mapping. */
            size_t size = (size_t)(m->to - m->from), most = 64 * SEGMENT;
            char *at = m->from + next_random(&seed) % (size < most ? size : most) / 8 * 8;
            uint64_t value = next_random(&seed);
            switch (round % 4) {
            case 0:
                value = ~UINT64_C(0);
                break;
            case 1: /* words that look like entries, with other places and lengths */
                value |= UINT64_C(0xffff) << 48;
                break;
            case 2:
                value &= 0xff;
                break;
            }
            __atomic_store_n((uint64_t *)(void *)at, value, __ATOMIC_RELAXED);
        }
        usleep(100);
    }
    return NULL;
}

static void *append(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg * 7919 + 1;
    char text[600];

    memset(text, 'x', sizeof(text));
    for (uint64_t i = 0; !atomic_load(&stop); i++) {
        struct pb_row row;
        struct pb_table *t = tables[next_random(&seed) % 2];
        if (pb_row_begin(t, &row) < 0) {
            atomic_fetch_add(&refused, 1);
            continue;
        }
        pb_set_u64(&row, 1, i);
        memcpy(text, &i, sizeof(i));
        pb_set_string(&row, 2, text, 8 + next_random(&seed) % (i % 50 ? 24 : 500));
        pb_set_bytes(&row, 3, text, next_random(&seed) % 100);
        if (i % 97 == 0)
            pb_row_abort(&row);
        else
            pb_row_commit(&row);
        if (i % 5 == 0)
            pb_fill_string(arena, pb_row_ref(&row), 4, text, 16);
        if (i % 1000 == 0)
            pb_table_find(arena, "one");
        atomic_fetch_add(&rows, 1);
    }
    return NULL;
}

static void make(int dirfd)
{
    const struct pb_column columns[] = {{.name = "time", .type = PB_TIMESTAMP},
                                        {.name = "n", .type = PB_U64},
                                        {.name = "text", .type = PB_STRING},
                                        {.name = "raw", .type = PB_BYTES},
                                        {.name = "late", .type = PB_STRING, .flags = PB_COL_LATE}};
    struct pb_table_spec spec = {.name = "one", .columns = columns, .ncolumns = 5};
    const struct pb_arena_options o = {
        .bound = 40 * SEGMENT, .segment_size = SEGMENT, .max_tables = 8, .schema_bytes = 65536};

    if (pb_arena_create(dirfd, "scribbled", &o, &arena) < 0 || pb_table_new(arena, &spec, &tables[0]) < 0)
        _exit(10);
    spec.name = "two";
    spec.heap_percent = 60; /* another layout in the same slots */
    if (pb_table_new(arena, &spec, &tables[1]) < 0)
        _exit(11);
}

/* What the arena does itself beside them: the resident thread's part. */
static void tend(void)
{
    const struct pb_column grown[] = {{.name = "a", .type = PB_I32}, {.name = "b", .type = PB_STRING}};
    const unsigned turns = 800;
    int columns = 0;

    for (unsigned i = 0; i < turns; i++) {
        pb_arena_tend(arena);
        pb_arena_mirror(arena);
        if (i % 50 == 0)
            pb_arena_set_bound(arena, (i / 50 % 2 ? 40 : 20) * SEGMENT);
        if (i % 100 == 99 && columns < 2) {
            int r = pb_table_grow(tables[columns], &grown[columns]);
            if (r < 0)
                _exit(12);
            columns++;
        }
        usleep(1000);
    }
}

static int be_scribbled_upon(int dirfd)
{
    pthread_t threads[THREADS], scribbler;
    struct mapping all[MAPPINGS];
    enum { CANARY = 1 << 20 };

    make(dirfd);
    /* Where a write outside would most likely go: before and after each mapping. */
    int n = find_mappings(all);
    if (n == 0)
        return 13;
    for (int i = 0; i < n; i++) {
        (void)mmap(all[i].to, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        (void)mmap(all[i].from - 4096, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                   0);
    }
    unsigned char *canary = mmap(NULL, CANARY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(canary, 0xa5, CANARY);
    pthread_create(&scribbler, NULL, scribble, NULL);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, append, (void *)(i + 1));
    tend();
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(scribbler, NULL);
    for (int i = 0; i < CANARY; i++)
        if (canary[i] != 0xa5)
            return 14;
    print_message("bursts of %d: %lu rows, %lu refused\n", burst, (unsigned long)atomic_load(&rows),
                  (unsigned long)atomic_load(&refused));
    fflush(NULL);
    return atomic_load(&rows) > 100 ? 0 : 15;
}

static void scribble_once(void)
{
    char dir[] = "/tmp/pb-scribble-XXXXXX";
    int status;

    assert_non_null(mkdtemp(dir));
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60); /* a loop without an end */
        _exit(be_scribbled_upon(dirfd));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    int fd = openat(dirfd, "scribbled", O_RDONLY);
    long left = each_row(fd, "one", NULL, NULL);
    close(fd);
    unlinkat(dirfd, "scribbled", 0);
    close(dirfd);
    rmdir(dir);
    if (WIFSIGNALED(status))
        print_message("killed by signal %d\n", WTERMSIG(status));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    /* Directory and headers of the copy come from private memory: it reads, whatever its rows say. */
    assert_true(left >= 0);
}

static void stray_writes_never_lead_the_writer_astray(void **state)
{
    if (TEST_TSAN) {
        print_message("the scribbler is a data race by intent\n");
        skip();
    }
    for (int i = 0; i < BURSTS; i++) {
        burst = bursts[i];
        scribble_once();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stray_writes_never_lead_the_writer_astray),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
