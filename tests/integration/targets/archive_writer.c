/* A process that is probed as far as tools can tell: it has a run directory (PROBING_DIR) with a locked
 * description and an arena, and writes rows when it is told to, a line on stdin each time:
 *
 *   rows N         N rows to "stream", numbered on; every row's proof belongs to its number
 *   at SECONDS N   the same with times around that moment (UTC), a second apart
 *   odd N          the same with ratios that are no ordinary numbers
 *   rate N S       N rows a second for S seconds
 *   grow NAME      one more column, which rows have from then on
 *
 * It answers each with the number of rows written so far. archive_writer BOUND SEGMENT JOB RANK */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "table/arena.h"

#define SECOND INT64_C(1000000000)

static struct pb_arena *arena;
static struct pb_table *stream, *shy;
static long long written;
static int grown = -1;

static int64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static int make_run(const char *job, const char *rank)
{
    char path[512], name[128], line[512], stat_text[1024] = "";
    struct stat ns;

    FILE *f = fopen("/proc/self/stat", "r");
    if (!f || !fgets(stat_text, sizeof(stat_text), f) || stat("/proc/self/ns/pid", &ns) < 0)
        return -1;
    fclose(f);
    const char *p = strrchr(stat_text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    snprintf(path, sizeof(path), "%s/probing-%u", getenv("PROBING_DIR"), (unsigned)geteuid());
    mkdir(path, 0700);
    int user = open(path, O_RDONLY | O_DIRECTORY);
    snprintf(name, sizeof(name), "%llu-%d-%llu", (unsigned long long)ns.st_ino, (int)getpid(),
             strtoull(p, NULL, 10));
    if (user < 0 || mkdirat(user, name, 0700) < 0)
        return -1;
    int dir = openat(user, name, O_RDONLY | O_DIRECTORY);
    int about = openat(dir, "about", O_RDWR | O_CREAT | O_EXCL, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int n = snprintf(line, sizeof(line), "pid=%d\nprobed_since=%lld\nnode=here\ncommand=writer\n%s%s%s%s%s%s",
                     (int)getpid(), (long long)time(NULL), *job ? "job=" : "", job, *job ? "\n" : "",
                     *rank ? "rank=" : "", rank, *rank ? "\n" : "");
    return dir < 0 || about < 0 || write(about, line, (size_t)n) != n || fcntl(about, F_OFD_SETLK, &lock) < 0
               ? -1
               : dir;
}

static void write_row(int64_t utc, bool odd)
{
    static const double odds[] = {NAN, INFINITY, -INFINITY, -0.0};
    struct pb_row row;
    char name[64];
    long long n = written;

    while (pb_row_begin(stream, &row) < 0)
        usleep(100);
    if (utc)
        pb_set_timestamp(&row, 0, utc - clock_ns(CLOCK_REALTIME) + clock_ns(CLOCK_MONOTONIC));
    pb_set_i64(&row, 1, n);
    pb_set_i64(&row, 2, n * 31 + 7);
    pb_set_string(&row, 3, name, (size_t)snprintf(name, sizeof(name), "näme '%lld\"", n % 17));
    pb_set_u64(&row, 4, n % 2 ? UINT64_MAX - (uint64_t)n : (uint64_t)n);
    if (n % 3)
        pb_set_f64(&row, 5, odd ? odds[n % 4] : (double)n / 4);
    pb_set_bool(&row, 6, n % 5 == 0);
    pb_set_bytes(&row, 7, "\0\xff", 2);
    pb_set_u32(&row, 8, (uint32_t)(UINT32_MAX - n));
    if (grown >= 0)
        pb_set_i64(&row, (unsigned)grown, n);
    if (pb_row_commit(&row) == 0)
        written++;
    if (written % 500 == 0) { /* as the agent's resident thread does */
        pb_arena_tend(arena);
        pb_arena_mirror(arena);
    }
}

static void write_at_a_rate(long long rate, double seconds)
{
    int64_t began = clock_ns(CLOCK_MONOTONIC);

    for (long long n = 0; (double)(clock_ns(CLOCK_MONOTONIC) - began) < seconds * SECOND;) {
        long long due = (long long)((double)(clock_ns(CLOCK_MONOTONIC) - began) / SECOND * (double)rate);
        for (; n < due; n++)
            write_row(0, false);
        pb_arena_mirror(arena);
        usleep(1000);
    }
}

int main(int argc, char **argv)
{
    static const struct pb_column columns[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, "when, UTC"},
                                               {"n", PB_I64, 0, NULL, "number of the row"},
                                               {"proof", PB_I64, 0, NULL, NULL},
                                               {"name", PB_STRING, 0, NULL, NULL},
                                               {"address", PB_U64, 0, NULL, NULL},
                                               {"ratio", PB_F64, 0, "ms", "a share"},
                                               {"flag", PB_BOOL, 0, NULL, NULL},
                                               {"raw", PB_BYTES, 0, NULL, NULL},
                                               {"size", PB_U32, 0, "bytes", NULL}};
    const struct pb_table_spec spec = {.name = "test.stream", .columns = columns, .ncolumns = 9};
    const struct pb_table_spec other = {.name = "shy", .columns = columns, .ncolumns = 2};
    struct pb_arena_options options = {.bound = strtoull(argv[1], NULL, 10),
                                       .segment_size = (uint32_t)atoi(argv[2])};
    struct pb_row row;
    char line[256], word[64];
    long long n, at;
    double seconds;

    int dir = argc == 5 ? make_run(argv[3], argv[4]) : -1;
    if (dir < 0 || pb_arena_create(dir, "arena", &options, &arena) < 0 ||
        pb_table_new(arena, &spec, &stream) < 0 || pb_table_new(arena, &other, &shy) < 0)
        return 1;
    if (pb_row_begin(shy, &row) == 0)
        pb_row_commit(&row);
    pb_arena_mirror(arena);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "rows %lld", &n) == 1)
            while (n-- > 0)
                write_row(0, false);
        else if (sscanf(line, "odd %lld", &n) == 1)
            while (n-- > 0)
                write_row(0, true);
        else if (sscanf(line, "at %lld %lld", &at, &n) == 2)
            for (long long i = 0; i < n; i++)
                write_row((at + i) * SECOND + 123456789, false);
        else if (sscanf(line, "rate %lld %lf", &n, &seconds) == 2)
            write_at_a_rate(n, seconds);
        else if (sscanf(line, "grow %63s", word) == 1)
            grown = pb_table_grow(stream, &(struct pb_column){.name = word, .type = PB_I64});
        while (pb_arena_mirror(arena) > 0)
            ;
        printf("%lld\n", written);
        fflush(stdout);
    }
    return 0;
}
