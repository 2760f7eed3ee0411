/* What base/ does once for all tools: text that is made fit for a line, HOST:PORT, /dev/null over streams,
 * the path of this program, hashes, JSON. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "base/host_port.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/null.h"
#include "base/program.h"
#include "base/text.h"

#include "test.h"

static void text_is_one_line_without_commands(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"", ""},
        {"plain text", "plain text"},
        {"two\nlines\tand\r", "two lines and "},
        {"\033]0;title\007", "?]0;title?"},
        {"del\177", "del?"},
        {"c1 \xc2\x9b and \x9b", "c1 ? and ?"},
        {"a\xe2\x80\xae"
         "b\xe2\x81\xa6"
         "c\xe2\x80\xa8",
         "a?b?c?"},
        {"gr\xc3\xb6\xc3\x9f"
         "e \xe4\xb8\xad \xf0\x9f\x98\x80",
         "gr\xc3\xb6\xc3\x9f"
         "e \xe4\xb8\xad \xf0\x9f\x98\x80"},
        {"\xc4\x8a\xc4\x89",
         "\xc4\x8a\xc4\x89"}, /* U+010A and U+0109 end in the bits of a line end and a tab */
        {"cut \xe4\xb8", "cut ??"},
        {"long \xc0\x8a \xed\xa0\x80 \xf4\x90\x80\x80", "long ?? ??? ????"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        strcpy(text, cases[i].from);
        assert_int_equal(pb_text_is_clean(text), strcmp(cases[i].from, cases[i].to) == 0);
        assert_int_equal(pb_text_clean(text), strlen(cases[i].to));
        assert_string_equal(text, cases[i].to);
        assert_true(pb_text_is_clean(text));
    }
}

static void hosts_and_ports_are_told_apart(void **state)
{
    static const struct {
        const char *text, *host, *port;
    } cases[] = {
        {"node:80", "node", "80"},
        {"10.0.0.1:80", "10.0.0.1", "80"},
        {"[::1]:80", "::1", "80"},
        {"[::1]", "::1", NULL},
        {"::1", "::1", NULL},
        {"fe80::1:80", "fe80::1:80", NULL},
        {"7070", "", "7070"},
        {"node", "node", NULL},
        {":80", "", "80"},
        {"node:", "node", ""},
        {"", "", NULL},
    };
    const char *port;
    char host[16];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(pb_host_port_split(cases[i].text, host, sizeof(host), &port), 0);
        assert_string_equal(host, cases[i].host);
        assert_int_equal(port == NULL, cases[i].port == NULL);
        if (port)
            assert_string_equal(port, cases[i].port);
    }
    assert_int_equal(pb_host_port_split("[::1", host, sizeof(host), &port), -EINVAL);
    assert_int_equal(pb_host_port_split("[::1]80", host, sizeof(host), &port), -EINVAL);
    assert_int_equal(pb_host_port_split("a-name-of-16-chr:1", host, sizeof(host), &port), -ENAMETOOLONG);
    assert_true(pb_host_is_loopback("127.1.2.3") && pb_host_is_loopback("::1"));
    assert_false(pb_host_is_loopback("128.0.0.1") || pb_host_is_loopback("localhost") ||
                 pb_host_is_loopback("::2"));
}

static int is_null(int fd)
{
    struct stat st, null;

    return fstat(fd, &st) == 0 && stat("/dev/null", &null) == 0 && st.st_rdev == null.st_rdev &&
           S_ISCHR(st.st_mode) && fcntl(fd, F_GETFD) == 0;
}

