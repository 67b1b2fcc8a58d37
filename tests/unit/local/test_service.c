/*
 * The door above a service that a test plays: what no real one can be made to do at will. Loads
 * stay under way as long as the test wants, there is no room for staging, a report has any length.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cachesvc/local/local.h"
#include "kvd_test.h"
#include "kvdepot/kvdepot.h"
#include "proto/base/cleanup.h"

enum {
    BLOCK_TOKENS = 16,
    BLOCKS = 2,
    N_TOKENS = BLOCKS * BLOCK_TOKENS + 1,
    BLOCK_BYTES = 2 * 64 * 16 * 2,
    POOL_BYTES = 1 << 20,
    STAGING_BYTES = 2 * BLOCK_BYTES,
    UNDERWAY_MAX = 256,
    WAIT_MS = 20000,
    PUT = 77,
};

struct pending {
    kvd_load_done_fn *done;
    void *user;
};

struct kvd_service {
    int pool_fd;
    int staging_fd; /* -1: no room for it */
    size_t report_bytes;
    pthread_mutex_t mtx;
    /* lock: mtx, all below */
    struct pending loads[UNDERWAY_MAX + 1];
    unsigned n_loads;
    unsigned aborts;
    unsigned commits;
};

struct kvd_session {
    struct kvd_service *service;
};

/* ---- the service */

struct kvd_store_id kvd_service_store_id(const struct kvd_service *service)
{
    (void)service;
    return (struct kvd_store_id){.b = {1}};
}

int kvd_service_pool_fd(struct kvd_service *service)
{
    return service->pool_fd;
}

uint64_t kvd_service_pool_bytes(struct kvd_service *service)
{
    (void)service;
    return POOL_BYTES;
}

int kvd_session_open(struct kvd_service *service, struct kvd_session **ret)
{
    struct kvd_session *s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    s->service = service;
    *ret = s;
    return 0;
}

void kvd_session_end(struct kvd_session **session)
{
    free(*session);
    *session = NULL;
}

int kvd_service_space_open(struct kvd_session *session, const struct kvd_space_desc *desc,
                           struct kvd_diag *diag, struct kvd_space_opened *ret)
{
    const int fd = session->service->staging_fd;
    (void)desc;
    (void)diag;
    *ret = (struct kvd_space_opened){.handle = 1,
                                     .staging_fd = fd,
                                     .staging_bytes = fd >= 0 ? STAGING_BYTES : 0,
                                     .staging_slots = fd >= 0 ? 2 : 0,
                                     .slot_bytes = BLOCK_BYTES};
    return 0;
}

int kvd_service_match(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                      struct kvd_diag *diag, struct kvd_wire_block *ret_results,
                      uint32_t results_cap, struct kvd_match_out *ret)
{
    (void)session;
    (void)prompt;
    (void)diag;
    assert_int_equal(results_cap, BLOCKS);
    ret_results[0].tier = KVD_TIER_DRAM;
    ret_results[1].tier = KVD_TIER_DRAM;
    *ret = (struct kvd_match_out){.lease = 5, .asked_blocks = BLOCKS, .hit_blocks = BLOCKS};
    return 0;
}

void kvd_session_name(struct kvd_session *session, const char *name)
{
    (void)session;
    assert_non_null(strstr(name, "(pid "));
}

void kvd_service_load(struct kvd_session *session, const struct kvd_load_ask *ask,
                      kvd_load_done_fn *done, void *user)
{
    struct kvd_service *s = session->service;
    (void)ask;
    (void)pthread_mutex_lock(&s->mtx);
    s->loads[s->n_loads++] = (struct pending){done, user};
    (void)pthread_mutex_unlock(&s->mtx);
}

void kvd_service_release(struct kvd_session *session, uint64_t lease, uint32_t stale_from)
{
    (void)session;
    (void)lease;
    (void)stale_from;
}

int kvd_service_put_begin(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                          uint32_t first, uint32_t n, struct kvd_diag *diag,
                          struct kvd_wire_block *ret_results, struct kvd_put_out *ret)
{
    const bool room = session->service->staging_fd >= 0;
    (void)prompt;
    (void)first;
    (void)diag;
    for (uint32_t i = 0; i < n; i++) {
        ret_results[i] = (struct kvd_wire_block){
            .state = room ? KVD_BLOCK_GRANTED : KVD_BLOCK_ABSENT, .bytes = BLOCK_BYTES};
    }
    *ret = (struct kvd_put_out){.put = room ? PUT : 0, .granted_blocks = room ? n : 0};
    return 0;
}

