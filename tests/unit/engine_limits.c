/* What a worker gets: of the machine the least of what it has and what control groups allow, of tables
 * nothing that it could write to. */
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/err.h"
#include "base/limits.h"
#include "engine/caller/live.h"
#include "table/reader.h"

#include "test.h"

static char root[] = "/tmp/probing-limits-XXXXXX";

static void put_file(const char *path, const char *text)
{
    char whole[256];

    snprintf(whole, sizeof(whole), "%s/%s", root, path);
    for (char *p = whole + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(whole, 0700);
        *p = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct pb_limits limits_of(const char *membership)
{
    struct pb_limits limits = {.memory = UINT64_C(64) << 30, .cpus = 32};

    pb_limits_of_groups(membership, root, &limits);
    return limits;
}

static void the_least_of_a_group_and_those_above_counts(void **state)
{
    put_file("pod/memory.max", "8589934592\n");
    put_file("pod/cpu.max", "250000 100000\n");
    put_file("pod/job/memory.max", "max\n");
    put_file("pod/job/cpu.max", "max 100000\n");
    struct pb_limits limits = limits_of("0::/pod/job\n");
    assert_int_equal(limits.memory, UINT64_C(8) << 30);
    assert_int_equal(limits.cpus, 3);
    put_file("pod/job/memory.max", "1073741824\n");
    assert_int_equal(limits_of("0::/pod/job\n").memory, UINT64_C(1) << 30);
}

static void the_old_hierarchies_count_too(void **state)
{
    put_file("memory/box/memory.limit_in_bytes", "2147483648\n");
    put_file("cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n");
    put_file("cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    struct pb_limits limits = limits_of("11:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/box\n");
    assert_int_equal(limits.memory, UINT64_C(2) << 30);
    assert_int_equal(limits.cpus, 1);
    put_file("memory/box/memory.limit_in_bytes", "9223372036854771712\n");
    put_file("cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
    limits = limits_of("11:memory:/box\n4:cpu,cpuacct:/box\n");
    assert_int_equal(limits.memory, UINT64_C(64) << 30);
    assert_int_equal(limits.cpus, 32);
}

/* In a container the path is the host's, and the limit stands in what is mounted. */
static void a_path_that_is_not_there_is_the_mount(void **state)
{
    put_file("memory.max", "4294967296\n");
    assert_int_equal(limits_of("0::/kubepods/pod1/abc\n").memory, UINT64_C(4) << 30);
    assert_int_equal(limits_of("0::/../../elsewhere\n").memory, UINT64_C(4) << 30);
}

static void what_is_no_limit_changes_nothing(void **state)
{
    static const char *const wrong[] = {"", "\n", "0", "0:", ":::", "0::", "x:y", "0::/\n:\n", "5:memory"};

    put_file("memory.max", "max\n");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(limits_of(wrong[i]).memory, UINT64_C(64) << 30);
    struct pb_limits mine;
    pb_limits_read(&mine);
    assert_true(mine.memory > 0 && mine.cpus > 0);
}

static void memory_runs_out_for_us_first(void **state)
{
    char text[16] = "";

    pb_limits_volunteer();
    FILE *f = fopen("/proc/self/oom_score_adj", "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof(text), f));
    fclose(f);
    assert_int_equal(atoi(text), 800);
}

static void the_only_cpu_is_the_jobs_first(void **state)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        int before = getpriority(PRIO_PROCESS, 0);
        sched_setaffinity(0, sizeof(one), &one);
        pb_limits_volunteer();
        _exit(getpriority(PRIO_PROCESS, 0) >= (before > 10 ? before : 10) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void no_table_is_handed_over_to_write(void **state)
{
    const struct pb_live_source source = {.arena_fd = -1};
    struct pb_err err = {0};

    int fd = pb_live_read("probing.tables", &source, &err);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_int_equal(write(fd, "x", 1), -1);
    struct pb_reader *reader;
    assert_int_equal(pb_reader_open(fd, &reader, NULL), 0);
    pb_reader_close(reader);
    close(fd);
}

static int make_root(void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_a_group_and_those_above_counts),
        cmocka_unit_test(the_old_hierarchies_count_too),
        cmocka_unit_test(a_path_that_is_not_there_is_the_mount),
        cmocka_unit_test(what_is_no_limit_changes_nothing),
        cmocka_unit_test(memory_runs_out_for_us_first),
        cmocka_unit_test(the_only_cpu_is_the_jobs_first),
        cmocka_unit_test(no_table_is_handed_over_to_write),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
