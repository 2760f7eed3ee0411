/* SQL as text: where statements end, what is rewritten; which names tell of a secret. */
#include "engine_test.h"

#include "control/redact.h"
#include "control/settings.h"
#include "engine/shared/sql_text.h"
#include "engine/shared/type_name.h"

static const char *const tables[] = {"process", "maps", NULL};

static void ends_at(const char *sql, size_t length)
{
    assert_int_equal(pb_sql_statement_end(sql, sql + strlen(sql)) - sql, length);
}

static void a_statement_ends_at_its_own_semicolon(void **state)
{
    ends_at("SELECT 1; SELECT 2", 8);
    ends_at("SELECT ';'; x", 10);
    ends_at("SELECT \";\"; x", 10);
    ends_at("SELECT 'it''s;'; x", 15);
    ends_at("SELECT E'\\';'; x", 13);
    ends_at("-- ;\nSELECT 1; x", 13);
    ends_at("SELECT 1 -- ;\r; x", 14);
    ends_at("/* ; /* ; */ ; */ 1; x", 19);
    ends_at("SELECT $$;$$; x", 12);
    ends_at("SELECT $a$;$$;$a$; x", 17);
    ends_at("SELECT $1; x", 9);
    ends_at("SELECT 'open; x", 15);
    ends_at("/* open; x", 10);
    ends_at("", 0);
}

static void blanks_and_comments_are_no_statement(void **state)
{
    const char *const blank[] = {"", " \n\t", ";;", "-- x", "/* x */ ; -- y\n"}, *one = "/* x */ 1";
    for (size_t i = 0; i < 5; i++)
        assert_true(pb_sql_is_blank(blank[i], blank[i] + strlen(blank[i])));
    assert_false(pb_sql_is_blank(one, one + strlen(one)));
}

static void becomes(const char *sql, const char *expected)
{
    char *got = pb_sql_qualify(sql, sql + strlen(sql), tables);
    assert_string_equal(got, expected);
    free(got);
}

static void only_our_tables_of_system_are_spelled_out(void **state)
{
    becomes("FROM system.process", "FROM memory.system.process");
    becomes("FROM SYSTEM.Process p", "FROM memory.SYSTEM.Process p");
    becomes("SELECT system.maps.path FROM system.maps",
            "SELECT memory.system.maps.path FROM memory.system.maps");
    becomes("FROM memory.system.process", "FROM memory.system.process");
    becomes("FROM system.main.duckdb_tables", "FROM system.main.duckdb_tables");
    becomes("SELECT 'system.process' -- system.process", "SELECT 'system.process' -- system.process");
    becomes("FROM ecosystem.process, system.processes", "FROM ecosystem.process, system.processes");
}

static void words_are_told_from_comments_and_quotes(void **state)
{
    const char *inside, *sql = "/* b */ a (c, (d) ')') e";

    assert_null(pb_sql_after_word(sql, "b"));
    assert_string_equal(pb_sql_after_word(sql, "A"), " (c, (d) ')') e");
    assert_null(pb_sql_after_word("ab", "a"));
    assert_string_equal(pb_sql_after_parentheses(" (c, (d) ')') e", &inside), " e");
    assert_string_equal(inside, "c, (d) ')') e");
    assert_string_equal(pb_sql_after_parentheses("-- (x)\n(y) z", &inside), " z");
    assert_null(pb_sql_after_parentheses("(open", &inside));
    assert_null(pb_sql_after_parentheses("x ()", &inside));
    assert_true(pb_sql_has_word("PIVOT t", "pivot"));
    assert_false(pb_sql_has_word("SELECT 'create' -- create", "create"));
    assert_false(pb_sql_has_word("SELECT created", "create"));
}

static bool is_type(const char *text)
{
    return pb_type_name_is_good(text, strlen(text));
}

