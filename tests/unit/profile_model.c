/* The profile model: interning, bounds, the tree of a flame graph, and what is read back of what was written.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile_test.h"

#include "base/err.h"
#include "profile/flame.h"
#include "profile/write.h"

/* A stack of names, outermost first, ended by NULL; each is at a line of its own. */
static uint32_t stack_of(struct pb_profile *p, const char *const *names)
{
    uint32_t node = PB_PROFILE_ROOT;

    for (int i = 0; names[i]; i++)
        node = add_call(p, node, names[i], "/src/a.py", i + 1);
    return node;
}

static const char *const main_work[] = {"main", "work", NULL};
static const char *const main_rest[] = {"main", "rest", NULL};
static const char *const deep[] = {"main", "work", "work", NULL};

static void gives_the_same_number_for_the_same_stack(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t a = stack_of(p, main_work), b = stack_of(p, main_rest);

    assert_int_not_equal(a, b);
    assert_int_equal(stack_of(p, main_work), a);
    assert_int_equal(pb_profile_nnodes(p), 4); /* the root, main, work, rest */
    assert_int_equal(pb_profile_node_at(p, a).parent, pb_profile_node_at(p, b).parent);
}

static void keeps_to_its_memory_and_still_counts_what_it_knows(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(256 << 10);
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1"), known = stack_of(p, main_work);
    unsigned refused = 0;
    char name[32];

    assert_int_equal(pb_profile_add(p, thread, known, 0, 1, 1), 0);
    for (int i = 0; i < 100000 && refused < 10; i++) {
        snprintf(name, sizeof(name), "function_%d", i);
        refused += pb_profile_function(p, PB_FRAME_PYTHON, name, "x.py") == PB_PROFILE_NONE;
    }
    assert_int_equal(refused, 10);
    assert_int_equal(stack_of(p, main_work), known);
    assert_int_equal(pb_profile_add(p, thread, known, 0, 2, 1), 0);
    assert_int_equal(pb_profile_samples(p), 2);
}

static void puts_samples_in_a_row_into_one_span(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1");
    uint32_t a = stack_of(p, main_work), b = stack_of(p, main_rest);

    for (uint64_t ms = 0; ms < 50; ms += 10)
        pb_profile_add(p, thread, ms < 30 ? a : b, 0, ms * 1000000, 1);
    pb_profile_add(p, thread, b, 0, 900 * 1000000ull, 1); /* after a gap */
    assert_int_equal(pb_profile_nspans(p), 3);
    assert_int_equal(pb_profile_span_at(p, 0).samples, 3);
    assert_int_equal(pb_profile_span_at(p, 0).end, 20 * 1000000);
    assert_int_equal(pb_profile_ncounts(p), 2);
}

static void keeps_spans_in_order_while_they_grow(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1");
    uint32_t a = stack_of(p, main_work), b = stack_of(p, main_rest);

    for (uint64_t i = 1; i <= 50000; i++) /* each stands for one that was missed too, when it was elsewhere */
        pb_profile_add(p, thread, i % 2 ? a : b, 0, i * 1000, 2);
    assert_int_equal(pb_profile_nspans(p), 50000);
    for (uint32_t i = 1; i < 50000; i++)
        assert_true(pb_profile_span_at(p, i).start >= pb_profile_span_at(p, i - 1).end);
}

static void cleans_names_that_a_target_chose(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t f = pb_profile_function(p, PB_FRAME_PYTHON, "a\033[31m\nb", "\xff\xfe.py");

    assert_string_equal(pb_profile_function_at(p, f).name, "a?[31m b");
    assert_string_equal(pb_profile_function_at(p, f).file, "??.py");
    f = pb_profile_function(p, PB_FRAME_PYTHON,
                            "gr\xc3\xb6\xc3\x9f"
                            "e",
                            "x.py");
    assert_string_equal(pb_profile_function_at(p, f).name, "gr\xc3\xb6\xc3\x9f"
                                                           "e");
}

