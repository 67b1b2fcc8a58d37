/*
 * The engine behind the server, with a small generated model: text of tokens, stop strings that lie
 * across tokens, seeds, errors with their lengths, a stream that says what the plain answer says.
 */
#include "kvd_test.h"

#include <unistd.h>

#include <jansson.h>

#include "cachesvc/config/config.h"
#include "cachesvc/embed/daemon.h"
#include "engine/server/api_request.h"
#include "engine/server/json_text.h"
#include "engine/server/server.h"
#include "engine/session/session.h"
#include "http_client.h"
#include "kvdepot/kvdepot.h"
#include "tiny_gguf.h"

static char folder[64] = "/tmp/kvd-backend-XXXXXX";
static struct kvd_engine *engine;
static struct kvd_engine_backend backend;

static int setup(void **state)
{
    char model[96];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(model, sizeof(model), "%s/a.gguf", folder);
    const struct kvd_tiny_gguf_options tiny = {.seed = 1, .context = 512};
    assert_int_equal(kvd_tiny_gguf_write(model, &tiny), 0);
    const struct kvd_engine_options options = {.model_path = model, .threads = 1};
    struct kvd_diag diag = {0};
    if (kvd_engine_open(&options, &diag, &engine)) {
        fail_msg("%s", diag.text);
    }
    kvd_engine_backend_init(&backend, engine);
    assert_int_equal(unlink(model), 0);
    return 0;
}

static int teardown(void **state)
{
    kvd_engine_close(&engine);
    return rmdir(folder);
}

struct heard {
    char text[65536];
    size_t n;
    uint32_t pieces;
    uint32_t stop_after; /* 0: never */
};

static int hear(const char *text, size_t bytes, void *user)
{
    struct heard *h = user;
    json_t *whole = json_stringn(text, bytes);
    assert_non_null(whole); /* whole UTF-8 sequences only */
    json_decref(whole);
    assert_true(bytes > 0 && h->n + bytes < sizeof(h->text));
    memcpy(h->text + h->n, text, bytes);
    h->n += bytes;
    h->text[h->n] = '\0';
    return ++h->pieces == h->stop_after;
}

static int ask(const char *body, struct heard *heard, struct kvd_api_error *error,
               struct kvd_api_result *result)
{
    struct kvd_api_request *request = NULL;
    const atomic_bool cancel = false;
    if (kvd_api_request_parse(body, strlen(body), NULL, error, &request)) {
        fail_msg("%s", error->message);
    }
    const int rc = backend.backend.generate(backend.backend.self, request, &cancel, hear, heard,
                                            error, result);
    kvd_api_request_destroy(&request);
    return rc;
}

#define BODY(more)                                                                                 \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"tell me a story\"}],\"seed\":5" more "}"

static void test_text_and_usage(void **state)
{
    struct heard *a = calloc(1, sizeof(*a));
    struct heard *b = calloc(1, sizeof(*b));
    struct kvd_api_error error;
    struct kvd_api_result result;
    assert_int_equal(ask(BODY(",\"max_tokens\":200"), a, &error, &result), 0);
    assert_true(a->n > 50);
    assert_true(result.finish == KVD_API_LENGTH ? result.usage.completion_tokens == 200
                                                : result.usage.completion_tokens < 200);
    assert_true(result.usage.prompt_tokens > 10);
    assert_int_equal(result.usage.hit_tokens, 0);
    assert_int_equal(ask(BODY(",\"max_tokens\":200"), b, &error, &result), 0);
    assert_string_equal(a->text, b->text); /* the seed decides */
    b->n = b->pieces = 0;
    b->stop_after = 3;
    assert_int_equal(ask(BODY(",\"max_tokens\":200"), b, &error, &result), 0);
    assert_int_equal(result.finish, KVD_API_ABORTED);
    assert_int_equal(b->pieces, 3);
    assert_memory_equal(a->text, b->text, b->n);
    free(a);
    free(b);
}

