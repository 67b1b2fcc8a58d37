/* An engine's use of the cache. See cache.h. */
#include "engine/session/cache.h"

#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/protect.h"

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
    cache->failures++;
    if (!cache->away) {
        kvd_log_warn(cache->log, "cache: %s: %s; going on without it, all is computed here", what,
                     kvd_client_message(cache->client));
    }
    cache->away = true;
}

static struct kvd_space_config config_of(const struct kvd_space_desc *d)
{
    struct kvd_space_config config = {
        .size = sizeof(config),
        .model = d->model,
        .dtype = (enum kvd_dtype)d->kv_dtype,
        .layout = (enum kvd_layout)d->layout,
        .layers = d->layers,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .latent_dim = d->latent_dim,
        .latent_rope_dim = d->latent_rope_dim,
        .block_tokens = d->block_tokens,
        .numerics = d->numerics,
        .ranks = d->ranks,
    };
    memcpy(config.weights, d->weights.b, sizeof(config.weights));
    memcpy(config.adapter, d->adapter.b, sizeof(config.adapter));
    memcpy(&config.rope_base, &d->rope_base_bits, sizeof(config.rope_base));
    memcpy(&config.rope_scale, &d->rope_scale_bits, sizeof(config.rope_scale));
    return config;
}

static int space_open(struct kvd_cache *cache)
{
    cache->next_open_ns = kvd_mono_ns() + KVD_NS_PER_S;
    const struct kvd_space_config config = config_of(&cache->description.desc);
    return kvd_space_open(cache->client, &config, &cache->space);
}

/* A daemon that refused the space, because it had no room for one more, may take it after its next
 * start. */
static void space_again(struct kvd_cache *cache)
{
    if (cache->client && !cache->space && kvd_mono_ns() >= cache->next_open_ns) {
        note(cache, "opening the model's space", space_open(cache));
    }
}

int kvd_cache_open(struct kvd_cache *cache, struct kvd_client *client,
                   const struct kvd_model *model, const char *model_name, struct kvd_log *log,
                   struct kvd_diag *diag)
{
    *cache = (struct kvd_cache){.client = client, .log = log};
    int rc = kvd_model_space(model, model_name, diag, &cache->description);
    if (rc || !client) {
        return rc;
    }
    rc = space_open(cache);
    if (rc == KVD_CONTRADICTION || rc == KVD_BAD_REQUEST) {
        return kvd_fail(diag, rc, "cache: the model's space was refused: %s",
                        kvd_client_message(client));
    }
    if (rc) {
        note(cache, "opening the model's space", rc);
    } else if (!kvd_client_connected(client)) {
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
        if (good < n && KVD_PROTECT(LOAD_NOT_RETRIED)) {
            return 0; /* asking again would bring the same: from there on it is computed */
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
    if (KVD_PROTECT(SPACE_TRIED_AGAIN)) {
        space_again(cache);
    }
    if (cache->space) {
        int rc = kvd_match(cache->space, prompt, &match);
        if (rc == KVD_UNKNOWN_SCENARIO || (rc && !KVD_PROTECT(CACHE_FAILURE_IS_A_MISS))) {
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
