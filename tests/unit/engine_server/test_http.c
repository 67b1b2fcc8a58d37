/*
 * The server over a back end that does what the question says: routes, streams, limits, clients
 * that leave, stopping. "hold": says "a" and waits until the test lets go.
 */
#include "kvd_test.h"

#include <errno.h>
#include <pthread.h>

#include <jansson.h>

#include "engine/server/server.h"
#include "http_client.h"
#include "proto/base/clock.h"

#define ASK(text) "{\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]}"
#define ASK_STREAM(text, more)                                                                     \
    "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]" more "}"

struct fixture {
    struct kvd_backend backend;
    struct kvd_server *server;
    uint16_t port;
    pthread_mutex_t mtx;
    pthread_cond_t changed;
    int started; /* lock: mtx, as all below */
    int cancelled;
    bool let_go;
    char seen_scenario[32];
    char seen_user[32];
};

static void note_start(struct fixture *f, const struct kvd_api_request *request)
{
    (void)pthread_mutex_lock(&f->mtx);
    f->started++;
    (void)snprintf(f->seen_scenario, sizeof(f->seen_scenario), "%s",
                   request->scenario ? request->scenario : "");
    (void)snprintf(f->seen_user, sizeof(f->seen_user), "%s",
                   request->user_id ? request->user_id : "");
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->mtx);
}

/* As an engine does between tokens: looks at cancel, and says a token now and then where `chatty`.
 */
static bool hold(struct fixture *f, const atomic_bool *cancel)
{
    (void)pthread_mutex_lock(&f->mtx);
    while (!f->let_go && !atomic_load(cancel)) {
        struct timespec soon;
        (void)clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += KVD_NS_PER_MS;
        if (soon.tv_nsec >= (long)KVD_NS_PER_S) {
            soon.tv_nsec -= (long)KVD_NS_PER_S;
            soon.tv_sec++;
        }
        (void)pthread_cond_timedwait(&f->changed, &f->mtx, &soon);
    }
    const bool gone = atomic_load(cancel);
    f->cancelled += gone;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->mtx);
    return gone;
}

static int generate(void *self, const struct kvd_api_request *request, const atomic_bool *cancel,
                    kvd_text_fn *on_text, void *user, struct kvd_api_error *error,
                    struct kvd_api_result *ret)
{
    struct fixture *f = self;
    const char *text = request->messages[request->n_messages - 1].content;
    note_start(f, request);
    bool gone = false;
    if (strcmp(text, "fail") == 0) {
        return kvd_api_fail(error, 400, "the prompt has 9 tokens; the context holds 8");
    }
    if (strcmp(text, "hold") == 0) {
        (void)on_text("a", 1, user);
        gone = hold(f, cancel);
    }
    if (strcmp(text, "late failure") == 0) {
        (void)on_text("a", 1, user);
        return kvd_api_fail(error, 500, "the cat pulled the plug");
    }
    if (strcmp(text, "silent") == 0) {
        gone = hold(f, cancel);
    }
    for (const char *at = text; *at && strcmp(text, "empty") != 0; at++) {
        if (on_text(at, 1, user)) {
            break;
        }
    }
    *ret = (struct kvd_api_result){.finish = gone ? KVD_API_ABORTED : KVD_API_STOP,
                                   .usage = {100, 64, (uint32_t)strlen(text)}};
    return 0;
}

static struct fixture *setup(void (*change)(struct kvd_server_options *))
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)pthread_mutex_init(&f->mtx, NULL);
    (void)pthread_cond_init(&f->changed, NULL);
    f->backend =
        (struct kvd_backend){.model = "m", .fingerprint = "fp_1", .self = f, .generate = generate};
    struct kvd_server_options options;
    kvd_server_options_init(&options);
    options.backend = &f->backend;
    if (change) {
        change(&options);
    }
    struct kvd_diag diag = {0};
    if (kvd_server_start(&options, &diag, &f->server)) {
        fail_msg("%s", diag.text);
    }
    f->port = kvd_server_port(f->server);
    assert_true(f->port != 0);
    return f;
}

static void teardown(struct fixture *f)
{
    kvd_server_stop(&f->server);
    assert_null(f->server);
    (void)pthread_cond_destroy(&f->changed);
    (void)pthread_mutex_destroy(&f->mtx);
    free(f);
}

