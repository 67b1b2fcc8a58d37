/* libkvdepot against a real daemon: every byte that comes back is compared. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "kvd_test.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "rig.h"

static void test_round_trip(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_stats stats = {.size = sizeof(stats)};
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_hit(s, 1, 40), 0);
    assert_int_equal(rig_put(s, 1, 0, 37), 37); /* several batches, the last one not full */
    assert_int_equal(rig_hit(s, 1, 40), 37);
    assert_int_equal(rig_hit(s, 1, 20), 20);
    assert_int_equal(rig_hit(s, 2, 20), 0);
    assert_int_equal(rig_put(s, 1, 30, 10), 10); /* seven of them are stored already */
    assert_int_equal(rig_hit(s, 1, 40), 40);
    kvd_stats(c, &stats);
    assert_int_equal(stats.put_blocks, 40);
    assert_int_equal(stats.hit_blocks, 37 + 20 + 40);
    assert_int_equal(stats.loaded_blocks, 37 + 20 + 40);
    assert_int_equal(stats.failed_blocks, 0);
    assert_int_equal(stats.deadlines, 0);
    assert_int_equal(rig_status(c, "leases"), 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

static void test_tenants_and_scenarios(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[5 * RIG_BLOCK_TOKENS];
    struct kvd_match_result m;
    uint8_t extra[32] = {1};
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    rig_tokens(1, 5 * RIG_BLOCK_TOKENS, tokens);
    struct kvd_prompt p = rig_prompt(tokens, 5 * RIG_BLOCK_TOKENS);
    assert_int_equal(rig_put(s, 1, 0, 5), 5);
    assert_int_equal(kvd_match(s, &p, &m), 0);
    assert_int_equal(m.asked_blocks, 4); /* the last token is always left to compute */
    assert_int_equal(m.hit_blocks, 4);
    assert_int_equal(kvd_lease_tier(m.lease, 3), KVD_IN_DRAM);
    kvd_lease_release(&m.lease);
    p.tenant = "somebody else";
    assert_int_equal(kvd_match(s, &p, &m), 0);
    assert_int_equal(m.hit_blocks, 0);
    assert_null(m.lease);
    p.tenant = "";
    p.extra = extra;
    assert_int_equal(kvd_match(s, &p, &m), 0);
    assert_int_equal(m.hit_blocks, 0);
    p.extra = NULL;
    assert_int_equal(kvd_touch(s, &p, 5), 0);
    p.scenario = "nobody's";
    assert_int_equal(kvd_match(s, &p, &m), KVD_UNKNOWN_SCENARIO);
    assert_non_null(strstr(kvd_client_message(c), "nobody's"));
    p.scenario = "chat";
    p.n_tokens = 1; /* nothing can be asked for, and that is no error */
    assert_int_equal(kvd_match(s, &p, &m), 0);
    assert_int_equal(m.asked_blocks, 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

static void test_put_in_two_steps(void **state)
{
    (void)state;
    enum { N = 16 };
    struct rig rig;
    uint32_t tokens[N * RIG_BLOCK_TOKENS];
    struct kvd_put *put = NULL;
    struct kvd_put *other = NULL;
    struct kvd_put_result r;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    rig_tokens(3, N * RIG_BLOCK_TOKENS, tokens);
    struct kvd_prompt p = rig_prompt(tokens, N * RIG_BLOCK_TOKENS);
    assert_int_equal(kvd_put_begin(s, &p, 0, N, &put, &r), 0);
    assert_non_null(put);
    assert_int_equal(r.stored_already + r.refused, 0);
    assert_non_null(kvd_put_buffer(put, N - 1));
    assert_null(kvd_put_buffer(put, N));
    for (uint32_t i = 0; i < N; i++) {
        rig_payload(3, i, kvd_put_buffer(put, i));
    }
    assert_int_equal(rig_hit(s, 3, N), 0); /* nothing is visible before commit */
    /* the same blocks are being put: they are not granted twice */
    assert_int_equal(kvd_put_begin(s, &p, 0, 4, &other, &r), 0);
    assert_null(other);
    assert_int_equal(r.refused, 4);
    assert_int_equal(kvd_put_commit(&put, &r), 0);
    assert_null(put);
    assert_int_equal(r.committed, N);
    assert_int_equal(rig_hit(s, 3, N), N);
    assert_int_equal(kvd_put_begin(s, &p, 0, N, &put, &r), 0);
    assert_null(put);
    assert_int_equal(r.stored_already, N);
    /* given up: never visible, and its room is free again */
    rig_tokens(4, N * RIG_BLOCK_TOKENS, tokens);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvd_put_begin(s, &p, 0, N, &put, &r), 0);
        assert_non_null(put);
        assert_int_equal(r.refused, 0);
        kvd_put_abort(&put);
        assert_null(put);
    }
    assert_int_equal(rig_hit(s, 4, N), 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* What is dropped or purged is not found again, until it is put again. */
static void test_drop_and_purge(void **state)
{
    (void)state;
    enum { N = 8 };
    struct rig rig;
    uint32_t tokens[N * RIG_BLOCK_TOKENS];
    uint32_t dropped = 0;
    struct kvd_purge_result r;
    const struct kvd_purge_scope mine = {.tenant = ""};
    const struct kvd_purge_scope others = {.tenant = "somebody else"};
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    rig_tokens(1, N * RIG_BLOCK_TOKENS, tokens);
    struct kvd_prompt p = rig_prompt(tokens, N * RIG_BLOCK_TOKENS);
    assert_int_equal(rig_put(s, 1, 0, N), N);
    assert_int_equal(kvd_drop(s, &p, 3, 2, &dropped), 0);
    assert_int_equal(dropped, 2);
    assert_int_equal(rig_hit(s, 1, N), 3);
    assert_int_equal(rig_put(s, 1, 0, N), N);
    assert_int_equal(rig_hit(s, 1, N), N);
    assert_int_equal(kvd_purge(c, &others, &r), 0);
    assert_int_equal(r.dram_blocks, 0);
    assert_int_equal(rig_hit(s, 1, N), N);
    assert_int_equal(kvd_purge(c, &mine, &r), 0);
    assert_int_equal(r.dram_blocks, N);
    assert_int_equal(r.dram_bytes, N * RIG_BLOCK_BYTES);
    assert_int_equal(rig_hit(s, 1, N), 0);
    assert_int_equal(rig_logged(&rig, "client test (pid "), 3); /* come, and two purges: whose */
    assert_int_equal(rig_logged(&rig, "purged tenant 0000000000000000: 8 blocks"), 1);
    p.scenario = "nobody's";
    assert_int_equal(kvd_drop(s, &p, 0, 1, &dropped), KVD_UNKNOWN_SCENARIO);
    kvd_client_close(&c);
    rig_fini(&rig);
}

static void test_two_clients(void **state)
{
    (void)state;
    struct rig rig;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *a = rig_client(&rig);
    struct kvd_client *b = rig_client_embedded(&rig);
    struct kvd_space *sa = rig_space(a);
    struct kvd_space *sb = rig_space(b);
    assert_int_equal(rig_put(sa, 5, 0, 20), 20);
    assert_int_equal(rig_hit(sb, 5, 20), 20);
    kvd_client_close(&a);
    assert_int_equal(rig_hit(sb, 5, 20), 20);
    kvd_client_close(&b);
    rig_fini(&rig);
}

/* The daemon is stopped and started: the client is back by itself, its space works, what it put is
 * there, and what it held of the old daemon is stale. */
static void test_restart(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[10 * RIG_BLOCK_TOKENS + 1];
    struct kvd_match_result m;
    static uint8_t memory[10][RIG_BLOCK_BYTES];
    void *dest[10];
    uint32_t good;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 6, 0, 10), 10);
    rig_tokens(6, 10 * RIG_BLOCK_TOKENS + 1, tokens);
    struct kvd_prompt p = rig_prompt(tokens, 10 * RIG_BLOCK_TOKENS + 1);
    assert_int_equal(kvd_match(s, &p, &m), 0);
    assert_int_equal(m.hit_blocks, 10);
    for (int i = 0; i < 10; i++) {
        dest[i] = memory[i];
    }
    rig_stop(&rig);
    assert_int_equal(kvd_load(m.lease, 0, 10, dest, &good), KVD_UNAVAILABLE);
    assert_false(kvd_client_connected(c));
    rig_start(&rig);
    int err;
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while ((err = kvd_load(m.lease, 0, 10, dest, &good)) == KVD_UNAVAILABLE &&
           kvd_mono_ns() < until) {
    }
    assert_int_equal(err, KVD_STALE);
    kvd_lease_release(&m.lease);
    assert_int_equal(rig_hit(s, 6, 10), 10);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* A daemon that was restarted between two calls costs the second one nothing but the time to
 * connect: no miss. */
static void test_restart_between_calls(void **state)
{
    (void)state;
    struct rig rig;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 7, 0, 3), 3);
    uint64_t opened = kvd_mono_ns();
    rig_stop(&rig);
    rig_start(&rig);
    while (kvd_mono_ns() < opened + 1100 * (uint64_t)KVD_NS_PER_MS) {
        (void)poll(NULL, 0, 10); /* reaching the daemon is tried once a second at most */
    }
    assert_int_equal(rig_hit(s, 7, 3), 3);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- many threads in one client */

enum { THREADS = 6, ROUNDS = 6, THREAD_BLOCKS = 20 };

struct worker {
    pthread_t thread;
    struct kvd_space *space;
    uint32_t seed;
    bool right;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    w->right = true;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t seed = w->seed * 100 + i;
        w->right = w->right && rig_put(w->space, seed, 0, THREAD_BLOCKS) == THREAD_BLOCKS;
        w->right = w->right && rig_hit(w->space, seed, THREAD_BLOCKS) == THREAD_BLOCKS;
        /* and one that all of them put and load */
        (void)rig_put(w->space, 9999, 0, 4);
        (void)rig_hit(w->space, 9999, 4);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    struct rig rig;
    struct worker workers[THREADS] = {0};
    rig_init(&rig);
    rig_set(&rig, "dram.cap", "64MiB");
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i].space = s;
        workers[i].seed = i + 1;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_true(workers[i].right);
    }
    assert_int_equal(rig_hit(s, 9999, 4), 4);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- purges beside puts and loads */