/* Every piece of the answer of 1 to 12 bytes at some places is used as a stop string. */
static void test_stop_strings(void **state)
{
    struct heard *whole = calloc(1, sizeof(*whole));
    struct heard *cut = calloc(1, sizeof(*cut));
    struct kvd_api_error error;
    struct kvd_api_result result;
    assert_int_equal(ask(BODY(",\"max_tokens\":60"), whole, &error, &result), 0);
    int tried = 0;
    for (size_t at = 1; at + 12 < whole->n; at += 5) {
        char stop[16] = {0};
        char body[512];
        memcpy(stop, whole->text + at, 1 + at % 12);
        json_t *text = json_string(stop);
        if (!text) {
            continue; /* cut through a sequence: no client can ask for that */
        }
        char *quoted = json_dumps(text, JSON_ENCODE_ANY);
        (void)snprintf(body, sizeof(body), BODY(",\"max_tokens\":60,\"stop\":%s"), quoted);
        cut->n = cut->pieces = 0;
        cut->text[0] = '\0';
        assert_int_equal(ask(body, cut, &error, &result), 0);
        const size_t wanted = (size_t)(strstr(whole->text, stop) - whole->text);
        assert_int_equal(cut->n, wanted);
        assert_memory_equal(cut->text, whole->text, wanted);
        assert_int_equal(result.finish, KVD_API_STOP);
        free(quoted);
        json_decref(text);
        tried++;
    }
    assert_true(tried > 5);
    free(whole);
    free(cut);
}

static void test_too_long(void **state)
{
    static char body[16384];
    struct heard heard = {0};
    struct kvd_api_error error;
    struct kvd_api_result result;
    int n = snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 2000; i++) {
        n += snprintf(body + n, sizeof(body) - (size_t)n, "%d ", i % 1000);
    }
    (void)snprintf(body + n, sizeof(body) - (size_t)n, "\"}]}");
    assert_true(ask(body, &heard, &error, &result) < 0);
    assert_int_equal(error.status, 400);
    assert_non_null(strstr(error.message, "the context holds 512"));
    assert_int_equal(heard.n, 0);
}

/* Text of the deltas of a stream. */
static void join_deltas(const char *body, char *ret)
{
    size_t n = 0;
    for (const char *at = body; (at = strstr(at, "data: {")) != NULL; at++) {
        json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(event);
        const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
        const char *text =
            json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
        const size_t bytes = text ? strlen(text) : 0;
        memcpy(ret + n, text ? text : "", bytes + 1);
        n += bytes;
        json_decref(event);
    }
}