static void nothing_but_a_type_passes_for_one(void **state)
{
    const char *const good[] = {"INTEGER",
                                "TIMESTAMP_NS",
                                "DECIMAL(38,10)",
                                "BIGINT[]",
                                "DOUBLE[3][]",
                                "STRUCT(\"a b\" INTEGER, \"\"\"\" VARCHAR[])",
                                "MAP(VARCHAR, STRUCT(\"x) FROM y\" DATE))",
                                "UNION(\"n\" INTEGER)[]"};
    const char *const bad[] = {"",
                               "integer",
                               "INTEGER ",
                               "INTEGER) FROM read_text('x'",
                               "INTEGER)",
                               "INTEGER;",
                               "TIMESTAM",
                               "TIMESTAMP_NSS",
                               "REGCLASS",
                               "_",
                               "DECIMAL(1)",
                               "DECIMAL(a,b)",
                               "DECIMAL((SELECT 1),2)",
                               "STRUCT(a INTEGER)",
                               "STRUCT(\"a INTEGER)",
                               "STRUCT(\"a\" INTEGER",
                               "MAP(VARCHAR",
                               "INTEGER[",
                               "INTEGER[x]",
                               "INTEGER--",
                               "INTEGER/**/"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(is_type(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(is_type(bad[i]));
    assert_false(pb_type_name_is_good("DATE\0)", 6));
    char deep[4096] = "";
    for (int i = 0; i < 500; i++)
        strcat(deep, "MAP(");
    assert_false(is_type(deep));
}

static void names_are_near_by_their_edits(void **state)
{
    assert_int_equal(pb_name_distance("memory_usage", "MEMORY_USAGE"), 0);
    assert_int_equal(pb_name_distance("memory_usge", "memory_usage"), 1);
    assert_int_equal(pb_name_distance("", "abc"), 3);
    assert_true(pb_name_distance("backtrace", "torch_trace") > 3);
}

#define WORDS pb_setting_info[PB_SET_REDACT].fallback

static void secrets_are_told_by_their_names(void **state)
{
    assert_true(pb_redact_name(WORDS, "AWS_SECRET_ACCESS", 17));
    assert_true(pb_redact_name(WORDS, "Api_Key", 7));
    assert_false(pb_redact_name(WORDS, "PATH", 4));
    assert_false(pb_redact_name(WORDS, "", 0));
    assert_true(pb_redact_name("path, other", "PATH", 4));
    assert_false(pb_redact_name("path, other", "API_KEY", 7));
    assert_false(pb_redact_name("", "PASSWORD", 8));
    assert_false(pb_redact_name(" , ,", "PASSWORD", 8));
}

/* What people debug is shown; what opens a door is not, however it is spelled. */
static void words_count_as_whole_parts_of_a_name(void **state)
{
    static const char *const secret[] = {
        "api_key",     "apiKey",          "APIKey",         "apikey",
        "MY_API_KEY",  "private_key",     "OPENAI_KEY",     "account_keys",
        "token",       "hf_token",        "HF_TOKEN",       "authToken",
        "authtoken",   "auth_tokens",     "token_str",      "PGPASSWORD",
        "db_password", "passwords",       "clientSecret",   "clientsecret",
        "secrets",     "credentials",     "aws_credential", "userPasswd",
        "--hub-token", "('db', 'token')", "secret_key_2",   "AWS_SECRET_ACCESS_KEY"};
    static const char *const shown[] = {"key",          "keys",           "src_key_padding_mask",
                                        "key_states",   "sort_key",       "KEY",
                                        "key_padding",  "keyboard",       "monkey",
                                        "tokens",       "tokenizer",      "token_count",
                                        "input_tokens", "eos_token",      "eos_token_id",
                                        "next_token",   "max_tokens",     "token_type_ids",
                                        "num_token",    "secretary_id",   "passing",
                                        "cache_key",    "past_key_values"};

    for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++)
        if (!pb_redact_name(WORDS, secret[i], strlen(secret[i])))
            fail_msg("%s is shown", secret[i]);
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
        if (pb_redact_name(WORDS, shown[i], strlen(shown[i])))
            fail_msg("%s is masked", shown[i]);
}

static void masked(const char *args, size_t length, const char *expected)
{
    char text[256] = "";
    memcpy(text, args, length);
    size_t n = pb_redact_command(WORDS, text, length);
    text[n] = '\0';
    assert_string_equal(text, expected);
}

static void secrets_on_a_command_line_are_masked(void **state)
{
    masked("a\0--token=x\0b", 13, "a --token=* b");
    masked("a\0--token=secret\0b", 18, "a --token=*** b");
    masked("a\0--api-key\0value\0b", 19, "a --api-key *** b");
    masked("a\0--password\0--verbose\0b", 24, "a --password --verbose b");
    masked("env\0API_KEY=12345\0cmd", 21, "env API_KEY=*** cmd");
    masked("a\0--max-tokens\0"
           "99\0--key\0id",
           26, "a --max-tokens 99 --key id");
    masked("plain\0words", 11, "plain words");
    masked("", 0, "");
}

static void a_quote_in_a_name_stays_in_it(void **state)
{
    char text[64] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    pb_put_quoted(out, "a\"b'c", '"');
    pb_put_quoted(out, "it's", '\'');
    fclose(out);
    assert_string_equal(text, "\"a\"\"b'c\"'it''s'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quote_in_a_name_stays_in_it),
        cmocka_unit_test(a_statement_ends_at_its_own_semicolon),
        cmocka_unit_test(blanks_and_comments_are_no_statement),
        cmocka_unit_test(only_our_tables_of_system_are_spelled_out),
        cmocka_unit_test(words_are_told_from_comments_and_quotes),
        cmocka_unit_test(nothing_but_a_type_passes_for_one),
        cmocka_unit_test(names_are_near_by_their_edits),
        cmocka_unit_test(secrets_are_told_by_their_names),
        cmocka_unit_test(words_count_as_whole_parts_of_a_name),
        cmocka_unit_test(secrets_on_a_command_line_are_masked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
