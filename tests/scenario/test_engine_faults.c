/*
 * An engine and a real kvdepotd that is stopped, killed, absent, another one, or has a bad record.
 * The engine runs in this process, so that each request's digests of logits and KV can be compared
 * with those of an engine without a cache; the daemon is a process. Whatever happens to it, every
 * answer is the same, and the engine comes back to the cache by itself.
 */
#include "../unit/engine_session/engine_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../unit/engine_server/http_client.h"
#include "kvdepot/kvdepot.h"
#include "proc.h"
#include "proto/base/clock.h"

enum { PROMPT = 200, WHOLE = 192, DEADLINE_MS = 1500, BACK_S = 30 };

struct world {
    struct folder files;
    char socket[128];
    char store[128];
    char log[128];
    int log_fd;
    struct kvd_log logger;
    struct proc daemon;
    struct kvd_client *client;
    struct kvd_engine *engine;
    uint32_t ids[PROMPT];
    struct kvd_request q;
    struct kvd_request_report none; /* of q, without a cache */
};

/* name: of the store's folder. */
static void daemon_start(struct world *w, const char *name, bool drop_dram)
{
    char store[160];
    char pool[160];
    (void)snprintf(store, sizeof(store), "%s/%s", w->files.path, name);
    (void)snprintf(pool, sizeof(pool), "%s/%s.pool", w->files.path, name);
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                store,
                                "--socket",
                                w->socket,
                                "--dram.path",
                                pool,
                                "--dram.cap",
                                "64MiB",
                                "--nvme.cap",
                                "64MiB",
                                drop_dram ? "--drop-dram" : NULL,
                                NULL};
    proc_start(&w->daemon, argv);
    proc_expect(&w->daemon, "ready");
}

static void daemon_signal(struct world *w, int sig)
{
    assert_int_equal(kill(w->daemon.pid, sig), 0);
    int status = 0;
    if (sig == SIGSTOP) { /* it has stopped when this says so */
        assert_int_equal(waitpid(w->daemon.pid, &status, WUNTRACED), w->daemon.pid);
        assert_true(WIFSTOPPED(status));
    }
}

static struct kvd_client *client_open(const struct world *w)
{
    struct kvd_client_options options;
    struct kvd_client *client = NULL;
    kvd_client_options_init(&options);
    options.socket_path = w->socket;
    options.connect_ms = options.match_ms = options.io_ms = DEADLINE_MS;
    assert_int_equal(kvd_client_open(&options, &client), 0);
    return client;
}

static void engine_start(struct world *w)
{
    const struct kvd_engine_options options = {
        .model_path = w->files.model, .threads = 1, .client = w->client, .log = &w->logger};
    w->engine = engine_with(&options);
}

static void world_init(struct world *w)
{
    *w = (struct world){0};
    folder_make(&w->files, 1024);
    (void)snprintf(w->socket, sizeof(w->socket), "%s/s", w->files.path);
    (void)snprintf(w->log, sizeof(w->log), "%s/log", w->files.path);
    w->log_fd = open(w->log, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(w->log_fd >= 0);
    kvd_log_init(&w->logger, w->log_fd, "test", KVD_LOG_INFO);
    ids_make(w->ids, PROMPT, 1);
    w->q = greedy(w->ids, PROMPT, 4);
    const struct kvd_engine_options options = {.model_path = w->files.model, .threads = 1};
    struct kvd_engine *alone = engine_with(&options);
    w->none = run_ok(alone, &w->q, NULL);
    kvd_engine_close(&alone);
}

static void world_fini(struct world *w)
{
    kvd_engine_close(&w->engine);
    kvd_client_close(&w->client);
    if (w->daemon.pid) {
        assert_int_equal(proc_end(&w->daemon, SIGTERM), 0);
    }
    (void)close(w->log_fd);
    folder_remove(&w->files);
}

/* A daemon, an engine on it, and the prompt's blocks in the cache. */
static void world_up(struct world *w)
{
    world_init(w);
    daemon_start(w, "store", false);
    w->client = client_open(w);
    engine_start(w);
    assert_int_equal(run_ok(w->engine, &w->q, NULL).put_blocks, WHOLE / 64);
    assert_int_equal(run_ok(w->engine, &w->q, NULL).hit_tokens, WHOLE);
}

/* The prompt once more: the same answer, whatever there is of a cache. */
static struct kvd_request_report ask(struct world *w)
{
    const struct kvd_request_report r = run_ok(w->engine, &w->q, NULL);
    assert_same_bytes(&r, &w->none);
    return r;
}

/* Asks until the cache is of use again. */
static void come_back(struct world *w)
{
    const uint64_t deadline = kvd_mono_ns() + BACK_S * KVD_NS_PER_S;
    while (ask(w).hit_tokens != WHOLE) {
        assert_true(kvd_mono_ns() < deadline);
    }
    assert_int_equal(ask(w).cache_failures, 0);
}

static int lines_with(int fd, const char *word)
{
    static char text[65536];
    const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
    assert_true(got >= 0);
    text[got] = 0;
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) {
        n++;
    }
    return n;
}

