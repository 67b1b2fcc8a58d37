#include "service_rig.h"

#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

static void rig_set(struct rig *rig, const char *name, const char *value)
{
    struct kvd_diag diag = {{0}};
    if (kvd_config_set(&rig->config, name, value, name, &diag)) {
        fail_msg("%s", diag.text);
    }
}

void rig_init(struct rig *rig, const char *dram_cap, const char *nvme_cap)
{
    char pool[300];
    const char *tmp = getenv("TMPDIR");
    memset(rig, 0, sizeof(*rig));
    (void)snprintf(rig->folder, sizeof(rig->folder), "%s/kvd-service-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(rig->folder));
    (void)snprintf(pool, sizeof(pool), "%s/pool", rig->folder);
    assert_int_equal(kvd_config_init(&rig->config), 0);
    rig_set(rig, "dir", rig->folder);
    rig_set(rig, "dram.path", pool);
    rig_set(rig, "dram.cap", dram_cap);
    rig_set(rig, "nvme.cap", nvme_cap);
    rig_set(rig, "index.cache", "8MiB");
    struct kvd_diag diag = {{0}};
    if (kvd_config_finish(&rig->config, &diag)) {
        fail_msg("%s", diag.text);
    }
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void rig_fini(struct rig *rig)
{
    rig_close(rig);
    kvd_config_fini(&rig->config);
    (void)nftw(rig->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct kvd_space_desc rig_space(uint8_t weights)
{
    double one = 1.0;
    double base = 10000.0;
    struct kvd_space_desc d = {.model = "rig",
                               .weights = {{weights}},
                               .kv_dtype = KVD_KV_F16,
                               .layout = KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
                               .layers = RIG_LAYERS,
                               .kv_heads = RIG_HEADS,
                               .head_dim = RIG_DIM,
                               .block_tokens = RIG_BLOCK_TOKENS,
                               .numerics = "test",
                               .ranks = 1,
                               .payload_bytes = rig_block_bytes()};
    memcpy(&d.rope_base_bits, &base, 8);
    memcpy(&d.rope_scale_bits, &one, 8);
    return d;
}

uint64_t rig_block_bytes(void)
{
    return UINT64_C(2) * 2 * RIG_LAYERS * RIG_HEADS * RIG_DIM * RIG_BLOCK_TOKENS;
}

void rig_connect_space(struct rig *rig, const struct kvd_space_desc *desc)
{
    struct kvd_diag diag = {{0}};
    rig_disconnect(rig);
    assert_int_equal(kvd_session_open(rig->service, &rig->session), 0);
    if (kvd_service_space_open(rig->session, desc, &diag, &rig->space)) {
        fail_msg("%s", diag.text);
    }
    rig->staging = mmap(NULL, rig->space.staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        rig->space.staging_fd, 0);
    assert_ptr_not_equal(rig->staging, MAP_FAILED);
}

void rig_connect(struct rig *rig, uint8_t weights)
{
    struct kvd_space_desc desc = rig_space(weights);
    rig_connect_space(rig, &desc);
}

void rig_disconnect(struct rig *rig)
{
    if (rig->session) {
        (void)munmap(rig->staging, rig->space.staging_bytes);
        kvd_session_end(&rig->session);
    }
}

void rig_open(struct rig *rig, bool drop_dram)
{
    struct kvd_diag diag = {{0}};
    if (kvd_service_open(&rig->config, drop_dram, NULL, &diag, &rig->service)) {
        fail_msg("%s", diag.text);
    }
    rig->pool_bytes = kvd_service_pool_bytes(rig->service);
    rig->pool =
        mmap(NULL, rig->pool_bytes, PROT_READ, MAP_SHARED, kvd_service_pool_fd(rig->service), 0);
    assert_ptr_not_equal(rig->pool, MAP_FAILED);
    rig_connect(rig, 1);
}

void rig_close(struct rig *rig)
{
    if (!rig->service) {
        return;
    }
    rig_disconnect(rig);
    (void)munmap((void *)rig->pool, rig->pool_bytes);
    assert_int_equal(kvd_service_close(&rig->service), 0);
}

/* ---- prompts and payloads ---- */

void rig_tokens(uint32_t seed, uint32_t n, uint32_t *ret)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint32_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ret[i] = (uint32_t)(x >> 20) % 50000;
    }
}

/* The payload of a block is a function of all tokens up to its end, and of the rank. */
static void payload_of(const struct rig *rig, const uint32_t *tokens, uint32_t block, uint8_t *ret)
{
    uint64_t x = kvd_sum(tokens, (uint64_t)(block + 1) * RIG_BLOCK_TOKENS * sizeof(*tokens)) | 1;
    x ^= (uint64_t)rig->rank << 32;
    for (uint64_t at = 0; at < rig_block_bytes(); at += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        kvd_put_le64(ret + at, x);
    }
}

static struct kvd_prompt_ref prompt_ref(struct rig *rig, const char *tenant, const char *scenario,
                                        const uint32_t *tokens, uint32_t n)
{
    return (struct kvd_prompt_ref){.space_handle = rig->space.handle,
                                   .rank = rig->rank,
                                   .extra = rig->extra,
                                   .tenant = tenant,
                                   .tenant_bytes = (uint32_t)strlen(tenant),
                                   .scenario = scenario,
                                   .tokens = tokens,
                                   .n_tokens = n};
}

/* ---- waiting for callbacks ---- */

enum { ANSWER_WAIT_S = 20 };

struct rig_answer {
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool there;
    int result;
    uint32_t count;
    struct kvd_diag said;
    struct kvd_purge_out purged;
    struct kvd_wire_block rows[RIG_BLOCKS_MAX];
};

static void answer_init(struct rig_answer *a)
{
    memset(a, 0, sizeof(*a));
    (void)pthread_mutex_init(&a->mtx, NULL);
    (void)pthread_cond_init(&a->cond, NULL);
}

static void answer_give(struct rig_answer *a, int result, uint32_t count)
{
    (void)pthread_mutex_lock(&a->mtx);
    a->there = true;
    a->result = result;
    a->count = count;
    (void)pthread_cond_signal(&a->cond);
    (void)pthread_mutex_unlock(&a->mtx);
}

static void answer_wait(struct rig_answer *a)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ANSWER_WAIT_S;
    (void)pthread_mutex_lock(&a->mtx);
    while (!a->there) {
        assert_int_equal(pthread_cond_timedwait(&a->cond, &a->mtx, &until), 0);
    }
    (void)pthread_mutex_unlock(&a->mtx);
}

static void put_done(int result, uint32_t committed, uint32_t not_written_down, void *user)
{
    (void)not_written_down;
    answer_give(user, result, committed);
}

static void load_done(int result, const struct kvd_wire_block *results, uint32_t n, uint32_t good,
                      void *user)
{
    struct rig_answer *a = user;
    if (n) {
        memcpy(a->rows, results, n * sizeof(*results));
    }
    answer_give(a, result, good);
}

int rig_commit(struct kvd_session *session, uint64_t put)
{
    struct rig_answer a;
    answer_init(&a);
    kvd_service_put_commit(session, put, false, put_done, &a);
    answer_wait(&a);
    return a.result ? a.result : (int)a.count;
}

void rig_abort(struct kvd_session *session, uint64_t put)
{
    struct rig_answer a;
    answer_init(&a);
    kvd_service_put_commit(session, put, true, put_done, &a);
    answer_wait(&a);
    assert_int_equal(a.result, 0);
}

static uint32_t put_batch(struct rig *rig, const struct kvd_prompt_ref *ref, uint32_t first,
                          uint32_t n)
{
    struct kvd_diag diag = {{0}};
    struct kvd_put_out out = {0};
    if (kvd_service_put_begin(rig->session, ref, first, n, &diag, rig->results, &out)) {
        fail_msg("%s", diag.text);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (rig->results[i].state == KVD_BLOCK_GRANTED) {
            payload_of(rig, ref->tokens, first + i, rig->staging + rig->results[i].offset);
        }
    }
    if (!out.put) {
        return out.stored_blocks;
    }
    int committed = rig_commit(rig->session, out.put);
    assert_true(committed >= 0);
    return out.stored_blocks + (uint32_t)committed;
}

uint32_t rig_match(struct rig *rig, const char *tenant, const char *scenario,
                   const uint32_t *tokens, uint32_t n_tokens)
{
    struct kvd_diag diag = {{0}};
    struct kvd_prompt_ref ref = prompt_ref(rig, tenant, scenario, tokens, n_tokens);
    if (kvd_service_match(rig->session, &ref, &diag, rig->results, RIG_BLOCKS_MAX, &rig->match)) {
        fail_msg("%s", diag.text);
    }
    return rig->match.hit_blocks;
}

static void compare_payload(struct rig *rig, const struct kvd_wire_block *row,
                            const uint32_t *tokens, uint32_t block)
{
    uint8_t *want = malloc(rig_block_bytes());
    assert_non_null(want);
    payload_of(rig, tokens, block, want);
    assert_int_equal(row->bytes, rig_block_bytes());
    assert_true(row->offset + row->bytes <= rig->pool_bytes);
    assert_memory_equal(rig->pool + row->offset, want, rig_block_bytes());
    uint32_t generation;
    memcpy(&generation, rig->pool + row->generation_offset, 4);
    assert_int_equal(generation, row->generation);
    free(want);
}

uint32_t rig_load(struct rig *rig, const uint32_t *tokens)
{
    uint32_t at = 0;
    while (at < rig->match.hit_blocks) {
        struct rig_answer a;
        answer_init(&a);
        const struct kvd_load_ask ask = {.lease = rig->match.lease,
                                         .first = at,
                                         .n = rig->match.hit_blocks - at,
                                         .deadline_ns = kvd_mono_ns() + 30 * KVD_NS_PER_S};
        kvd_service_load(rig->session, &ask, load_done, &a);
        answer_wait(&a);
        assert_int_equal(a.result, 0);
        for (uint32_t i = 0; i < a.count; i++) {
            assert_int_equal(a.rows[i].state, KVD_BLOCK_LOADED);
            compare_payload(rig, &a.rows[i], tokens, at + i);
            rig->results[at + i] = a.rows[i];
        }
        bool more = a.count > 0 && at + a.count < rig->match.hit_blocks &&
                    a.rows[a.count].state == KVD_BLOCK_STORED;
        at += a.count;
        if (!more) {
            break;
        }
    }
    kvd_service_release(rig->session, rig->match.lease, UINT32_MAX);
    return at;
}

struct rig_answer *rig_load_begin(struct rig *rig, uint64_t deadline_ns)
{
    struct rig_answer *a = calloc(1, sizeof(*a));
    assert_non_null(a);
    answer_init(a);
    const struct kvd_load_ask ask = {
        .lease = rig->match.lease, .n = rig->match.hit_blocks, .deadline_ns = deadline_ns};
    kvd_service_load(rig->session, &ask, load_done, a);
    return a;
}

int rig_load_end(struct rig_answer **answer, uint32_t *ret_good)
{
    answer_wait(*answer);
    int result = (*answer)->result;
    *ret_good = (*answer)->count;
    free(*answer);
    *answer = NULL;
    return result;
}

uint32_t rig_hit(struct rig *rig, const char *tenant, const uint32_t *tokens, uint32_t n_tokens)
{
    return rig_match(rig, tenant, "chat", tokens, n_tokens) ? rig_load(rig, tokens) : 0;
}

/* ---- purging ---- */

static void purge_done(int result, const struct kvd_diag *diag, const struct kvd_purge_out *out,
                       void *user)
{
    struct rig_answer *a = user;
    a->said = *diag;
    if (!result) {
        a->purged = *out;
    }
    answer_give(a, result, 0);
}

int rig_purge(struct rig *rig, const struct kvd_purge_ask *ask, struct kvd_purge_out *ret)
{
    struct rig_answer a;
    answer_init(&a);
    kvd_service_purge(rig->session, ask, purge_done, &a);
    answer_wait(&a);
    rig->said = a.said;
    *ret = a.purged;
    return a.result;
}

int rig_purge_tenant(struct rig *rig, const char *tenant)
{
    struct kvd_purge_ask ask = {.tenant = tenant, .tenant_bytes = (uint32_t)strlen(tenant)};
    struct kvd_purge_out out;
    return rig_purge(rig, &ask, &out);
}

static void drop_done(int result, const struct kvd_diag *diag, uint32_t dropped, void *user)
{
    struct rig_answer *a = user;
    a->said = *diag;
    answer_give(a, result, dropped);
}

int rig_drop(struct rig *rig, const char *tenant, const uint32_t *tokens, uint32_t first,
             uint32_t n)
{
    struct kvd_prompt_ref ref =
        prompt_ref(rig, tenant, "chat", tokens, (first + n) * RIG_BLOCK_TOKENS);
    struct rig_answer a;
    answer_init(&a);
    kvd_service_drop(rig->session, &ref, first, n, drop_done, &a);
    answer_wait(&a);
    rig->said = a.said;
    return a.result ? a.result : (int)a.count;
}

/* ---- reports ---- */

static const json_t *report_at(const json_t *at, const char *path)
{
    char part[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof(part));
        memcpy(part, path, n);
        part[n] = 0;
        at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10))
                               : json_object_get(at, part);
        if (!at) {
            fail_msg("no %s in the report", path);
        }
        path += n + (path[n] == '.');
    }
    return at;
}

