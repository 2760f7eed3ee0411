/* The control channel's framing, and rank and job of a process from its environment. */
#include "control/frame.h"
#include "control/identity.h"
#include "control/message.h"

#include "test.h"

static int write_ping(uint8_t *buf, size_t cap, const char *text)
{
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, cap);
    pb_frame_put_str(&w, PB_TAG_TEXT, text);
    pb_frame_put_u64(&w, PB_TAG_STATUS, 0x1122334455667788ull);
    return pb_frame_end(&w, PB_MSG_PING, 42);
}

static void a_frame_reads_back_as_it_was_written(void **state)
{
    uint8_t buf[256];
    struct pb_frame frame;
    struct pb_field field;
    (void)state;

    int n = write_ping(buf, sizeof(buf), "hello");
    assert_true(n > 0);
    assert_int_equal(pb_frame_parse(buf, (size_t)n, &frame), n);
    assert_int_equal(frame.type, PB_MSG_PING);
    assert_int_equal(frame.id, 42);
    assert_int_equal(pb_field_find(&frame, PB_TAG_TEXT, &field), 0);
    assert_int_equal(field.size, 5);
    assert_memory_equal(field.data, "hello", 5);
    assert_true(pb_field_u64(&frame, PB_TAG_STATUS, 0) == 0x1122334455667788ull);
    assert_true(pb_field_u64(&frame, PB_TAG_CODE, 9) == 9);
    assert_int_equal(pb_field_find(&frame, PB_TAG_CODE, &field), -ENOENT);
}

static void a_frame_in_pieces_waits_for_the_rest(void **state)
{
    uint8_t buf[256];
    struct pb_frame frame;
    (void)state;

    int n = write_ping(buf, sizeof(buf), "hello");
    for (int i = 0; i < n; i++)
        assert_int_equal(pb_frame_parse(buf, (size_t)i, &frame), 0);
}

static void what_is_no_frame_is_refused(void **state)
{
    uint8_t buf[256];
    struct pb_frame frame;
    (void)state;

    assert_int_equal(pb_frame_parse((const uint8_t *)"GET / HTTP/1.1\r\n", 16, &frame), -EBADMSG);
    int n = write_ping(buf, sizeof(buf), "x");
    buf[6] = 1; /* undefined flags */
    assert_int_equal(pb_frame_parse(buf, (size_t)n, &frame), -EBADMSG);
    pb_frame_header(buf, PB_MSG_PING, 1, PB_FRAME_MAX_PAYLOAD + 1);
    assert_int_equal(pb_frame_parse(buf, PB_FRAME_HEADER, &frame), -EMSGSIZE);
}

static void a_field_that_reaches_beyond_its_frame_is_refused(void **state)
{
    uint8_t buf[256];
    struct pb_frame frame;
    struct pb_field field;
    (void)state;

    int n = write_ping(buf, sizeof(buf), "hello");
    assert_int_equal(pb_frame_parse(buf, (size_t)n, &frame), n);
    buf[PB_FRAME_HEADER + 4] = 200; /* the first field's length */
    assert_int_equal(pb_field_find(&frame, PB_TAG_STATUS, &field), -EBADMSG);
    assert_true(pb_field_u64(&frame, PB_TAG_STATUS, 3) == 3);
}

static void what_does_not_fit_is_told_at_the_end(void **state)
{
    uint8_t buf[40];
    (void)state;

    assert_int_equal(write_ping(buf, sizeof(buf), "far too long for that little room"), -EMSGSIZE);
    assert_int_equal(write_ping(buf, 3, ""), -EMSGSIZE);
}

#define BLOCK(text) (text), sizeof(text)

static void the_innermost_launcher_wins(void **state)
{
    struct pb_identity id;
    (void)state;

    pb_identity_read(
        BLOCK("SLURM_PROCID=7\0SLURM_JOB_ID=99\0RANK=3\0PATH=/bin\0WORLD_SIZE=16\0TORCHELASTIC_RUN_ID=abc"),
        &id);
    assert_string_equal(id.value[PB_ID_RANK], "3");
    assert_string_equal(id.value[PB_ID_JOB], "abc");
    assert_string_equal(id.value[PB_ID_WORLD_SIZE], "16");
    assert_string_equal(id.launcher, "torchrun");
    pb_identity_read(BLOCK("PROBING_RANK=1\0RANK=3"), &id);
    assert_string_equal(id.value[PB_ID_RANK], "1");
}

static void names_that_only_look_like_it_do_not_count(void **state)
{
    struct pb_identity id;
    (void)state;

    /* What is no number is no rank: the next launcher is asked. */
    pb_identity_read(BLOCK("RANK=none\0LOCAL_RANK=-1\0WORLD_SIZE=0x10\0SLURM_PROCID=3\0ROLE_NAME=none"), &id);
    assert_string_equal(id.value[PB_ID_RANK], "3");
    assert_string_equal(id.launcher, "slurm");
    assert_string_equal(id.value[PB_ID_LOCAL_RANK], "");
    assert_string_equal(id.value[PB_ID_WORLD_SIZE], "");
    assert_string_equal(id.value[PB_ID_ROLE], "none");
    pb_identity_read(BLOCK("MYRANK=1\0RANKING=2\0RANK\0RANK=\0=5"), &id);
    assert_string_equal(id.value[PB_ID_RANK], "");
    assert_string_equal(id.launcher, "");
    pb_identity_read("", 0, &id);
    assert_string_equal(id.value[PB_ID_JOB], "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_reads_back_as_it_was_written),
        cmocka_unit_test(a_frame_in_pieces_waits_for_the_rest),
        cmocka_unit_test(what_is_no_frame_is_refused),
        cmocka_unit_test(a_field_that_reaches_beyond_its_frame_is_refused),
        cmocka_unit_test(what_does_not_fit_is_told_at_the_end),
        cmocka_unit_test(the_innermost_launcher_wins),
        cmocka_unit_test(names_that_only_look_like_it_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
