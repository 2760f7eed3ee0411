/* probing.max_memory as a request of a client sets it: a bound that holds while rows are written, that gives
 * memory back when it is lowered, and that takes the oldest rows. */
#include <fcntl.h>
#include <sys/stat.h>

#include "agent/core/agent.h"
#include "control/message.h"
#include "control/settings.h"
#include "table/arena.h"
#include "table/reader.h"

#include "test.h"

#define MB (1ull << 20)

static const struct pb_column columns[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
                                           {"n", PB_I64, 0, NULL, NULL},
                                           {"text", PB_STRING, 0, NULL, NULL}};
static const struct pb_table_spec spec = {.name = "filled", .columns = columns, .ncolumns = 3};

static struct pb_agent agent;
static struct pb_table *table;
static int64_t written;

static uint64_t on_disk(void)
{
    struct stat st;
    assert_int_equal(fstat(pb_arena_fd(agent.arena), &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Writes that many bytes of rows; at no time may the file hold more than the bound. */
static void fill(uint64_t bytes, uint64_t bound)
{
    char text[200];
    struct pb_row row;

    for (uint64_t i = 0; i < bytes / 216; i++, written++) {
        snprintf(text, sizeof(text), "%0199lld", (long long)written);
        assert_int_equal(pb_row_begin(table, &row), 0);
        pb_set_i64(&row, 1, written);
        pb_set_string(&row, 2, text, 199);
        assert_int_equal(pb_row_commit(&row), 0);
        if (i % 1000 == 0) {
            pb_arena_tend(agent.arena); /* as the resident thread does */
            assert_true(pb_arena_used(agent.arena) <= bound);
            assert_true(on_disk() <= bound);
        }
    }
}

static void set_bound(const char *value)
{
    uint8_t buf[256];
    struct pb_frame_writer w;
    struct pb_frame frame;
    struct pb_server_client client = {.id = 1, .greeted = 1};

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, "probing.max_memory");
    pb_frame_put_str(&w, PB_TAG_VALUE, value);
    int size = pb_frame_end(&w, PB_MSG_CONFIG, 7);
    assert_true(size > 0 && pb_frame_parse(buf, (size_t)size, &frame) > 0);
    pb_agent_request(&agent, &agent.server, &client, &frame);
}

static uint64_t rows_held(void)
{
    struct pb_table_stats stats;
    struct pb_reader *reader;
    char why[PB_WHY_SIZE];

    assert_int_equal(pb_reader_open(pb_arena_fd(agent.arena), &reader, why), 0);
    int i = pb_reader_find(reader, "filled");
    assert_true(i >= 0);
    assert_int_equal(pb_reader_stats(reader, (unsigned)i, &stats), 0);
    pb_reader_close(reader);
    return stats.rows;
}

static void the_bound_holds_and_a_lower_one_gives_memory_back(void **state)
{
    char folder[] = "/tmp/agent-bound-XXXXXX", kept[PB_SETTINGS_FILE_SIZE] = "";
    struct pb_arena_options how = {.bound = 32 * MB};

    assert_non_null(mkdtemp(folder));
    pb_settings_init(&agent.settings, "", 0);
    agent.run.dir_fd = open(folder, O_RDONLY | O_DIRECTORY);
    assert_int_equal(pb_arena_create(agent.run.dir_fd, "arena", &how, &agent.arena), 0);
    assert_int_equal(pb_table_new(agent.arena, &spec, &table), 0);

    fill(48 * MB, 32 * MB);
    uint64_t before = rows_held();
    assert_true(pb_arena_used(agent.arena) > 24 * MB);

    set_bound("4MB");
    assert_true(pb_arena_used(agent.arena) <= 4 * MB);
    assert_true(on_disk() <= 4 * MB);
    uint64_t after = rows_held();
    assert_true(after > 1000 && after < before / 4);
    fill(16 * MB, 4 * MB);

    set_bound("1"); /* not allowed: nothing changes */
    fill(8 * MB, 4 * MB);
    assert_true(rows_held() > 1000);

    set_bound("16MB");
    fill(32 * MB, 16 * MB);
    assert_true(on_disk() > 8 * MB);

    int fd = openat(agent.run.dir_fd, PB_SETTINGS_FILE, O_RDONLY);
    assert_true(fd >= 0 && read(fd, kept, sizeof(kept) - 1) > 0);
    close(fd);
    assert_non_null(strstr(kept, "probing.max_memory=16MB\n"));
    pb_arena_close(agent.arena);
    unlinkat(agent.run.dir_fd, "arena", 0);
    unlinkat(agent.run.dir_fd, PB_SETTINGS_FILE, 0);
    close(agent.run.dir_fd);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_holds_and_a_lower_one_gives_memory_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
