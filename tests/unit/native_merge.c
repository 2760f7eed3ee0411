/* Native and Python frames in one stack: the loop's frames give way to the Python frames they run. */
#include "remote/native/merge.h"

#include "test.h"

enum { MAX = 64 };

/* A stack in letters, innermost first. Native: 'c' a function, 'e' the loop, 'i' inlined, '?' without a name.
 * Python: 'p' a frame, 'P' one that was entered from C. */
struct stacks {
    struct pb_native_frame native[MAX];
    struct pb_py_frame python[MAX];
    size_t nnative, npython;
};

static struct stacks from(const char *native, const char *python)
{
    struct stacks s = {.nnative = strlen(native), .npython = strlen(python)};
    for (size_t i = 0; i < s.nnative; i++) {
        s.native[i].module = "/usr/lib/libpython.so";
        s.native[i].function = native[i] == '?' ? NULL : "f";
        s.native[i].flags = native[i] == 'e' ? PB_NATIVE_EVAL : native[i] == 'i' ? PB_NATIVE_INLINED : 0;
    }
    for (size_t i = 0; i < s.npython; i++)
        s.python[i].flags = python[i] == 'P' ? PB_PY_ENTRY : 0;
    return s;
}

/* The merged stack in the same letters. */
static enum pb_merge merge(const char *native, const char *python, unsigned flags, bool truncated,
                           char ret[2 * MAX + 1])
{
    struct stacks s = from(native, python);
    struct pb_merged out[2 * MAX];
    size_t n;
    enum pb_merge how = pb_merge_stacks(s.native, s.nnative, flags, s.python, s.npython, truncated, out, &n);
    for (size_t i = 0; i < n; i++)
        ret[i] = out[i].python ? python[out[i].index] : native[out[i].index];
    ret[n] = '\0';
    return how;
}

static void check(const char *native, const char *python, const char *wanted)
{
    char got[2 * MAX + 1];
    assert_int_equal(merge(native, python, 0, false, got), PB_MERGE_FULL);
    assert_string_equal(got, wanted);
}

static void each_call_of_the_loop_has_its_frames(void **state)
{
    check("ccec", "P", "ccPc");       /* 3.10: one call, one frame */
    check("cececc", "PP", "cPcPcc");  /* C in between */
    check("ccec", "pppP", "ccpppPc"); /* 3.11: many frames in one call */
    check("cecececc", "pPPppP", "cpPcPcppPcc");
    check("ccc", "", "ccc");      /* a thread that runs no Python */
    check("cieec", "PP", "cPPc"); /* what is inlined into the loop is the loop */
    check("ciceC", "P", "cicPC"); /* what is inlined elsewhere is not */
}

static void a_part_of_the_loop_without_a_name_is_recognised(void **state)
{
    check("c?cec", "PP", "cPcPc");
    check("c?ec", "P", "c?Pc");
}

static void what_does_not_fit_is_shown_apart(void **state)
{
    char got[2 * MAX + 1];
    assert_int_equal(merge("cec", "PP", 0, false, got), PB_MERGE_APART);
    assert_string_equal(got, "cecPP");
    assert_int_equal(merge("ceec", "P", 0, false, got), PB_MERGE_APART);
    assert_string_equal(got, "ceecP");
}

static void a_stack_that_was_cut_is_right_at_its_inner_end(void **state)
{
    char got[2 * MAX + 1];
    assert_int_equal(merge("cec", "pPPpP", PB_NATIVE_TRUNCATED, false, got), PB_MERGE_PARTIAL);
    assert_string_equal(got, "cpPcPpP");
    assert_int_equal(merge("cecec", "pP", 0, true, got), PB_MERGE_PARTIAL);
    assert_string_equal(got, "cpPcec");
}

/* Whatever the stacks are: no frame twice, none out of order, no Python frame lost. */
static void no_frame_is_lost_or_doubled(void **state)
{
    srandom(1);
    for (unsigned round = 0; round < 20000; round++) {
        struct stacks s = {.nnative = (size_t)random() % MAX, .npython = (size_t)random() % MAX};
        struct pb_merged out[2 * MAX];
        size_t n, python = 0, last = 0, natives = 0;
        for (size_t i = 0; i < s.nnative; i++) {
            s.native[i].module = random() % 2 ? "a" : NULL;
            s.native[i].function = random() % 4 ? "f" : NULL;
            s.native[i].flags = (unsigned)random() & (PB_NATIVE_EVAL | PB_NATIVE_INLINED);
        }
        for (size_t i = 0; i < s.npython; i++)
            s.python[i].flags = (unsigned)random() & PB_PY_ENTRY;
        pb_merge_stacks(s.native, s.nnative, (unsigned)random() & PB_NATIVE_TRUNCATED, s.python, s.npython,
                        random() & 1, out, &n);
        assert_true(n <= s.nnative + s.npython);
        for (size_t i = 0; i < n; i++) {
            if (out[i].python) {
                assert_int_equal(out[i].index, python++);
            } else {
                assert_true(out[i].index < s.nnative && (natives++ == 0 || out[i].index > last));
                last = out[i].index;
            }
        }
        assert_int_equal(python, s.npython);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_of_the_loop_has_its_frames),
        cmocka_unit_test(a_part_of_the_loop_without_a_name_is_recognised),
        cmocka_unit_test(what_does_not_fit_is_shown_apart),
        cmocka_unit_test(a_stack_that_was_cut_is_right_at_its_inner_end),
        cmocka_unit_test(no_frame_is_lost_or_doubled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