void kvd_service_put_commit(struct kvd_session *session, uint64_t put, bool abort,
                            kvd_put_done_fn *done, void *user)
{
    struct kvd_service *s = session->service;
    (void)pthread_mutex_lock(&s->mtx);
    s->aborts += abort && put == PUT;
    s->commits += !abort;
    (void)pthread_mutex_unlock(&s->mtx);
    done(0, abort ? 0 : 1, 0, user);
}

int kvd_service_touch(struct kvd_session *session, const struct kvd_prompt_ref *prompt, uint32_t n,
                      struct kvd_diag *diag)
{
    (void)session;
    (void)prompt;
    (void)n;
    (void)diag;
    return 0;
}

/* What came through the door is said back. */
void kvd_service_drop(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                      uint32_t first, uint32_t n, kvd_drop_done_fn *done, void *user)
{
    struct kvd_diag diag = {{0}};
    (void)session;
    int err = prompt->n_tokens != (first + n) * BLOCK_TOKENS
                  ? kvd_fail(&diag, -KVD_E_FULL, "%u tokens", prompt->n_tokens)
                  : 0;
    done(err, &diag, n, user);
}

void kvd_service_purge(struct kvd_session *session, const struct kvd_purge_ask *ask,
                       kvd_purge_done_fn *done, void *user)
{
    struct kvd_diag diag = {{0}};
    struct kvd_purge_out out = {.dram_blocks = (UINT64_C(1) << 40) + ask->tenant_bytes,
                                .dram_bytes = ask->space ? strlen(ask->space) : 1000};
    (void)session;
    int err = ask->all && (ask->tenant || ask->space) ? -KVD_E_BAD_REQUEST : 0;
    if (ask->all) {
        err = kvd_fail(&diag, -ENOSPC, "not all of it");
    } else if (ask->tenant && memcmp(ask->tenant, "alice", ask->tenant_bytes) != 0) {
        err = kvd_fail(&diag, -KVD_E_NOT_FOUND, "who is that");
    }
    done(err, &diag, &out, user);
}

int kvd_service_verify(struct kvd_service *service, const char *tier, uint64_t rate,
                       struct kvd_diag *diag, uint64_t *ret_round)
{
    (void)service;
    if (strcmp(tier, "moon") == 0) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "no tier is called moon");
    }
    *ret_round = rate + strlen(tier); /* shows that both have come through */
    return 0;
}

int kvd_service_report(struct kvd_service *service, const char *what, const char *by,
                       const char *window, struct kvd_diag *diag, char **ret_json)
{
    (void)what;
    (void)by;
    (void)window;
    (void)diag;
    char *json = malloc(service->report_bytes + 1);
    if (!json) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < service->report_bytes; i++) {
        json[i] = (char)('a' + i % 26);
    }
    json[service->report_bytes] = 0;
    *ret_json = json;
    return 0;
}

/* ---- the door above it, and a client */

struct rig {
    struct kvd_service service;
    struct kvd_log log;
    struct kvd_local *local;
    struct kvd_client *c;
    struct kvd_space *s;
};

static void client_open(struct rig *rig)
{
    struct kvd_client_options o;
    struct kvd_space_config config = {.size = sizeof(config),
                                      .model = "played",
                                      .weights = {1},
                                      .dtype = KVD_DTYPE_F16,
                                      .layout = KVD_LAYOUT_HEADS,
                                      .layers = 1,
                                      .kv_heads = 1,
                                      .head_dim = 64,
                                      .block_tokens = BLOCK_TOKENS,
                                      .rope_base = 10000,
                                      .rope_scale = 1,
                                      .numerics = "test",
                                      .ranks = 1};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(kvd_local_adopt(rig->local, fds[0]), 0);
    kvd_client_options_init(&o);
    o.fd = fds[1];
    o.connect_ms = o.match_ms = o.io_ms = WAIT_MS;
    assert_int_equal(kvd_client_open(&o, &rig->c), 0);
    assert_int_equal(kvd_space_open(rig->c, &config, &rig->s), 0);
    assert_int_equal(kvd_space_block_bytes(rig->s), BLOCK_BYTES);
}