static json_t *report(struct rig *rig, const char *what, const char *by)
{
    char *text = NULL;
    struct kvd_diag diag = {{0}};
    if (kvd_service_report(rig->service, what, by, "", &diag, &text)) {
        fail_msg("%s", diag.text);
    }
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(root);
    return root;
}

uint64_t rig_number(struct rig *rig, const char *what, const char *by, const char *path)
{
    json_t *root = report(rig, what, by);
    const json_t *at = report_at(root, path);
    assert_true(json_is_integer(at));
    uint64_t v = (uint64_t)json_integer_value(at);
    json_decref(root);
    return v;
}

static bool problem_said(struct rig *rig, const char *text)
{
    json_t *root = report(rig, "status", "");
    const json_t *problems = json_object_get(root, "problems");
    bool said = false;
    for (size_t i = 0; i < json_array_size(problems); i++) {
        said = said || strstr(json_string_value(json_array_get(problems, i)), text);
    }
    said = said && strcmp(json_string_value(json_object_get(root, "health")), "degraded") == 0;
    json_decref(root);
    return said;
}

void rig_expect_problem(struct rig *rig, const char *text)
{
    uint64_t deadline = kvd_mono_ns() + ANSWER_WAIT_S * KVD_NS_PER_S;
    while (!problem_said(rig, text)) {
        if (kvd_mono_ns() > deadline) {
            fail_msg("status doesn't say \"%s\"", text);
        }
        (void)sched_yield();
    }
}

