/* Requests without a cache: what is refused, what is cut, what stops, and that nothing but the
 * prompt decides. */
#include "engine_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvdepot/kvdepot.h"

static struct folder files;

static int setup(void **state)
{
    folder_make(&files, 1024);
    return 0;
}

static int teardown(void **state)
{
    folder_remove(&files);
    return 0;
}

/* Overwrites the second half of a file in place, as a copy onto it would. */
static void overwrite(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    void *junk = calloc(1, (size_t)st.st_size / 2);
    assert_non_null(junk);
    memset(junk, 0x55, (size_t)st.st_size / 2);
    assert_int_equal(pwrite(fd, junk, (size_t)st.st_size / 2, st.st_size / 2), st.st_size / 2);
    free(junk);
    assert_int_equal(close(fd), 0);
}

static struct kvd_engine *plain_engine(void)
{
    const struct kvd_engine_options options = {.model_path = files.model, .threads = 1};
    return engine_with(&options);
}

/* What an engine computes with is what it was named by: the file may be written to afterwards, and
 * a load during which it is written to is refused. */
static void r_model_file_written_to(void **state)
{
    struct folder own;
    struct kvd_diag diag = {0};
    struct kvd_model *model = NULL;
    folder_make(&own, 1024);
    const struct kvd_engine_options options = {.model_path = own.model, .threads = 1};
    struct kvd_engine *engine = engine_with(&options);
    uint32_t ids[200];
    ids_make(ids, 200, 5);
    const struct kvd_request q = greedy(ids, 200, 4);
    const struct kvd_request_report before = run_ok(engine, &q, NULL);
    assert_int_equal(kvd_model_open(own.model, NULL, &diag, &model), 0);
    assert_int_equal(kvd_model_check_file(model, &diag), 0);
    overwrite(own.model);
    const struct kvd_request_report after = run_ok(engine, &q, NULL);
    assert_same_bytes(&after, &before);
    assert_int_equal(kvd_model_check_file(model, &diag), -KVD_E_STALE);
    assert_non_null(strstr(diag.text, own.model));
    kvd_model_close(&model);
    kvd_engine_close(&engine);
    folder_remove(&own);
}

/* Threads, kernels, order of pages: none of them changes a byte of logits or KV. */
static void test_nothing_but_the_prompt_decides(void **state)
{
    static const struct kvd_engine_options ways[] = {
        {.threads = 1},
        {.threads = 2},
        {.threads = 2, .shuffle_seed = 7},
        {.threads = 1, .kernels = "ref", .shuffle_seed = 8},
    };
    static const uint32_t lengths[] = {1, 63, 64, 65, 127, 128, 511, 512, 513, 700};
    enum { N = sizeof(lengths) / sizeof(lengths[0]) };
    struct kvd_request_report first[N];
    uint32_t ids[700];
    ids_make(ids, 700, 1);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        struct kvd_engine_options options = ways[w];
        options.model_path = files.model;
        struct kvd_engine *engine = engine_with(&options);
        for (size_t i = 0; i < N; i++) {
            const struct kvd_request q = greedy(ids, lengths[i], 4);
            const struct kvd_request_report r = run_ok(engine, &q, NULL);
            assert_int_equal(r.computed_tokens, lengths[i]);
            if (w == 0) {
                first[i] = r;
            }
            assert_same_bytes(&r, &first[i]);
        }
        kvd_engine_close(&engine);
    }
    /* the digests are of something */
    assert_memory_not_equal(first[0].logits_sha256, first[1].logits_sha256, 32);
    assert_memory_not_equal(first[2].kv_sha256, first[5].kv_sha256, 32);
    assert_memory_equal(first[2].kv_sha256, first[3].kv_sha256, 32); /* one whole block each */
}

/* What was decoded is what prefill makes of the same tokens. */
static void test_answer_continues_the_prompt(void **state)
{
    struct kvd_engine *engine = plain_engine();
    uint32_t ids[200];
    ids_make(ids, 60, 2);
    struct kvd_tokens answer = {0};
    const struct kvd_request q = greedy(ids, 60, 100);
    const struct kvd_request_report r = run_ok(engine, &q, &answer);
    assert_int_equal(r.finish, KVD_FINISH_LENGTH);
    assert_int_equal(r.answer_tokens, 100);
    assert_int_equal(answer.n, 100);
    memcpy(ids + 60, answer.ids, 100 * sizeof(uint32_t));
    for (uint32_t n = 61; n < 160; n += 7) {
        struct kvd_tokens next = {0};
        const struct kvd_request one = greedy(ids, n, 1);
        (void)run_ok(engine, &one, &next);
        assert_int_equal(next.ids[0], ids[n]);
        kvd_tokens_fini(&next);
    }
    kvd_tokens_fini(&answer);
    kvd_engine_close(&engine);
}

static void expect_refused(struct kvd_engine *engine, const struct kvd_request *q, int rc,
                           const char *said)
{
    struct kvd_diag diag = {0};
    struct kvd_request_report report;
    assert_int_equal(kvd_engine_run(engine, q, NULL, NULL, NULL, &diag, &report), rc);
    if (!strstr(diag.text, said)) {
        fail_msg("'%s' lacks '%s'", diag.text, said);
    }
}

