/*
 * Requests with a real daemon in the process: a hit is, byte for byte, what no cache computes; also
 * for blocks that were generated; and a daemon that goes away costs nothing but time.
 */
#include "engine_fixture.h"

#include <fcntl.h>

#include "cachesvc/config/config.h"
#include "cachesvc/embed/daemon.h"
#include "kvdepot/kvdepot.h"

static struct folder files;

struct node {
    struct kvd_config config;
    struct kvd_daemon *daemon;
    struct kvd_log log;
    int log_fd;
};

static void node_start(struct node *n, bool drop_dram)
{
    struct kvd_diag diag = {0};
    if (kvd_daemon_start(&n->config, drop_dram, true, &n->log, &diag, &n->daemon)) {
        fail_msg("daemon: %s", diag.text);
    }
}

static void set(struct node *n, const char *name, const char *value)
{
    struct kvd_diag diag = {0};
    if (kvd_config_set(&n->config, name, value, name, &diag)) {
        fail_msg("%s", diag.text);
    }
}

static void node_up(struct node *n, const char *name)
{
    struct kvd_diag diag = {0};
    char path[160];
    *n = (struct node){0};
    assert_int_equal(kvd_config_init(&n->config), 0);
    (void)snprintf(path, sizeof(path), "%s/%s", files.path, name);
    set(n, "dir", path);
    (void)snprintf(path, sizeof(path), "%s/%s.sock", files.path, name);
    set(n, "socket", path);
    (void)snprintf(path, sizeof(path), "/dev/shm/%s-%s.pool", files.path + strlen("/tmp/"), name);
    set(n, "dram.path", path);
    set(n, "dram.cap", "64MiB");
    set(n, "nvme.cap", "64MiB");
    if (kvd_config_finish(&n->config, &diag)) {
        fail_msg("%s", diag.text);
    }
    (void)snprintf(path, sizeof(path), "%s/%s.log", files.path, name);
    n->log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(n->log_fd >= 0);
    kvd_log_init(&n->log, n->log_fd, "test", KVD_LOG_WARN);
    node_start(n, false);
}

static void node_down(struct node *n)
{
    assert_int_equal(kvd_daemon_stop(&n->daemon), 0);
    (void)unlink(n->config.dram_path);
    kvd_config_fini(&n->config);
    (void)close(n->log_fd);
}

/* Deadlines long enough for a machine under load: these tests are about bytes, not time. */
static struct kvd_client *client_of(struct node *n)
{
    struct kvd_client_options options;
    struct kvd_client *client = NULL;
    kvd_client_options_init(&options);
    options.match_ms = 20000;
    options.io_ms = 20000;
    options.connect_ms = 20000;
    options.socket_path = n->config.socket;
    assert_int_equal(kvd_client_open(&options, &client), 0);
    assert_true(kvd_client_connected(client));
    return client;
}

static struct kvd_engine *engine_on(struct kvd_client *client, const char *model,
                                    struct kvd_log *log)
{
    const struct kvd_engine_options options = {
        .model_path = model, .threads = 1, .shuffle_seed = 3, .client = client, .log = log};
    return engine_with(&options);
}

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

/* Cold, hit, longer prompt over the same beginning; lengths around the edges of blocks and chunks.
 */
static void test_a_hit_changes_nothing(void **state)
{
    static const uint32_t lengths[] = {1, 63, 64, 65, 128, 129, 300, 512, 513, 700, 900};
    struct node n;
    node_up(&n, "hit");
    struct kvd_client *client = client_of(&n);
    struct kvd_engine *engine = engine_on(client, files.model, &n.log);
    struct kvd_engine *alone = engine_on(NULL, files.model, NULL);
    uint32_t stored = 0; /* whole blocks of the longest prompt so far */
    uint32_t ids[900];
    ids_make(ids, 900, 1);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint32_t len = lengths[i];
        const struct kvd_request q = greedy(ids, len, 1);
        const struct kvd_request_report none = run_ok(alone, &q, NULL);
        const struct kvd_request_report first = run_ok(engine, &q, NULL);
        const struct kvd_request_report again = run_ok(engine, &q, NULL);
        assert_same_bytes(&first, &none);
        assert_same_bytes(&again, &none);
        assert_int_equal(first.hit_tokens,
                         (stored < (len - 1) / 64 ? stored : (len - 1) / 64) * 64);
        assert_int_equal(first.put_blocks, len / 64 - stored);
        assert_int_equal(again.hit_tokens, (len - 1) / 64 * 64);
        assert_int_equal(again.hit_by_tier[KVD_IN_DRAM], again.hit_tokens);
        assert_int_equal(again.put_blocks, 0);
        stored = len / 64;
    }
    kvd_engine_close(&alone);
    kvd_engine_close(&engine);
    kvd_client_close(&client);
    node_down(&n);
}