/* Also where they were closed, so that /dev/null takes the number of one. */
static void streams_become_null(void **state)
{
    for (int closed = 0; closed < 2; closed++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
            for (int i = 0; closed && i < 3; i++)
                close(i);
            int r = pb_null_over(0, 2);
            _exit(r == 0 && is_null(0) && is_null(1) && is_null(2) ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

static void this_program_is_found(void **state)
{
    char path[4096], beside[4096], prefix[4096], again[8192];

    assert_int_equal(pb_program_path(path, sizeof(path)), 0);
    assert_int_equal(access(path, X_OK), 0);
    assert_int_equal(pb_program_beside("other", beside, sizeof(beside)), 0);
    assert_string_equal(strrchr(beside, '/'), "/other");
    assert_int_equal(pb_program_prefix(prefix, sizeof(prefix)), 0);
    snprintf(again, sizeof(again), "%s/unit%s", prefix, strrchr(path, '/'));
    assert_string_equal(again, path);
    assert_int_equal(pb_program_path(path, strlen(again)), -ENAMETOOLONG);
    assert_int_equal(
        pb_program_beside("a-long-name-that-does-not-fit-behind-the-folder", beside, strlen(again) + 2),
        -ENAMETOOLONG);
}

/* Names in archives are made of them. */
static void hashes_are_those_of_fnv(void **state)
{
    assert_true(pb_hash_text(PB_HASH_START, "") == 0xcbf29ce484222325ull);
    assert_true(pb_hash_text(PB_HASH_START, "foobar") == 0x85944171f73967e8ull);
    assert_true(pb_hash_bytes(pb_hash_text(PB_HASH_START, "foo"), "bar", 3) == 0x85944171f73967e8ull);
}

static char *written(void (*write_it)(struct pb_json_writer *w), bool tight)
{
    char *text = NULL;
    size_t size;
    struct pb_json_writer w = {.out = open_memstream(&text, &size), .tight = tight};

    assert_non_null(w.out);
    write_it(&w);
    assert_int_equal(fclose(w.out), 0);
    return text;
}

static void write_all(struct pb_json_writer *w)
{
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "t", "a \"b\\\" \n\033\x7f\xc2\x9b \xe2\x80\xae \xff \xc3\xa9");
    pb_json_put_bytes(w, "nul", "\0x", 2);
    pb_json_put_text(w, "none", NULL);
    pb_json_open(w, "list", '[');
    for (int i = 0; i < 2; i++) {
        pb_json_line(w, 2);
        pb_json_put_number(w, NULL, "%d", i);
    }
    pb_json_line(w, 0);
    pb_json_close(w);
    pb_json_open(w, "empty", '[');
    pb_json_close(w);
    pb_json_key(w, "key \"k\"");
    pb_json_put_value(w, NULL, "[1, 2]", 6);
    pb_json_put_bool(w, "b", true);
    pb_json_close(w);
}

/* Also read back by the reader beside it. */
static void json_is_written_as_it_is_read(void **state)
{
    static const char begins[] =
        "{\"t\": \"a \\\"b\\\\\\\" \\n\\u001b\\u007f\\u009b \\u202e \xef\xbf\xbd \xc3\xa9\", "
        "\"nul\": \"\\u0000x\", \"none\": null, \"list\": [\n  0,\n  1\n], "
        "\"empty\": [], \"key \\\"k\\\"\": [1, 2], \"b\": true}";
    static const char tight[] = "\"list\":[\n  0,\n  1\n],\"empty\":[],\"key";
    char *text = written(write_all, false), *small = written(write_all, true), value[64];
    struct pb_json j;

    assert_string_equal(text, begins);
    assert_non_null(strstr(small, tight));
    assert_int_equal(pb_json_parse(text, strlen(text), &j), 0);
    assert_int_equal(pb_json_text(&j, pb_json_get(&j, 1, "none"), value, sizeof(value)), 4);
    assert_true(pb_json_text(&j, pb_json_get(&j, 1, "t"), value, sizeof(value)) > 0);
    assert_memory_equal(value, "a \"b\\\" \n\033\x7f", 10);
    pb_json_done(&j);
    free(text);
    free(small);
}

static void write_rows(struct pb_json_writer *w)
{
    for (int i = 0; i < 2; i++) {
        pb_json_open(w, NULL, '{');
        pb_json_put_number(w, "i", "%d", i);
        pb_json_close(w);
        putc('\n', w->out);
    }
}

static void documents_of_one_writer_have_no_comma_between(void **state)
{
    char *text = written(write_rows, false);

    assert_string_equal(text, "{\"i\": 0}\n{\"i\": 1}\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_one_line_without_commands),
        cmocka_unit_test(hosts_and_ports_are_told_apart),
        cmocka_unit_test(streams_become_null),
        cmocka_unit_test(this_program_is_found),
        cmocka_unit_test(hashes_are_those_of_fnv),
        cmocka_unit_test(json_is_written_as_it_is_read),
        cmocka_unit_test(documents_of_one_writer_have_no_comma_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
