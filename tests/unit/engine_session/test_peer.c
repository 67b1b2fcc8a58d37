/*
 * An engine on a daemon that fails at a chosen step: silent after a look-up, dead in a load, late,
 * or saying no. Each answer is the one that is computed without a cache, a failed load is asked for
 * once, and the next request finds the way back.
 */
#include "engine_fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "../client/peer.h"
#include "proto/base/clock.h"

enum { PROMPT = 200, BLOCKS = 3, DEADLINE_MS = 300, BACK_S = 30 };

/* What the peer does at one step; elsewhere it finds nothing and stores nothing. */
enum fault {
    NONE,
    MATCH_LATE,    /* answers when the test says go */
    LOAD_SILENT,   /* a hit; its load is answered when the test says go */
    LOAD_DEAD,     /* a hit; hangs up when it is to be loaded */
    LOAD_STALE,    /* a hit; the lease has ended */
    LOAD_NO_BLOCK, /* a hit; not one block of it can be read */
    PUT_FAILS,
    MATCH_FAILS,
};

struct world {
    struct folder files;
    struct peer peer;
    pthread_t thread;
    sem_t go;
    sem_t held; /* the peer waits for go */
    atomic_int fault;
    atomic_int loads;
    atomic_int matches;
    struct kvd_client *client;
    struct kvd_engine *engine;
    uint32_t ids[PROMPT];
    struct kvd_request q;
    struct kvd_request_report none;
};

static void hold(struct world *w)
{
    (void)sem_post(&w->held);
    while (sem_wait(&w->go)) {
    }
}

static void answer_match(struct world *w, int fault)
{
    struct peer *p = &w->peer;
    atomic_fetch_add(&w->matches, 1);
    if (fault == MATCH_LATE) {
        hold(w);
    }
    if (fault == MATCH_FAILS) {
        peer_answer_error(p, -KVD_E_INTERNAL);
        return;
    }
    const bool hit =
        fault == LOAD_SILENT || fault == LOAD_DEAD || fault == LOAD_STALE || fault == LOAD_NO_BLOCK;
    for (uint32_t i = 0; hit && i < BLOCKS; i++) {
        *peer_row(p, p->req->match->results, i) = (struct kvd_wire_block){
            .state = KVD_BLOCK_STORED, .tier = KVD_IN_DRAM, .bytes = PEER_POOL_BYTES / 64};
    }
    peer_answer_match(p, hit ? 7 : 0, BLOCKS, hit ? BLOCKS : 0);
}

static void answer_load(struct world *w, int fault)
{
    struct peer *p = &w->peer;
    atomic_fetch_add(&w->loads, 1);
    if (fault == LOAD_DEAD) {
        peer_hang_up(p);
        return;
    }
    if (fault == LOAD_SILENT) {
        hold(w);
    }
    if (fault == LOAD_STALE) {
        peer_answer_error(p, -KVD_E_STALE);
        return;
    }
    for (uint32_t i = 0; i < p->req->load->n_blocks; i++) {
        *peer_row(p, p->req->load->results, i) =
            (struct kvd_wire_block){.state = KVD_BLOCK_FAILED, .tier = KVD_IN_DRAM};
    }
    peer_answer_load(p, 0);
}

static void answer(struct world *w)
{
    struct peer *p = &w->peer;
    const int fault = atomic_load(&w->fault);
    switch (p->req->body_case) {
    case KVD__WIRE__REQUEST__BODY_HELLO:
        peer_answer_hello(p);
        break;
    case KVD__WIRE__REQUEST__BODY_SPACE_OPEN:
        peer_answer_space(p);
        break;
    case KVD__WIRE__REQUEST__BODY_MATCH:
        answer_match(w, fault);
        break;
    case KVD__WIRE__REQUEST__BODY_LOAD:
        answer_load(w, fault);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_BEGIN:
        if (fault == PUT_FAILS) {
            peer_answer_error(p, -KVD_E_IO);
        } else {
            peer_answer_put_begin(p, 0, 0);
        }
        break;
    case KVD__WIRE__REQUEST__BODY_PING:
        peer_answer_empty(p);
        break;
    default: /* a release: nobody waits for an answer */
        break;
    }
}

/* Serves one client after the other, until the listening socket is shut down. */
static void *serve(void *arg)
{
    struct world *w = arg;
    struct peer *p = &w->peer;
    for (;;) {
        p->fd = accept(p->listen_fd, NULL, NULL);
        if (p->fd < 0) {
            return NULL;
        }
        while (p->fd >= 0 && peer_receive_any(p)) {
            answer(w);
        }
        peer_hang_up(p);
    }
}

static struct kvd_engine *engine_on(const struct world *w, struct kvd_client *client)
{
    const struct kvd_engine_options options = {
        .model_path = w->files.model, .threads = 1, .client = client};
    return engine_with(&options);
}

static void world_up(struct world *w)
{
    struct kvd_client_options options;
    memset(w, 0, sizeof(*w));
    folder_make(&w->files, 1024);
    peer_init(&w->peer);
    peer_listen(&w->peer);
    (void)sem_init(&w->go, 0, 0);
    (void)sem_init(&w->held, 0, 0);
    assert_int_equal(pthread_create(&w->thread, NULL, serve, w), 0);
    kvd_client_options_init(&options);
    options.socket_path = w->peer.path;
    options.match_ms = options.io_ms = DEADLINE_MS;
    options.connect_ms = 5000;
    assert_int_equal(kvd_client_open(&options, &w->client), 0);
    ids_make(w->ids, PROMPT, 1);
    w->q = greedy(w->ids, PROMPT, 3);
    struct kvd_engine *alone = engine_on(w, NULL);
    w->none = run_ok(alone, &w->q, NULL);
    kvd_engine_close(&alone);
    w->engine = engine_on(w, w->client);
}