static int started(struct fixture *f)
{
    (void)pthread_mutex_lock(&f->mtx);
    const int n = f->started;
    (void)pthread_mutex_unlock(&f->mtx);
    return n;
}

/* Waits until a counter of the fixture has a value; at most 20 s. */
static void wait_for(struct fixture *f, const int *counter, int value)
{
    struct timespec limit;
    (void)clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    int rc = 0;
    (void)pthread_mutex_lock(&f->mtx);
    while (*counter < value && rc == 0) {
        rc = pthread_cond_timedwait(&f->changed, &f->mtx, &limit);
    }
    const int got = *counter;
    (void)pthread_mutex_unlock(&f->mtx);
    assert_int_equal(got, value);
}

static void let_go(struct fixture *f)
{
    (void)pthread_mutex_lock(&f->mtx);
    f->let_go = true;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->mtx);
}

/* Waits until the server has that many requests under way. */
static void wait_requests(struct fixture *f, uint32_t n)
{
    const uint64_t limit = kvd_mono_ns() + 20 * KVD_NS_PER_S;
    while (kvd_server_requests(f->server) != n) {
        assert_true(kvd_mono_ns() < limit);
        (void)sched_yield();
    }
}

static void expect_error(struct answer a, int status, const char *said)
{
    if (a.status != status || !strstr(a.body, said)) {
        fail_msg("status %d, wanted %d with '%s': %s", a.status, status, said, a.body);
    }
    json_t *root = json_loads(a.body, 0, NULL);
    assert_true(json_is_string(json_object_get(json_object_get(root, "error"), "message")));
    assert_true(json_is_null(json_object_get(json_object_get(root, "error"), "param")));
    json_decref(root);
    assert_non_null(strstr(a.head, "application/json"));
    free(a.body);
}

/* Content of a plain answer. The caller frees. */
static char *content_of(const struct answer *a)
{
    json_t *root = json_loads(a->body, 0, NULL);
    if (a->status != 200 || !root) {
        fail_msg("status %d: %s", a->status, a->body);
    }
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    assert_non_null(text);
    char *copy = strdup(text);
    json_decref(root);
    return copy;
}

static void expect_text(struct answer a, const char *wanted)
{
    char *text = content_of(&a);
    assert_string_equal(text, wanted);
    free(text);
    free(a.body);
}

static void test_plain(void **state)
{
    struct fixture *f = setup(NULL);
    expect_text(http_post(f->port, ASK("hi \xc3\xa9")), "hi \xc3\xa9");
    expect_text(http_call(f->port, "POST", "/chat/completions", "X-Cache-Scenario: agent\r\n",
                          "{\"model\":\"m\",\"user_id\":\"bob\",\"messages\":[{\"role\":\"user\","
                          "\"content\":\"x\"}]}"),
                "x");
    (void)pthread_mutex_lock(&f->mtx);
    assert_string_equal(f->seen_scenario, "agent");
    assert_string_equal(f->seen_user, "bob");
    (void)pthread_mutex_unlock(&f->mtx);
    struct answer a = http_post(f->port, ASK("12345"));
    assert_non_null(strstr(a.body, "\"prompt_cache_hit_tokens\":64"));
    assert_non_null(strstr(a.body, "\"prompt_cache_miss_tokens\":36"));
    assert_non_null(strstr(a.body, "\"completion_tokens\":5"));
    assert_non_null(strstr(a.head, "Content-Length"));
    free(a.body);
    expect_text(http_post(f->port, ASK("empty")), "");
    teardown(f);
}

static void test_models_and_routes(void **state)
{
    struct fixture *f = setup(NULL);
    static const char *const urls[] = {"/v1/models", "/models"};
    for (int i = 0; i < 2; i++) {
        struct answer a = http_call(f->port, "GET", urls[i], "", "");
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, "\"id\":\"m\""));
        free(a.body);
    }
    expect_error(http_call(f->port, "GET", "/v2/models", "", ""), 404, "/v2/models");
    expect_error(http_call(f->port, "POST", "/", "", "{}"), 404, "no such path");
    expect_error(http_call(f->port, "GET", "/v1/chat/completions", "", ""), 405, "takes POST");
    expect_error(http_call(f->port, "POST", "/models", "", "{}"), 405, "takes GET");
    teardown(f);
}

