/* Settings: what is allowed, where values come from, and that what is kept comes back. */
#include <locale.h>

#include "control/settings.h"

#include "test.h"

static struct pb_settings fresh(void)
{
    struct pb_settings s;
    pb_settings_init(&s, "", 0);
    return s;
}

static void every_setting_says_what_it_is_and_has_an_allowed_default(void **state)
{
    struct pb_settings s = fresh();
    char why[400], variable[64];

    for (int i = 0; i < PB_SETTINGS; i++) {
        const struct pb_setting_info *info = &pb_setting_info[i];
        assert_int_equal(pb_setting_find(info->name), i);
        assert_true(strlen(info->text) > 20 && !strchr(info->text, '\n'));
        assert_int_equal(pb_settings_set(&s, info->name, info->fallback, why, sizeof(why)), 0);
        assert_string_equal(s.at[i].text, info->fallback);
        /* The variable is the name in capitals. */
        snprintf(variable, sizeof(variable), "%s", info->name);
        for (char *p = variable; *p; p++)
            *p = *p == '.' ? '_' : (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
        assert_string_equal(variable, info->variable);
    }
}

static void refused(const char *name, const char *value)
{
    struct pb_settings s = fresh(), before = s;
    char why[400] = "";

    assert_int_equal(pb_settings_set(&s, name, value, why, sizeof(why)), -EINVAL);
    assert_non_null(strstr(why, pb_setting_info[pb_setting_find(name)].allowed));
    assert_memory_equal(&s, &before, sizeof(s));
}

static void what_is_not_allowed_changes_nothing_and_says_what_is(void **state)
{
    char why[400], longer[400];

    static const char *const wrong[][2] = {{"probing.sample_rate", "0"},
                                           {"probing.sample_rate", "1.1"},
                                           {"probing.sample_rate", "-1"},
                                           {"probing.sample_rate", ""},
                                           {"probing.sample_rate", "0,5"},
                                           {"probing.sample_rate", "nan"},
                                           {"probing.sample_rate", "0.1x"},
                                           {"probing.sample_rate", "."},
                                           {"probing.sample_rate", "1e-1"},
                                           {"probing.max_memory", "1MB"},
                                           {"probing.max_memory", "2TB"},
                                           {"probing.max_memory", "lots"},
                                           {"probing.max_memory", "1XB"},
                                           {"probing.max_memory", "inf"},
                                           {"probing.retention_days", "0"},
                                           {"probing.retention_days", "week"},
                                           {"probing.compression", "zst"},
                                           {"probing.compression", ""},
                                           {"probing.compression", "zstd,snappy"},
                                           {"probing.redact", "a\nb"},
                                           {"probing.redact", "a=b"},
                                           {"probing.torch.profiling", "yes"},
                                           {"probing.torch.profiling", "on\n"},
                                           {"probing.torch.budget", "0"},
                                           {"probing.torch.budget", "auto"},
                                           {"probing.torch.hang_timeout", "off,auto"},
                                           {"probing.sample_rate", "0.1111111111111111111"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        refused(wrong[i][0], wrong[i][1]);
    memset(longer, 'a', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    refused("probing.redact", longer);
    struct pb_settings s = fresh();
    assert_int_equal(pb_settings_set(&s, "probing.nonsense", "1", why, sizeof(why)), -ENOENT);
    for (int i = 0; i < PB_SETTINGS; i++)
        assert_non_null(strstr(why, pb_setting_info[i].name));
}

static void sizes_are_read_with_their_units(void **state)
{
    struct pb_settings s = fresh();
    char why[400];

    static const struct {
        const char *given, *shown;
        double bytes;
    } sizes[] = {{"1GB", "1GB", 1 << 30},     {"1.5 gb", "1536MB", 1.5 * (1 << 30)},
                 {"2097152", "2MB", 2 << 20}, {"2097153", "2097153", 2097153},
                 {"64MiB", "64MB", 64 << 20}, {"1tb", "1TB", 1099511627776.0}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(pb_settings_set(&s, "probing.max_memory", sizes[i].given, why, sizeof(why)), 0);
        assert_string_equal(s.at[PB_SET_MAX_MEMORY].text, sizes[i].shown);
        assert_true(s.at[PB_SET_MAX_MEMORY].number == sizes[i].bytes);
    }
}

static void switches_and_numbers_that_may_be_words(void **state)
{
    struct pb_settings s = fresh();
    char why[400];

    assert_int_equal(pb_settings_switched(&s, PB_SET_TORCH_PROFILING), -1);
    assert_int_equal(pb_settings_set(&s, "probing.torch.profiling", "ON,exprs=loss@train", why, sizeof(why)),
                     0);
    assert_int_equal(pb_settings_switched(&s, PB_SET_TORCH_PROFILING), 1);
    assert_int_equal(pb_settings_set(&s, "probing.torch.profiling", "off", why, sizeof(why)), 0);
    assert_int_equal(pb_settings_switched(&s, PB_SET_TORCH_PROFILING), 0);
    assert_int_equal(pb_settings_set(&s, "probing.torch.budget", "off", why, sizeof(why)), 0);
    assert_true(s.at[PB_SET_TORCH_BUDGET].number == 0);
    assert_int_equal(pb_settings_set(&s, "probing.torch.budget", "2.5", why, sizeof(why)), 0);
    assert_true(s.at[PB_SET_TORCH_BUDGET].number == 2.5);
}

static void expressions_may_come_by_their_own_variable(void **state)
{
    struct pb_settings s;

    static const char block[] = "PROBE_TORCH_EXPRS=loss@train,acc1@train";
    pb_settings_init(&s, block, sizeof(block));
    assert_string_equal(s.at[PB_SET_TORCH_PROFILING].text, "on,exprs=loss@train,acc1@train");
    static const char both[] = "PROBING_TORCH_PROFILING=off\0PROBE_TORCH_EXPRS=loss@train";
    pb_settings_init(&s, both, sizeof(both));
    assert_string_equal(s.at[PB_SET_TORCH_PROFILING].text, "off");
}

static void a_host_that_writes_commas_does_not_change_numbers(void **state)
{
    struct pb_settings s;

    setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed */
    static const char block[] = "PROBING_SAMPLE_RATE=0.25";
    pb_settings_init(&s, block, sizeof(block));
    setlocale(LC_ALL, "C");
    assert_true(s.at[PB_SET_SAMPLE_RATE].number == 0.25);
}

static void the_environment_counts_and_a_wrong_variable_is_told(void **state)
{
    static const char block[] =
        "PATH=/bin\0PROBING_RETENTION_DAYS=30\0PROBING_SAMPLE_RATE=often\0PROBING_REDACT=\0"
        "PROBING_MAX_MEMORY";
    struct pb_settings s;

    pb_settings_init(&s, block, sizeof(block) - 1);
    assert_string_equal(s.at[PB_SET_RETENTION_DAYS].text, "30");
    assert_int_equal(s.at[PB_SET_RETENTION_DAYS].origin, PB_ORIGIN_ENVIRONMENT);
    assert_string_equal(s.at[PB_SET_SAMPLE_RATE].text, "0.1");
    assert_int_equal(s.at[PB_SET_SAMPLE_RATE].origin, PB_ORIGIN_BAD_VARIABLE);
    assert_string_equal(s.at[PB_SET_REDACT].text, "");
    assert_int_equal(s.at[PB_SET_REDACT].origin, PB_ORIGIN_ENVIRONMENT);
    assert_int_equal(s.at[PB_SET_MAX_MEMORY].origin, PB_ORIGIN_DEFAULT);
}

static void what_was_kept_comes_back(void **state)
{
    struct pb_settings s = fresh(), back = fresh();
    char why[400], text[PB_SETTINGS_FILE_SIZE], words[PB_SETTING_LENGTH];

    memset(words, 'w', sizeof(words) - 1);
    words[sizeof(words) - 1] = '\0';
    assert_int_equal(pb_settings_set(&s, "probing.max_memory", "1GB", why, sizeof(why)), 0);
    assert_int_equal(pb_settings_set(&s, "probing.redact", words, why, sizeof(why)), 0);
    assert_true(pb_settings_write(&s, text, sizeof(text)) < sizeof(text));
    pb_settings_read(&back, text);
    assert_memory_equal(&back, &s, sizeof(s));
    /* A file of another user may hold anything. */
    back = fresh();
    pb_settings_read(
        &back, "9 probing.max_memory=1GB\n3 probing.max_memory=1\n3 x=y\n\n3 \n3 =\nprobing.max_memory=1GB");
    struct pb_settings untouched = fresh();
    assert_memory_equal(&back, &untouched, sizeof(back));
}

static void a_tool_says_what_the_process_does_not(void **state)
{
    static const char block[] = "PROBING_COMPRESSION=none\0PROBING_RETENTION_DAYS=1";
    struct pb_settings tool, process = fresh();
    char why[400];

    pb_settings_init(&tool, block, sizeof(block));
    assert_int_equal(pb_settings_set(&process, "probing.retention_days", "30", why, sizeof(why)), 0);
    pb_settings_fall_back(&process, &tool);
    assert_string_equal(process.at[PB_SET_COMPRESSION].text, "none");
    assert_string_equal(process.at[PB_SET_RETENTION_DAYS].text, "30");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_says_what_it_is_and_has_an_allowed_default),
        cmocka_unit_test(what_is_not_allowed_changes_nothing_and_says_what_is),
        cmocka_unit_test(sizes_are_read_with_their_units),
        cmocka_unit_test(switches_and_numbers_that_may_be_words),
        cmocka_unit_test(expressions_may_come_by_their_own_variable),
        cmocka_unit_test(a_host_that_writes_commas_does_not_change_numbers),
        cmocka_unit_test(the_environment_counts_and_a_wrong_variable_is_told),
        cmocka_unit_test(what_was_kept_comes_back),
        cmocka_unit_test(a_tool_says_what_the_process_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