static uint64_t deadlines(const struct world *w)
{
    struct kvd_stats stats = {.size = sizeof(stats)};
    kvd_stats(w->client, &stats);
    return stats.deadlines;
}

/* ---- stopped, killed, absent ---- */

static void r_daemon_stopped(void **state)
{
    (void)state;
    struct world w;
    world_up(&w);
    daemon_signal(&w, SIGSTOP);
    const uint64_t before = deadlines(&w);
    for (int i = 0; i < 20; i++) {
        const struct kvd_request_report r = ask(&w);
        assert_int_equal(r.hit_tokens, 0);
        assert_true(r.cache_failures > 0);
    }
    assert_int_equal(deadlines(&w), before + 1); /* waited for once, however many asked */
    assert_int_equal(lines_with(w.log_fd, "going on without it"), 1);
    daemon_signal(&w, SIGCONT);
    come_back(&w);
    assert_int_equal(lines_with(w.log_fd, "answers again"), 1);
    world_fini(&w);
}

struct at_token {
    struct world *w;
    int sig;
    int at;
    int calls;
};

static int signal_daemon(uint32_t id, void *user)
{
    struct at_token *t = user;
    if (++t->calls == t->at) {
        daemon_signal(t->w, t->sig);
    }
    return 0;
}

/* A longer answer, whose blocks find nobody to take them. */
static void in_mid_answer(int sig)
{
    struct world w;
    world_up(&w);
    const struct kvd_engine_options options = {.model_path = w.files.model, .threads = 1};
    struct kvd_engine *alone = engine_with(&options);
    struct kvd_request q = greedy(w.ids, PROMPT, 200);
    const struct kvd_request_report none = run_ok(alone, &q, NULL);
    const uint64_t before = deadlines(&w);
    struct at_token t = {.w = &w, .sig = sig, .at = 20};
    struct kvd_request_report r;
    assert_int_equal(kvd_engine_run(w.engine, &q, signal_daemon, &t, NULL, NULL, &r), 0);
    assert_same_bytes(&r, &none);
    assert_int_equal(r.answer_tokens, 200);
    assert_int_equal(r.hit_tokens, WHOLE);
    assert_int_equal(r.put_blocks, 0);
    assert_int_equal(r.cache_failures, 1); /* what follows would be a tail without a head */
    assert_true(deadlines(&w) <= before + 1);
    if (sig == SIGSTOP) {
        daemon_signal(&w, SIGCONT);
    } else {
        assert_int_equal(proc_end(&w.daemon, 0), 128 + SIGKILL);
        daemon_start(&w, "store", false);
    }
    come_back(&w);
    kvd_engine_close(&alone);
    world_fini(&w);
}

static void r_daemon_stopped_in_mid_answer(void **state)
{
    (void)state;
    in_mid_answer(SIGSTOP);
}

static void r_daemon_killed_in_mid_answer(void **state)
{
    (void)state;
    in_mid_answer(SIGKILL);
}

