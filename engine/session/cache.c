/* An engine's use of the cache. See cache.h. */
#include "engine/session/cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Blocks that one call of load asks for. A deadline that passes costs that batch, not what was
 * loaded before it. */
enum { LOAD_BATCH = 32, PUT_BATCH = 16 };

/* Notes how a call ended, and says it when that changed. */
static void note(struct kvd_cache *cache, const char *what, int rc)
{
    if (rc == 0) {
        if (cache->away) {
            kvd_log_info(cache->log, "cache: answers again");
        }
        cache->away = false;
        return;
    }
    if (!cache->away) {
        kvd_log_warn(cache->log, "cache: %s: %s; going on without it, all is computed here", what,
                     kvd_client_message(cache->client));
    }
    cache->away = true;
}

int kvd_cache_open(struct kvd_cache *cache, struct kvd_client *client,
                   const struct kvd_model *model, const char *model_name, struct kvd_log *log,
                   struct kvd_diag *diag)
{
    *cache = (struct kvd_cache){.client = client, .log = log};
    if (!client) {
        return 0;
    }
    /* what shapes KV besides the weights, and stands nowhere in the geometry */
    char numerics[64];
    (void)snprintf(numerics, sizeof(numerics), "%s rms-eps=%a", KVD_NUMERICS,
                   (double)model->params.rms_eps);
    struct kvd_space_config config = {
        .size = sizeof(config),
        .model = model_name,
        .dtype = KVD_DTYPE_F16,
        .layout = KVD_LAYOUT_HEADS,
        .layers = model->params.layers,
        .kv_heads = model->params.kv_heads,
        .head_dim = model->params.head_dim,
        .block_tokens = KVD_ENGINE_BLOCK_TOKENS,
        .rope_base = model->params.rope_base,
        .rope_scale = 1.0,
        .numerics = numerics,
        .ranks = 1,
    };
    memcpy(config.weights, model->weights.b, sizeof(config.weights));
    const int rc = kvd_space_open(client, &config, &cache->space);
    if (rc == KVD_CONTRADICTION || rc == KVD_BAD_REQUEST) {
        return kvd_fail(diag, rc, "cache: the model's space was refused: %s",
                        kvd_client_message(client));
    }
    if (rc) {
        note(cache, "opening the model's space", rc);
        return 0;
    }
    if (!kvd_client_connected(client)) {
        note(cache, "reaching the daemon", KVD_UNAVAILABLE);
    }
    return 0;
}

/* Loads the blocks of a lease in order; stops at the first that isn't good. */
static int load_lease(struct kvd_cache *cache, const struct kvd_match_result *match,
                      const struct kvd_kv_view *kv, struct kvd_cache_hit *hit)
{
    while (hit->blocks < match->hit_blocks) {
        void *dest[LOAD_BATCH];
        const uint32_t first = hit->blocks;
        const uint32_t left = match->hit_blocks - first;
        const uint32_t n = left < LOAD_BATCH ? left : LOAD_BATCH;
        for (uint32_t i = 0; i < n; i++) {
            dest[i] = kvd_arena_page(kv->arena, kv->pages[first + i]);
        }
        uint32_t good = 0;
        const int rc = kvd_load(match->lease, first, n, dest, &good);
        if (rc) {
            return rc;
        }
        for (uint32_t i = first; i < first + good; i++) {
            hit->by_tier[kvd_lease_tier(match->lease, i)]++;
        }
        hit->blocks += good;
        if (good < n) {
            return 0;
        }
    }
    return 0;
}

int kvd_cache_load(struct kvd_cache *cache, const struct kvd_prompt *prompt,
                   const struct kvd_kv_view *kv, struct kvd_diag *diag,
                   struct kvd_cache_hit *ret_hit)
{
    struct kvd_cache_hit hit = {0};
    struct kvd_match_result match = {0};
    if (cache->space) {
        int rc = kvd_match(cache->space, prompt, &match);
        if (rc == KVD_UNKNOWN_SCENARIO) {
            return kvd_fail(diag, rc, "cache scenario '%.64s' is none of the daemon's: %s",
                            prompt->scenario, kvd_client_message(cache->client));
        }
        note(cache, "looking a prompt up", rc);
        if (rc == 0 && match.lease) {
            rc = load_lease(cache, &match, kv, &hit);
            note(cache, "loading blocks", rc);
            kvd_lease_release(&match.lease);
        }
    }
    *ret_hit = hit;
    return 0;
}

bool kvd_cache_put(struct kvd_cache *cache, const struct kvd_prompt *prompt,
                   const struct kvd_kv_view *kv, uint32_t first, uint32_t n, uint32_t *ret_stored)
{
    uint32_t stored = 0;
    int rc = cache->space ? 0 : KVD_UNAVAILABLE;
    for (uint32_t at = 0; at < n && rc == 0; at += PUT_BATCH) {
        const void *src[PUT_BATCH];
        const uint32_t m = n - at < PUT_BATCH ? n - at : PUT_BATCH;
        for (uint32_t i = 0; i < m; i++) {
            src[i] = kvd_arena_page(kv->arena, kv->pages[first + at + i]);
        }
        struct kvd_put_result result = {0};
        rc = kvd_put(cache->space, prompt, first + at, m, src, &result);
        note(cache, "storing blocks", rc);
        if (rc == 0) {
            stored += result.committed;
        }
    }
    *ret_stored = stored;
    return rc == 0;
}
