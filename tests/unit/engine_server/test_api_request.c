/* What a request may say: every refusal names its field, and what is taken arrives unchanged. */
#include "kvd_test.h"

#include "engine/server/api_request.h"

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static struct kvd_api_request *must_parse(const char *body, const char *header)
{
    struct kvd_api_error error = {0};
    struct kvd_api_request *request = NULL;
    if (kvd_api_request_parse(body, strlen(body), header, &error, &request)) {
        fail_msg("refused: %s: %s", body, error.message);
    }
    return request;
}

struct refusal {
    const char *body;
    const char *said; /* must be in the message */
};

static const struct refusal refusals[] = {
    {"", "not valid JSON"},
    {"{", "not valid JSON"},
    {"[]", "must be a JSON object"},
    {"null", "not valid JSON"},
    {"{" USER "} x", "not valid JSON"},
    {"{" USER ",\"n\":1,\"n\":1}", "duplicate"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "not valid JSON"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}", "\\u0000"},
    {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "nests deeper"},
    {"{}", "messages is missing"},
    {"{\"messages\":null}", "messages is missing"},
    {"{\"messages\":[]}", "at least one message"},
    {"{\"messages\":{}}", "messages must be a list"},
    {"{\"messages\":[1]}", "messages[0] must be an object"},
    {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role"},
    {"{\"messages\":[{\"role\":7,\"content\":\"x\"}]}", "messages[0].role"},
    {"{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}", "developer"},
    {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "no tools"},
    {"{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "robot"},
    {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "messages[0].content"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "image_url"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "content[0]"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[\"x\"]}]}", "content[0]"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
     "\"b\","
     "\"tool_calls\":[{}]}]}",
     "messages[1].tool_calls"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":\"bob\"}]}", "messages[0].name"},
    {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true}]}",
     "messages[0].prefix"},
    {"{" USER ",\"model\":5}", "model must be a string"},
    {"{" USER ",\"max_tokens\":0}", "max_tokens"},
    {"{" USER ",\"max_tokens\":-1}", "max_tokens"},
    {"{" USER ",\"max_tokens\":1.5}", "max_tokens"},
    {"{" USER ",\"max_tokens\":\"9\"}", "max_tokens"},
    {"{" USER ",\"max_tokens\":4294967297}", "max_tokens"},
    {"{" USER ",\"max_tokens\":5,\"max_completion_tokens\":6}", "disagree"},
    {"{" USER ",\"temperature\":-0.1}", "temperature"},
    {"{" USER ",\"temperature\":2.1}", "temperature"},
    {"{" USER ",\"temperature\":true}", "temperature"},
    {"{" USER ",\"top_p\":0}", "top_p"},
    {"{" USER ",\"top_p\":1.01}", "top_p"},
    {"{" USER ",\"seed\":1.5}", "seed"},
    {"{" USER ",\"stop\":5}", "stop"},
    {"{" USER ",\"stop\":\"\"}", "empty"},
    {"{" USER ",\"stop\":[\"a\",\"\"]}", "empty"},
    {"{" USER ",\"stop\":[1]}", "stop"},
    {"{" USER
     ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\","
     "\"13\",\"14\",\"15\",\"16\",\"17\"]}",
     "at most 16"},
    {"{" USER ",\"stream\":1}", "stream"},
    {"{" USER ",\"stream\":true,\"stream_options\":1}", "stream_options"},
    {"{" USER ",\"stream\":true,\"stream_options\":{\"x\":true}}", "stream_options.x"},
    {"{" USER ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage"},
    {"{" USER ",\"stream_options\":{\"include_usage\":true}}", "only for requests with stream"},
    {"{" USER ",\"user_id\":5}", "user_id"},
    {"{" USER ",\"cache_scenario\":\"\"}", "cache_scenario"},
    {"{" USER ",\"cache_scenario\":\"12345678901234567890123456789012\"}", "at most 31"},
    {"{" USER ",\"n\":2}", "n must be 1"},
    {"{" USER ",\"response_format\":{\"type\":\"json_object\"}}", "json_object"},
    {"{" USER ",\"response_format\":\"text\"}", "response_format"},
    {"{" USER ",\"thinking\":{\"type\":\"enabled\"}}", "thinking"},
    {"{" USER ",\"frequency_penalty\":\"x\"}", "frequency_penalty"},
    {"{" USER ",\"logprobs\":true}", "logprobs"},
    {"{" USER ",\"top_logprobs\":5}", "top_logprobs"},
    {"{" USER ",\"tools\":[{\"type\":\"function\"}]}", "tools"},
    {"{" USER ",\"tool_choice\":\"auto\"}", "tool_choice"},
    {"{" USER ",\"reasoning_effort\":\"high\"}", "reasoning_effort"},
    {"{" USER ",\"user\":\"bob\"}", "user_id"},
    {"{" USER ",\"logit_bias\":{}}", "logit_bias"},
};

static void test_refusals(void **state)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const char *body = refusals[i].body;
        struct kvd_api_error error = {0};
        struct kvd_api_request *request = NULL;
        const int rc = kvd_api_request_parse(body, strlen(body), NULL, &error, &request);
        if (rc != -KVD_E_BAD_REQUEST || request || error.status != 400 ||
            !strstr(error.message, refusals[i].said)) {
            fail_msg("%s: rc %d, status %d, said '%s', wanted '%s'", body, rc, error.status,
                     error.message, refusals[i].said);
        }
    }
}

