/*
 * Stores that are kept as files, and what was put into them. A list says it, one thing a line:
 *
 *   made SECONDS                              UTC; retention counts from it
 *   chain SEED TENANT SCENARIO BLOCKS         tenant "-" is the default one
 *   block INDEX DIGEST                        of the chain before: XXH3-64 of the payload, in hex
 *   purged SEED TENANT SCENARIO BLOCKS        was put, and thrown away: nothing of it may be found
 *   count PATH NUMBER                         of the hit rate's report, for ever
 *
 * Tokens follow from the seed, payloads from the tokens, by golden_tokens and golden_payload. These
 * and the geometry never change: they are part of every golden store.
 */
#ifndef TESTS_SUPPORT_GOLDEN_STORE_H
#define TESTS_SUPPORT_GOLDEN_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cachesvc/config/config.h"
#include "cachesvc/core/service.h"

enum {
    GOLDEN_BLOCK_TOKENS = 4,
    GOLDEN_PAYLOAD_BYTES = 256, /* 2 x 1 layer x 1 head x 16 dims x 4 tokens x 2 bytes */
    GOLDEN_BLOCKS_MAX = 16,
    GOLDEN_TOKENS_MAX = GOLDEN_BLOCKS_MAX * GOLDEN_BLOCK_TOKENS + 1,
};

struct golden_chain {
    uint32_t seed;
    uint32_t blocks;
    char tenant[32];
    char scenario[32];
};

struct golden_store {
    struct kvd_config config;
    struct kvd_service *service;
    struct kvd_session *session;
    struct kvd_space_opened space;
    uint8_t *staging;
    const uint8_t *pool;
    uint64_t pool_bytes;
    struct kvd_diag told;
};

/* Opens the store in a folder, its dram empty, as a daemon would, with one client. NULL, or what
 * went wrong. */
const char *golden_open(struct golden_store *g, const char *folder);
void golden_close(struct golden_store *g);

void golden_tokens(uint32_t seed, uint32_t *ret_tokens); /* GOLDEN_TOKENS_MAX */
uint64_t golden_payload(const uint32_t *tokens, uint32_t block, uint8_t *ret); /* its digest */

/* Puts the blocks of a chain and waits until they are written down and indexed. */
const char *golden_put(struct golden_store *g, const struct golden_chain *chain);
/* Throws away all that a tenant has. */
const char *golden_purge(struct golden_store *g, const char *tenant);
/* Matches and loads; *ret_blocks: how many came; digests of their payloads as they lie in dram. */
const char *golden_get(struct golden_store *g, const struct golden_chain *chain,
                       uint32_t *ret_blocks, uint64_t *ret_digests);
/* A number of a report, by its path. */
bool golden_number(struct golden_store *g, const char *what, const char *path, uint64_t *ret);

#endif
