/* Access rules of the service: which requests are let in, and what the others are told. */
#include "serve/gate.h"
#include "serve/routes.h"

#include "test.h"

#define TOKEN "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct pb_gate gate = {.token = TOKEN, .names = {"node7"}, .body_max = 100};

static unsigned check(struct pb_request_headers k)
{
    const char *why = NULL;

    k.method = k.method ? k.method : "GET";
    k.path = k.path ? k.path : "/api/v1/targets";
    unsigned status = pb_gate_check(&gate, &k, &why);
    assert_true(status == 0 || (why && *why));
    return status;
}

#define WITH(...)                                                                                            \
    check((struct pb_request_headers){.host = "localhost:80", .token_header = TOKEN, __VA_ARGS__})

static void hosts_are_those_of_the_service(void **state)
{
    static const char *const ours[] = {"localhost", "LOCALHOST:80", "127.0.0.1:7070",
                                       "[::1]:80",  "[::1]",        "node7:80"};
    static const char *const foreign[] = {"evil.example",
                                          "localhost.evil.example",
                                          "127.0.0.1.evil.example:80",
                                          "[::1",
                                          "[::1]x",
                                          "[::2]",
                                          "node70",
                                          "",
                                          "::1x"};

    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        assert_int_equal(check((struct pb_request_headers){.host = ours[i], .token_header = TOKEN}), 0);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        assert_int_equal(check((struct pb_request_headers){.host = foreign[i], .token_header = TOKEN}), 421);
    assert_int_equal(check((struct pb_request_headers){.token_header = TOKEN}), 421);
    /* Of a service at all addresses: the one that was connected to. */
    assert_int_equal(
        check((struct pb_request_headers){.host = "10.0.0.7:80", .local = "10.0.0.7", .token_header = TOKEN}),
        0);
    assert_int_equal(
        check((struct pb_request_headers){.host = "10.0.0.70", .local = "10.0.0.7", .token_header = TOKEN}),
        421);
}

static void tokens_come_in_five_ways(void **state)
{
    const char *host = "localhost";
    assert_int_equal(check((struct pb_request_headers){.host = host, .authorization = "Bearer " TOKEN}), 0);
    assert_int_equal(check((struct pb_request_headers){.host = host, .token_header = TOKEN}), 0);
    assert_int_equal(check((struct pb_request_headers){.host = host, .token_argument = TOKEN}), 0);
    assert_int_equal(
        check((struct pb_request_headers){.host = host, .cookie = "a=b; probing_token_80=" TOKEN "; c=d"}),
        0);
    /* x:TOKEN */
    assert_int_equal(
        check((struct pb_request_headers){
            .host = host,
            .authorization =
                "Basic "
                "eDowMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm"}),
        0);
}

static void other_tokens_are_none(void **state)
{
    const char *host = "localhost";
    assert_int_equal(check((struct pb_request_headers){.host = host}), 401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .authorization = "Bearer "}), 401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .authorization = "Basic !!!!"}), 401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .authorization = "Basic eDo="}), 401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .token_header = "0123"}), 401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .token_header = TOKEN "0"}), 401);
    assert_int_equal(
        check((struct pb_request_headers){.host = host, .cookie = "probing_token_80=" TOKEN "0"}), 401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .cookie = "probing_token_80; a=" TOKEN}),
                     401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .cookie = "xprobing_token=" TOKEN}),
                     401);
    assert_int_equal(check((struct pb_request_headers){.host = host, .path = "/health"}), 0);
    assert_int_equal(check((struct pb_request_headers){.host = host, .path = "/health/../api/v1/targets"}),
                     401);
}

static void pages_of_other_sites_change_nothing(void **state)
{
    assert_int_equal(WITH(.method = "POST", .origin = "https://evil.example"), 403);
    assert_int_equal(WITH(.method = "POST", .origin = "null"), 403);
    assert_int_equal(WITH(.method = "DELETE", .origin = "http://localhost:81"), 403);
    assert_int_equal(WITH(.method = "POST", .site = "cross-site"), 403);
    assert_int_equal(WITH(.method = "POST", .site = "same-site"), 403);
    assert_int_equal(WITH(.method = "GET", .upgrade = true, .origin = "https://evil.example"), 403);
    assert_int_equal(WITH(.method = "POST", .origin = "http://localhost:80", .site = "same-origin"), 0);
    assert_int_equal(WITH(.method = "POST", .site = "none"), 0);
}

#define COOKIE(...)                                                                                          \
    check((struct pb_request_headers){                                                                       \
        .host = "localhost:80", .cookie = PB_GATE_COOKIE "_80=" TOKEN, __VA_ARGS__})

static void a_cookie_alone_is_for_our_own_page(void **state)
{
    assert_int_equal(COOKIE(.method = "POST"), 403);
    assert_int_equal(COOKIE(.method = "POST", .site = "none"), 403);
    assert_int_equal(COOKIE(.method = "POST", .site = "same-site"), 403);
    assert_int_equal(COOKIE(.method = "POST", .origin = "http://localhost:81"), 403);
    assert_int_equal(COOKIE(.upgrade = true), 403);
    assert_int_equal(COOKIE(.method = "POST", .site = "same-origin"), 0);
    assert_int_equal(COOKIE(.method = "POST", .origin = "http://localhost:80"), 0);
    assert_int_equal(COOKIE(.method = "POST", .authorization = "Bearer " TOKEN), 0);
    assert_int_equal(COOKIE(.site = "same-site", .mode = "no-cors"), 403);
    assert_int_equal(COOKIE(.site = "cross-site"), 403);
    assert_int_equal(COOKIE(.site = "same-site", .mode = "navigate"), 0);
    assert_int_equal(COOKIE(.site = "same-origin", .mode = "cors"), 0);
    assert_int_equal(COOKIE(.site = "none", .mode = "navigate"), 0);
    assert_int_equal(COOKIE(0), 0);
}