static void test_every_field(void **state)
{
    struct kvd_api_request *r = must_parse(
        "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":\"\","
        "\"tool_calls\":[],\"refusal\":null,\"reasoning_content\":\"\"}],\"max_tokens\":7,"
        "\"max_completion_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,\"seed\":-1,"
        "\"stop\":[\"x\",\"yy\"],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"user_id\":\"u\xc3\xa9\",\"cache_scenario\":\"agent\",\"n\":1,"
        "\"response_format\":{\"type\":\"text\"},\"thinking\":{\"type\":\"disabled\"},"
        "\"frequency_penalty\":0.5,\"presence_penalty\":0,\"logprobs\":false,"
        "\"top_logprobs\":null,\"tools\":[],\"tool_choice\":\"none\",\"reasoning_effort\":null}",
        NULL);
    assert_string_equal(r->model, "m");
    assert_int_equal(r->n_messages, 3);
    assert_string_equal(r->messages[0].role, "system");
    assert_string_equal(r->messages[1].content, "a\nb");
    assert_string_equal(r->messages[2].content, "");
    assert_int_equal(r->max_tokens, 7);
    assert_true(r->temperature == 0.5 && r->top_p == 0.25);
    assert_true(r->has_seed && r->seed == UINT64_MAX);
    assert_int_equal(r->n_stops, 2);
    assert_string_equal(r->stops[1], "yy");
    assert_true(r->stream && r->include_usage);
    assert_string_equal(r->user_id, "u\xc3\xa9");
    assert_string_equal(r->scenario, "agent");
    kvd_api_request_destroy(&r);
    assert_null(r);
}

static void test_defaults(void **state)
{
    struct kvd_api_request *r = must_parse("{" USER ",\"stop\":\"end\",\"user_id\":null}", NULL);
    assert_null(r->model);
    assert_null(r->user_id);
    assert_null(r->scenario);
    assert_int_equal(r->max_tokens, 0);
    assert_true(r->temperature == 1 && r->top_p == 1);
    assert_false(r->has_seed || r->stream || r->include_usage);
    assert_int_equal(r->n_stops, 1);
    kvd_api_request_destroy(&r);
}

static void test_user_id_length(void **state)
{
    char body[2048];
    char name[514];
    memset(name, 'u', sizeof(name));
    (void)snprintf(body, sizeof(body), "{" USER ",\"user_id\":\"%.512s\"}", name);
    struct kvd_api_request *r = must_parse(body, NULL);
    assert_int_equal(strlen(r->user_id), 512);
    kvd_api_request_destroy(&r);
    (void)snprintf(body, sizeof(body), "{" USER ",\"user_id\":\"%.513s\"}", name);
    struct kvd_api_error error = {0};
    assert_int_equal(kvd_api_request_parse(body, strlen(body), NULL, &error, &r),
                     -KVD_E_BAD_REQUEST);
    assert_non_null(strstr(error.message, "513 bytes"));
}

static void test_scenario_header(void **state)
{
    struct kvd_api_request *r = must_parse("{" USER "}", "batch");
    assert_string_equal(r->scenario, "batch");
    kvd_api_request_destroy(&r);
    r = must_parse("{" USER ",\"cache_scenario\":\"batch\"}", "batch");
    kvd_api_request_destroy(&r);
    const char *body = "{" USER ",\"cache_scenario\":\"chat\"}";
    struct kvd_api_error error = {0};
    assert_int_equal(kvd_api_request_parse(body, strlen(body), "batch", &error, &r),
                     -KVD_E_BAD_REQUEST);
    assert_non_null(strstr(error.message, "disagree"));
    assert_int_equal(kvd_api_request_parse("{" USER "}", strlen("{" USER "}"), "", &error, &r),
                     -KVD_E_BAD_REQUEST);
}

static void test_model_name(void **state)
{
    struct kvd_api_error error = {0};
    struct kvd_api_request *r = must_parse("{" USER "}", NULL);
    assert_int_equal(kvd_api_request_check_model(r, "served", &error), 0);
    kvd_api_request_destroy(&r);
    r = must_parse("{" USER ",\"model\":\"gpt\"}", NULL);
    assert_int_equal(kvd_api_request_check_model(r, "served", &error), -KVD_E_BAD_REQUEST);
    assert_int_equal(error.status, 400);
    assert_non_null(strstr(error.message, "'served'"));
    assert_int_equal(kvd_api_request_check_model(r, "gpt", &error), 0);
    kvd_api_request_destroy(&r);
}

/* A body cut anywhere is refused and leaves nothing behind (the address sanitizer looks). */
static void test_cut_anywhere(void **state)
{
    static const char body[] =
        "{\"model\":\"m\",\"stop\":[\"a\",\"b\"],\"user_id\":\"u\"," USER "}";
    for (size_t n = 0; n < sizeof(body) - 1; n++) {
        struct kvd_api_error error = {0};
        struct kvd_api_request *r = NULL;
        char *copy = malloc(n + 1);
        memcpy(copy, body, n);
        assert_int_equal(kvd_api_request_parse(copy, n, NULL, &error, &r), -KVD_E_BAD_REQUEST);
        free(copy);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_refusals),        cmocka_unit_test(test_every_field),
    cmocka_unit_test(test_defaults),        cmocka_unit_test(test_user_id_length),
    cmocka_unit_test(test_scenario_header), cmocka_unit_test(test_model_name),
    cmocka_unit_test(test_cut_anywhere),
};
KVD_TEST_MAIN(tests)