static void world_down(struct world *w)
{
    kvd_engine_close(&w->engine);
    kvd_client_close(&w->client);
    (void)shutdown(w->peer.listen_fd, SHUT_RDWR);
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    peer_fini(&w->peer);
    (void)sem_destroy(&w->go);
    (void)sem_destroy(&w->held);
    folder_remove(&w->files);
}

static struct kvd_request_report ask(struct world *w)
{
    const struct kvd_request_report r = run_ok(w->engine, &w->q, NULL);
    assert_same_bytes(&r, &w->none);
    assert_int_equal(r.hit_tokens, 0);
    return r;
}

static void come_back(struct world *w)
{
    const uint64_t deadline = kvd_mono_ns() + BACK_S * KVD_NS_PER_S;
    atomic_store(&w->fault, NONE);
    while (ask(w).cache_failures) {
        assert_true(kvd_mono_ns() < deadline);
    }
}

static uint64_t deadlines(const struct world *w)
{
    struct kvd_stats stats = {.size = sizeof(stats)};
    kvd_stats(w->client, &stats);
    return stats.deadlines;
}

/* Goes quiet at a step; the request costs one deadline, those after it nothing. */
static void quiet(enum fault fault)
{
    struct world w;
    world_up(&w);
    assert_int_equal(ask(&w).cache_failures, 0);
    const uint64_t before = deadlines(&w);
    atomic_store(&w.fault, fault);
    assert_true(ask(&w).cache_failures > 0);
    (void)sem_wait(&w.held);
    assert_int_equal(deadlines(&w), before + 1);
    for (int i = 0; i < 5; i++) {
        assert_true(ask(&w).cache_failures > 0);
    }
    assert_int_equal(deadlines(&w), before + 1);
    assert_int_equal(atomic_load(&w.matches), 2); /* nobody else was sent to it */
    atomic_store(&w.fault, NONE);
    (void)sem_post(&w.go); /* its answer comes, too late, and says that it lives */
    come_back(&w);
    world_down(&w);
}

static void r_daemon_silent_in_a_look_up(void **state)
{
    quiet(MATCH_LATE);
}

static void r_daemon_silent_in_a_load(void **state)
{
    quiet(LOAD_SILENT);
}

/* Every look-up's answer is late: each request waits its one deadline, and is right. */
static void r_daemon_that_is_slow(void **state)
{
    struct world w;
    world_up(&w);
    atomic_store(&w.fault, MATCH_LATE);
    for (int i = 0; i < 3; i++) {
        const int asked = atomic_load(&w.matches);
        const uint64_t before = deadlines(&w);
        const uint64_t until = kvd_mono_ns() + BACK_S * KVD_NS_PER_S;
        while (atomic_load(&w.matches) == asked) { /* until its last answer was heard */
            assert_true(kvd_mono_ns() < until);
            assert_true(ask(&w).cache_failures > 0);
        }
        assert_int_equal(deadlines(&w), before + 1);
        (void)sem_wait(&w.held);
        (void)sem_post(&w.go);
    }
    come_back(&w);
    world_down(&w);
}

/* A load that fails is computed, not asked for again. */
static void load_fails(enum fault fault, uint32_t failures)
{
    struct world w;
    world_up(&w);
    (void)alarm(60); /* an engine that tries for ever is ended by the signal */
    for (int i = 1; i <= 5; i++) {
        atomic_store(&w.fault, fault);
        assert_int_equal(ask(&w).cache_failures, failures);
        assert_int_equal(atomic_load(&w.loads), i);
        come_back(&w);
    }
    (void)alarm(0);
    world_down(&w);
}

static void r_load_of_a_stale_lease(void **state)
{
    load_fails(LOAD_STALE, 1);
}

static void r_load_that_brings_nothing(void **state)
{
    load_fails(LOAD_NO_BLOCK, 0); /* the call went well; the client counts the blocks as failed */
}

static void r_daemon_dies_in_a_load(void **state)
{
    load_fails(LOAD_DEAD, 2); /* the load, and the put after it */
}

/* Neither costs an answer, nor the next request its look-up. */
static void r_put_that_fails(void **state)
{
    struct world w;
    world_up(&w);
    for (int i = 1; i <= 3; i++) {
        atomic_store(&w.fault, PUT_FAILS);
        const struct kvd_request_report r = ask(&w);
        assert_int_equal(r.cache_failures, 1);
        assert_int_equal(r.put_blocks, 0);
        assert_int_equal(atomic_load(&w.matches), i);
    }
    atomic_store(&w.fault, MATCH_FAILS);
    assert_int_equal(ask(&w).cache_failures, 1);
    come_back(&w);
    world_down(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_daemon_silent_in_a_look_up),
    cmocka_unit_test(r_daemon_silent_in_a_load),
    cmocka_unit_test(r_daemon_that_is_slow),
    cmocka_unit_test(r_load_of_a_stale_lease),
    cmocka_unit_test(r_load_that_brings_nothing),
    cmocka_unit_test(r_daemon_dies_in_a_load),
    cmocka_unit_test(r_put_that_fails),
};

KVD_TEST_MAIN(tests)
