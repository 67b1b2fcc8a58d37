/*
 * An engine's use of the cache: prefix in, blocks out. Every failure is a miss: the caller
 * computes. Said in the log once when the cache goes away and once when it is back. Belongs to the
 * thread that runs the engine's requests.
 */
#ifndef ENGINE_SESSION_CACHE_H
#define ENGINE_SESSION_CACHE_H

#include "engine/graph/graph.h"
#include "engine/model/model.h"
#include "kvdepot/kvdepot.h"
#include "proto/base/log.h"

enum { KVD_ENGINE_BLOCK_TOKENS = 64 };

struct kvd_cache {
    struct kvd_client *client; /* borrowed */
    struct kvd_space *space;   /* the client's; NULL: no cache */
    struct kvd_log *log;
    bool away; /* the last call failed, and that was said */
};

/* Opens the model's space. client may be NULL. Fails where going on would hide a mistake that never
 * heals: -KVD_E_CONTRADICTION, -KVD_E_BAD_REQUEST; other failures are logged and leave no cache. */
int kvd_cache_open(struct kvd_cache *cache, struct kvd_client *client,
                   const struct kvd_model *model, const char *model_name, struct kvd_log *log,
                   struct kvd_diag *diag);

/* Blocks from the cache, by where they were. */
struct kvd_cache_hit {
    uint32_t blocks;
    uint32_t by_tier[KVD_IN_SHARED + 1];
};

/* Longest stored prefix of the prompt into its pages; kv has pages for all whole blocks of the
 * prompt. Nothing found and nothing reached are both success with 0 blocks.
 * -KVD_E_UNKNOWN_SCENARIO: the daemon has no such retention class. */
int kvd_cache_load(struct kvd_cache *cache, const struct kvd_prompt *prompt,
                   const struct kvd_kv_view *kv, struct kvd_diag *diag,
                   struct kvd_cache_hit *ret_hit);

/* Stores blocks [first, first + n), whose tokens are final and whose KV is computed. *ret_stored:
 * how many were new to the cache. False: the cache failed, and what follows these blocks would be a
 * tail without a head. */
bool kvd_cache_put(struct kvd_cache *cache, const struct kvd_prompt *prompt,
                   const struct kvd_kv_view *kv, uint32_t first, uint32_t n, uint32_t *ret_stored);

#endif
