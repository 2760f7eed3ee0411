/* Arrays of JAX read by layout, in memory laid out as jaxlib has it, some of which is damaged. Those of jax
 * itself are read in tests/integration/test_jax.py. */
#include "control/jax_array.h"

#include "test.h"

enum { HEADER = 16, WORDS = 1024, BASE = 0x10000 };

/* Words at the address BASE; one of them may be unreadable. */
static struct {
    uint64_t words[WORDS], unreadable;
    unsigned used;
} m;

static int fetch(void *context, uint64_t at, void *to, size_t size)
{
    (void)context;
    if (at < BASE || at + size > BASE + sizeof(m.words) || (m.unreadable >= at && m.unreadable < at + size))
        return -EFAULT;
    memcpy(to, (const char *)m.words + (at - BASE), size);
    return 0;
}

static uint64_t take(unsigned words)
{
    uint64_t at = BASE + m.used * 8;
    m.used += words;
    assert_true(m.used <= WORDS);
    return at;
}

static void put(uint64_t at, unsigned word, uint64_t value)
{
    m.words[(at - BASE) / 8 + word] = value;
}

static uint64_t text(const char *s)
{
    uint64_t at = take(8);
    memcpy(&m.words[(at - BASE) / 8], s, strlen(s));
    return at;
}

/* An object of Python whose type has that name; a type is itself an object, with its name behind its head. */
static uint64_t object(const char *type, unsigned words)
{
    uint64_t kind = take(4), at = take(words);
    put(kind, 3, text(type));
    put(at, 1, kind);
    return at;
}

/* An object of C++ of that class. */
static uint64_t of_class(const char *name, unsigned words)
{
    uint64_t info = take(2), table = take(2), at = take(words);
    put(info, 1, text(name));
    put(table, 0, info);
    put(at, 0, table + 8);
    return at;
}

static uint64_t array, kept, event, buffer, shape;

/* An array float32 of these sizes, in the order of C. */
static void lay_out(unsigned n, const int64_t *sizes_of)
{
    memset(&m, 0, sizeof(m));
    m.used = 1;
    uint64_t dtype = object("numpy.dtypes.Float32DType", 4), element = take(4), sizes = take(4);
    put(element, 3, text("numpy.float32"));
    put(dtype, 2, element);
    array = take(32);
    put(array, 2, object("ShapedArray", 2)); /* right behind the head */
    put(array, 4, dtype);
    put(array, 5, sizes);
    put(array, 6, sizes + 8 * n);
    put(array, 7, sizes + 8 * n);
    put(array, 9, object("NoneType", 2));
    put(array, 11, object("Client", 2));
    put(array, 13, object("NoneType", 2));

    uint64_t ifrt = of_class("N3xla4ifrt9PjRtArrayE", 32),
             space = of_class("N3xla20CpuDeviceMemorySpaceE", 4);
    uint64_t raw = of_class("N3xla12CpuRawBufferE", 8), value = take(16), memory = value + 8 * 8;
    uint64_t table = of_class("N3xla22CpuDeviceMemoryForeignE", 1);
    put(array, 12, ifrt);
    buffer = of_class("N3xla20CommonPjRtBufferImplE", 20);
    put(ifrt, 8, 1 << 1);
    put(ifrt, 9, buffer);
    kept = take(8);
    shape = take(32);
    event = take(2);
    put(buffer, 88 / 8, space);
    put(buffer, 96 / 8, kept);
    put(buffer, 120 / 8, shape);
    put(kept, 0, raw);
    put(kept, 1, 1 << 1);
    put(kept, 3, event);
    put(event, 1, 2);
    put(raw, 4, value);
    put(value, 1, 2);
    put(memory, 0, m.words[(table - BASE) / 8]);
    put(memory, 1, 0x7000);
    put(memory, 2, 1 << 20);
    put(shape, 1, n << 1);
    put(shape, 13, n << 1);
    for (unsigned i = 0; i < n; i++) {
        put(sizes, i, (uint64_t)sizes_of[i]);
        put(shape, 2 + i, (uint64_t)sizes_of[i]);
        put(shape, 14 + i, n - 1 - i);
    }
}

static struct pb_jax_array read_it(void)
{
    struct pb_jax_array ret;
    assert_int_equal(pb_jax_read(fetch, NULL, array, HEADER, &ret), 1);
    assert_string_equal(ret.dtype, "float32");
    return ret;
}

static void assert_why(const char *part)
{
    struct pb_jax_array ret = read_it();
    assert_int_equal(ret.data, 0);
    assert_non_null(ret.why);
    assert_non_null(strstr(ret.why, part));
}

static void a_whole_array_has_values(void **state)
{
    (void)state;
    lay_out(2, (int64_t[]){3, 4});
    struct pb_jax_array ret = read_it();
    assert_null(ret.why);
    assert_int_equal(ret.data, 0x7000);
    assert_int_equal(ret.steps[0], 4);
    assert_int_equal(ret.steps[1], 1);
    assert_int_equal(ret.count, 12);
}

static void a_computation_is_there_pending_or_failed(void **state)
{
    (void)state;
    lay_out(2, (int64_t[]){3, 4});
    put(event, 1, 0x5611);
    assert_why("still being computed");
    put(event, 1, 3);
    assert_why("computation failed");
}

static void what_cannot_be_read_is_neither_computed_nor_deleted(void **state)
{
    (void)state;
    lay_out(2, (int64_t[]){3, 4});
    m.unreadable = kept + 8; /* its list of events */
    assert_why("another version");
    m.unreadable = event + 8;
    assert_why("another version");
    m.unreadable = buffer + 96;
    assert_why("another version");
    m.unreadable = 0;
    put(buffer, 96 / 8, 0);
    assert_why("donated");
}

static void only_an_array_of_a_known_layout_is_deleted(void **state)
{
    (void)state;
    lay_out(2, (int64_t[]){3, 4});
    put(array, 12, 0);
    assert_why("deleted");
    put(array, 11, 0); /* no client: another layout */
    assert_why("another version");
}

static void sizes_that_overflow_belong_to_an_empty_array(void **state)
{
    (void)state;
    lay_out(3, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40, 0});
    for (unsigned i = 0; i < 3; i++) /* the large ones first: their product overflows */
        put(shape, 14 + i, i);
    assert_why("empty");
}

/* Behind the head of numpy's: data, number of dimensions, sizes, strides. */
static void a_fetched_array_that_runs_backwards_is_not_read(void **state)
{
    (void)state;
    lay_out(2, (int64_t[]){3, 4});
    put(array, 12, 0);
    uint64_t fetched = object("numpy.ndarray", 8), sizes = take(2), strides = take(2);
    put(array, 9, fetched);
    put(fetched, 2, 0x9000);
    put(fetched, 3, 2);
    put(fetched, 4, sizes);
    put(fetched, 5, strides);
    put(sizes, 0, 3);
    put(sizes, 1, 4);
    put(strides, 0, 16);
    put(strides, 1, 4);
    assert_int_equal(read_it().data, 0x9000);
    put(strides, 0, (uint64_t)-16);
    assert_int_equal(read_it().data, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_array_has_values),
        cmocka_unit_test(a_computation_is_there_pending_or_failed),
        cmocka_unit_test(what_cannot_be_read_is_neither_computed_nor_deleted),
        cmocka_unit_test(only_an_array_of_a_known_layout_is_deleted),
        cmocka_unit_test(sizes_that_overflow_belong_to_an_empty_array),
        cmocka_unit_test(a_fetched_array_that_runs_backwards_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