void rig_assert_adds_up(struct rig *rig)
{
    static const char *const units[] = {"tokens", "blocks", "bytes"};
    json_t *root = report(rig, "hitrate", "");
    json_t *row = json_array_get(json_object_get(root, "rows"), 0);
    for (int u = 0; u < 3; u++) {
        json_int_t sum = 0;
        const char *key;
        json_t *v;
        json_object_foreach(json_object_get(row, "hit"), key, v)
        {
            sum += json_integer_value(json_object_get(v, units[u]));
        }
        json_object_foreach(json_object_get(row, "missed"), key, v)
        {
            sum += json_integer_value(json_object_get(v, units[u]));
        }
        assert_int_equal(
            sum, json_integer_value(json_object_get(json_object_get(row, "asked"), units[u])));
    }
    json_decref(root);
}

/* What finds the write-behind full is kept in dram only: a test that counts on its blocks lower
 * down waits. */
static void queue_to_have_room(struct rig *rig)
{
    uint64_t deadline = kvd_mono_ns() + 30 * KVD_NS_PER_S;
    while (rig_number(rig, "status", "", "tiers.1.queue_bytes") > 4 << 20) {
        assert_true(kvd_mono_ns() < deadline);
        (void)sched_yield();
    }
}

static uint32_t put_all(struct rig *rig, const char *tenant, const char *scenario,
                        const uint32_t *tokens, uint32_t first, uint32_t n, bool wait)
{
    struct kvd_prompt_ref ref =
        prompt_ref(rig, tenant, scenario, tokens, (first + n) * RIG_BLOCK_TOKENS);
    uint32_t done = 0;
    for (uint32_t end = first + n; first < end; first += KVD_WIRE_STAGING_SLOTS) {
        uint32_t some = end - first < KVD_WIRE_STAGING_SLOTS ? end - first : KVD_WIRE_STAGING_SLOTS;
        done += put_batch(rig, &ref, first, some);
        if (wait) {
            queue_to_have_room(rig);
        }
    }
    return done;
}

uint32_t rig_put(struct rig *rig, const char *tenant, const char *scenario, const uint32_t *tokens,
                 uint32_t n)
{
    return put_all(rig, tenant, scenario, tokens, 0, n, true);
}

uint32_t rig_put_range(struct rig *rig, const char *tenant, const char *scenario,
                       const uint32_t *tokens, uint32_t first, uint32_t n)
{
    return put_all(rig, tenant, scenario, tokens, first, n, true);
}

uint32_t rig_put_unwritten(struct rig *rig, const char *tenant, const char *scenario,
                           const uint32_t *tokens, uint32_t n)
{
    return put_all(rig, tenant, scenario, tokens, 0, n, false);
}

void rig_settle(struct rig *rig)
{
    uint64_t deadline = kvd_mono_ns() + 30 * KVD_NS_PER_S;
    while (rig_number(rig, "status", "", "tiers.1.queue_bytes") ||
           rig_number(rig, "status", "", "index.queued") ||
           rig_number(rig, "status", "", "tiers.0.pinned_bytes")) {
        assert_true(kvd_mono_ns() < deadline);
        (void)sched_yield();
    }
}