static void hides_threads_that_never_ran_unless_none_did(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t node = stack_of(p, main_work);
    uint32_t one = pb_profile_thread(p, 1, 1, "a", "pid 1"), two = pb_profile_thread(p, 1, 2, "b", "pid 1");

    pb_profile_add(p, one, node, PB_SAMPLE_WAITING, 1, 5);
    pb_profile_add(p, two, node, PB_SAMPLE_WAITING, 1, 7);
    assert_int_equal(pb_profile_hide_idle(p), 0);
    assert_int_equal(pb_profile_samples(p), 12);
    pb_profile_mark_ran(p, two);
    assert_int_equal(pb_profile_hide_idle(p), 1);
    assert_int_equal(pb_profile_samples(p), 7);
}

static void counts_a_recursive_function_once_a_stack(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    _cleanup_free_ struct pb_hot *hot = NULL;
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1");

    pb_profile_add(p, thread, stack_of(p, deep), 0, 1, 4);
    pb_profile_add(p, thread, stack_of(p, main_rest), PB_SAMPLE_WAITING, 2, 3);
    assert_int_equal(pb_profile_hot(p, NULL, &hot), 3);
    assert_string_equal(pb_profile_function_at(p, hot[0].function).name, "work");
    assert_int_equal(hot[0].self, 4);
    assert_int_equal(hot[0].total, 4);
    assert_int_equal(hot[1].waiting, 3);
}

static char *folded(const struct pb_profile *p)
{
    const struct pb_flame_options options = {0};
    struct pb_flame flame;
    char *text = NULL;
    size_t size;

    assert_int_equal(pb_flame_init(&flame, &options), 0);
    assert_int_equal(pb_flame_add(&flame, p, 0), 0);
    assert_int_equal(pb_flame_finish(&flame), 0);
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(pb_write_folded(out, &flame, false), 0);
    fclose(out);
    pb_flame_done(&flame);
    return text;
}

static void reads_back_the_folded_stacks_it_writes(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    struct pb_profile *again = new_profile(0);
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1");

    pb_profile_add(p, thread, stack_of(p, deep), 0, 1, 4);
    pb_profile_add(p, thread, stack_of(p, main_rest), 0, 2, 3);
    _cleanup_free_ char *text = folded(p);
    assert_string_equal(text, "main (a.py);work (a.py);work (a.py) 4\nmain (a.py);rest (a.py) 3\n");
    FILE *in = fmemopen(text, strlen(text), "r");
    assert_int_equal(pb_read_folded(in, again, NULL), 0);
    fclose(in);
    _cleanup_free_ char *twice = folded(again);
    assert_string_equal(twice, text);
    pb_profile_free(again);
}

static void says_which_line_is_no_folded_stack(void **state)
{
    static const char *const bad[] = {"a;b 1\nnonsense\n", "a;b 1\na;b x\n", "a;b 1\na;b -3\n"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
        struct pb_err err = {0};
        FILE *in = fmemopen((void *)(uintptr_t)bad[i], strlen(bad[i]), "r");
        assert_int_equal(pb_read_folded(in, p, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "line 2"));
        fclose(in);
    }
}

static void sums_and_sorts_the_tree(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    const struct pb_flame_options options = {.threads = true};
    _cleanup_(pb_flame_done) struct pb_flame f = {0};
    uint32_t thread = pb_profile_thread(p, 1, 17, "t", "pid 1");

    pb_profile_add(p, thread, stack_of(p, main_work), 0, 1, 2);
    pb_profile_add(p, thread, stack_of(p, main_rest), 0, 2, 5);
    assert_int_equal(pb_flame_init(&f, &options), 0);
    assert_int_equal(pb_flame_add(&f, p, 0), 0);
    assert_int_equal(pb_flame_finish(&f), 0);
    assert_int_equal(f.at[0].total[0], 7);
    const struct pb_flame_node *t = &f.at[f.at[0].child], *m = &f.at[t->child], *first = &f.at[m->child];
    assert_string_equal(pb_profile_function_at(f.names, t->function).name, "t (17)");
    assert_string_equal(pb_profile_function_at(f.names, first->function).name, "rest");
    assert_int_equal(first->self[0], 5);
    assert_int_equal(f.at[first->next].self[0], 2);
    assert_int_equal(f.depth, 3);
}

