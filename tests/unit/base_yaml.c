/* YAML as people write it by hand is read as it is meant, and what could be understood in two ways, or grow,
 * is refused with its line. */
#include "base/err.h"
#include "base/yaml.h"

#include "test.h"

#include <stdlib.h>
#include <string.h>

static void is_json(const char *yaml, const char *json)
{
    struct pb_err err = {0};
    char *text = NULL;
    size_t n = 0;

    int r = pb_yaml_to_json(yaml, strlen(yaml), &text, &n, &err);
    if (r < 0)
        fail_msg("%s\n%s", err.text, yaml);
    assert_string_equal(text, json);
    free(text);
}

static void is_refused(const char *yaml, const char *why)
{
    struct pb_err err = {0};
    char *text = NULL;
    size_t n = 0;

    if (pb_yaml_to_json(yaml, strlen(yaml), &text, &n, &err) == 0)
        fail_msg("read as %s", text);
    if (!strstr(err.text, why))
        fail_msg("%s: %s", yaml, err.text);
}

static void scalars_and_structures_are_read(void **state)
{
    (void)state;
    is_json(
        "a: 1\nb: two words # a comment\nc:\nd: 'it''s'\ne: \"x\\ty\\u00e9\"\n",
        "{\"a\": \"1\", \"b\": \"two words\", \"c\": null, \"d\": \"it's\", \"e\": \"x\\u0009y\xc3\xa9\"}");
    is_json("---\n- a\n- - b\n  - c\n-\n  d: e\n- f: g\n  h: i\n",
            "[\"a\", [\"b\", \"c\"], {\"d\": \"e\"}, {\"f\": \"g\", \"h\": \"i\"}]");
    is_json("s:\n- id: a\n  x: 1\n\n- id: b\nt: u\n",
            "{\"s\": [{\"id\": \"a\", \"x\": \"1\"}, {\"id\": \"b\"}], \"t\": \"u\"}");
    is_json("s:\n  - id: a\n    steps:\n      - b: c\n  # no\n  - d\n",
            "{\"s\": [{\"id\": \"a\", \"steps\": [{\"b\": \"c\"}]}, \"d\"]}");
    is_json("p: { type: integer, default: 50 }\nt: [a, 'b, c',\n  \"d\"] # x\n",
            "{\"p\": {\"type\": \"integer\", \"default\": \"50\"}, \"t\": [\"a\", \"b, c\", \"d\"]}");
    is_json("steps: []\nm: {}\nu: http://a/b?c=d#e\n",
            "{\"steps\": [], \"m\": {}, \"u\": \"http://a/b?c=d#e\"}");
    is_json("a: one\n  two\nb: \"one\n  two\n\n  three\"\n",
            "{\"a\": \"one two\", \"b\": \"one two\\nthree\"}");
}

static void block_scalars_keep_their_lines(void **state)
{
    (void)state;
    is_json("sql: |\n  SELECT a, -- 'x: y'\n    b # no comment\n\n  FROM t\nid: x\n",
            "{\"sql\": \"SELECT a, -- 'x: y'\\n  b # no comment\\n\\nFROM t\\n\", \"id\": \"x\"}");
    is_json("- d: >\n    one\n    two\n\n    three\n  e: |-\n    four\n",
            "[{\"d\": \"one two\\nthree\\n\", \"e\": \"four\"}]");
    is_json("a: |\nb: c\n", "{\"a\": null, \"b\": \"c\"}");
    is_json("a: |+\n  b\n\n", "{\"a\": \"b\\n\\n\"}");
}

static void what_is_not_of_the_part_is_refused_with_its_line(void **state)
{
    (void)state;
    is_refused("a: &x 1\n", "line 1: anchors");
    is_refused("a: 1\nb: *x\n", "line 2: anchors");
    is_refused("a: !!python/object/apply:os.system [x]\n", "tags");
    is_refused("a: 1\na: 2\n", "line 2: this key was there before");
    is_refused("a: {b: 1, b: 2}\n", "this key was there before");
    is_refused("a:\n\tb: 1\n", "a tab indents");
    is_refused("a: 1\n---\nb: 2\n", "a second document");
    is_refused("a: b: c\n", "needs quotes");
    is_refused("a: 1\n  b: 2\n", "line 2: indented deeper");
    is_refused("a:\n    b: 1\n  c: 2\n", "line 3: indented less");
    is_refused("a: 1\n- b\n", "line 2");
    is_refused("a: \"x\nb: 1\n", "does not end");
    is_refused("a: [1, 2\n", "does not end");
    is_refused("a: [1 2}\n", "no comma");
    is_refused("a: [1] 2\n", "behind the end");
    is_refused("a: \"\\q\"\n", "escape");
    is_refused("a: \"\\ud800\"\n", "escape");
    is_refused("%YAML 1.2\na: 1\n", "line 1");
    is_refused("? a\n: b\n", "line 1");
    is_refused("# nothing\n", "empty");
}

static void a_deep_or_long_document_is_refused(void **state)
{
    size_t n = PB_YAML_MAX + 1;
    char *text = malloc(n + 1);

    (void)state;
    assert_non_null(text);
    memset(text, '[', n);
    text[n] = '\0';
    is_refused(text, "longer");
    text[1000] = '\0';
    is_refused(text, "nested too deeply");
    for (size_t i = 0; i < 1000; i += 2)
        memcpy(text + i, "- ", 2);
    is_refused(text, "nested too deeply");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_and_structures_are_read),
        cmocka_unit_test(block_scalars_keep_their_lines),
        cmocka_unit_test(what_is_not_of_the_part_is_refused_with_its_line),
        cmocka_unit_test(a_deep_or_long_document_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