static void r_daemon_killed_and_started(void **state)
{
    (void)state;
    struct world w;
    world_up(&w);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(proc_end(&w.daemon, SIGKILL), 128 + SIGKILL);
        assert_int_equal(ask(&w).hit_tokens, 0);
        assert_int_equal(ask(&w).hit_tokens, 0);
        daemon_start(&w, "store", false);
        come_back(&w);
    }
    world_fini(&w);
}

static void r_daemon_that_comes_later(void **state)
{
    (void)state;
    struct world w;
    world_init(&w);
    w.client = client_open(&w);
    engine_start(&w);
    assert_int_equal(ask(&w).hit_tokens, 0);
    assert_int_equal(ask(&w).put_blocks, 0);
    assert_int_equal(deadlines(&w), 0); /* nobody to wait for */
    daemon_start(&w, "store", false);
    come_back(&w);
    world_fini(&w);
}

/* ---- another daemon in its place ---- */

/* Blocks that the daemon was given since it started. */
static json_int_t committed(struct world *w)
{
    char *text = NULL;
    assert_int_equal(kvd_report(w->client, "status", "", "", &text), 0);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *v = json_object_get(json_object_get(root, "puts"), "committed_blocks");
    assert_true(json_is_integer(v));
    const json_int_t ret = json_integer_value(v);
    json_decref(root);
    free(text);
    return ret;
}

static void r_daemon_of_another_store(void **state)
{
    (void)state;
    struct world w;
    world_up(&w);
    assert_int_equal(proc_end(&w.daemon, SIGTERM), 0);
    daemon_start(&w, "other", false); /* empty, at the same socket */
    come_back(&w);
    assert_int_equal(committed(&w), WHOLE / 64);
    assert_int_equal(proc_end(&w.daemon, SIGTERM), 0);
    daemon_start(&w, "store", true); /* and the first one again */
    come_back(&w);
    assert_int_equal(committed(&w), 0);
    world_fini(&w);
}

/* 256 spaces are a daemon's limit: sixteen clients that have sixteen each. */
static void take_all_spaces(const struct world *w, struct kvd_client *clients[16])
{
    for (int i = 0; i < 256; i++) {
        struct kvd_space *space = NULL;
        const struct kvd_space_config config = {.size = sizeof(config),
                                                .model = "many",
                                                .weights = {(uint8_t)i, 1},
                                                .dtype = KVD_DTYPE_F16,
                                                .layout = KVD_LAYOUT_HEADS,
                                                .layers = 1,
                                                .kv_heads = 1,
                                                .head_dim = 64,
                                                .block_tokens = 16,
                                                .rope_base = 10000,
                                                .rope_scale = 1,
                                                .numerics = "test",
                                                .ranks = 1};
        if (i % 16 == 0) {
            clients[i / 16] = client_open(w);
        }
        assert_int_equal(kvd_space_open(clients[i / 16], &config, &space), 0);
    }
}

static void r_space_refused_then_taken(void **state)
{
    (void)state;
    struct world w;
    struct kvd_client *clients[16];
    world_init(&w);
    daemon_start(&w, "store", false);
    take_all_spaces(&w, clients);
    w.client = client_open(&w);
    engine_start(&w);
    assert_int_equal(lines_with(w.log_fd, "256 spaces"), 1);
    assert_int_equal(ask(&w).hit_tokens, 0);
    assert_int_equal(ask(&w).put_blocks, 0);
    for (int i = 0; i < 16; i++) {
        kvd_client_close(&clients[i]);
    }
    assert_int_equal(proc_end(&w.daemon, SIGTERM), 0);
    daemon_start(&w, "store", false); /* which has forgotten the spaces */
    come_back(&w);
    assert_int_equal(lines_with(w.log_fd, "answers again"), 1);
    world_fini(&w);
}

/* ---- a load that fails ---- */

static char segment[512];

static int find_segment(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (S_ISREG(st->st_mode) && strstr(path, ".seg")) {
        (void)snprintf(segment, sizeof(segment), "%s", path);
    }
    return 0;
}