static void test_refusals(void **state)
{
    struct kvd_engine *engine = plain_engine();
    uint32_t ids[2000];
    ids_make(ids, 2000, 3);
    struct kvd_request q = greedy(ids, 1024, 1);
    expect_refused(engine, &q, -KVD_E_TOO_LONG, "1024 tokens; the context holds 1024");
    q = greedy(ids, 2000, 1);
    expect_refused(engine, &q, -KVD_E_TOO_LONG, "2000 tokens; the context holds 1024");
    q = greedy(ids, 0, 1);
    expect_refused(engine, &q, -KVD_E_BAD_REQUEST, "empty");
    q = greedy(ids, 5, 0);
    expect_refused(engine, &q, -KVD_E_BAD_REQUEST, "max_tokens");
    char name[514];
    memset(name, 'x', 513);
    name[513] = '\0';
    q = greedy(ids, 5, 1);
    q.tenant = name;
    expect_refused(engine, &q, -KVD_E_BAD_REQUEST, "513 bytes");
    ids[70] = KVD_TINY_VOCAB;
    q = greedy(ids, 100, 1);
    expect_refused(engine, &q, -KVD_E_BAD_REQUEST, "failed");
    kvd_engine_close(&engine);
}

static void test_cut_to_the_context(void **state)
{
    struct kvd_engine *engine = plain_engine();
    uint32_t ids[1023];
    ids_make(ids, 1023, 4);
    struct kvd_request q = greedy(ids, 1023, 50);
    struct kvd_request_report r = run_ok(engine, &q, NULL);
    assert_int_equal(r.answer_tokens, 1);
    assert_int_equal(r.finish, KVD_FINISH_LENGTH);
    q = greedy(ids, 1000, UINT32_MAX);
    r = run_ok(engine, &q, NULL);
    assert_int_equal(r.answer_tokens, 24);
    kvd_engine_close(&engine);
}

/* An arena of two pages: the context is what they hold, and pages come back after every end of a
 * request. */
static void test_pages_come_back(void **state)
{
    struct kvd_engine *probe = plain_engine();
    assert_int_equal(kvd_engine_context(probe), 1024);
    kvd_engine_close(&probe);
    /* 2 layers x (K, V) x 2 heads x 64 tokens x 16 dims x 2 bytes */
    const uint64_t page = UINT64_C(2) * 2 * 2 * 64 * 16 * 2;
    const struct kvd_engine_options options = {
        .model_path = files.model, .threads = 1, .arena_bytes = 2 * page + page / 2};
    struct kvd_engine *engine = engine_with(&options);
    assert_int_equal(kvd_engine_context(engine), 128);
    uint32_t ids[128];
    ids_make(ids, 128, 5);
    const struct kvd_request good = greedy(ids, 100, 28);
    const struct kvd_request_report first = run_ok(engine, &good, NULL);
    ids[127] = 1U << 30;
    for (int i = 0; i < 5; i++) {
        const struct kvd_request bad = greedy(ids + 100, 28, 5);
        expect_refused(engine, &bad, -KVD_E_BAD_REQUEST, "failed");
        const struct kvd_request_report again = run_ok(engine, &good, NULL);
        assert_same_bytes(&again, &first);
    }
    kvd_engine_close(&engine);
    const struct kvd_engine_options small = {
        .model_path = files.model, .threads = 1, .arena_bytes = page - 1};
    struct kvd_diag diag = {0};
    assert_int_equal(kvd_engine_open(&small, &diag, &engine), -KVD_E_CONFIG);
    assert_non_null(strstr(diag.text, "holds no page"));
}

struct stopper {
    int calls;
    int stop_at;
    atomic_bool cancel;
    bool by_cancel;
};

static int stop_at(uint32_t id, void *user)
{
    struct stopper *s = user;
    if (++s->calls < s->stop_at) {
        return 0;
    }
    if (s->by_cancel) {
        atomic_store(&s->cancel, true);
        return 0;
    }
    return 1;
}

static void test_stopping(void **state)
{
    struct kvd_engine *engine = plain_engine();
    uint32_t ids[600];
    ids_make(ids, 600, 6);
    for (int way = 0; way < 2; way++) {
        struct stopper s = {.stop_at = 3, .by_cancel = way == 1};
        struct kvd_request q = greedy(ids, 70, 50);
        q.cancel = &s.cancel;
        struct kvd_request_report r;
        assert_int_equal(kvd_engine_run(engine, &q, stop_at, &s, NULL, NULL, &r), 0);
        assert_int_equal(r.finish, KVD_FINISH_ABORTED);
        assert_int_equal(s.calls, 3);
        assert_int_equal(r.answer_tokens, 3);
    }
    atomic_bool at_once = true;
    struct kvd_request q = greedy(ids, 600, 50);
    q.cancel = &at_once;
    struct kvd_request_report r;
    assert_int_equal(kvd_engine_run(engine, &q, NULL, NULL, NULL, NULL, &r), 0);
    assert_int_equal(r.finish, KVD_FINISH_ABORTED);
    assert_int_equal(r.answer_tokens, 0);
    kvd_engine_close(&engine);
}

