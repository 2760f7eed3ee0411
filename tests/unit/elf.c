/* Tests of remote/elf: symbols of objects in memory, by our own process and by damaged copies of it. */
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/source.h"

#include "test.h"

/* Where the object that holds addr begins, as the loader says. */
static uint64_t base_of(const void *addr)
{
    Dl_info info;
    assert_int_not_equal(dladdr(addr, &info), 0);
    return (uint64_t)(uintptr_t)info.dli_fbase;
}

static struct pb_source self;

static void finds_functions_where_the_loader_does(void **state)
{
    static const char *const names[] = {"malloc", "free",      "dlopen",
                                        "getpid", "sigaction", "__errno_location"};
    uint64_t libc = base_of(dlsym(RTLD_DEFAULT, "getpid"));
    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    assert_int_equal(pb_elf_open(&self, libc, &e), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        /* From libc itself: a sanitizer puts its own malloc in front. */
        void *handle = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
        uint64_t wanted = (uint64_t)(uintptr_t)dlsym(handle, names[i]), by_hash;
        struct pb_symbol s;
        assert_int_equal(pb_elf_find(&e, names[i], &s), 0);
        assert_int_equal(s.addr, wanted);
        assert_int_equal(pb_elf_lookup(&self, libc, names[i], &by_hash), 0);
        assert_int_equal(by_hash, wanted);
        assert_in_range(s.addr, e.text, e.text_end - 1);
        dlclose(handle);
    }
}

static void does_not_find_what_is_not_defined_there(void **state)
{
    uint64_t libc = base_of(dlsym(RTLD_DEFAULT, "getpid")), ours = base_of((void *)(uintptr_t)&base_of), addr;
    _cleanup_(pb_elf_done) struct pb_elf e = {0};
    struct pb_symbol s;
    assert_int_equal(pb_elf_open(&self, libc, &e), 0);
    assert_int_equal(pb_elf_find(&e, "pb_no_such_symbol", &s), -ENOENT);
    assert_int_equal(pb_elf_lookup(&self, libc, "pb_no_such_symbol", &addr), -ENOENT);
    /* Used here, defined elsewhere. */
    assert_int_equal(pb_elf_lookup(&self, ours, "getpid", &addr), -ENOENT);
}

static void finds_the_symbols_of_every_object_here(void **state)
{
    _cleanup_(pb_maps_done) struct pb_maps m = {0};
    int objects = 0;
    assert_int_equal(pb_maps_read(getpid(), &m, NULL), 0);
    for (size_t i = 0; i < m.n; i++) {
        _cleanup_(pb_elf_done) struct pb_elf e = {0};
        if (m.at[i].offset != 0 || !strstr(m.at[i].path, ".so") || pb_elf_open(&self, m.at[i].start, &e) < 0)
            continue;
        objects++;
        for (size_t k = 0; k < e.n; k++) {
            struct pb_symbol s;
            uint64_t addr;
            /* Names of up to a kilobyte are looked up: nobody asks for one of C++'s longest. */
            if (!pb_elf_at(&e, k, &s) || s.type != STT_FUNC || strlen(s.name) > 1000)
                continue;
            assert_int_equal(pb_elf_lookup(&self, m.at[i].start, s.name, &addr), 0);
        }
    }
    assert_true(objects >= 3);
}

static void survives_damage(void **state)
{
    uint64_t libc = base_of(dlsym(RTLD_DEFAULT, "getpid")), addr;
    enum { SIZE = 8192 };
    unsigned char *copy = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(copy, MAP_FAILED);
    srand(1);
    for (int round = 0; round < 20000; round++) {
        _cleanup_(pb_elf_done) struct pb_elf e = {0};
        memcpy(copy, (void *)(uintptr_t)libc, SIZE);
        for (int hit = 0; hit < 1 + round % 8; hit++)
            copy[rand() % 1024] = (unsigned char)rand();
        /* What is mapped there is not a whole object: anything but a crash will do. */
        pb_elf_open(&self, (uint64_t)(uintptr_t)copy, &e);
        pb_elf_lookup(&self, (uint64_t)(uintptr_t)copy, "malloc", &addr);
    }
    memset(copy, 0, SIZE);
    struct pb_elf none = {0};
    assert_int_equal(pb_elf_open(&self, (uint64_t)(uintptr_t)copy, &none), -ENOEXEC);
    assert_int_equal(pb_elf_open(&self, 4096, &none), -EFAULT);
    munmap(copy, SIZE);
}

int main(void)
{
    self = pb_source_of(getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_functions_where_the_loader_does),
        cmocka_unit_test(does_not_find_what_is_not_defined_there),
        cmocka_unit_test(finds_the_symbols_of_every_object_here),
        cmocka_unit_test(survives_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