static void test_refusals(void **state)
{
    struct fixture *f = setup(NULL);
    expect_error(http_post(f->port, ""), 400, "not valid JSON");
    expect_error(http_post(f->port, "{\"messages\":[{]}"), 400, "not valid JSON");
    expect_error(http_post(f->port, "{\"messages\":[]}"), 400, "at least one");
    expect_error(http_post(f->port, ASK_STREAM("x", ",\"model\":\"gpt\"")), 400,
                 "'gpt' does not exist");
    expect_error(http_post(f->port, ASK_STREAM("x", ",\"tools\":[1]")), 400, "tools");
    expect_error(
        http_call(f->port, "POST", "/v1/chat/completions", "X-Cache-Scenario:\r\n", ASK("x")), 400,
        "X-Cache-Scenario");
    expect_error(http_post(f->port, ASK("fail")), 400, "9 tokens");
    expect_error(http_post(f->port, ASK_STREAM("fail", "")), 400, "9 tokens");
    assert_int_equal(started(f), 2); /* only the last two reached the back end */
    teardown(f);
}

/* The events of a stream, one after the other. */
static const char *next_event(const char **at)
{
    static char line[4096];
    const char *end = strstr(*at, "\n\n");
    assert_non_null(end);
    const size_t n = (size_t)(end - *at);
    assert_true(n < sizeof(line));
    memcpy(line, *at, n);
    line[n] = '\0';
    *at = end + 2;
    return line;
}

static void expect_event(const char **at, const char *part)
{
    const char *event = next_event(at);
    if (!strstr(event, part)) {
        fail_msg("event '%s' lacks '%s'", event, part);
    }
}

static void test_stream(void **state)
{
    struct fixture *f = setup(NULL);
    struct answer a = http_post(f->port, ASK_STREAM("ab", ""));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "text/event-stream"));
    assert_null(strstr(a.body, "\"usage\""));
    const char *at = a.body;
    expect_event(&at, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    expect_event(&at, "\"delta\":{\"content\":\"a\"}");
    expect_event(&at, "\"delta\":{\"content\":\"b\"}");
    expect_event(&at, "\"finish_reason\":\"stop\"");
    assert_string_equal(next_event(&at), "data: [DONE]");
    assert_string_equal(at, "");
    free(a.body);

    a = http_post(f->port, ASK_STREAM("empty", ",\"stream_options\":{\"include_usage\":true}"));
    at = a.body;
    expect_event(&at, "\"usage\":null");
    expect_event(&at, "\"finish_reason\":\"stop\"}],\"usage\":null");
    expect_event(&at, "\"choices\":[],\"usage\":{\"prompt_tokens\":100");
    assert_string_equal(next_event(&at), "data: [DONE]");
    free(a.body);

    a = http_post(f->port, ASK_STREAM("late failure", ""));
    at = a.body;
    expect_event(&at, "\"role\"");
    expect_event(&at, "\"content\":\"a\"");
    expect_event(&at, "\"error\":{\"message\":\"the cat pulled the plug\"");
    assert_string_equal(at, "");
    free(a.body);
    teardown(f);
}

static void usage_on_finish(struct kvd_server_options *options)
{
    options->usage_on_finish = true;
}

