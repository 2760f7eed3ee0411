/* Frames of a WebSocket: what clients may send and what not, and the answer to their keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/websocket.h"

#include <errno.h>
#include <string.h>

static int parse(struct pb_websocket_frame *f, const void *bytes, size_t n)
{
    return pb_websocket_parse(bytes, n, f);
}

static void keys_are_answered_as_the_standard_says(void **state)
{
    char accept[PB_WEBSOCKET_ACCEPT];

    (void)state;
    assert_true(pb_websocket_accept("dGhlIHNhbXBsZSBub25jZQ==", accept));
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_true(pb_websocket_accept("x3JJHMbDL1EzLkh9GBhXDw==", accept));
    assert_string_equal(accept, "HSmrc0sMlYUkAGmm5OPpG2HaGWk=");
    assert_false(pb_websocket_accept("", accept));
    assert_false(pb_websocket_accept("dGhlIHNhbXBsZSBub25jZQ===", accept));
}

static void frames_are_read_whatever_their_length(void **state)
{
    struct pb_websocket_frame f;
    char hello[] = "\x7f\x9f\x4d\x51\x58"; /* of the standard */

    (void)state;
    assert_int_equal(parse(&f, "\x81\x85\x37\xfa\x21\x3d", 6), 1);
    assert_true(f.kind == PB_WEBSOCKET_TEXT && f.last && f.head == 6 && f.length == 5);
    pb_websocket_unmask(&f, hello, 5);
    assert_string_equal(hello, "Hello");
    assert_int_equal(parse(&f, "\x01\xfe\x01\x02\0\0\0\0", 8), 1);
    assert_true(!f.last && f.head == 8 && f.length == 0x102);
    assert_int_equal(parse(&f, "\x80\xff\0\0\0\0\0\1\0\0abcd", 14), 1);
    assert_true(f.kind == PB_WEBSOCKET_CONTINUED && f.head == 14 && f.length == 65536);
    for (size_t n = 0; n < 14; n++)
        assert_int_equal(parse(&f, "\x80\xff\0\0\0\0\0\1\0\0abcd", n), 0);
}

static void what_no_client_may_send_is_refused(void **state)
{
    static const char *const bad[] = {
        "\x81\x05",                        /* no mask */
        "\xc1\x85",                        /* an extension */
        "\x83\x85", "\x8b\x85",            /* kinds that there are not */
        "\x89\xfe", "\x09\x85", "\x08\x80" /* control frames that are long, or in pieces */
    };
    struct pb_websocket_frame f;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(parse(&f, bad[i], 2), -EPROTO);
    assert_int_equal(parse(&f, "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 14), -EPROTO);
}

static void heads_say_how_long_a_frame_is(void **state)
{
    unsigned char head[10];

    (void)state;
    assert_int_equal(pb_websocket_head(PB_WEBSOCKET_TEXT, 125, head), 2);
    assert_memory_equal(head, "\x81\x7d", 2);
    assert_int_equal(pb_websocket_head(PB_WEBSOCKET_CLOSE, 126, head), 4);
    assert_memory_equal(head, "\x88\x7e\0\x7e", 4);
    assert_int_equal(pb_websocket_head(PB_WEBSOCKET_PONG, 0x12345, head), 10);
    assert_memory_equal(head, "\x8a\x7f\0\0\0\0\0\1\x23\x45", 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_answered_as_the_standard_says),
        cmocka_unit_test(frames_are_read_whatever_their_length),
        cmocka_unit_test(what_no_client_may_send_is_refused),
        cmocka_unit_test(heads_say_how_long_a_frame_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