struct purges {
    atomic_uint begun;
    atomic_uint ended;
    atomic_uint workers_left;
};

struct purged_worker {
    pthread_t thread;
    struct kvd_space *space;
    struct purges *purges;
    uint32_t seed;
    bool right;
};

/* What was put before a purge began is not found once it has ended; what was put with no purge
 * beside it is. */
static void *put_and_lose(void *arg)
{
    struct purged_worker *w = arg;
    w->right = true;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t seed = w->seed * 100 + i;
        unsigned ended = atomic_load(&w->purges->ended);
        w->right = w->right && rig_put(w->space, seed, 0, THREAD_BLOCKS) == THREAD_BLOCKS;
        uint32_t found = rig_hit(w->space, seed, THREAD_BLOCKS);
        unsigned begun = atomic_load(&w->purges->begun);
        w->right = w->right && (found == THREAD_BLOCKS || begun > ended);
        while (atomic_load(&w->purges->ended) <= begun) {
            (void)sched_yield();
        }
        w->right = w->right && rig_hit(w->space, seed, THREAD_BLOCKS) == 0;
    }
    atomic_fetch_sub(&w->purges->workers_left, 1);
    return NULL;
}

static void test_purges_beside_puts(void **state)
{
    (void)state;
    enum { WORKERS = 3 };
    struct rig rig;
    struct purged_worker workers[WORKERS] = {0};
    struct purges purges;
    const struct kvd_purge_scope all = {.everything = true};
    rig_init(&rig);
    rig_set(&rig, "dram.cap", "64MiB");
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    atomic_init(&purges.begun, 0);
    atomic_init(&purges.ended, 0);
    atomic_init(&purges.workers_left, WORKERS);
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i].space = s;
        workers[i].seed = i + 1;
        workers[i].purges = &purges;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, put_and_lose, &workers[i]), 0);
    }
    while (atomic_load(&purges.workers_left) > 0) {
        atomic_fetch_add(&purges.begun, 1);
        assert_int_equal(kvd_purge(c, &all, NULL), 0);
        atomic_fetch_add(&purges.ended, 1);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_true(workers[i].right);
    }
    assert_int_equal(rig_status(c, "blocks"), 0);
    assert_int_equal(rig_status(c, "corrupt"), 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- submissions */

static void wait_for(struct kvd_client *c)
{
    struct pollfd pfd = {.fd = kvd_client_fd(c), .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, RIG_WAIT_MS), 1);
}