static void rig_open(struct rig *rig, bool staging)
{
    struct kvd_diag diag = {{0}};
    memset(rig, 0, sizeof(*rig));
    (void)pthread_mutex_init(&rig->service.mtx, NULL);
    kvd_log_init(&rig->log, STDERR_FILENO, "test", KVD_LOG_ERROR);
    rig->service.pool_fd = memfd_create("pool", MFD_CLOEXEC);
    rig->service.staging_fd = staging ? memfd_create("staging", MFD_CLOEXEC) : -1;
    assert_int_equal(ftruncate(rig->service.pool_fd, POOL_BYTES), 0);
    assert_true(!staging || ftruncate(rig->service.staging_fd, STAGING_BYTES) == 0);
    struct kvd_local_options o = {.log = &rig->log};
    assert_int_equal(kvd_local_start(&rig->service, &o, &diag, &rig->local), 0);
    client_open(rig);
}

static void rig_close(struct rig *rig)
{
    kvd_client_close(&rig->c);
    kvd_local_stop(&rig->local);
    kvd_close_fd(&rig->service.pool_fd);
    kvd_close_fd(&rig->service.staging_fd);
    (void)pthread_mutex_destroy(&rig->service.mtx);
}

static unsigned locked(struct rig *rig, const unsigned *count)
{
    (void)pthread_mutex_lock(&rig->service.mtx);
    unsigned n = *count;
    (void)pthread_mutex_unlock(&rig->service.mtx);
    return n;
}

static void loads_end(struct rig *rig)
{
    unsigned n = locked(rig, &rig->service.n_loads);
    for (unsigned i = 0; i < n; i++) {
        rig->service.loads[i].done(-KVD_E_STALE, NULL, 0, 0, rig->service.loads[i].user);
    }
}

/* ---- tests */

static const uint32_t tokens[N_TOKENS] = {1, 2, 3};
static const struct kvd_prompt prompt = {
    .scenario = "chat", .tokens = tokens, .n_tokens = N_TOKENS};

/* As many loads as one client may have are under way: a commit is told to come later, an abort must
 * not be, because nobody would repeat it. */
static void test_abort_needs_no_place(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_match_result m;
    struct kvd_put *put = NULL;
    struct kvd_put *other = NULL;
    static uint8_t memory[BLOCK_BYTES];
    void *dest[1] = {memory};
    rig_open(&rig, true);
    assert_int_equal(kvd_match(rig.s, &prompt, &m), 0);
    assert_int_equal(kvd_put_begin(rig.s, &prompt, 0, 1, &put, NULL), 0);
    assert_int_equal(kvd_put_begin(rig.s, &prompt, 0, 1, &other, NULL), 0);
    for (int i = 0; i < UNDERWAY_MAX; i++) {
        int err;
        while ((err = kvd_submit_load(m.lease, 0, 1, dest, NULL)) == KVD_BUSY) {
            assert_int_equal(kvd_ping(rig.c), 0); /* the socket has room again */
        }
        assert_int_equal(err, 0);
    }
    assert_int_equal(kvd_ping(rig.c), 0); /* what was sent before it has been handled */
    assert_int_equal(locked(&rig, &rig.service.n_loads), UNDERWAY_MAX);
    assert_int_equal(kvd_put_commit(&other, NULL), KVD_BUSY);
    assert_int_equal(locked(&rig, &rig.service.commits), 0);
    kvd_put_abort(&put);
    assert_int_equal(kvd_ping(rig.c), 0);
    assert_int_equal(locked(&rig, &rig.service.aborts), 1);
    loads_end(&rig);
    kvd_lease_release(&m.lease);
    rig_close(&rig);
}

/* No room for staging: no descriptor is sent, and the client can do all but put. */
static void test_no_staging(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_match_result m;
    struct kvd_put_result r;
    static const uint8_t block[BLOCK_BYTES];
    const void *src[BLOCKS] = {block, block};
    rig_open(&rig, false);
    assert_int_equal(kvd_match(rig.s, &prompt, &m), 0);
    assert_int_equal(m.hit_blocks, BLOCKS);
    kvd_lease_release(&m.lease);
    assert_int_equal(kvd_put(rig.s, &prompt, 0, BLOCKS, src, &r), 0);
    assert_int_equal(r.committed + r.stored_already, 0);
    assert_int_equal(r.refused, BLOCKS);
    assert_true(kvd_client_connected(rig.c));
    rig_close(&rig);
}

