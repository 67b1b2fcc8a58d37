/* What test_clients.c and its client agree on: space, prompts, payloads. */
#ifndef TESTS_SCENARIO_CLIENT_STEPS_H
#define TESTS_SCENARIO_CLIENT_STEPS_H

#include <stdint.h>

#include "kvdepot/kvdepot.h"

enum {
    STEPS_BLOCK_TOKENS = 16,
    STEPS_BLOCK_BYTES = 2 * 2 * 64 * 16 * 2,
    STEPS_OLD = 4, /* blocks that are there */
    STEPS_NEW = 4, /* blocks that the client puts */
    STEPS_BLOCKS = STEPS_OLD + STEPS_NEW,
    STEPS_TOKENS = STEPS_BLOCKS * STEPS_BLOCK_TOKENS + 1,
};

static inline struct kvd_space_config steps_space(void)
{
    return (struct kvd_space_config){.size = sizeof(struct kvd_space_config),
                                     .model = "steps",
                                     .weights = {9},
                                     .dtype = KVD_DTYPE_F16,
                                     .layout = KVD_LAYOUT_HEADS,
                                     .layers = 2,
                                     .kv_heads = 1,
                                     .head_dim = 64,
                                     .block_tokens = STEPS_BLOCK_TOKENS,
                                     .rope_base = 10000,
                                     .rope_scale = 1,
                                     .numerics = "test",
                                     .ranks = 1};
}

static inline void steps_tokens(uint32_t seed, uint32_t *ret)
{
    for (uint32_t i = 0; i < STEPS_TOKENS; i++) {
        ret[i] = seed * 100003 + i * 7;
    }
}

static inline void steps_payload(uint32_t seed, uint32_t index, uint8_t *ret)
{
    uint32_t x = seed * 2654435761u + index * 40503u + 1;
    for (uint32_t i = 0; i < STEPS_BLOCK_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        ret[i] = (uint8_t)(x >> 24);
    }
}

#endif
