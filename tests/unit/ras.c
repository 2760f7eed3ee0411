/* Tests of remote/ras: what NCCL 2.28.9 answered on an H200, of four ranks of which rank 1 skipped a
 * collective, without its blanks; and answers that are made from it. */
#include "remote/ras.h"
#include "base/err.h"

#include "test.h"

static const char answer[] =
    "{\"nccl_version\":\"2.28.9\",\"cuda_runtime_version\":13000,\"cuda_driver_version\":13000,"
    "\"timestamp\":\"2026-11-19 15:31:18\",\"communicators_count\":2,"
    "\"communicators\":[{\"hash\":\"0x4fb47ea6f6ab2f7a\","
    "\"secondary_hash\":\"0x7bfae5621c493b1b:0x597203d92f78b815\",\"size\":2,\"ranks_count\":2,"
    "\"missing_ranks_count\":0,\"ranks\":[{\"rank\":0,\"host\":\"127.0.0.1\",\"pid\":520,"
    "\"cuda_dev\":0,\"nvml_dev\":0,\"status\":{\"init_state\":0,\"async_error\":0,"
    "\"finalize_called\":false,\"destroy_flag\":false,\"abort_flag\":false},"
    "\"collective_counts\":{\"Broadcast\":0,\"Reduce\":0,\"AllGather\":0,\"ReduceScatter\":0,"
    "\"AllReduce\":1}},{\"rank\":1,\"host\":\"127.0.0.1\",\"pid\":521,\"cuda_dev\":0,\"nvml_dev\":0,"
    "\"status\":{\"init_state\":0,\"async_error\":0,\"finalize_called\":false,\"destroy_flag\":false,"
    "\"abort_flag\":false},\"collective_counts\":{\"Broadcast\":0,\"Reduce\":0,\"AllGather\":0,"
    "\"ReduceScatter\":0,\"AllReduce\":1}}],\"missing_ranks\":[]},{\"hash\":\"0xee9f4a0bbb498f03\","
    "\"secondary_hash\":\"0x1ae5b0c6e0e79aa4:0xf85ccf3df417179e\",\"size\":4,\"ranks_count\":4,"
    "\"missing_ranks_count\":0,\"ranks\":[{\"rank\":0,\"host\":\"127.0.0.1\",\"pid\":520,"
    "\"cuda_dev\":0,\"nvml_dev\":0,\"status\":{\"init_state\":0,\"async_error\":0,"
    "\"finalize_called\":false,\"destroy_flag\":false,\"abort_flag\":false},"
    "\"collective_counts\":{\"Broadcast\":1,\"Reduce\":0,\"AllGather\":1,\"ReduceScatter\":0,"
    "\"AllReduce\":7}},{\"rank\":1,\"host\":\"127.0.0.1\",\"pid\":521,\"cuda_dev\":0,\"nvml_dev\":0,"
    "\"status\":{\"init_state\":0,\"async_error\":0,\"finalize_called\":false,\"destroy_flag\":false,"
    "\"abort_flag\":false},\"collective_counts\":{\"Broadcast\":1,\"Reduce\":0,\"AllGather\":1,"
    "\"ReduceScatter\":0,\"AllReduce\":6}},{\"rank\":2,\"host\":\"127.0.0.1\",\"pid\":522,"
    "\"cuda_dev\":0,\"nvml_dev\":0,\"status\":{\"init_state\":0,\"async_error\":0,"
    "\"finalize_called\":false,\"destroy_flag\":false,\"abort_flag\":false},"
    "\"collective_counts\":{\"Broadcast\":1,\"Reduce\":0,\"AllGather\":1,\"ReduceScatter\":0,"
    "\"AllReduce\":7}},{\"rank\":3,\"host\":\"127.0.0.1\",\"pid\":523,\"cuda_dev\":0,\"nvml_dev\":0,"
    "\"status\":{\"init_state\":0,\"async_error\":0,\"finalize_called\":false,\"destroy_flag\":false,"
    "\"abort_flag\":false},\"collective_counts\":{\"Broadcast\":1,\"Reduce\":0,\"AllGather\":1,"
    "\"ReduceScatter\":0,\"AllReduce\":7}}],\"missing_ranks\":[]}],"
    "\"ras\":{\"collection_time_sec\":0.0,\"timeouts_count\":0}}";

static void parse(const char *text, struct pb_ras *ret)
{
    struct pb_err err;

    assert_int_equal(pb_ras_parse(text, strlen(text), ret, &err), 0);
}