static void drain_all(struct kvd_client *c, struct kvd_completion *done, int n)
{
    int have = 0;
    while (have < n) {
        wait_for(c);
        have += kvd_drain(c, done + have, n - have);
    }
}

static void test_submissions(void **state)
{
    (void)state;
    enum { N = 8, BLOCKS = 4 };
    struct rig rig;
    uint32_t tokens[N][BLOCKS * RIG_BLOCK_TOKENS + 1];
    struct kvd_completion done[N];
    struct kvd_lease *leases[N] = {0};
    static uint8_t memory[N][BLOCKS][RIG_BLOCK_BYTES];
    void *dest[N][BLOCKS];
    uint8_t want[RIG_BLOCK_BYTES];
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    for (uint32_t i = 0; i < N; i++) {
        struct kvd_put *put = NULL;
        rig_tokens(50 + i, BLOCKS * RIG_BLOCK_TOKENS + 1, tokens[i]);
        struct kvd_prompt p = rig_prompt(tokens[i], BLOCKS * RIG_BLOCK_TOKENS + 1);
        if (i % 4 == 0 && i > 0) {
            drain_all(c, done, 4); /* four times four blocks are all of staging */
        }
        assert_int_equal(kvd_put_begin(s, &p, 0, BLOCKS, &put, NULL), 0);
        assert_non_null(put);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            rig_payload(50 + i, b, kvd_put_buffer(put, b));
            dest[i][b] = memory[i][b];
        }
        assert_int_equal(kvd_submit_put_commit(&put, tokens[i]), 0);
        assert_null(put);
    }
    drain_all(c, done, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(done[i].op, KVD_OP_PUT_COMMIT);
        assert_int_equal(done[i].status, 0);
        assert_int_equal(done[i].put.committed, BLOCKS);
    }
    for (uint32_t i = 0; i < N; i++) {
        struct kvd_prompt p = rig_prompt(tokens[i], BLOCKS * RIG_BLOCK_TOKENS + 1);
        assert_int_equal(kvd_submit_match(s, &p, tokens[i]), 0);
    }
    drain_all(c, done, N);
    for (int i = 0; i < N; i++) {
        size_t which =
            (size_t)((uint32_t(*)[BLOCKS * RIG_BLOCK_TOKENS + 1]) done[i].cookie - tokens);
        assert_int_equal(done[i].status, 0);
        assert_int_equal(done[i].match.hit_blocks, BLOCKS);
        leases[which] = done[i].match.lease;
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(kvd_submit_load(leases[i], 0, BLOCKS, dest[i], NULL), 0);
    }
    drain_all(c, done, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(done[i].op, KVD_OP_LOAD);
        assert_int_equal(done[i].status, 0);
        assert_int_equal(done[i].good, BLOCKS);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            rig_payload(50 + i, b, want);
            assert_memory_equal(memory[i][b], want, RIG_BLOCK_BYTES);
        }
        kvd_lease_release(&leases[i]);
    }
    struct kvd_prompt p = rig_prompt(tokens[0], BLOCKS * RIG_BLOCK_TOKENS + 1);
    assert_int_equal(kvd_submit_touch(s, &p, BLOCKS, NULL), 0);
    drain_all(c, done, 1);
    assert_int_equal(done[0].op, KVD_OP_TOUCH);
    assert_int_equal(done[0].status, 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- fork */

/* A forked child has none of the mappings and does not keep the session alive. */
static void test_forked_child(void **state)
{
    (void)state;
    struct rig rig;
    int hold[2];
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *watcher = rig_client(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 8, 0, 3), 3);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte;
        (void)close(hold[1]);
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    char path[64];
    char line[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "r");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps)) {
        assert_null(strstr(line, "kvdepot-request-area"));
        /* the daemon in this process has its own, writable mapping of the pool */
        assert_false(strstr(line, "/pool") && strstr(line, " r--s "));
    }
    (void)fclose(maps);
    assert_int_equal(rig_hit(s, 8, 3), 3);
    assert_int_equal(rig_status(watcher, "clients"), 2);
    kvd_client_close(&c);
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while (rig_status(watcher, "clients") != 1 && kvd_mono_ns() < until) {
    }
    assert_int_equal(rig_status(watcher, "clients"), 1);
    (void)close(hold[0]);
    (void)close(hold[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    kvd_client_close(&watcher);
    rig_fini(&rig);
}

static void test_reports(void **state)
{
    (void)state;
    struct rig rig;
    char *json = NULL;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    static const char *const known[] = {"status", "hitrate", "options"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvd_report(c, known[i], NULL, NULL, &json), 0);
        assert_int_equal(json[0], '{');
        free(json);
    }
    assert_int_equal(kvd_report(c, "hitrate", "scenario", "5m", &json), 0);
    free(json);
    assert_int_equal(kvd_report(c, "weather", NULL, NULL, &json), KVD_BAD_REQUEST);
    assert_non_null(strstr(kvd_client_message(c), "weather"));
    assert_int_equal(kvd_report(c, "hitrate", "colour", NULL, &json), KVD_BAD_REQUEST);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- a report that fits no packet */

enum { TENANTS = 200 };

static void tenant_name(char *ret, size_t n, unsigned i)
{
    (void)snprintf(ret, n, "user-%03u-of-a-house-with-long-names", i);
}

static unsigned rows_of_tenants(const char *text)
{
    bool seen[TENANTS] = {false};
    unsigned n = 0;
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    json_t *row;
    size_t at;
    assert_non_null(json);
    json_array_foreach(json_object_get(json, "rows"), at, row)
    {
        for (unsigned i = 0; i < TENANTS; i++) {
            char name[64];
            tenant_name(name, sizeof(name), i);
            const char *have = json_string_value(json_object_get(row, "name"));
            if (have && strcmp(have, name) == 0 && !seen[i]) {
                seen[i] = true;
                n++;
            }
        }
    }
    json_decref(json);
    return n;
}

static void test_report_of_many_tenants(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[2 * RIG_BLOCK_TOKENS];
    struct kvd_match_result m;
    char name[64];
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    rig_tokens(1, 2 * RIG_BLOCK_TOKENS, tokens);
    struct kvd_prompt p = rig_prompt(tokens, 2 * RIG_BLOCK_TOKENS);
    p.tenant = name;
    for (unsigned i = 0; i < TENANTS; i++) {
        tenant_name(name, sizeof(name), i);
        assert_int_equal(kvd_match(s, &p, &m), 0);
    }
    for (int i = 0; i < 3; i++) {
        KVD_AUTOFREE char *json = NULL;
        assert_int_equal(kvd_report(c, "hitrate", "tenant", "ever", &json), 0);
        assert_true(strlen(json) > KVD_WIRE_PACKET_MAX);
        assert_int_equal(rows_of_tenants(json), TENANTS);
    }
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- blocks of which few fit into staging */

static struct kvd_space *large_space(struct kvd_client *c, uint32_t *ret_block_bytes)
{
    struct kvd_space_config config = {.size = sizeof(config),
                                      .model = "large",
                                      .weights = {8},
                                      .dtype = KVD_DTYPE_F16,
                                      .layout = KVD_LAYOUT_HEADS,
                                      .layers = 22,
                                      .kv_heads = 16,
                                      .head_dim = 64,
                                      .block_tokens = RIG_BLOCK_TOKENS,
                                      .rope_base = 10000,
                                      .rope_scale = 1,
                                      .numerics = "test",
                                      .ranks = 1};
    struct kvd_space *s = NULL;
    assert_int_equal(kvd_space_open(c, &config, &s), 0);
    *ret_block_bytes = (uint32_t)kvd_space_block_bytes(s);
    return s;
}

/* A pool with room for all of a put, and staging for less than two batches of four: every block is
 * stored, whatever it takes. */
static void test_put_through_little_staging(void **state)
{
    (void)state;
    enum { N = 16, PROMPTS = 2 };
    struct rig rig;
    uint32_t tokens[N * RIG_BLOCK_TOKENS + 1];
    const void *src[N];
    void *dest[N];
    uint32_t bytes = 0;
    uint32_t good = 0;
    struct kvd_match_result m;
    rig_init(&rig);
    rig_set(&rig, "dram.cap", "64MiB");
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = large_space(c, &bytes);
    KVD_AUTOFREE uint8_t *memory = malloc((size_t)N * bytes * 2);
    assert_non_null(memory);
    for (uint32_t i = 0; i < N; i++) {
        memset(memory + (size_t)i * bytes, (int)i + 1, bytes);
        src[i] = memory + (size_t)i * bytes;
        dest[i] = memory + (size_t)(N + i) * bytes;
    }
    for (uint32_t seed = 0; seed < PROMPTS; seed++) {
        struct kvd_put_result r;
        rig_tokens(20 + seed, N * RIG_BLOCK_TOKENS + 1, tokens);
        struct kvd_prompt p = rig_prompt(tokens, N * RIG_BLOCK_TOKENS + 1);
        assert_int_equal(kvd_put(s, &p, 0, N, src, &r), 0);
        assert_int_equal(r.refused, 0);
        assert_int_equal(r.committed, N);
        assert_int_equal(kvd_match(s, &p, &m), 0);
        assert_int_equal(m.hit_blocks, N);
        memset(memory + (size_t)N * bytes, 0, (size_t)N * bytes);
        assert_int_equal(kvd_load(m.lease, 0, N, dest, &good), 0);
        assert_int_equal(good, N);
        assert_memory_equal(memory, memory + (size_t)N * bytes, (size_t)N * bytes);
        kvd_lease_release(&m.lease);
    }
    kvd_client_close(&c);
    rig_fini(&rig);
}

static void test_contradiction(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_space *s = NULL;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    (void)rig_space(c);
    struct kvd_space_config other = {.size = sizeof(other),
                                     .model = "rig",
                                     .weights = {7},
                                     .dtype = KVD_DTYPE_F16,
                                     .layout = KVD_LAYOUT_HEADS,
                                     .layers = 3,
                                     .kv_heads = 1,
                                     .head_dim = 64,
                                     .block_tokens = RIG_BLOCK_TOKENS,
                                     .rope_base = 10000,
                                     .rope_scale = 1,
                                     .numerics = "test",
                                     .ranks = 1};
    assert_int_equal(kvd_space_open(c, &other, &s), KVD_CONTRADICTION);
    assert_null(s);
    assert_true(kvd_client_message(c)[0] != 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_round_trip),
    cmocka_unit_test(test_tenants_and_scenarios),
    cmocka_unit_test(test_put_in_two_steps),
    cmocka_unit_test(test_drop_and_purge),
    cmocka_unit_test(test_two_clients),
    cmocka_unit_test(test_restart),
    cmocka_unit_test(test_restart_between_calls),
    cmocka_unit_test(test_many_threads),
    cmocka_unit_test(test_purges_beside_puts),
    cmocka_unit_test(test_submissions),
    cmocka_unit_test(test_forked_child),
    cmocka_unit_test(test_reports),
    cmocka_unit_test(test_contradiction),
    cmocka_unit_test(test_report_of_many_tenants),
    cmocka_unit_test(test_put_through_little_staging),
};

KVD_TEST_MAIN(tests)