static void test_usage_on_the_finishing_chunk(void **state)
{
    struct fixture *f = setup(usage_on_finish);
    struct answer a =
        http_post(f->port, ASK_STREAM("empty", ",\"stream_options\":{\"include_usage\":true}"));
    const char *at = a.body;
    expect_event(&at, "\"usage\":null");
    expect_event(&at, "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":100");
    assert_string_equal(next_event(&at), "data: [DONE]");
    assert_string_equal(at, "");
    free(a.body);
    teardown(f);
}

static void small_body(struct kvd_server_options *options)
{
    options->body_max = 1000;
}

static void test_too_large_bodies(void **state)
{
    struct fixture *f = setup(small_body);
    /* said in the header: refused before it comes */
    int fd = http_connect(f->port);
    static const char said[] =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
        "Content-Length: 1001\r\n\r\n";
    http_send(fd, said, sizeof(said) - 1);
    expect_error(http_answer(fd), 413, "1001 bytes");
    (void)close(fd);
    /* not said: counted as it comes */
    fd = http_connect(f->port);
    static const char head[] =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
        "Transfer-Encoding: chunked\r\n\r\n";
    http_send(fd, head, sizeof(head) - 1);
    char chunk[512];
    (void)snprintf(chunk, sizeof(chunk), "190\r\n%0400d\r\n", 7);
    for (int i = 0; i < 3; i++) {
        http_send(fd, chunk, strlen(chunk));
    }
    http_send(fd, "0\r\n\r\n", 5);
    expect_error(http_answer(fd), 413, "larger than 1000 bytes");
    (void)close(fd);
    expect_text(http_post(f->port, ASK("x")), "x");
    teardown(f);
}

static void two_wait(struct kvd_server_options *options)
{
    options->waiting_max = 2;
    options->keep_alive_ms = 20;
}

static void test_full_line(void **state)
{
    struct fixture *f = setup(two_wait);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = http_connect(f->port);
        http_ask(fds[i], "POST", "/v1/chat/completions", "", i == 0 ? ASK("hold") : ASK("next"));
        wait_requests(f, (uint32_t)i + 1);
    }
    wait_for(f, &f->started, 1); /* the first one is being computed, not waiting */
    struct answer a = http_post(f->port, ASK("x"));
    assert_non_null(strstr(a.head, "Retry-After: 1"));
    expect_error(a, 429, "2 wait");
    assert_int_equal(started(f), 1);
    let_go(f);
    expect_text(http_answer(fds[0]), "ahold");
    expect_text(http_answer(fds[1]), "next");
    expect_text(http_answer(fds[2]), "next");
    for (int i = 0; i < 3; i++) {
        (void)close(fds[i]);
    }
    expect_text(http_post(f->port, ASK("x")), "x");
    teardown(f);
}

static void test_keep_alive(void **state)
{
    struct fixture *f = setup(two_wait);
    const int plain = http_connect(f->port);
    http_ask(plain, "POST", "/v1/chat/completions", "", ASK("silent"));
    wait_for(f, &f->started, 1);
    const int stream = http_connect(f->port);
    http_ask(stream, "POST", "/v1/chat/completions", "", ASK_STREAM("q", ""));
    size_t n = 0;
    char *heard = http_read(stream, ": keep-alive\n\n", &n);
    assert_non_null(strstr(heard, "HTTP/1.1 200"));
    free(heard);
    let_go(f);
    struct answer a = http_answer(plain);
    assert_int_equal(a.body[0],
                     '\n'); /* blank lines came first, and the body is JSON all the same */
    expect_text(a, "silent");
    heard = http_read(stream, NULL, &n);
    assert_non_null(strstr(heard, "\"content\":\"q\""));
    assert_non_null(strstr(heard, "data: [DONE]"));
    free(heard);
    (void)close(plain);
    (void)close(stream);
    teardown(f);
}

/* A client that leaves ends the computation, whether it was being told or only waited. */
static void test_clients_that_leave(void **state)
{
    struct fixture *f = setup(two_wait);
    int fd = http_connect(f->port);
    http_ask(fd, "POST", "/v1/chat/completions", "", ASK_STREAM("hold", ""));
    size_t n = 0;
    free(http_read(fd, "\"content\":\"a\"", &n));
    (void)close(fd);
    wait_for(f, &f->cancelled, 1);

    fd = http_connect(f->port);
    http_ask(fd, "POST", "/v1/chat/completions", "", ASK("silent"));
    wait_for(f, &f->started, 2);
    const int waiting = http_connect(f->port);
    http_ask(waiting, "POST", "/v1/chat/completions", "", ASK("never computed"));
    wait_requests(f, 2);
    (void)close(waiting);
    wait_requests(f, 1);
    (void)close(fd);
    wait_for(f, &f->cancelled, 2);
    wait_requests(f, 0);
    assert_int_equal(started(f), 2); /* who waited and left was never computed */
    let_go(f);
    expect_text(http_post(f->port, ASK("x")), "x");
    teardown(f);
}