static void test_stream_says_what_plain_says(void **state)
{
    struct kvd_server_options options;
    kvd_server_options_init(&options);
    options.backend = &backend.backend;
    struct kvd_server *server = NULL;
    struct kvd_diag diag = {0};
    assert_int_equal(kvd_server_start(&options, &diag, &server), 0);
    const uint16_t port = kvd_server_port(server);
    struct answer plain = http_post(port, BODY(",\"max_tokens\":120"));
    struct answer stream = http_post(port, BODY(",\"max_tokens\":120,\"stream\":true"));
    json_t *root = json_loads(plain.body, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    assert_non_null(text);
    assert_true(strlen(text) > 30);
    static char joined[65536];
    join_deltas(stream.body, joined);
    assert_string_equal(joined, text);
    const char *mark = json_string_value(json_object_get(root, "system_fingerprint"));
    assert_int_equal(strncmp(mark, "fp_", 3), 0);
    json_decref(root);
    free(plain.body);
    free(stream.body);
    kvd_server_stop(&server);
}

/* ---- with a daemon in the process, as --embedded has it ---- */

struct node {
    struct kvd_config config;
    struct kvd_daemon *daemon;
    struct kvd_client *client;
    struct kvd_engine *engine;
    struct kvd_engine_backend backend;
    struct kvd_server *server;
    char folder[64];
};

static void set(struct node *n, const char *name, const char *value)
{
    struct kvd_diag diag = {0};
    if (kvd_config_set(&n->config, name, value, name, &diag)) {
        fail_msg("%s", diag.text);
    }
}

static void daemon_up(struct node *n)
{
    struct kvd_diag diag = {0};
    char path[96];
    (void)strcpy(n->folder, "/tmp/kvd-server-XXXXXX");
    assert_non_null(mkdtemp(n->folder));
    assert_int_equal(kvd_config_init(&n->config), 0);
    set(n, "dir", n->folder);
    (void)snprintf(path, sizeof(path), "/dev/shm/%s.pool", n->folder + strlen("/tmp/"));
    set(n, "dram.path", path);
    set(n, "dram.cap", "64MiB");
    set(n, "nvme.enabled", "false");
    int rc = kvd_config_finish(&n->config, &diag);
    rc = rc ? rc : kvd_daemon_start(&n->config, false, false, NULL, &diag, &n->daemon);
    if (rc) {
        fail_msg("%s", diag.text);
    }
    struct kvd_client_options options;
    kvd_client_options_init(&options);
    options.connect_ms = options.match_ms = options.io_ms = 20000;
    options.fd = kvd_daemon_connect(n->daemon);
    assert_true(options.fd >= 0);
    assert_int_equal(kvd_client_open(&options, &n->client), 0);
}

static void node_up(struct node *n)
{
    struct kvd_diag diag = {0};
    char path[96];
    *n = (struct node){0};
    daemon_up(n);
    (void)snprintf(path, sizeof(path), "%s/a.gguf", n->folder);
    const struct kvd_tiny_gguf_options tiny = {.seed = 1, .context = 512};
    assert_int_equal(kvd_tiny_gguf_write(path, &tiny), 0);
    const struct kvd_engine_options options = {
        .model_path = path, .threads = 1, .client = n->client};
    assert_int_equal(kvd_engine_open(&options, &diag, &n->engine), 0);
    kvd_engine_backend_init(&n->backend, n->engine);
    struct kvd_server_options server;
    kvd_server_options_init(&server);
    server.backend = &n->backend.backend;
    assert_int_equal(kvd_server_start(&server, &diag, &n->server), 0);
}

static void node_down(struct node *n)
{
    char command[96];
    kvd_server_stop(&n->server);
    kvd_engine_close(&n->engine);
    kvd_client_close(&n->client);
    assert_int_equal(kvd_daemon_stop(&n->daemon), 0);
    (void)unlink(n->config.dram_path);
    kvd_config_fini(&n->config);
    (void)snprintf(command, sizeof(command), "rm -rf %s", n->folder);
    assert_int_equal(system(command), 0);
}

/* A question of more than two blocks; `more` are further fields. Returns hit tokens, which add up
 * with the missed. */
static uint32_t hits_of(struct node *n, const char *more)
{
    char body[2048];
    int len = snprintf(body, sizeof(body),
                       "{\"max_tokens\":2,\"temperature\":0,\"messages\":[{\"role\":\"user\","
                       "\"content\":\"");
    for (int i = 0; i < 100; i++) {
        len += snprintf(body + len, sizeof(body) - (size_t)len, "%d ", i);
    }
    (void)snprintf(body + len, sizeof(body) - (size_t)len, "\"}]%s}", more);
    struct answer a = http_post(kvd_server_port(n->server), body);
    json_t *root = json_loads(a.body, JSON_ALLOW_NUL, NULL); /* random weights say anything */
    if (a.status != 200 || !root) {
        fail_msg("status %d: %s", a.status, a.body);
    }
    const json_t *usage = json_object_get(root, "usage");
    const json_int_t hit = json_integer_value(json_object_get(usage, "prompt_cache_hit_tokens"));
    const json_int_t missed =
        json_integer_value(json_object_get(usage, "prompt_cache_miss_tokens"));
    const json_int_t prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    assert_int_equal(hit + missed, prompt);
    assert_true(prompt > 130 && hit % 64 == 0);
    json_decref(root);
    free(a.body);
    return (uint32_t)hit;
}

static void test_hits_over_http(void **state)
{
    struct node n;
    node_up(&n);
    assert_int_equal(hits_of(&n, ""), 0);
    const uint32_t hit = hits_of(&n, "");
    assert_true(hit >= 128);
    assert_int_equal(hits_of(&n, ",\"cache_scenario\":\"agent\""), hit);
    assert_int_equal(hits_of(&n, ",\"user_id\":\"ann\""), 0);
    assert_int_equal(hits_of(&n, ",\"user_id\":\"ann\""), hit);
    assert_int_equal(hits_of(&n, ",\"user_id\":\"\""), hit); /* the default tenant */
    static const char *const bodies[] = {BODY(",\"cache_scenario\":\"picnic\""),
                                         BODY(",\"cache_scenario\":\"picnic\",\"stream\":true")};
    for (int i = 0; i < 2; i++) {
        struct answer a = http_post(kvd_server_port(n.server), bodies[i]);
        assert_int_equal(a.status, 400);
        assert_non_null(strstr(a.body, "picnic"));
        free(a.body);
    }
    node_down(&n);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_text_and_usage), cmocka_unit_test(test_stop_strings),
    cmocka_unit_test(test_too_long),       cmocka_unit_test(test_stream_says_what_plain_says),
    cmocka_unit_test(test_hits_over_http),
};

int main(void)
{
    const int total = (int)(sizeof(tests) / sizeof(tests[0]));
    const int failed = cmocka_run_group_tests(tests, setup, teardown);
    (void)printf("%d passed, %d failed, %d skipped\n", total - failed, failed, kvd_test_skipped);
    return failed ? 1 : 0;
}