/* Flips a bit in the payload of the second record. */
static void spoil_second_record(const struct world *w)
{
    char store[160];
    uint8_t b = 0;
    (void)snprintf(store, sizeof(store), "%s/store", w->files.path);
    segment[0] = 0;
    assert_int_equal(nftw(store, find_segment, 16, FTW_PHYS), 0);
    const int fd = open(segment, O_RDWR);
    assert_true(fd >= 0);
    const off_t record =
        4096 + (off_t)(2 * 2 * 2 * 16 * 64 * 2); /* header, and the tiny model's KV */
    const off_t at = 4096 + record + 4096 + 100;
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 0x20;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    (void)close(fd);
}

static void r_load_that_fails_every_time(void **state)
{
    (void)state;
    struct world w;
    struct kvd_stats stats = {.size = sizeof(stats)};
    (void)alarm(60); /* an engine that tries for ever is ended by the signal */
    world_up(&w);
    for (int i = 0; i < 3; i++) { /* and again, when it was put again */
        assert_int_equal(proc_end(&w.daemon, SIGTERM), 0);
        if (i == 0) {
            spoil_second_record(&w);
        }
        daemon_start(&w, "store", true);
        const uint64_t deadline = kvd_mono_ns() + BACK_S * KVD_NS_PER_S;
        struct kvd_request_report r = ask(&w);
        while (r.cache_failures) { /* until it is reached again */
            assert_true(kvd_mono_ns() < deadline);
            r = ask(&w);
        }
        assert_int_equal(r.hit_tokens, i == 0 ? 64 : WHOLE);
        come_back(&w); /* stored anew */
    }
    kvd_stats(w.client, &stats);
    assert_int_equal(stats.failed_blocks, 2);
    world_fini(&w);
    (void)alarm(0);
}

/* ---- other weights in the same file ---- */

static bool folder_empty(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        n += e->d_name[0] != '.';
    }
    if (d) {
        (void)closedir(d);
    }
    return n == 0;
}

static void keep_fingerprint(const struct world *w, const char *cache)
{
    const uint64_t deadline = kvd_mono_ns() + BACK_S * KVD_NS_PER_S;
    while (folder_empty(cache)) {
        struct kvd_model *m = NULL;
        assert_true(kvd_mono_ns() < deadline);
        assert_int_equal(kvd_model_open(w->files.model, cache, NULL, &m), 0);
        kvd_model_close(&m);
    }
}

