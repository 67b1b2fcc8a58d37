/* What goes out: the fields of the contract, exactly, read back with a JSON parser. */
#include "kvd_test.h"

#include <jansson.h>

#include "engine/server/api_response.h"
#include "engine/server/json_text.h"

static const struct kvd_api_head head = {
    .id = "chatcmpl-1", .created = 1700000000, .model = "m", .fingerprint = "fp_1"};
static const struct kvd_api_usage usage = {
    .prompt_tokens = 100, .hit_tokens = 64, .completion_tokens = 5};

/* Compares the JSON in text (after an optional "data: ") with what is wanted. Frees text. */
static void expect(char *text, size_t bytes, bool event, const char *wanted)
{
    assert_non_null(text);
    assert_int_equal(strlen(text), bytes);
    const size_t skip = event ? strlen("data: ") : 0;
    if (event) {
        assert_memory_equal(text, "data: ", skip);
        assert_string_equal(text + bytes - 2, "\n\n");
        assert_null(memchr(text, '\n', bytes - 2)); /* one event is one line */
    }
    json_t *got = json_loads(text + skip, 0, NULL);
    json_t *want = json_loads(wanted, 0, NULL);
    assert_non_null(got);
    assert_non_null(want);
    if (!json_equal(got, want)) {
        fail_msg("got %s", text);
    }
    json_decref(got);
    json_decref(want);
    free(text);
}

#define HEAD(object)                                                                               \
    "\"id\":\"chatcmpl-1\",\"object\":\"" object "\",\"created\":1700000000,\"model\":\"m\","      \
    "\"system_fingerprint\":\"fp_1\""
#define CHUNK "{" HEAD("chat.completion.chunk")
#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":5,\"total_tokens\":105,"               \
    "\"prompt_cache_hit_tokens\":64,\"prompt_cache_miss_tokens\":36,"                              \
    "\"prompt_tokens_details\":{\"cached_tokens\":64},"                                            \
    "\"completion_tokens_details\":{\"reasoning_tokens\":0}}"

static void test_completion(void **state)
{
    size_t n = 0;
    char *text = kvd_api_completion_body(&head, "a\"b\n", 4, KVD_API_LENGTH, &usage, &n);
    expect(text, n, false,
           "{" HEAD("chat.completion") ",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                                       "\"assistant\",\"content\":\"a\\\"b\\n\"},\"logprobs\":null,"
                                       "\"finish_reason\":\"length\"}]," USAGE "}");
}

static void test_chunks(void **state)
{
    size_t n = 0;
    char *text = kvd_api_chunk_first(&head, false, &n);
    expect(text, n, true,
           CHUNK ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                 "\"logprobs\":null,\"finish_reason\":null}]}");
    text = kvd_api_chunk_text(&head, "x\ny", 3, true, &n);
    expect(text, n, true,
           CHUNK ",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\\ny\"},\"logprobs\":null,"
                 "\"finish_reason\":null}],\"usage\":null}");
    text = kvd_api_chunk_finish(&head, KVD_API_STOP, true, NULL, &n);
    expect(text, n, true,
           CHUNK ",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                 "\"finish_reason\":\"stop\"}],\"usage\":null}");
    text = kvd_api_chunk_finish(&head, KVD_API_ABORTED, true, &usage, &n);
    expect(text, n, true,
           CHUNK ",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                 "\"finish_reason\":\"aborted\"}]," USAGE "}");
    text = kvd_api_chunk_usage(&head, &usage, &n);
    expect(text, n, true, CHUNK ",\"choices\":[]," USAGE "}");
}

static void test_errors(void **state)
{
    static const struct {
        int status;
        const char *type;
        const char *code;
    } rows[] = {
        {400, "invalid_request_error", "invalid_request_error"},
        {404, "invalid_request_error", "not_found"},
        {405, "invalid_request_error", "method_not_allowed"},
        {413, "invalid_request_error", "request_too_large"},
        {429, "rate_limit_error", "rate_limit_exceeded"},
        {500, "server_error", "internal_error"},
        {503, "server_error", "service_unavailable"},
        {418, "server_error", "internal_error"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kvd_api_error error;
        (void)kvd_api_fail(&error, rows[i].status, "no %s", "good");
        char wanted[256];
        (void)snprintf(wanted, sizeof(wanted),
                       "{\"error\":{\"message\":\"no good\",\"type\":\"%s\",\"param\":null,"
                       "\"code\":\"%s\"}}",
                       rows[i].type, rows[i].code);
        size_t n = 0;
        char *text = kvd_api_error_body(&error, &n);
        expect(text, n, false, wanted);
        text = kvd_api_chunk_error(&error, &n);
        expect(text, n, true, wanted);
    }
}

static void test_models(void **state)
{
    size_t n = 0;
    char *text = kvd_api_models_body("m", &n);
    expect(text, n, false,
           "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"owned_by\":"
           "\"kvdepot\"}]}");
}

/* Bytes of a model are whatever they are; what goes out is UTF-8. */
static void test_text_of_any_bytes(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } rows[] = {
        {"ok \xc3\xa9 \xf0\x9f\x98\x80", "ok \xc3\xa9 \xf0\x9f\x98\x80"},
        {"\xff", "\xef\xbf\xbd"},
        {"a\xc3", "a\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80z", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x82(\xc3\xa9", "\xef\xbf\xbd\xef\xbf\xbd(\xc3\xa9"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *text = kvd_json_text(rows[i].in, strlen(rows[i].in));
        assert_non_null(text);
        assert_string_equal(json_string_value(text), rows[i].out);
        json_decref(text);
    }
}

static void test_depth(void **state)
{
    assert_true(kvd_json_depth_ok("[[{}]]", 6, 3));
    assert_false(kvd_json_depth_ok("[[{}]]", 6, 2));
    assert_true(kvd_json_depth_ok("\"[[[[\\\"[[[\"", 11, 1));
    assert_true(kvd_json_depth_ok("[][][][]", 8, 1));
    assert_true(kvd_json_depth_ok("\"\\", 2, 1));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_completion),
    cmocka_unit_test(test_chunks),
    cmocka_unit_test(test_errors),
    cmocka_unit_test(test_models),
    cmocka_unit_test(test_text_of_any_bytes),
    cmocka_unit_test(test_depth),
};
KVD_TEST_MAIN(tests)
