/*
 * An engine's use of the cache: prefix in, blocks out. Every failure is a miss: the caller
 * computes. Said in the log once when the cache goes away and once when it is back. Belongs to the
 * thread that runs the engine's requests.
 *
 * What a failing daemon may cost a request is bounded: one deadline of the client for looking up or
 * one for loading, before the first token, and one for a put after it; then the client answers at
 * once until the daemon is back. Nothing is tried twice: what a load doesn't bring is computed.
 */
#ifndef ENGINE_SESSION_CACHE_H
#define ENGINE_SESSION_CACHE_H

#include "engine/graph/graph.h"
#include "engine/model/space.h"
#include "kvdepot/kvdepot.h"
#include "proto/base/log.h"

struct kvd_cache {
    struct kvd_client *client; /* borrowed; NULL: no cache */
    struct kvd_space *space;   /* the client's; NULL: refused for now, tried again */
    struct kvd_model_space description;
    uint64_t next_open_ns;
    struct kvd_log *log;
    bool away;         /* the last call failed, and that was said */
    uint64_t failures; /* calls that failed, since it was opened */
};

/* Opens the model's space. client may be NULL. Fails where going on would hide a mistake that never
 * heals: -KVD_E_CONTRADICTION, -KVD_E_BAD_REQUEST. Other failures are logged; a space that was
 * refused is tried again with later requests, at most once a second. model_name is borrowed. Not to
 * be moved in memory afterwards. */
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