static struct pb_ras_rank *rank_of(struct pb_ras *ras, int rank)
{
    for (size_t i = 0; i < ras->ncomms; i++)
        for (size_t k = 0; ras->comms[i].size == 4 && k < ras->comms[i].nranks; k++)
            if (ras->comms[i].ranks[k].rank == rank)
                return &ras->comms[i].ranks[k];
    fail();
    return NULL;
}

static void reads_ranks_and_their_counts(void **state)
{
    struct pb_ras ras;

    parse(answer, &ras);
    assert_string_equal(ras.version, "2.28.9");
    assert_int_equal(ras.ncomms, 2);
    assert_int_equal(rank_of(&ras, 1)->pid, 521);
    assert_string_equal(rank_of(&ras, 1)->host, "127.0.0.1");
    assert_string_equal(ras.kinds[4], "AllReduce");
    assert_int_equal(rank_of(&ras, 0)->counts[4], 7);
    assert_int_equal(rank_of(&ras, 1)->counts[4], 6);
    pb_ras_done(&ras);
}

static void names_a_rank_that_stays_behind(void **state)
{
    struct pb_ras first, second;
    char text[300];

    parse(answer, &first);
    parse(answer, &second);
    assert_true(pb_ras_judge(&first, &second, text, sizeof(text)));
    assert_string_equal(text, "rank 1 (process 521 on 127.0.0.1) has launched 6 AllReduce, others 7");
    pb_ras_done(&first);
    pb_ras_done(&second);
}

static void says_nothing_of_ranks_that_go_on(void **state)
{
    struct pb_ras first, second;
    char text[300];

    parse(answer, &first);
    parse(answer, &second);
    rank_of(&second, 1)->counts[4] = 7;
    rank_of(&second, 0)->counts[4] = 8;
    assert_false(pb_ras_judge(&first, &second, text, sizeof(text)));
    assert_string_equal(text, "");
    pb_ras_done(&first);
    pb_ras_done(&second);
}

static void names_a_rank_that_does_not_answer(void **state)
{
    struct pb_ras first, second;
    char text[300];

    parse(answer, &first);
    parse(answer, &second);
    rank_of(&first, 2)->missing = rank_of(&second, 2)->missing = true;
    rank_of(&first, 1)->counts[4] = rank_of(&second, 1)->counts[4] = 7;
    assert_true(pb_ras_judge(&first, &second, text, sizeof(text)));
    assert_string_equal(text, "rank 2 (process 522 on 127.0.0.1) does not answer");
    pb_ras_done(&first);
    pb_ras_done(&second);
}

/* As it printed it of a rank that was stopped: a comma is missing. */
static void reads_a_missing_rank_though_a_comma_is_missing(void **state)
{
    struct pb_ras ras;

    parse(
        "{\"communicators\": [\n{\n\"hash\": \"0x1\",\n\"size\": 4,\n\"ranks\": [\n],\n\"missing_ranks\": [\n"
        "{\n  \"rank\": 2,\n  \"host\": \"127.0.0.1\",\n  \"pid\": 1268,\n  \"cuda_dev\": 0,\n"
        "  \"nvml_dev\": 0\n  \"status\": {\n    \"unresponsive\": true,\n    \"considered_dead\": false\n  "
        "}\n"
        "}\n]\n}\n]\n}\n",
        &ras);
    assert_true(rank_of(&ras, 2)->missing);
    assert_int_equal(rank_of(&ras, 2)->pid, 1268);
    pb_ras_done(&ras);
}

static void refuses_what_is_cut_or_is_something_else(void **state)
{
    struct pb_ras ras;
    struct pb_err err;

    for (size_t n = 0; n + 1 < strlen(answer); n += 7)
        assert_int_equal(pb_ras_parse(answer, n, &ras, &err), -EBADMSG);
    assert_int_equal(pb_ras_parse("OK\n", 3, &ras, &err), -EBADMSG);
    parse("{\"communicators\":[{\"ranks\":[{},{\"rank\":-5,\"pid\":\"x\"}]},{}]}", &ras);
    assert_int_equal(ras.ncomms, 2);
    pb_ras_done(&ras);
}

static void asks_nobody_where_it_is_off(void **state)
{
    struct pb_ras ras;
    struct pb_err err;

    assert_true(pb_ras_ask(getpid(), 200, &ras, &err) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_ranks_and_their_counts),
        cmocka_unit_test(names_a_rank_that_stays_behind),
        cmocka_unit_test(says_nothing_of_ranks_that_go_on),
        cmocka_unit_test(names_a_rank_that_does_not_answer),
        cmocka_unit_test(reads_a_missing_rank_though_a_comma_is_missing),
        cmocka_unit_test(refuses_what_is_cut_or_is_something_else),
        cmocka_unit_test(asks_nobody_where_it_is_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
