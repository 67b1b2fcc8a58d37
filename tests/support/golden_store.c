#include "golden_store.h"

#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/base/bytes.h"
#include "proto/base/clock.h"

#define GOLDEN_WAIT_NS (30 * KVD_NS_PER_S)

/* ---- content ---- */

static uint64_t next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

void golden_tokens(uint32_t seed, uint32_t *ret_tokens)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint32_t i = 0; i < GOLDEN_TOKENS_MAX; i++) {
        ret_tokens[i] = (uint32_t)(next(&x) >> 20) % 50000;
    }
}

uint64_t golden_payload(const uint32_t *tokens, uint32_t block, uint8_t *ret)
{
    uint64_t x = 1;
    for (uint32_t i = 0; i < (block + 1) * GOLDEN_BLOCK_TOKENS; i++) {
        x = (x ^ tokens[i]) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    }
    x |= 1;
    for (uint32_t at = 0; at < GOLDEN_PAYLOAD_BYTES; at += 8) {
        kvd_put_le64(ret + at, next(&x));
    }
    return kvd_sum(ret, GOLDEN_PAYLOAD_BYTES);
}

static struct kvd_space_desc space_desc(void)
{
    double one = 1.0;
    double base = 10000.0;
    struct kvd_space_desc d = {.model = "golden",
                               .weights = {{'g', 'o', 'l', 'd'}},
                               .kv_dtype = KVD_KV_F16,
                               .layout = KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
                               .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 16,
                               .block_tokens = GOLDEN_BLOCK_TOKENS,
                               .numerics = "golden",
                               .ranks = 1,
                               .payload_bytes = GOLDEN_PAYLOAD_BYTES};
    memcpy(&d.rope_base_bits, &base, 8);
    memcpy(&d.rope_scale_bits, &one, 8);
    return d;
}

/* ---- opening ---- */

static const char *tell(struct golden_store *g, const struct kvd_diag *diag)
{
    g->told = *diag;
    return g->told.text;
}

static int configure(struct golden_store *g, const char *folder, struct kvd_diag *diag)
{
    char pool[512];
    (void)snprintf(pool, sizeof(pool), "%s.pool", folder);
    const char *const options[][2] = {{"dir", folder},          {"dram.path", pool},
                                      {"dram.cap", "64MiB"},    {"nvme.cap", "16MiB"},
                                      {"nvme.segment", "1MiB"}, {"index.cache", "8MiB"}};
    int err = kvd_config_init(&g->config);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && !err; i++) {
        err = kvd_config_set(&g->config, options[i][0], options[i][1], options[i][0], diag);
    }
    return err ? err : kvd_config_finish(&g->config, diag);
}

const char *golden_open(struct golden_store *g, const char *folder)
{
    struct kvd_diag diag = {{0}};
    const struct kvd_space_desc desc = space_desc();
    memset(g, 0, sizeof(*g));
    int err = configure(g, folder, &diag);
    err = err ? err : kvd_service_open(&g->config, true, NULL, &diag, &g->service);
    err = err ? err : kvd_session_open(g->service, &g->session);
    err = err ? err : kvd_service_space_open(g->session, &desc, &diag, &g->space);
    if (err) {
        return tell(g, &diag);
    }
    g->staging = mmap(NULL, g->space.staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      g->space.staging_fd, 0);
    g->pool_bytes = kvd_service_pool_bytes(g->service);
    g->pool = mmap(NULL, g->pool_bytes, PROT_READ, MAP_SHARED, kvd_service_pool_fd(g->service), 0);
    return g->staging == MAP_FAILED || g->pool == MAP_FAILED ? "no memory can be mapped" : NULL;
}

void golden_close(struct golden_store *g)
{
    if (g->service) {
        (void)munmap(g->staging, g->space.staging_bytes);
        (void)munmap((void *)(uintptr_t)g->pool, g->pool_bytes);
        kvd_session_end(&g->session);
        kvd_service_close(&g->service);
    }
    kvd_config_fini(&g->config);
}

/* ---- waiting for callbacks ---- */

struct answer {
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool there; /* lock: mtx, and all below */
    int result;
    uint32_t count;
    struct kvd_wire_block rows[GOLDEN_BLOCKS_MAX];
};

static const struct answer answer_init = {.mtx = PTHREAD_MUTEX_INITIALIZER,
                                          .cond = PTHREAD_COND_INITIALIZER};

static void answer_give(struct answer *a, int result, uint32_t count)
{
    (void)pthread_mutex_lock(&a->mtx);
    a->there = true;
    a->result = result;
    a->count = count;
    (void)pthread_cond_signal(&a->cond);
    (void)pthread_mutex_unlock(&a->mtx);
}

static int answer_wait(struct answer *a)
{
    (void)pthread_mutex_lock(&a->mtx);
    while (!a->there) {
        (void)pthread_cond_wait(&a->cond, &a->mtx);
    }
    (void)pthread_mutex_unlock(&a->mtx);
    return a->result;
}

static void put_done(int result, uint32_t committed, uint32_t not_written_down, void *user)
{
    answer_give(user, result, committed - not_written_down);
}

static void load_done(int result, const struct kvd_wire_block *results, uint32_t n, uint32_t good,
                      void *user)
{
    struct answer *a = user;
    if (n) {
        memcpy(a->rows, results, n * sizeof(*results));
    }
    answer_give(a, result, good);
}

