/* Tests of remote/source: pages that are kept for a while; and of remote/loaded: what the loader lists. */
#include <sys/mman.h>

#include "base/cleanup.h"
#include "remote/loaded.h"
#include "remote/maps.h"
#include "remote/source.h"

#include "test.h"

static uint64_t at(const volatile void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static void a_kept_page_stays_as_it_was_until_it_is_forgotten(void **state)
{
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    static volatile uint64_t word = 1;
    uint64_t got = 0;

    assert_int_equal(pb_source_process(getpid(), &s, NULL), 0);
    uint64_t first = pb_source_keep(&s, 0);
    assert_int_equal(pb_source_read(&s, at(&word), &got, sizeof(got)), 0);
    word = 2;
    assert_int_equal(pb_source_read(&s, at(&word), &got, sizeof(got)), 0);
    assert_int_equal(got, 1);

    pb_source_keep(&s, 0);
    assert_int_equal(pb_source_read(&s, at(&word), &got, sizeof(got)), 0);
    assert_int_equal(got, 2);

    word = 3;
    pb_source_keep(&s, first);
    assert_int_equal(pb_source_read(&s, at(&word), &got, sizeof(got)), 0);
    assert_int_equal(got, 1);

    pb_source_forget(&s);
    assert_int_equal(pb_source_read(&s, at(&word), &got, sizeof(got)), 0);
    assert_int_equal(got, 3);
}

/* More pages than there is room for, one of them not readable, and reads across their edges.
 */
static void what_is_kept_is_what_is_there(void **state)
{
    enum { PAGES = 200, PAGE = 4096 };
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    uint8_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t got[16], want[16];

    assert_ptr_not_equal(memory, MAP_FAILED);
    for (size_t i = 0; i < PAGES * PAGE; i++)
        memory[i] = (uint8_t)(i * 31 + i / PAGE);
    assert_int_equal(mprotect(memory + 100 * PAGE, PAGE, PROT_NONE), 0);
    assert_int_equal(pb_source_process(getpid(), &s, NULL), 0);
    pb_source_keep(&s, 0);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i + 16 < PAGES * PAGE; i += 1000) {
            bool gone = i + 15 >= 100 * PAGE && i < 101 * PAGE;
            assert_int_equal(pb_source_read(&s, at(memory + i), got, sizeof(got)), gone ? -EFAULT : 0);
            if (gone)
                continue;
            memcpy(want, memory + i, sizeof(want));
            assert_memory_equal(got, want, sizeof(got));
        }
    assert_int_equal(pb_source_read(&s, at(memory + 100 * PAGE - 8), got, sizeof(got)), -EFAULT);
    assert_int_equal(pb_source_read(&s, at(memory + 99 * PAGE - 8), got, sizeof(got)), 0);
    assert_memory_equal(got, memory + 99 * PAGE - 8, sizeof(got));
    munmap(memory, PAGES * PAGE);
}

static void the_loader_tells_where_a_library_is(void **state)
{
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    _cleanup_(pb_maps_done) struct pb_maps few = {0}, all = {0};

    assert_int_equal(pb_source_process(getpid(), &s, NULL), 0);
    assert_int_equal(pb_loaded_find(&s, "libcmocka", &few), 0);
    assert_int_equal(few.n, 2);
    assert_int_equal(pb_maps_read(getpid(), &all, NULL), 0);
    for (size_t i = 0; i < few.n; i++) {
        const struct pb_map *map = pb_maps_find(&all, few.at[i].start);
        assert_non_null(map);
        assert_int_equal(map->start, few.at[i].start);
        assert_int_equal(map->offset, 0);
        assert_memory_equal((void *)(uintptr_t)map->start, "\177ELF", 4);
    }
    assert_string_equal(pb_maps_base(&few.at[0]), "unit-source");
    assert_int_equal(strncmp(pb_maps_base(&few.at[1]), "libcmocka", 9), 0);
}

static void what_nobody_loaded_is_not_found(void **state)
{
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    _cleanup_(pb_maps_done) struct pb_maps few = {0};

    assert_int_equal(pb_source_process(getpid(), &s, NULL), 0);
    assert_int_equal(pb_loaded_find(&s, "libnobody", &few), 0);
    assert_int_equal(few.n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kept_page_stays_as_it_was_until_it_is_forgotten),
        cmocka_unit_test(what_is_kept_is_what_is_there),
        cmocka_unit_test(the_loader_tells_where_a_library_is),
        cmocka_unit_test(what_nobody_loaded_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