/* The second turn of a conversation: its prefix holds generated tokens, whose blocks were put while
 * they were generated. */
static void test_generated_blocks(void **state)
{
    struct node n;
    node_up(&n, "turns");
    struct kvd_client *client = client_of(&n);
    struct kvd_engine *engine = engine_on(client, files.model, &n.log);
    struct kvd_engine *alone = engine_on(NULL, files.model, NULL);
    uint32_t ids[600];
    ids_make(ids, 600, 2);
    struct kvd_tokens answer = {0};
    struct kvd_request q = greedy(ids, 100, 156);
    q.sampling.temperature = 1;
    q.sampling.seed = 4;
    struct kvd_request_report r = run_ok(engine, &q, &answer);
    assert_int_equal(r.answer_tokens, 156);
    /* 255 positions are computed: the last chosen token is not, so the fourth block is not full */
    assert_int_equal(r.put_blocks, 3);
    memcpy(ids + 100, answer.ids, answer.n * sizeof(uint32_t));
    q = greedy(ids, 600, 5);
    r = run_ok(engine, &q, NULL);
    const struct kvd_request_report none = run_ok(alone, &q, NULL);
    assert_int_equal(r.hit_tokens, 192);
    assert_same_bytes(&r, &none);
    kvd_tokens_fini(&answer);
    kvd_engine_close(&alone);
    kvd_engine_close(&engine);
    kvd_client_close(&client);
    node_down(&n);
}

/* Text of ids; returns its bytes. */
static size_t text_of(const struct kvd_tokenizer *tok, const struct kvd_tokens *ids, char *ret,
                      size_t cap)
{
    size_t n = 0;
    for (uint32_t i = 0; i < ids->n; i++) {
        uint32_t bytes = 0;
        const char *piece = kvd_tokenizer_piece(tok, ids->ids[i], &bytes);
        assert_true(piece && n + bytes <= cap);
        memcpy(ret + n, piece, bytes);
        n += bytes;
    }
    return n;
}

/* Prompts are keyed as they are tokenised. A random model answers with ids that its own tokenizer
 * would not choose for the same text: the next turn, tokenised from text, hits up to there and not
 * beyond. */
static void test_generated_ids_that_tokenise_otherwise(void **state)
{
    struct node n;
    node_up(&n, "otherwise");
    struct kvd_client *client = client_of(&n);
    struct kvd_engine *engine = engine_on(client, files.model, &n.log);
    struct kvd_engine *alone = engine_on(NULL, files.model, NULL);
    const struct kvd_tokenizer *tok = kvd_engine_model(engine)->tokenizer;
    char text[8192];
    size_t bytes = 0;
    for (int i = 0; i < 30; i++) {
        bytes +=
            (size_t)snprintf(text + bytes, sizeof(text) - bytes, "line %d of a long text, ", i);
    }
    struct kvd_tokens turn = {0};
    struct kvd_tokens answer = {0};
    struct kvd_tokens next = {0};
    assert_int_equal(kvd_tokenizer_encode(tok, text, bytes, false, &turn), 0);
    struct kvd_request q = greedy(turn.ids, turn.n, 200);
    q.sampling.temperature = 1;
    q.sampling.seed = 9;
    q.ignore_end = true;
    (void)run_ok(engine, &q, &answer);
    bytes += text_of(tok, &answer, text + bytes, sizeof(text) - bytes);
    assert_int_equal(kvd_tokenizer_encode(tok, text, bytes, false, &next), 0);
    uint32_t same = 0;
    while (same < next.n &&
           next.ids[same] == (same < turn.n ? turn.ids[same] : answer.ids[same - turn.n])) {
        same++;
        assert_true(same < turn.n + answer.n); /* they do differ */
    }
    assert_true(next.n < 1000 && next.n > same + 64);
    q = greedy(next.ids, next.n, 2);
    const struct kvd_request_report r = run_ok(engine, &q, NULL);
    const struct kvd_request_report none = run_ok(alone, &q, NULL);
    assert_int_equal(r.hit_tokens, same / 64 * 64);
    assert_same_bytes(&r, &none);
    kvd_tokens_fini(&turn);
    kvd_tokens_fini(&answer);
    kvd_tokens_fini(&next);
    kvd_engine_close(&alone);
    kvd_engine_close(&engine);
    kvd_client_close(&client);
    node_down(&n);
}