/* The first seed whose hot answer ends by itself; same seed, same answer; past the end where asked.
 */
static void test_end_and_seeds(void **state)
{
    struct kvd_engine *engine = plain_engine();
    const struct kvd_tokenizer *tok = kvd_engine_model(engine)->tokenizer;
    uint32_t ids[20];
    ids_make(ids, 20, 7);
    struct kvd_request q = greedy(ids, 20, 900);
    q.ignore_end = false;
    q.digests = false;
    q.sampling.temperature = 2;
    struct kvd_tokens ended = {0};
    struct kvd_request_report r = {.finish = KVD_FINISH_LENGTH};
    for (q.sampling.seed = 1; q.sampling.seed < 50 && r.finish != KVD_FINISH_STOP;) {
        ended.n = 0;
        r = run_ok(engine, &q, &ended);
        q.sampling.seed += r.finish != KVD_FINISH_STOP;
    }
    assert_int_equal(r.finish, KVD_FINISH_STOP);
    assert_int_equal(ended.n, r.answer_tokens);
    for (uint32_t i = 0; i < ended.n; i++) {
        assert_false(kvd_tokenizer_is_end(tok, ended.ids[i]));
    }
    struct kvd_tokens again = {0};
    q.ignore_end = true;
    q.max_tokens = ended.n + 2;
    (void)run_ok(engine, &q, &again);
    assert_int_equal(again.n, ended.n + 2);
    assert_memory_equal(again.ids, ended.ids, ended.n * sizeof(uint32_t));
    assert_true(kvd_tokenizer_is_end(tok, again.ids[ended.n]));
    struct kvd_tokens other = {0};
    q.sampling.seed += 1000;
    (void)run_ok(engine, &q, &other);
    assert_memory_not_equal(other.ids, again.ids, again.n * sizeof(uint32_t));
    kvd_tokens_fini(&ended);
    kvd_tokens_fini(&again);
    kvd_tokens_fini(&other);
    kvd_engine_close(&engine);
}

/* Lines of the log that hold a word. */
static int lines_with(int fd, const char *word)
{
    char text[8192] = {0};
    assert_true(pread(fd, text, sizeof(text) - 1, 0) >= 0);
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) {
        n++;
    }
    return n;
}

/* No daemon: everything is computed, the same, and it is said once. */
static void test_without_a_daemon(void **state)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/log", files.path);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    struct kvd_log log;
    kvd_log_init(&log, fd, "test", KVD_LOG_WARN);
    struct kvd_client_options client_options;
    kvd_client_options_init(&client_options);
    client_options.socket_path = "/nonexistent/kvdepotd.sock";
    struct kvd_client *client = NULL;
    assert_int_equal(kvd_client_open(&client_options, &client), 0);
    const struct kvd_engine_options options = {
        .model_path = files.model, .threads = 1, .client = client, .log = &log};
    struct kvd_engine *engine = engine_with(&options);
    struct kvd_engine *alone = plain_engine();
    uint32_t ids[300];
    ids_make(ids, 300, 8);
    const struct kvd_request q = greedy(ids, 300, 3);
    const struct kvd_request_report wanted = run_ok(alone, &q, NULL);
    for (int i = 0; i < 3; i++) {
        const struct kvd_request_report r = run_ok(engine, &q, NULL);
        assert_int_equal(r.hit_tokens, 0);
        assert_int_equal(r.put_blocks, 0);
        assert_same_bytes(&r, &wanted);
    }
    assert_int_equal(lines_with(fd, "cache:"), 1);
    kvd_engine_close(&alone);
    kvd_engine_close(&engine);
    kvd_client_close(&client);
    (void)close(fd);
}

static void test_open_refusals(void **state)
{
    struct kvd_engine *engine = NULL;
    struct kvd_diag diag = {0};
    struct kvd_engine_options options = {.model_path = "/nonexistent.gguf", .threads = 1};
    assert_true(kvd_engine_open(&options, &diag, &engine) < 0);
    assert_non_null(strstr(diag.text, "/nonexistent.gguf"));
    options.model_path = files.model;
    options.kernels = "abacus";
    assert_true(kvd_engine_open(&options, &diag, &engine) < 0);
    assert_non_null(strstr(diag.text, "abacus"));
    assert_null(engine);
    kvd_engine_close(&engine);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_model_file_written_to),
    cmocka_unit_test(test_nothing_but_the_prompt_decides),
    cmocka_unit_test(test_answer_continues_the_prompt),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_cut_to_the_context),
    cmocka_unit_test(test_pages_come_back),
    cmocka_unit_test(test_stopping),
    cmocka_unit_test(test_end_and_seeds),
    cmocka_unit_test(test_without_a_daemon),
    cmocka_unit_test(test_open_refusals),
};

KVD_TEST_MAIN_AROUND(tests, setup, teardown)