static void a_link_with_the_token_is_a_login(void **state)
{
    struct pb_request_headers k = {
        .method = "GET", .path = "/", .host = "localhost", .token_argument = TOKEN};
    char name[32];

    assert_true(pb_gate_is_login(&gate, &k));
    k.path = "/flamegraph";
    assert_false(pb_gate_is_login(&gate, &k));
    k.accept = "text/html,*/*;q=0.8";
    assert_true(pb_gate_is_login(&gate, &k));
    k.method = "POST";
    assert_false(pb_gate_is_login(&gate, &k));
    k.method = "GET";
    k.token_argument = "0";
    assert_false(pb_gate_is_login(&gate, &k));
    pb_gate_cookie_name("[::1]:7070", name);
    assert_string_equal(name, "probing_token_7070");
    pb_gate_cookie_name("localhost", name);
    assert_string_equal(name, "probing_token");
    pb_gate_cookie_name("localhost:99999999999999999999999999", name);
    assert_string_equal(name, "probing_token_");
}

static void doubtful_lengths_are_refused(void **state)
{
    assert_int_equal(WITH(.method = "POST", .length = "101"), 413);
    assert_int_equal(WITH(.method = "POST", .length = "99999999999999999999999"), 413);
    assert_int_equal(WITH(.method = "POST", .length = "1x"), 413);
    assert_int_equal(WITH(.method = "POST", .length = "100"), 0);
    assert_int_equal(WITH(.method = "POST", .length = "1", .chunked = true), 400);
    assert_int_equal(WITH(.doubled = true), 400);
}

static void a_tool_is_in_one_row_and_its_form_and_body_are_the_routes(void **state)
{
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));)
        for (const struct pb_tool *t = r->tools; t && t->name; t++) {
            assert_true(!t->form || pb_route_form(r, t->form));
            assert_int_equal(t->body != NULL, (r->flags & (PB_ROUTE_STDIN | PB_ROUTE_ARGUMENT)) != 0);
            for (const struct pb_route *other = r; (other = pb_route_next(other));)
                for (const struct pb_tool *u = other->tools; u && u->name; u++)
                    assert_string_not_equal(t->name, u->name);
        }
}

static void a_topic_is_in_one_row_and_its_form_is_the_routes(void **state)
{
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));) {
        if (!r->topic.name)
            continue;
        assert_string_equal(r->method, "GET");
        assert_non_null(pb_route_form(r, r->topic.form));
        for (const struct pb_route *other = r; (other = pb_route_next(other));)
            assert_true(!other->topic.name || strcmp(other->topic.name, r->topic.name) != 0);
    }
}

static void routes_are_found_by_path_and_method(void **state)
{
    char variable[PB_ROUTE_VARIABLE], allowed[64];
    const struct pb_offer plain = {0}, read_only = {.read_only = true, .cores = "/x"};

    assert_null(pb_route_find("GET", "/api/v1/cores", &plain, variable, allowed));
    assert_non_null(pb_route_find("GET", "/api/v1/cores", &read_only, variable, allowed));
    assert_non_null(pb_route_find("POST", "/api/v1/query", &read_only, variable, allowed));
    assert_non_null(pb_route_find("GET", "/api/v1/targets/12@ab/stacks", &plain, variable, allowed));
    assert_string_equal(variable, "12@ab");
    assert_non_null(pb_route_find("HEAD", "/api/v1/targets", &plain, variable, allowed));
    assert_null(pb_route_find("DELETE", "/api/v1/targets/1/settings", &plain, variable, allowed));
    assert_string_equal(allowed, "GET, HEAD, POST");
    assert_null(pb_route_find("POST", "/api/v1/targets/1/eval", &read_only, variable, allowed));
    assert_string_equal(allowed, "");
    assert_null(pb_route_find("GET", "/api/v1/targets//stacks", &plain, variable, allowed));
    assert_null(pb_route_find("GET", "/api/v1/targets/1/2/stacks", &plain, variable, allowed));
    assert_true(pb_route_is_id("4711") && pb_route_is_id("4711@2x7k1q"));
    assert_false(pb_route_is_id("") || pb_route_is_id("-1") || pb_route_is_id("1@") || pb_route_is_id("a") ||
                 pb_route_is_id("1@../x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_those_of_the_service),
        cmocka_unit_test(tokens_come_in_five_ways),
        cmocka_unit_test(other_tokens_are_none),
        cmocka_unit_test(pages_of_other_sites_change_nothing),
        cmocka_unit_test(a_cookie_alone_is_for_our_own_page),
        cmocka_unit_test(a_link_with_the_token_is_a_login),
        cmocka_unit_test(doubtful_lengths_are_refused),
        cmocka_unit_test(routes_are_found_by_path_and_method),
        cmocka_unit_test(a_tool_is_in_one_row_and_its_form_and_body_are_the_routes),
        cmocka_unit_test(a_topic_is_in_one_row_and_its_form_is_the_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
