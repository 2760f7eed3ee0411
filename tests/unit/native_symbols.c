/* Functions by address: a pass over the table, and the index that follows many, find the same as looking at
 * all. */
#include <elf.h>
#include <sys/mman.h>

#include "remote/native/name_texts.h"
#include "remote/native/object.h"
#include "remote/native/perfmap.h"
#include "remote/native/symbols.h"

#include "test.h"

enum { SYMBOLS = 5000, NAMES = 64 };

static Elf64_Sym table[SYMBOLS];
static char names[NAMES] = "\0local\0weak\0global\0";

/* An object in memory is enough: its table is given, not read. */
static struct pb_symbols make(void)
{
    struct pb_symbols s = {.n = SYMBOLS, .names_len = NAMES};
    s.sym = malloc(sizeof(table));
    s.text = malloc(NAMES);
    assert_true(s.sym && s.text);
    memcpy(s.sym, table, sizeof(table));
    memcpy(s.text, names, NAMES);
    return s;
}

static void fill(void)
{
    static const uint8_t binding[] = {STB_LOCAL, STB_WEAK, STB_GLOBAL};
    srandom(2);
    for (size_t i = 1; i < SYMBOLS; i++) {
        unsigned b = (unsigned)random() % 3;
        table[i] = (Elf64_Sym){
            .st_name = b == 0   ? 1
                       : b == 1 ? 7
                                : 12,
            .st_info = ELF64_ST_INFO(binding[b], random() % 8 ? STT_FUNC : STT_OBJECT),
            .st_shndx = random() % 50 ? 1 : SHN_UNDEF,
            .st_value = 0x1000 + (uint64_t)random() % 400000,
            .st_size = 1 + (uint64_t)random() % (random() % 100 ? 200 : 8000),
        };
    }
}

static unsigned rank_of(const Elf64_Sym *s)
{
    return ELF64_ST_BIND(s->st_info) == STB_GLOBAL ? 3 : ELF64_ST_BIND(s->st_info) == STB_WEAK ? 2 : 1;
}

static const Elf64_Sym *by_looking_at_all(uint64_t addr)
{
    const Elf64_Sym *best = NULL;
    for (size_t i = 0; i < SYMBOLS; i++) {
        const Elf64_Sym *s = &table[i];
        if (s->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(s->st_info) != STT_FUNC)
            continue;
        if (addr < s->st_value || addr - s->st_value >= s->st_size)
            continue;
        if (!best || s->st_value > best->st_value ||
            (s->st_value == best->st_value && rank_of(s) > rank_of(best)))
            best = s;
    }
    return best;
}

static void compare(struct pb_symbols *s, uint64_t addr)
{
    const struct pb_function *f = NULL;
    const Elf64_Sym *wanted = by_looking_at_all(addr);
    int r = pb_symbols_find(s, addr, &f);
    if (!wanted) {
        assert_int_equal(r, -ENOENT);
        return;
    }
    char name[16];
    assert_int_equal(r, 0);
    assert_int_equal(f->addr, wanted->st_value);
    assert_int_equal(pb_symbols_name(s, f, name, sizeof(name)), 0);
    assert_string_equal(name, names + wanted->st_name);
}

static void a_pass_and_the_index_find_the_innermost_function(void **state)
{
    uint64_t addrs[200];
    fill();
    struct pb_symbols s = make();
    for (size_t i = 0; i < 200; i++)
        addrs[i] = 0x1000 + (uint64_t)random() % 420000;
    assert_int_equal(pb_symbols_scan(&s, addrs, 200), 0);
    assert_int_equal(s.passes, 1);
    for (size_t i = 0; i < 200; i++)
        compare(&s, addrs[i]);
    assert_int_equal(s.passes, 1);
    assert_null(s.at);
    for (size_t i = 0; i < 2000; i++)
        compare(&s, 0x1000 + (uint64_t)random() % 420000);
    assert_non_null(s.at);
    pb_symbols_done(&s);
}

static void an_unsized_label_of_a_partial_table_reaches_nowhere(void **state)
{
    const struct pb_function *f;
    memset(table, 0, sizeof(table));
    table[1] = (Elf64_Sym){
        .st_name = 12, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_NOTYPE), .st_shndx = 1, .st_value = 0x1000};
    struct pb_symbols s = make();
    assert_int_equal(pb_symbols_find(&s, 0x1010, &f), 0);
    pb_symbols_done(&s);
    s = make();
    s.partial = true;
    assert_int_equal(pb_symbols_find(&s, 0x1010, &f), -ENOENT);
    assert_int_equal(pb_symbols_find(&s, 0x1000, &f), 0);
    pb_symbols_done(&s);
}

static void names_are_kept_once_and_within_their_limit(void **state)
{
    struct pb_names kept = {.limit = 4096};
    const char *one = pb_names_keep(&kept, "a name");
    assert_ptr_equal(pb_names_keep(&kept, "a name"), one);
    assert_ptr_equal(pb_names_keep_len(&kept, "a name and more", 6), one);
    assert_ptr_not_equal(pb_names_keep(&kept, "a nam"), one);
    char text[32];
    unsigned n = 0;
    do
        snprintf(text, sizeof(text), "name %u", n++);
    while (pb_names_keep(&kept, text) && n < 10000);
    assert_true(n > 50 && n < 200);
    assert_string_equal(one, "a name");
    pb_names_done(&kept);
}

static void lines_of_a_perf_map(void **state)
{
    char text[] = "2000 10 second one\nnonsense\n1000 20 first\n3000 0 empty\n2000 18 "
                  "newer\nffffffffffffffff 2 wraps\n4000 4\n";
    struct pb_perf_entry *at;
    assert_int_equal(pb_perf_map_parse(text, &at), 3);
    assert_true(at[0].start == 0x1000 && at[0].size == 0x20);
    assert_string_equal(at[0].name, "first");
    assert_string_equal(at[1].name, "second one");
    assert_string_equal(at[2].name, "newer");
    free(at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_and_the_index_find_the_innermost_function),
        cmocka_unit_test(an_unsized_label_of_a_partial_table_reaches_nowhere),
        cmocka_unit_test(names_are_kept_once_and_within_their_limit),
        cmocka_unit_test(lines_of_a_perf_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