/* Another user, another model under the same name: no hit. An unknown scenario: refused. */
static void test_who_may_hit(void **state)
{
    struct node n;
    node_up(&n, "who");
    struct kvd_client *client = client_of(&n);
    struct kvd_engine *engine = engine_on(client, files.model, &n.log);
    struct kvd_engine *other = engine_on(client, files.other, &n.log);
    assert_string_equal(kvd_engine_model_name(engine), kvd_engine_model_name(other));
    uint32_t ids[200];
    ids_make(ids, 200, 3);
    struct kvd_request q = greedy(ids, 200, 1);
    q.tenant = "ann";
    assert_int_equal(run_ok(engine, &q, NULL).hit_tokens, 0);
    assert_int_equal(run_ok(engine, &q, NULL).hit_tokens, 192);
    assert_int_equal(run_ok(other, &q, NULL).hit_tokens, 0);
    q.scenario = "agent"; /* a retention class is no wall */
    assert_int_equal(run_ok(engine, &q, NULL).hit_tokens, 192);
    q.tenant = "bob";
    assert_int_equal(run_ok(engine, &q, NULL).hit_tokens, 0);
    q.tenant = "";
    assert_int_equal(run_ok(engine, &q, NULL).hit_tokens, 0);
    q.tenant = NULL; /* the default tenant, as "" is */
    assert_int_equal(run_ok(engine, &q, NULL).hit_tokens, 192);
    q.scenario = "picnic";
    struct kvd_diag diag = {0};
    struct kvd_request_report report;
    assert_int_equal(kvd_engine_run(engine, &q, NULL, NULL, NULL, &diag, &report),
                     -KVD_E_UNKNOWN_SCENARIO);
    assert_non_null(strstr(diag.text, "picnic"));
    kvd_engine_close(&other);
    kvd_engine_close(&engine);
    kvd_client_close(&client);
    node_down(&n);
}

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

struct killer {
    struct node *node;
    int at;
    int calls;
};

static int kill_daemon(uint32_t id, void *user)
{
    struct killer *k = user;
    if (++k->calls == k->at) {
        assert_int_equal(kvd_daemon_stop(&k->node->daemon), 0);
    }
    return 0;
}

/* The daemon ends in the middle of a request; the request doesn't. Another daemon on the same store
 * serves what the first one stored. */
static void test_daemon_that_goes_away(void **state)
{
    struct node n;
    node_up(&n, "away");
    struct kvd_client *client = client_of(&n);
    struct kvd_engine *engine = engine_on(client, files.model, &n.log);
    struct kvd_engine *alone = engine_on(NULL, files.model, NULL);
    uint32_t ids[200];
    ids_make(ids, 200, 5);
    struct kvd_request q = greedy(ids, 200, 100);
    const struct kvd_request_report none = run_ok(alone, &q, NULL);
    struct killer k = {.node = &n, .at = 2};
    struct kvd_request_report r;
    assert_int_equal(kvd_engine_run(engine, &q, kill_daemon, &k, NULL, NULL, &r), 0);
    assert_same_bytes(&r, &none);
    assert_int_equal(r.put_blocks, 3); /* those of the prompt, before it ended */
    r = run_ok(engine, &q, NULL);
    assert_same_bytes(&r, &none);
    assert_int_equal(r.hit_tokens, 0);
    assert_int_equal(lines_with(n.log_fd, "cache: "), 1); /* said once */
    kvd_engine_close(&engine);
    kvd_client_close(&client);

    node_start(&n, true);
    client = client_of(&n);
    engine = engine_on(client, files.model, &n.log);
    r = run_ok(engine, &q, NULL);
    assert_same_bytes(&r, &none);
    assert_int_equal(r.hit_tokens, 192);
    assert_int_equal(r.hit_by_tier[KVD_IN_NVME], 192);
    kvd_engine_close(&engine);
    kvd_engine_close(&alone);
    kvd_client_close(&client);
    node_down(&n);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_a_hit_changes_nothing),
    cmocka_unit_test(test_generated_blocks),
    cmocka_unit_test(test_generated_ids_that_tokenise_otherwise),
    cmocka_unit_test(test_who_may_hit),
    cmocka_unit_test(test_daemon_that_goes_away),
};

KVD_TEST_MAIN_AROUND(tests, setup, teardown)
