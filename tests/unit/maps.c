/* Tests of remote/maps: the kernel's list of mappings, our own and odd ones. */
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/maps.h"

#include "test.h"

static void finds_the_mapping_that_holds_an_address(void **state)
{
    _cleanup_(pb_maps_done) struct pb_maps m = {0};
    assert_int_equal(pb_maps_read(getpid(), &m, NULL), 0);

    const struct pb_map *map = pb_maps_find(&m, (uint64_t)(uintptr_t)&pb_maps_find);
    assert_non_null(map);
    assert_true(map->prot & PROT_EXEC);
    assert_false(map->prot & PROT_WRITE);
    assert_string_equal(pb_maps_base(map), "unit-maps");
    assert_null(pb_maps_find(&m, 0));
}

static void knows_where_a_mapping_ends(void **state)
{
    _cleanup_(pb_maps_done) struct pb_maps m = {0};
    char *text =
        strdup("1000-2000 rw-p 00000000 00:00 0 \n2000-3000 ---p 00001000 fe:00 17    /a b (deleted)\n");
    assert_int_equal(pb_maps_parse(text, &m, NULL), 0);
    assert_int_equal(m.n, 2);
    assert_ptr_equal(pb_maps_find(&m, 0x1fff), &m.at[0]);
    assert_ptr_equal(pb_maps_find(&m, 0x2000), &m.at[1]);
    assert_null(pb_maps_find(&m, 0x3000));
    assert_null(pb_maps_find(&m, 0xfff));
    assert_string_equal(m.at[0].path, "");
    assert_string_equal(m.at[1].path, "/a b (deleted)");
    assert_int_equal(m.at[1].offset, 0x1000);
    assert_int_equal(m.at[1].inode, 17);
    assert_int_equal(m.at[1].prot, 0);
}

static void refuses_what_is_no_list_of_mappings(void **state)
{
    static const char *const odd[] = {
        "hello",
        "1000",
        "1000-2000",
        "1000-2000 r",
        "1000-2000 r--p",
        "2000-1000 r--p 0 00:00 0",
        "1000-2000 r--p 0 00:00 x",
        "\n",
        "10000000000000000000-2 r--p 0 00:00 0",
    };
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        struct pb_maps m = {0};
        struct pb_err err = {""};
        assert_int_equal(pb_maps_parse(strdup(odd[i]), &m, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "unexpected line"));
        assert_null(m.at);
    }
}

static void says_that_a_process_is_gone(void **state)
{
    struct pb_maps m = {0};
    struct pb_err err = {""};
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(pb_maps_read(pid, &m, &err), -ESRCH);
    assert_true(err.text[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_mapping_that_holds_an_address),
        cmocka_unit_test(knows_where_a_mapping_ends),
        cmocka_unit_test(refuses_what_is_no_list_of_mappings),
        cmocka_unit_test(says_that_a_process_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