/* ---- putting and getting ---- */

static struct kvd_prompt_ref prompt_of(struct golden_store *g, const struct golden_chain *chain,
                                       const uint32_t *tokens, uint32_t n_tokens)
{
    bool anybody = strcmp(chain->tenant, "-") == 0;
    return (struct kvd_prompt_ref){.space_handle = g->space.handle,
                                   .tenant = anybody ? "" : chain->tenant,
                                   .tenant_bytes = anybody ? 0 : (uint32_t)strlen(chain->tenant),
                                   .scenario = chain->scenario,
                                   .tokens = tokens,
                                   .n_tokens = n_tokens};
}

static bool settled(struct golden_store *g)
{
    static const char *const paths[] = {"tiers.1.queue_bytes", "index.queued",
                                        "tiers.0.pinned_bytes"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        uint64_t n = 1;
        if (!golden_number(g, "status", paths[i], &n) || n != 0) {
            return false;
        }
    }
    return true;
}

const char *golden_put(struct golden_store *g, const struct golden_chain *chain)
{
    uint32_t tokens[GOLDEN_TOKENS_MAX];
    struct kvd_wire_block rows[GOLDEN_BLOCKS_MAX];
    struct kvd_diag diag = {{0}};
    struct kvd_put_out out = {0};
    struct answer a = answer_init;
    golden_tokens(chain->seed, tokens);
    struct kvd_prompt_ref ref = prompt_of(g, chain, tokens, chain->blocks * GOLDEN_BLOCK_TOKENS);
    if (kvd_service_put_begin(g->session, &ref, 0, chain->blocks, &diag, rows, &out)) {
        return tell(g, &diag);
    }
    if (out.granted_blocks != chain->blocks) {
        return "not all blocks were granted a place";
    }
    for (uint32_t i = 0; i < chain->blocks; i++) {
        (void)golden_payload(tokens, i, g->staging + rows[i].offset);
    }
    kvd_service_put_commit(g->session, out.put, false, put_done, &a);
    if (answer_wait(&a) || a.count != chain->blocks) {
        return "not all blocks were stored";
    }
    for (uint64_t until_ns = kvd_mono_ns() + GOLDEN_WAIT_NS; !settled(g);) {
        if (kvd_mono_ns() > until_ns) {
            return "what was put is not written down";
        }
        (void)sched_yield();
    }
    return NULL;
}

static void purge_done(int result, const struct kvd_diag *diag, const struct kvd_purge_out *out,
                       void *user)
{
    (void)diag;
    (void)out;
    answer_give(user, result, 0);
}

const char *golden_purge(struct golden_store *g, const char *tenant)
{
    const struct kvd_purge_ask ask = {.tenant = tenant, .tenant_bytes = (uint32_t)strlen(tenant)};
    struct answer a = answer_init;
    kvd_service_purge(g->session, &ask, purge_done, &a);
    return answer_wait(&a) ? "the purge failed" : NULL;
}

const char *golden_get(struct golden_store *g, const struct golden_chain *chain,
                       uint32_t *ret_blocks, uint64_t *ret_digests)
{
    uint32_t tokens[GOLDEN_TOKENS_MAX];
    struct kvd_wire_block rows[GOLDEN_BLOCKS_MAX];
    struct kvd_match_out match = {0};
    struct kvd_diag diag = {{0}};
    struct answer a = answer_init;
    golden_tokens(chain->seed, tokens);
    struct kvd_prompt_ref ref =
        prompt_of(g, chain, tokens, chain->blocks * GOLDEN_BLOCK_TOKENS + 1);
    *ret_blocks = 0;
    if (kvd_service_match(g->session, &ref, &diag, rows, GOLDEN_BLOCKS_MAX, &match)) {
        return tell(g, &diag);
    }
    if (match.hit_blocks == 0) {
        return NULL;
    }
    const struct kvd_load_ask ask = {
        .lease = match.lease, .n = match.hit_blocks, .deadline_ns = kvd_mono_ns() + GOLDEN_WAIT_NS};
    kvd_service_load(g->session, &ask, load_done, &a);
    if (answer_wait(&a)) {
        return "a load failed";
    }
    for (uint32_t i = 0; i < a.count; i++) {
        ret_digests[i] = kvd_sum(g->pool + a.rows[i].offset, a.rows[i].bytes);
    }
    *ret_blocks = a.count;
    kvd_service_release(g->session, match.lease, UINT32_MAX);
    return NULL;
}

bool golden_number(struct golden_store *g, const char *what, const char *path, uint64_t *ret)
{
    char *text = NULL;
    struct kvd_diag diag = {{0}};
    if (kvd_service_report(g->service, what, "", "", &diag, &text)) {
        return false;
    }
    json_t *root = json_loads(text, 0, NULL);
    const json_t *at = root;
    free(text);
    while (*path && at) {
        char part[64];
        size_t n = strcspn(path, ".");
        (void)snprintf(part, sizeof(part), "%.*s", (int)n, path);
        at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10))
                               : json_object_get(at, part);
        path += n + (path[n] == '.');
    }
    bool is = json_is_integer(at);
    *ret = is ? (uint64_t)json_integer_value(at) : 0;
    json_decref(root);
    return is;
}