static void test_reports_of_any_length(void **state)
{
    (void)state;
    enum { PACKET = 64 << 10 };
    static const size_t lengths[] = {0,      1,       PACKET - 257, PACKET - 256, PACKET - 255,
                                     PACKET, 1 << 20, 64 << 20};
    struct rig rig;
    rig_open(&rig, true);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        KVD_AUTOFREE char *json = NULL;
        rig.service.report_bytes = lengths[i];
        assert_int_equal(kvd_report(rig.c, "status", NULL, NULL, &json), 0);
        assert_int_equal(strlen(json), lengths[i]);
        assert_true(lengths[i] == 0 || json[lengths[i] - 1] == (char)('a' + (lengths[i] - 1) % 26));
    }
    char *json = NULL;
    rig.service.report_bytes = (64 << 20) + 1;
    assert_int_equal(kvd_report(rig.c, "status", NULL, NULL, &json), KVD_TOO_LONG);
    assert_null(json);
    assert_int_equal(kvd_ping(rig.c), 0);
    rig_close(&rig);
}

static void test_verify(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t round = 0;
    rig_open(&rig, true);
    assert_int_equal(kvd_verify(rig.c, "nvme", 1000, &round), 0);
    assert_int_equal(round, 1004);
    assert_int_equal(kvd_verify(rig.c, NULL, 5, &round), 0);
    assert_int_equal(round, 5);
    assert_int_equal(kvd_verify(rig.c, "moon", 5, &round), KVD_BAD_REQUEST);
    assert_non_null(strstr(kvd_client_message(rig.c), "moon"));
    rig_close(&rig);
}

static void test_drop_and_purge(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t dropped = 0;
    struct kvd_purge_result r;
    static const char long_name[600] = {[0 ... 598] = 'x'};
    rig_open(&rig, true);
    assert_int_equal(kvd_drop(rig.s, &prompt, 1, 1, &dropped), 0);
    assert_int_equal(dropped, 1);
    assert_int_equal(kvd_drop(rig.s, &prompt, 0, 2, NULL), 0);
    assert_int_equal(kvd_drop(rig.s, &prompt, 0, 0, &dropped), KVD_BAD_REQUEST);
    assert_int_equal(kvd_drop(rig.s, &prompt, 1, 2, &dropped), KVD_BAD_REQUEST);
    assert_int_equal(kvd_drop(rig.s, &prompt, UINT32_MAX, 2, &dropped), KVD_BAD_REQUEST);
    const struct kvd_purge_scope bad[] = {
        {.everything = false},
        {.everything = true, .tenant = "alice"},
        {.everything = true, .space = "01234567"},
        {.tenant = long_name},
        {.space = long_name},
        {.space = ""},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(kvd_purge(rig.c, &bad[i], &r), KVD_BAD_REQUEST);
    }
    struct kvd_purge_scope scope = {.tenant = "alice", .space = "m@01234567"};
    assert_int_equal(kvd_purge(rig.c, &scope, &r), 0);
    assert_true(r.dram_blocks == (UINT64_C(1) << 40) + 5 && r.dram_bytes == 10);
    scope = (struct kvd_purge_scope){.tenant = ""};
    assert_int_equal(kvd_purge(rig.c, &scope, &r), 0);
    assert_true(r.dram_blocks == UINT64_C(1) << 40 && r.dram_bytes == 1000);
    scope = (struct kvd_purge_scope){.tenant = "bob"};
    assert_int_equal(kvd_purge(rig.c, &scope, NULL), KVD_NOT_FOUND);
    scope = (struct kvd_purge_scope){.everything = true};
    assert_int_equal(kvd_purge(rig.c, &scope, NULL), KVD_INTERNAL); /* of a device */
    assert_non_null(strstr(kvd_client_message(rig.c), "not all of it"));
    rig_close(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_abort_needs_no_place),  cmocka_unit_test(test_no_staging),
    cmocka_unit_test(test_reports_of_any_length), cmocka_unit_test(test_verify),
    cmocka_unit_test(test_drop_and_purge),
};

KVD_TEST_MAIN(tests)