static void test_stop_under_way(void **state)
{
    struct fixture *f = setup(two_wait);
    const int running = http_connect(f->port);
    http_ask(running, "POST", "/v1/chat/completions", "", ASK_STREAM("hold", ""));
    wait_for(f, &f->started, 1);
    const int waiting = http_connect(f->port);
    http_ask(waiting, "POST", "/v1/chat/completions", "", ASK("next"));
    wait_requests(f, 2);
    const int idle = http_connect(f->port);
    kvd_server_stop(&f->server);
    struct answer a = http_answer(running);
    assert_non_null(strstr(a.body, "\"finish_reason\":\"aborted\""));
    free(a.body);
    a = http_answer(waiting);
    /* 503, unless a keep-alive had begun the answer: then the error is its body */
    assert_true(a.status == 503 || a.status == 200);
    assert_non_null(strstr(a.body, "shutting down"));
    free(a.body);
    assert_int_equal(started(f), 1);
    (void)close(running);
    (void)close(waiting);
    (void)close(idle);
    teardown(f);
}

static void start_soon(struct kvd_server_options *options)
{
    options->start_ms = 30;
    options->keep_alive_ms = 10;
}

static void test_start_deadline(void **state)
{
    struct fixture *f = setup(start_soon);
    const int running = http_connect(f->port);
    http_ask(running, "POST", "/v1/chat/completions", "", ASK("silent"));
    wait_for(f, &f->started, 1);
    struct answer a = http_post(f->port, ASK("next"));
    assert_non_null(strstr(a.body, "did not begin in time"));
    free(a.body);
    let_go(f);
    expect_text(http_answer(running), "silent");
    (void)close(running);
    teardown(f);
}

static void test_bytes_that_are_no_request(void **state)
{
    struct fixture *f = setup(NULL);
    static const char *const junk[] = {
        "\x16\x03\x01\x02", "GET\r\n\r\n", "\r\n\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /models HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\n{\"mess"};
    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++) {
        const int fd = http_connect(f->port);
        http_send(fd, junk[i], strlen(junk[i]));
        (void)close(fd);
    }
    expect_text(http_post(f->port, ASK("x")), "x");
    assert_int_equal(started(f), 1);
    teardown(f);
}

/* Two requests over one connection, their bytes one at a time. */
static void test_one_byte_at_a_time(void **state)
{
    struct fixture *f = setup(NULL);
    const int fd = http_connect(f->port);
    char request[512];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(
            request, sizeof(request),
            "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n%sContent-Length: %zu\r\n\r\n%s",
            i == 1 ? "Connection: close\r\n" : "", strlen(ASK("xyz")), ASK("xyz"));
        for (const char *at = request; *at; at++) {
            http_send(fd, at, 1);
        }
        if (i == 0) {
            size_t n = 0;
            char *first = http_read(fd, "\"reasoning_tokens\":0}}}\n", &n);
            assert_non_null(strstr(first, "\"content\":\"xyz\""));
            free(first);
        }
    }
    expect_text(http_answer(fd), "xyz");
    (void)close(fd);
    teardown(f);
}

static void test_places_to_listen(void **state)
{
    struct fixture *f = setup(NULL);
    struct kvd_server_options options;
    kvd_server_options_init(&options);
    options.backend = &f->backend;
    options.port = f->port;
    struct kvd_diag diag = {0};
    struct kvd_server *other = NULL;
    assert_int_equal(kvd_server_start(&options, &diag, &other), -EADDRINUSE);
    assert_non_null(strstr(diag.text, "127.0.0.1 port"));
    options.host = "300.1.1.1";
    options.port = 0;
    assert_int_equal(kvd_server_start(&options, &diag, &other), -KVD_E_BAD_REQUEST);
    assert_non_null(strstr(diag.text, "300.1.1.1"));
    assert_null(other);
    kvd_server_stop(&other);
    teardown(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_plain),
    cmocka_unit_test(test_models_and_routes),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_stream),
    cmocka_unit_test(test_usage_on_the_finishing_chunk),
    cmocka_unit_test(test_too_large_bodies),
    cmocka_unit_test(test_full_line),
    cmocka_unit_test(test_keep_alive),
    cmocka_unit_test(test_clients_that_leave),
    cmocka_unit_test(test_stop_under_way),
    cmocka_unit_test(test_start_deadline),
    cmocka_unit_test(test_bytes_that_are_no_request),
    cmocka_unit_test(test_one_byte_at_a_time),
    cmocka_unit_test(test_places_to_listen),
};
KVD_TEST_MAIN(tests)