/* Same name, folder, size and times; the last weights are others. */
static void change_weights(const char *path)
{
    struct stat st;
    uint8_t page[4096];
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    const off_t at = st.st_size - (off_t)sizeof(page);
    assert_int_equal(pread(fd, page, sizeof(page), at), sizeof(page));
    for (size_t i = 0; i < sizeof(page); i += 20) { /* the low bits of quantised weights */
        page[i + 10] ^= 0x11;
    }
    assert_int_equal(pwrite(fd, page, sizeof(page), at), sizeof(page));
    const struct timespec times[] = {st.st_atim, st.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    (void)close(fd);
}

static void r_weights_changed_in_place(void **state)
{
    (void)state;
    struct world w;
    char cache[128];
    world_init(&w);
    (void)snprintf(cache, sizeof(cache), "%s/fingerprints", w.files.path);
    daemon_start(&w, "store", false);
    w.client = client_open(&w);
    keep_fingerprint(&w, cache);
    const struct kvd_engine_options options = {
        .model_path = w.files.model, .fingerprint_cache = cache, .threads = 1, .client = w.client};
    w.engine = engine_with(&options);
    (void)ask(&w);
    assert_int_equal(ask(&w).hit_tokens, WHOLE);
    kvd_engine_close(&w.engine);
    change_weights(w.files.model);
    const struct kvd_engine_options without = {.model_path = w.files.model, .threads = 1};
    struct kvd_engine *alone = engine_with(&without);
    const struct kvd_request_report none = run_ok(alone, &w.q, NULL);
    assert_memory_not_equal(none.logits_sha256, w.none.logits_sha256, 32);
    w.engine = engine_with(&options);
    const struct kvd_request_report r = run_ok(w.engine, &w.q, NULL);
    assert_int_equal(r.hit_tokens, 0);
    assert_same_bytes(&r, &none);
    kvd_engine_close(&alone);
    world_fini(&w);
}

/* ---- the server ---- */

static uint16_t server_start(struct world *w, struct proc *server)
{
    const char *const argv[] = {proc_program("engine/kvdepot-engine"),
                                "--model",
                                w->files.model,
                                "--socket",
                                w->socket,
                                "--fingerprint-cache",
                                "",
                                "--match-ms",
                                "1500",
                                "--http",
                                "0",
                                NULL};
    unsigned port = 0;
    proc_start(server, argv);
    proc_expect(server, "listening on http://127.0.0.1:");
    const char *at = strstr(server->output, "127.0.0.1:");
    assert_int_equal(sscanf(at, "127.0.0.1:%u", &port), 1);
    return (uint16_t)port;
}

/* Asks over HTTP; returns the hit tokens, and the text where there was none yet; else compares. */
static json_int_t post(uint16_t port, char *text, size_t room)
{
    char body[2048];
    char words[1200] = {0};
    for (size_t n = 0; n + 40 < sizeof(words); n = strlen(words)) {
        (void)snprintf(words + n, sizeof(words) - n, "the %zuth line of a book ", n);
    }
    (void)snprintf(body, sizeof(body),
                   "{\"max_tokens\": 8, \"temperature\": 0, \"messages\": [{\"role\": \"user\", "
                   "\"content\": \"%s\"}]}",
                   words);
    struct answer a = http_post(port, body);
    assert_int_equal(a.status, 200);
    json_t *root = json_loads(a.body, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const char *said =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    assert_non_null(said);
    if (text[0] == 0) {
        (void)snprintf(text, room, "%s", said);
    }
    assert_string_equal(text, said);
    const json_t *hit = json_object_get(json_object_get(root, "usage"), "prompt_cache_hit_tokens");
    const json_int_t ret = json_integer_value(hit);
    json_decref(root);
    free(a.body);
    return ret;
}

static void server_comes_back(uint16_t port, char *text, size_t room, json_int_t hit)
{
    const uint64_t deadline = kvd_mono_ns() + BACK_S * KVD_NS_PER_S;
    while (post(port, text, room) != hit) {
        assert_true(kvd_mono_ns() < deadline);
    }
}

static void r_server_whose_daemon_fails(void **state)
{
    (void)state;
    struct world w;
    struct proc server;
    char text[512] = {0};
    world_init(&w);
    daemon_start(&w, "store", false);
    const uint16_t port = server_start(&w, &server);
    assert_int_equal(post(port, text, sizeof(text)), 0);
    const json_int_t hit = post(port, text, sizeof(text));
    assert_true(hit >= 128 && hit % 64 == 0);
    daemon_signal(&w, SIGSTOP);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(post(port, text, sizeof(text)), 0);
    }
    daemon_signal(&w, SIGCONT);
    server_comes_back(port, text, sizeof(text), hit);
    assert_int_equal(proc_end(&w.daemon, SIGKILL), 128 + SIGKILL);
    assert_int_equal(post(port, text, sizeof(text)), 0);
    daemon_start(&w, "store", false);
    server_comes_back(port, text, sizeof(text), hit);
    assert_int_equal(proc_end(&server, SIGTERM), 0);
    assert_non_null(strstr(server.output, "going on without it"));
    assert_non_null(strstr(server.output, "answers again"));
    world_fini(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_daemon_stopped),
    cmocka_unit_test(r_daemon_stopped_in_mid_answer),
    cmocka_unit_test(r_daemon_killed_in_mid_answer),
    cmocka_unit_test(r_daemon_killed_and_started),
    cmocka_unit_test(r_daemon_that_comes_later),
    cmocka_unit_test(r_daemon_of_another_store),
    cmocka_unit_test(r_space_refused_then_taken),
    cmocka_unit_test(r_load_that_fails_every_time),
    cmocka_unit_test(r_weights_changed_in_place),
    cmocka_unit_test(r_server_whose_daemon_fails),
};

KVD_TEST_MAIN(tests)