static void shortens_files_to_what_says_something(void **state)
{
    assert_string_equal(pb_profile_short_file("/jobs/train.py"), "train.py");
    assert_string_equal(pb_profile_short_file("/v/lib/python3.11/site-packages/torch/nn/f.py"),
                        "torch/nn/f.py");
    assert_string_equal(pb_profile_short_file("/usr/lib/python3.11/json/decoder.py"), "json/decoder.py");
    assert_string_equal(pb_profile_short_file("<string>"), "<string>");
    assert_string_equal(pb_profile_short_file(""), "");
}

static uint32_t push(struct pb_profile *p, uint32_t parent, enum pb_frame_kind kind, const char *name)
{
    return pb_profile_node(p, parent, pb_profile_frame(p, pb_profile_function(p, kind, name, "x"), 0));
}

/* Into the frame that called them; a stack of nothing else is shown as it is, and keeps its weight. */
static void folds_frames_of_the_interpreter(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1");
    uint32_t start = push(p, PB_PROFILE_ROOT, PB_FRAME_NATIVE, "_start");
    uint32_t main =
        push(p, push(p, start, PB_FRAME_NATIVE, "pymain_run_file.cold"), PB_FRAME_PYTHON, "<module>");
    uint32_t call =
        push(p, push(p, main, PB_FRAME_NATIVE, "_PyEval_Vector"), PB_FRAME_PYTHON, "_PyEval_mine");
    uint32_t loop = push(p, call, PB_FRAME_NATIVE, "_PyEval_EvalFrameDefault");
    uint32_t math = push(p, push(p, call, PB_FRAME_NATIVE, "_PyObject_MakeTpCall"), PB_FRAME_NATIVE, "gemm");
    _cleanup_free_ struct pb_hot *hot = NULL;

    pb_profile_add(p, thread, loop, 0, 1, 5);
    pb_profile_add(p, thread, math, 0, 2, 3);
    pb_profile_add(p, thread, start, 0, 3, 2);
    assert_true(pb_profile_fold_interpreter(p, true));
    _cleanup_free_ char *text = folded(p);
    assert_string_equal(
        text, "<module> (x);_PyEval_mine (x) 5\n<module> (x);_PyEval_mine (x);gemm (x) 3\n_start (x) 2\n");
    assert_int_equal(pb_profile_hot(p, NULL, &hot), 4);
    assert_string_equal(pb_profile_function_at(p, hot[0].function).name, "_PyEval_mine");
    assert_true(hot[0].self == 5 && hot[0].total == 8);
    pb_profile_fold_interpreter(p, false);
    _cleanup_free_ char *whole = folded(p);
    assert_non_null(strstr(whole, "_start (x);pymain_run_file.cold (x);<module> (x);_PyEval_Vector (x);"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_same_number_for_the_same_stack),
        cmocka_unit_test(keeps_to_its_memory_and_still_counts_what_it_knows),
        cmocka_unit_test(puts_samples_in_a_row_into_one_span),
        cmocka_unit_test(keeps_spans_in_order_while_they_grow),
        cmocka_unit_test(cleans_names_that_a_target_chose),
        cmocka_unit_test(hides_threads_that_never_ran_unless_none_did),
        cmocka_unit_test(counts_a_recursive_function_once_a_stack),
        cmocka_unit_test(reads_back_the_folded_stacks_it_writes),
        cmocka_unit_test(says_which_line_is_no_folded_stack),
        cmocka_unit_test(sums_and_sorts_the_tree),
        cmocka_unit_test(shortens_files_to_what_says_something),
        cmocka_unit_test(folds_frames_of_the_interpreter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
