/* The sources of a question about several processes: one that cannot be read is kept, named and explained. */
#include <sys/wait.h>

#include "ask/sources.h"
#include "base/err.h"

#include "test.h"

static void keep_note(void *arg, const char *text)
{
    char *notes = arg;
    snprintf(notes + strlen(notes), 1024 - strlen(notes), "%s\n", text);
}

/* The pid of a process that has just ended, as a rank's may between the list and the look. */
static pid_t ended_process(void)
{
    pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void one_of_several_that_cannot_be_read_is_named(void **state)
{
    char notes[1024] = "", wanted[64];
    const struct pb_ask ask = {.archive = "none", .note = keep_note, .note_arg = notes};
    struct pb_target at[] = {
        {.pid = getpid(), .label = "rank 0", .labelled_by = PB_LABEL_BY_RANK},
        {.pid = ended_process(), .label = "rank 1", .labelled_by = PB_LABEL_BY_RANK, .rank = 1}};
    struct pb_query_sources sources;
    struct pb_err err = {0};

    assert_int_equal(pb_sources_open(&ask, &(struct pb_targets){.at = at, .n = 2}, &sources, &err), 0);
    assert_int_equal(sources.n, 2);
    assert_int_equal(sources.failed, 1);
    assert_null(sources.at[0].live.broken);
    assert_non_null(sources.at[1].live.broken);
    assert_int_equal(sources.at[1].rank, 1);
    /* Said once, by the query that reads the sources, and not by a note as well. */
    snprintf(wanted, sizeof(wanted), "process %d", (int)at[1].pid);
    assert_non_null(strstr(sources.at[1].live.broken, wanted));
    assert_string_equal(notes, "");
    pb_query_sources_done(&sources);
    /* Where nothing is left to show, it is an error as before. */
    assert_true(pb_sources_open(&ask, &(struct pb_targets){.at = at + 1, .n = 1}, &sources, &err) < 0);
    at[0].pid = at[1].pid;
    assert_true(pb_sources_open(&ask, &(struct pb_targets){.at = at, .n = 2}, &sources, &err) < 0);
    assert_non_null(strstr(err.text, "process"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_of_several_that_cannot_be_read_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
